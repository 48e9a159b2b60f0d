// SPDX-License-Identifier: Apache-2.0
#include "data/dataset.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/exceptions.h"
#include "data/dataset_node.h"
#include "ops/loops/philox.h"

namespace millrace::data {

Dataset::Dataset()
    : status_(absl::FailedPreconditionError(
          "Dataset: it must be made by a source or a transformation, got none")) {}

Dataset Dataset::FromNode(std::shared_ptr<const DatasetNode> node) {
  Dataset dataset;
  if (node == nullptr) return dataset;
  for (const Dataset& input : node->inputs()) {
    if (!input.status().ok()) return input;
  }
  dataset.status_ = absl::OkStatus();
  dataset.node_ = std::move(node);
  return dataset;
}

Dataset Dataset::Error(Status error) {
  Dataset dataset;
  if (!error.ok()) dataset.status_ = std::move(error);
  return dataset;
}

const ElementSpec& Dataset::spec() const {
  static const ElementSpec* const unknown = new ElementSpec;
  return node_ == nullptr ? *unknown : node_->spec();
}

int64_t Dataset::cardinality() const {
  return node_ == nullptr ? kUnknownCardinality : node_->cardinality();
}

std::string Dataset::DebugString() const {
  if (node_ == nullptr) return status_.ToString();
  const std::vector<Dataset>& inputs = node_->inputs();
  if (inputs.empty()) return node_->Text();
  if (inputs.size() == 1) return absl::StrCat(inputs[0].DebugString(), ".", node_->Text());
  return absl::StrCat("[",
                      absl::StrJoin(inputs, ", ",
                                    [](std::string* out, const Dataset& input) {
                                      absl::StrAppend(out, input.DebugString());
                                    }),
                      "].", node_->Text());
}

StatusOr<std::unique_ptr<Iterator>> Dataset::MakeIterator(const IteratorOptions& options) const {
  return Iterator::Make(*this, options);
}

StatusOr<Element> Dataset::Reduce(
    Element initial, const std::function<StatusOr<Element>(Element, Element)>& function,
    const IteratorOptions& options) const {
  MR_RETURN_IF_ERROR(status_);
  if (cardinality() == kInfiniteCardinality) {
    return InvalidArgument("Dataset.Reduce: the dataset must be finite, got ", DebugString());
  }
  MR_ASSIGN_OR_RETURN(const std::unique_ptr<Iterator> iterator, this->MakeIterator(options));
  for (;;) {
    Element element;
    MR_ASSIGN_OR_RETURN(const bool more, iterator->Next(&element));
    if (!more) return initial;
    MR_ASSIGN_OR_RETURN(initial, NoExceptions("Dataset.Reduce", [&] {
                          return function(std::move(initial), std::move(element));
                        }));
  }
}

StatusOr<bool> ElementIterator::NextBlock(int64_t, Block*) {
  return Internal("Dataset: blocks must be asked only of what serves them");
}

Status EndableIterator::Save(StateWriter* state) {
  state->PutBool(ended_);
  return input_->Save(state);
}

Status EndableIterator::Restore(StateReader* state) {
  MR_ASSIGN_OR_RETURN(ended_, state->GetBool());
  return input_->Restore(state);
}

StatusOr<std::unique_ptr<ElementIterator>> MakeInput(const DatasetNode& node,
                                                     const IteratorContext& context, size_t index) {
  return node.input(index).MakeIterator(context.Input(index));
}

namespace {

// A bijection that spreads bits (the finaliser of SplitMix64).
uint64_t Mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

IteratorContext IteratorContext::Input(uint64_t index) const {
  IteratorContext input = *this;
  input.path = Mixed(path * 31 + index + 1);
  return input;
}

Status IteratorContext::CheckNotCancelled() const {
  if (ABSL_PREDICT_TRUE(!cancellation->IsCancelled())) return absl::OkStatus();
  return absl::CancelledError("Iterator: it was cancelled");
}

IteratorContext::Seeds IteratorContext::SeedsFor(int64_t seed, int64_t seed2,
                                                 bool new_each_pass) const {
  const IteratorOptions& options = environment->options;
  Seeds seeds = {static_cast<uint64_t>(seed), static_cast<uint64_t>(seed2)};
  if (seed == 0 && seed2 == 0) {
    seeds = {Mixed(environment->base_seed ^ Mixed(options.task + 1)), path};
  } else if (options.mix_task_into_seeds && options.task != 0) {
    seeds.second ^= Mixed(options.task);
  }
  if (!new_each_pass) return seeds;
  // The pass's two words of the generator with these seeds, as TensorFlow draws them.
  const math::PhiloxStream stream(seeds.first, seeds.second);
  const math::PhiloxStream::Block words = stream.At(pass / 2).Next();
  const size_t first = pass % 2 == 0 ? 0 : 2;
  return {words[first], words[first + 1]};
}

ChildCancellation::ChildCancellation(CancellationManager* parent) : parent_(parent) {
  if (!parent_->Register(&token_, [this] { own_.StartCancel(); })) {
    token_ = -1;
    own_.StartCancel();
  }
}

ChildCancellation::~ChildCancellation() {
  if (token_ != -1) parent_->Deregister(token_);
  own_.StartCancel();
}

}  // namespace millrace::data
