// SPDX-License-Identifier: Apache-2.0
//
// Cache in memory. What is kept belongs to the Iterator and to the place of the Cache in it; the
// passes of a Repeat share it.
//
// The state of an iterator is how many elements it has given: restoring reads the input again up to
// there (to its end, when the cache was complete).

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/mutex.h"
#include "data/dataset.h"
#include "data/dataset_node.h"

namespace millrace::data {
namespace {

// Immutable once it is in the environment: complete.
using Elements = std::vector<Element>;

class CacheNode : public DatasetNode {
 public:
  explicit CacheNode(const std::vector<Dataset>& inputs)
      : DatasetNode(inputs[0].spec(), inputs[0].cardinality(), inputs) {}
  std::string Text() const override { return "Cache"; }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
};

class CacheIterator : public ElementIterator {
 public:
  CacheIterator(const CacheNode* node, const IteratorContext& context)
      : node_(node), context_(context) {}
  Status Begin() {
    {
      MutexLock lock(&context_.environment->mu);
      const auto found = context_.environment->shared.find(context_.path);
      if (found != context_.environment->shared.end()) {
        complete_ = std::static_pointer_cast<const Elements>(found->second);
      }
    }
    if (complete_ == nullptr) {
      // What is kept must not depend on the pass that made it: a state does not tell.
      IteratorContext first = context_;
      first.pass = 0;
      MR_ASSIGN_OR_RETURN(input_, MakeInput(*node_, first));
    }
    return absl::OkStatus();
  }

  StatusOr<bool> Next(Element* element) override {
    if (complete_ != nullptr) {
      if (next_ == complete_->size()) return false;
      *element = (*complete_)[next_++];
      return true;
    }
    StatusOr<bool> more = input_->Next(element);
    if (!more.ok()) {
      whole_ = false;
      return more;
    }
    if (*more) {
      ++next_;
      if (whole_) filling_->push_back(*element);
      return true;
    }
    if (whole_) {
      complete_ = filling_;
      MutexLock lock(&context_.environment->mu);
      context_.environment->shared[context_.path] = filling_;
    }
    return false;
  }
  bool NextIsReady() const override { return complete_ != nullptr; }
  bool NeverWaits() const override { return complete_ != nullptr || input_->NeverWaits(); }

  Status Save(StateWriter* state) override {
    state->PutBool(complete_ != nullptr);
    state->PutInt(static_cast<int64_t>(next_));
    state->PutBool(whole_);
    return whole_ ? absl::OkStatus() : input_->Save(state);
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(const bool complete, state->GetBool());
    MR_ASSIGN_OR_RETURN(const int64_t position, state->GetInt(0, INT64_MAX));
    const size_t next = static_cast<size_t>(position);
    MR_ASSIGN_OR_RETURN(const bool whole, state->GetBool());
    if (!whole) {
      if (input_ == nullptr) return absl::DataLossError("Iterator state: a cache has no input");
      whole_ = false;
      next_ = next;
      return input_->Restore(state);
    }
    Element element;
    while (complete_ == nullptr && (complete || next_ < next)) {
      MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      MR_ASSIGN_OR_RETURN(const bool more, Next(&element));
      if (!more) break;
    }
    const size_t size = complete_ != nullptr ? complete_->size() : next_;
    if (next > size) {
      return absl::DataLossError(absl::StrCat("Iterator state: the input of Cache must give ", next,
                                              " elements again, got ", size));
    }
    next_ = next;
    return absl::OkStatus();
  }

 private:
  const CacheNode* const node_;
  const IteratorContext context_;
  std::unique_ptr<ElementIterator> input_;
  std::shared_ptr<const Elements> complete_;
  const std::shared_ptr<Elements> filling_ = std::make_shared<Elements>();
  bool whole_ = true;  // filling_ has what was given
  size_t next_ = 0;
};

StatusOr<std::unique_ptr<ElementIterator>> CacheNode::MakeIterator(
    const IteratorContext& context) const {
  auto iterator = std::make_unique<CacheIterator>(this, context);
  MR_RETURN_IF_ERROR(iterator->Begin());
  return iterator;
}

}  // namespace

Dataset Dataset::Cache() const { return MakeDataset<CacheNode>({*this}); }

}  // namespace millrace::data
