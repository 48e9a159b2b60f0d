// SPDX-License-Identifier: Apache-2.0
#include "data/directed_interleave.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "data/dataset_node.h"

namespace millrace::data {
namespace {

constexpr absl::string_view kWhere = "Dataset.DirectedInterleave";

// Input 0 is the selector.
class DirectedNode : public DatasetNode {
 public:
  DirectedNode(const std::vector<Dataset>& inputs, ElementSpec spec)
      : DatasetNode(std::move(spec), inputs[0].cardinality() == 0 ? 0 : kUnknownCardinality,
                    inputs) {}
  std::string Text() const override {
    return absl::StrCat("DirectedInterleave(", inputs().size() - 1, ")");
  }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
};

class DirectedIterator : public ElementIterator {
 public:
  DirectedIterator(const DirectedNode* node, const IteratorContext& context,
                   std::unique_ptr<ElementIterator> selector,
                   std::vector<std::unique_ptr<ElementIterator>> inputs)
      : node_(node),
        context_(context),
        selector_(std::move(selector)),
        inputs_(std::move(inputs)),
        ended_(inputs_.size(), false),
        num_left_(inputs_.size()) {}

  StatusOr<bool> Next(Element* element) override {
    while (num_left_ > 0) {
      MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      Element choice;
      MR_ASSIGN_OR_RETURN(const bool chosen, selector_->Next(&choice));
      if (!chosen) {
        num_left_ = 0;
        break;
      }
      MR_ASSIGN_OR_RETURN(const size_t i, Chosen(choice));
      if (ended_[i]) continue;
      MR_ASSIGN_OR_RETURN(const bool more, inputs_[i]->Next(element));
      if (!more) {
        End(i);
        continue;
      }
      MR_RETURN_IF_ERROR(CheckElement(kWhere, node_->spec(), *element));
      return true;
    }
    return false;
  }

  Status Save(StateWriter* state) override {
    state->PutBool(num_left_ == 0);
    MR_RETURN_IF_ERROR(selector_->Save(state));
    for (size_t i = 0; i < inputs_.size(); ++i) {
      state->PutBool(ended_[i]);
      MR_RETURN_IF_ERROR(inputs_[i]->Save(state));
    }
    return absl::OkStatus();
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(const bool is_over, state->GetBool());
    MR_RETURN_IF_ERROR(selector_->Restore(state));
    for (size_t i = 0; i < inputs_.size(); ++i) {
      MR_ASSIGN_OR_RETURN(const bool has_ended, state->GetBool());
      if (has_ended) End(i);
      MR_RETURN_IF_ERROR(inputs_[i]->Restore(state));
    }
    if (is_over) num_left_ = 0;
    return absl::OkStatus();
  }

 private:
  StatusOr<size_t> Chosen(const Element& choice) const {
    if (choice.size() != 1 || choice[0].dtype() != DT_INT64 || !choice[0].shape().is_scalar()) {
      return InvalidArgument(kWhere, ": the selector must give int64 scalars, got ",
                             SpecText(SpecOf(choice)));
    }
    const int64_t i = choice[0].raw_scalar<int64_t>();
    if (i < 0 || i >= static_cast<int64_t>(inputs_.size())) {
      return InvalidArgument(kWhere, ": the selector must give numbers of inputs, 0 to ",
                             inputs_.size() - 1, ", got ", i);
    }
    return static_cast<size_t>(i);
  }
  void End(size_t i) {
    ended_[i] = true;
    --num_left_;
  }

  const DirectedNode* const node_;
  const IteratorContext context_;
  const std::unique_ptr<ElementIterator> selector_;
  const std::vector<std::unique_ptr<ElementIterator>> inputs_;
  std::vector<bool> ended_;  // by input
  size_t num_left_;          // that have not; 0: it is over
};

StatusOr<std::unique_ptr<ElementIterator>> DirectedNode::MakeIterator(
    const IteratorContext& context) const {
  MR_ASSIGN_OR_RETURN(std::unique_ptr<ElementIterator> selector, MakeInput(*this, context, 0));
  std::vector<std::unique_ptr<ElementIterator>> iterators;
  for (size_t i = 1; i < inputs().size(); ++i) {
    MR_ASSIGN_OR_RETURN(std::unique_ptr<ElementIterator> input, MakeInput(*this, context, i));
    iterators.push_back(std::move(input));
  }
  return std::make_unique<DirectedIterator>(this, context, std::move(selector),
                                            std::move(iterators));
}

}  // namespace

Dataset DirectedInterleave(const Dataset& selector, std::vector<Dataset> inputs) {
  if (!selector.status().ok()) return selector;
  if (inputs.empty()) {
    return Dataset::Error(InvalidArgument(kWhere, ": there must be an input, got none"));
  }
  const StatusOr<ElementSpec> of_selector =
      MergeSpecs(kWhere, selector.spec(), {{DT_INT64, PartialShape::Scalar()}});
  if (!of_selector.ok()) {
    return Dataset::Error(InvalidArgument(kWhere, ": the selector must give int64 scalars, got ",
                                          SpecText(selector.spec())));
  }
  ElementSpec spec = inputs[0].spec();
  for (const Dataset& input : inputs) {
    if (!input.status().ok()) return input;
    if (spec.empty() || input.spec().empty()) {
      spec.clear();
      continue;
    }
    StatusOr<ElementSpec> common = CommonSpec(kWhere, spec, input.spec());
    if (!common.ok()) return Dataset::Error(common.status());
    spec = *std::move(common);
  }
  inputs.insert(inputs.begin(), selector);
  return MakeDataset<DirectedNode>(inputs, std::move(spec));
}

}  // namespace millrace::data
