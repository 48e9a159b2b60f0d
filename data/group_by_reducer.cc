// SPDX-License-Identifier: Apache-2.0
#include "data/group_by_reducer.h"

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/exceptions.h"
#include "data/dataset_node.h"

namespace millrace::data {
namespace {

constexpr absl::string_view kWhere = "Dataset.GroupByReducer";

class ReducerNode : public DatasetNode {
 public:
  ReducerNode(const std::vector<Dataset>& inputs, GroupByReducerFunctions functions,
              ElementSpec spec)
      : DatasetNode(std::move(spec), inputs[0].cardinality() == 0 ? 0 : kUnknownCardinality,
                    inputs),
        functions_(std::move(functions)) {}
  std::string Text() const override { return "GroupByReducer"; }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  const GroupByReducerFunctions& functions() const { return functions_; }

 private:
  const GroupByReducerFunctions functions_;
};

class ReducerIterator : public ElementIterator {
 public:
  ReducerIterator(const ReducerNode* node, const IteratorContext& context,
                  std::unique_ptr<ElementIterator> input)
      : node_(node), context_(context), input_(std::move(input)) {}

  StatusOr<bool> Next(Element* element) override {
    while (!input_ended_) {
      MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      Element one;
      MR_ASSIGN_OR_RETURN(const bool more, input_->Next(&one));
      if (more) {
        MR_RETURN_IF_ERROR(NoExceptions(kWhere, [&] { return Add(std::move(one)); }));
      } else {
        input_ended_ = true;
      }
    }
    if (states_.empty()) return false;
    // Gone, also where finalize fails: the next call goes on behind it.
    const Element state = std::move(states_.begin()->second);
    states_.erase(states_.begin());
    MR_ASSIGN_OR_RETURN(*element, NoExceptions(kWhere, [&] {
      return node_->functions().finalize(context_.cancellation, state);
    }));
    MR_RETURN_IF_ERROR(CheckElement(kWhere, node_->spec(), *element));
    return true;
  }

  Status Save(StateWriter* state) override {
    state->PutBool(input_ended_);
    state->PutUint(states_.size());
    for (const auto& [key, value] : states_) {
      state->PutInt(key);
      MR_RETURN_IF_ERROR(state->PutElement(value));
    }
    return input_->Save(state);
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(input_ended_, state->GetBool());
    MR_ASSIGN_OR_RETURN(const int64_t count, state->GetCount());
    for (int64_t i = 0; i < count; ++i) {
      MR_ASSIGN_OR_RETURN(const int64_t key, state->GetInt(INT64_MIN, INT64_MAX));
      MR_ASSIGN_OR_RETURN(states_[key], state->GetElement());
    }
    return input_->Restore(state);
  }

 private:
  Status Add(Element element) {
    const GroupByReducerFunctions& f = node_->functions();
    CancellationManager* const cancellation = context_.cancellation;
    MR_ASSIGN_OR_RETURN(const int64_t key, f.key(cancellation, element));
    const auto known = states_.find(key);
    Element state;
    if (known != states_.end()) {
      state = known->second;
    } else {
      MR_ASSIGN_OR_RETURN(state, f.init(cancellation, key));
    }
    MR_ASSIGN_OR_RETURN(state, f.reduce(cancellation, std::move(state), std::move(element)));
    states_.insert_or_assign(key, std::move(state));
    return absl::OkStatus();
  }

  const ReducerNode* const node_;
  const IteratorContext context_;
  const std::unique_ptr<ElementIterator> input_;
  std::map<int64_t, Element> states_;
  bool input_ended_ = false;
};

StatusOr<std::unique_ptr<ElementIterator>> ReducerNode::MakeIterator(
    const IteratorContext& context) const {
  return MakeOver<ReducerNode, ReducerIterator>(this, context);
}

}  // namespace

Dataset GroupByReducer(const Dataset& input, GroupByReducerFunctions functions, ElementSpec spec) {
  if (!input.status().ok()) return input;
  if (functions.key == nullptr || functions.init == nullptr || functions.reduce == nullptr ||
      functions.finalize == nullptr) {
    return Dataset::Error(InvalidArgument(kWhere, ": the function must be one, got none"));
  }
  return MakeDataset<ReducerNode>({input}, std::move(functions), std::move(spec));
}

}  // namespace millrace::data
