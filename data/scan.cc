// SPDX-License-Identifier: Apache-2.0
//
// Scan: a Map whose function has a state.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/exceptions.h"
#include "data/dataset.h"
#include "data/dataset_node.h"

namespace millrace::data {
namespace {

class ScanNode : public DatasetNode {
 public:
  ScanNode(const std::vector<Dataset>& inputs, Element initial_state, ScanFunction function,
           ElementSpec spec)
      : DatasetNode(std::move(spec), inputs[0].cardinality(), inputs),
        initial_state_(std::move(initial_state)),
        function_(std::move(function)) {}
  std::string Text() const override { return "Scan"; }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  const Element& initial_state() const { return initial_state_; }
  const ScanFunction& function() const { return function_; }

 private:
  const Element initial_state_;
  const ScanFunction function_;
};

// An error of the function leaves the state as it was.
class ScanIterator : public ElementIterator {
 public:
  ScanIterator(const ScanNode* node, const IteratorContext& context,
               std::unique_ptr<ElementIterator> input)
      : node_(node), context_(context), input_(std::move(input)), state_(node->initial_state()) {}
  StatusOr<bool> Next(Element* element) override {
    if (ended_) return false;
    MR_ASSIGN_OR_RETURN(const bool more, input_->Next(element));
    if (!more) return false;
    auto result = NoExceptions("Dataset.Scan", [&] {
      const TimedWork timed(&context_.environment->function_time, &num_timed_);
      return node_->function()(context_.cancellation, state_, std::move(*element));
    });
    ended_ = absl::IsOutOfRange(result.status());
    if (ended_) return false;
    MR_RETURN_IF_ERROR(result.status());
    state_ = std::move(result->first);
    *element = std::move(result->second);
    MR_RETURN_IF_ERROR(CheckElement("Dataset.Scan", node_->spec(), *element));
    return true;
  }
  Status Save(StateWriter* state) override {
    state->PutBool(ended_);
    MR_RETURN_IF_ERROR(state->PutElement(state_));
    return input_->Save(state);
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(ended_, state->GetBool());
    MR_ASSIGN_OR_RETURN(state_, state->GetElement());
    return input_->Restore(state);
  }

 private:
  const ScanNode* const node_;
  const IteratorContext context_;
  const std::unique_ptr<ElementIterator> input_;
  Element state_;
  int64_t num_timed_ = 0;
  bool ended_ = false;  // the function said so
};

StatusOr<std::unique_ptr<ElementIterator>> ScanNode::MakeIterator(
    const IteratorContext& context) const {
  return MakeOver<ScanNode, ScanIterator>(this, context);
}

}  // namespace

Dataset Dataset::Scan(Element initial_state, ScanFunction function, ElementSpec spec) const {
  if (!status_.ok()) return *this;
  if (function == nullptr) {
    return Error(InvalidArgument("Dataset.Scan: the function must be one, got none"));
  }
  return MakeDataset<ScanNode>({*this}, std::move(initial_state), std::move(function),
                               std::move(spec));
}

}  // namespace millrace::data
