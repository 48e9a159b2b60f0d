// SPDX-License-Identifier: Apache-2.0
//
// Cache in memory. What is kept belongs to the Iterator and to the place of the Cache in it; the
// passes of a Repeat share it.
//
// Small rows of known shapes (data/row_store.h) that come in blocks are kept packed, and come in
// blocks again. Other elements are objects.
//
// The state of an iterator is how many elements it has given: restoring reads the input again up to
// there (to its end, when the cache was complete).

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/mutex.h"
#include "data/dataset.h"
#include "data/dataset_node.h"
#include "data/row_store.h"

namespace millrace::data {
namespace {

// Of a block that is given out.
constexpr int64_t kMostRows = 4096;

// Immutable once it is in the environment: complete.
struct Kept {
  std::optional<RowStore> rows;
  std::vector<Element> elements;  // where there are no rows
  size_t size() const {
    return rows.has_value() ? static_cast<size_t>(rows->size()) : elements.size();
  }
};

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
        complete_ = std::static_pointer_cast<const Kept>(found->second);
      }
    }
    if (complete_ == nullptr) {
      // What is kept must not depend on the pass that made it: a state does not tell.
      IteratorContext first = context_;
      first.pass = 0;
      MR_ASSIGN_OR_RETURN(input_, MakeInput(*node_, first));
      if (input_->ServesBlocks() && RowStore::CanHold(node_->spec())) {
        filling_->rows.emplace(node_->spec());
      }
    }
    const Kept& kept = complete_ != nullptr ? *complete_ : *filling_;
    if (kept.rows.has_value()) blocks_.emplace(node_->spec());
    return absl::OkStatus();
  }

  StatusOr<bool> Next(Element* element) override {
    if (complete_ != nullptr) {
      if (next_ == complete_->size()) return false;
      if (!blocks_) {
        *element = complete_->elements[next_];
      } else {
        MR_RETURN_IF_ERROR(complete_->rows->Copy(static_cast<int64_t>(next_), element));
      }
      ++next_;
      return true;
    }
    MR_ASSIGN_OR_RETURN(const bool more, Noted(input_->Next(element)));
    if (!more) return false;
    ++next_;
    if (!whole_) return true;
    if (blocks_) {
      // What is not of the spec is not kept; a caller that needs it says so.
      whole_ = filling_->rows->Put("Dataset.Cache", *element, filling_->rows->size()).ok();
    } else {
      filling_->elements.push_back(*element);
    }
    return true;
  }

  bool ServesBlocks() const override { return blocks_.has_value(); }
  StatusOr<bool> NextBlock(int64_t max_rows, Block* block) override {
    if (complete_ != nullptr) {
      const RowStore& rows = *complete_->rows;
      const int64_t first = static_cast<int64_t>(next_);
      const int64_t n = std::min({max_rows, kMostRows, rows.size() - first});
      if (n == 0) return false;
      MR_ASSIGN_OR_RETURN(RowStore::NewRows made, blocks_->AllocateRows(n, rows.has_long_texts()));
      for (int64_t row = 0; row < n; ++row) rows.CopyRow(first + row, row, made);
      next_ += static_cast<size_t>(n);
      *block = std::move(made.block);
      return true;
    }
    MR_ASSIGN_OR_RETURN(const bool more, Noted(input_->NextBlock(max_rows, block)));
    if (!more) return false;
    next_ += static_cast<size_t>(block->rows);
    whole_ = whole_ && filling_->rows->Check("Dataset.Cache", *block).ok();
    if (!whole_) return true;
    RowStore& rows = *filling_->rows;
    const RowStore::RowsOf from = rows.Rows(*block);
    for (int64_t row = 0; row < block->rows; ++row) rows.Put(from, row, rows.size());
    return true;
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
  // What the input has answered: an error leaves a gap, and at its end all is there.
  StatusOr<bool> Noted(StatusOr<bool> more) {
    if (!more.ok()) {
      whole_ = false;
    } else if (!*more && whole_) {
      complete_ = filling_;
      MutexLock lock(&context_.environment->mu);
      context_.environment->shared[context_.path] = filling_;
    }
    return more;
  }

  const CacheNode* const node_;
  const IteratorContext context_;
  std::unique_ptr<ElementIterator> input_;
  std::shared_ptr<const Kept> complete_;
  const std::shared_ptr<Kept> filling_ = std::make_shared<Kept>();
  std::optional<RowStore> blocks_;  // of rows: makes the blocks that are given out, and holds none
  bool whole_ = true;               // filling_ has what was given
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
