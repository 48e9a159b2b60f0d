// SPDX-License-Identifier: Apache-2.0
//
// Elements stacked to larger ones: Batch. Rows that come in blocks are copied once, into the batch.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "data/block.h"
#include "data/dataset.h"
#include "data/dataset_node.h"

namespace millrace::data {
namespace {

using Inputs = std::vector<Dataset>;

ElementSpec BatchedSpec(const Dataset& input, int64_t batch_size, bool drop_remainder) {
  const int64_t n = input.cardinality();
  const bool all_full =
      drop_remainder || n == kInfiniteCardinality || (n >= 0 && n % batch_size == 0);
  ElementSpec spec = input.spec();
  for (ComponentSpec& component : spec) {
    if (!component.shape.has_rank()) continue;
    std::vector<int64_t> dims = {all_full ? batch_size : -1};
    dims.insert(dims.end(), component.shape.dims().begin(), component.shape.dims().end());
    StatusOr<PartialShape> shape = PartialShape::Make(dims);
    component.shape = shape.ok() ? *std::move(shape) : PartialShape::Unknown();
  }
  return spec;
}

int64_t BatchedCardinality(int64_t input, int64_t batch_size, bool drop_remainder) {
  if (input < 0) return input;
  return input / batch_size + (!drop_remainder && input % batch_size != 0 ? 1 : 0);
}

class BatchNode : public DatasetNode {
 public:
  BatchNode(const Inputs& inputs, int64_t batch_size, bool drop_remainder)
      : DatasetNode(BatchedSpec(inputs[0], batch_size, drop_remainder),
                    BatchedCardinality(inputs[0].cardinality(), batch_size, drop_remainder),
                    inputs),
        batch_size_(batch_size),
        drop_remainder_(drop_remainder) {}
  std::string Text() const override {
    return absl::StrCat("Batch(", batch_size_, drop_remainder_ ? ", drop_remainder)" : ")");
  }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  int64_t batch_size() const { return batch_size_; }
  bool drop_remainder() const { return drop_remainder_; }

 private:
  const int64_t batch_size_;
  const bool drop_remainder_;
};

// After an error the rows of the batch that was begun are lost, as in TensorFlow.
class BatchIterator : public EndableIterator {
 public:
  BatchIterator(const BatchNode* node, const IteratorContext& context,
                std::unique_ptr<ElementIterator> input)
      : EndableIterator(context, std::move(input)), node_(node) {}

  StatusOr<bool> Next(Element* element) override {
    if (ended_) return false;
    return input_->ServesBlocks() ? FromBlocks(element) : FromRows(element);
  }
  bool NeverWaits() const override { return input_->NeverWaits(); }

 private:
  // Is what has been gathered a batch?
  bool IsBatch(int64_t rows) const {
    return rows == node_->batch_size() || (rows > 0 && !node_->drop_remainder());
  }

  StatusOr<bool> FromBlocks(Element* element) {
    blocks_.clear();
    for (int64_t rows = 0;;) {
      MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      Block block;
      MR_ASSIGN_OR_RETURN(const bool more, input_->NextRows(node_->batch_size() - rows, &block));
      if (more) {
        rows += block.rows;
        blocks_.push_back(std::move(block));
        if (rows < node_->batch_size()) continue;
      } else {
        ended_ = true;
        if (!IsBatch(rows)) return false;
      }
      StatusOr<Element> batch = Concatenated(absl::MakeSpan(blocks_));
      blocks_.clear();
      MR_RETURN_IF_ERROR(batch.status());
      *element = *std::move(batch);
      return true;
    }
  }

  StatusOr<bool> FromRows(Element* element) {
    size_t rows = 0;  // elements before keep their memory for the next batch
    for (;;) {
      MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      if (rows == rows_.size()) rows_.emplace_back();
      MR_ASSIGN_OR_RETURN(const bool more, input_->Next(&rows_[rows]));
      if (more) {
        if (static_cast<int64_t>(++rows) < node_->batch_size()) continue;
      } else {
        ended_ = true;
        if (!IsBatch(static_cast<int64_t>(rows))) return false;
      }
      StatusOr<Element> batch = Stacked(absl::MakeSpan(rows_).first(rows));
      for (Element& row : rows_) row.clear();
      MR_RETURN_IF_ERROR(batch.status());
      *element = *std::move(batch);
      return true;
    }
  }

  const BatchNode* const node_;
  std::vector<Element> rows_;
  std::vector<Block> blocks_;
};

StatusOr<std::unique_ptr<ElementIterator>> BatchNode::MakeIterator(
    const IteratorContext& context) const {
  return MakeOver<BatchNode, BatchIterator>(this, context);
}

}  // namespace

Dataset Dataset::Batch(int64_t batch_size, BatchOptions options) const {
  if (!status_.ok()) return *this;
  if (batch_size < 1) {
    return Error(InvalidArgument("Dataset.Batch: batch_size must be >= 1, got ", batch_size));
  }
  return MakeDataset<BatchNode>({*this}, batch_size, options.drop_remainder);
}

Dataset Dataset::MapAndBatch(MapFunction function, int64_t batch_size, MapOptions map,
                             BatchOptions options) const {
  return Map(std::move(function), std::move(map)).Batch(batch_size, options);
}

}  // namespace millrace::data
