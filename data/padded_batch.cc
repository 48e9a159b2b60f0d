// SPDX-License-Identifier: Apache-2.0
//
// PaddedBatch: components of different sizes in one batch. Unbatch: the reverse of Batch.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "data/block.h"
#include "data/dataset.h"
#include "data/dataset_node.h"

namespace millrace::data {
namespace {

using Inputs = std::vector<Dataset>;

// Copies `from` into the corner at `to`, whose dimensions are `dims`; returns how many elements of
// `from` it has used.
template <typename Copy>
int64_t CopyCorner(absl::Span<const int64_t> from, absl::Span<const int64_t> dims, int64_t read,
                   int64_t to, const Copy& copy) {
  if (from.size() <= 1) {
    const int64_t n = from.empty() ? 1 : from[0];
    copy(read, n, to);
    return n;
  }
  int64_t stride = 1;
  for (size_t i = 1; i < dims.size(); ++i) stride *= dims[i];
  int64_t used = 0;
  for (int64_t i = 0; i < from[0]; ++i) {
    used += CopyCorner(from.subspan(1), dims.subspan(1), read + used, to + i * stride, copy);
  }
  return used;
}

// A view of one column of elements for CopyRows: rank 1.
StatusOr<Tensor> Flat(const Tensor& tensor) {
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({tensor.num_elements()}));
  return tensor.Reshaped(shape);
}

class PaddedBatchNode : public DatasetNode {
 public:
  PaddedBatchNode(const Inputs& inputs, int64_t batch_size, PaddedBatchOptions options,
                  ElementSpec spec, int64_t cardinality)
      : DatasetNode(std::move(spec), cardinality, inputs),
        batch_size_(batch_size),
        options_(std::move(options)) {}
  std::string Text() const override {
    return absl::StrCat("PaddedBatch(", batch_size_, ", [",
                        absl::StrJoin(options_.padded_shapes, ", ",
                                      [](std::string* out, const PartialShape& shape) {
                                        out->append(shape.ToString());
                                      }),
                        options_.drop_remainder ? "], drop_remainder)" : "])");
  }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
  int64_t batch_size() const { return batch_size_; }
  const PaddedBatchOptions& options() const { return options_; }

 private:
  const int64_t batch_size_;
  const PaddedBatchOptions options_;
};

class PaddedBatchIterator : public EndableIterator {
 public:
  PaddedBatchIterator(const PaddedBatchNode* node, const IteratorContext& context,
                      std::unique_ptr<ElementIterator> input)
      : EndableIterator(context, std::move(input)), node_(node) {}
  StatusOr<bool> Next(Element* element) override {
    if (ended_) return false;
    std::vector<Element> rows;
    while (static_cast<int64_t>(rows.size()) < node_->batch_size()) {
      MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      Element row;
      MR_ASSIGN_OR_RETURN(const bool more, input_->Next(&row));
      if (!more) {
        ended_ = true;
        if (rows.empty() || node_->options().drop_remainder) return false;
        break;
      }
      rows.push_back(std::move(row));
    }
    for (const Element& row : rows) {
      if (row.size() != rows[0].size()) return WrongNumber(row.size());
    }
    element->clear();
    for (size_t c = 0; c < rows[0].size(); ++c) {
      MR_ASSIGN_OR_RETURN(Tensor tensor, Padded(rows, c));
      element->push_back(std::move(tensor));
    }
    return true;
  }
  bool NeverWaits() const override { return input_->NeverWaits(); }

 private:
  StatusOr<Shape> PaddedShape(const std::vector<Element>& rows, size_t c) const {
    const PaddedBatchOptions& options = node_->options();
    const Tensor& first = rows[0][c];
    PartialShape wanted = PartialShape::UnknownOfRank(first.rank());
    if (!options.padded_shapes.empty()) {
      if (c >= options.padded_shapes.size()) return WrongNumber(options.padded_shapes.size());
      if (options.padded_shapes[c].has_rank()) wanted = options.padded_shapes[c];
    }
    std::vector<int64_t> dims = {static_cast<int64_t>(rows.size())};
    for (const int64_t dim : wanted.dims()) dims.push_back(std::max<int64_t>(dim, 0));
    for (const Element& row : rows) {
      const Tensor& tensor = row[c];
      if (tensor.dtype() != first.dtype()) {
        return InvalidArgument("PaddedBatch: component ", c, " must be ", first.dtype(), ", got ",
                               tensor.dtype());
      }
      if (tensor.rank() != wanted.rank()) {
        return InvalidArgument(
            "All elements in a batch must have the same rank as the padded shape for component", c,
            ": expected rank ", wanted.rank(), " but got element with rank ", tensor.rank());
      }
      for (int d = 0; d < wanted.rank(); ++d) {
        int64_t& dim = dims[static_cast<size_t>(d) + 1];
        if (wanted.dim(d) < 0) {
          dim = std::max(dim, tensor.dim(d));
        } else if (tensor.dim(d) > dim) {
          return InvalidArgument(
              "Attempted to pad to a smaller size than the input element: component ", c,
              " is padded to ", wanted, ", got ", tensor.shape());
        }
      }
    }
    return Shape::Make(dims);
  }
  Status WrongNumber(size_t number) const {
    return InvalidArgument("PaddedBatch: all elements must have as many components, got ", number);
  }

  StatusOr<Tensor> Padded(const std::vector<Element>& rows, size_t c) const {
    MR_ASSIGN_OR_RETURN(const Shape shape, PaddedShape(rows, c));
    const DType dtype = rows[0][c].dtype();
    const Element& paddings = node_->options().padding_values;
    if (!paddings.empty() && c >= paddings.size()) return WrongNumber(paddings.size());
    MR_ASSIGN_OR_RETURN(Tensor batch, Tensor::Zeros(dtype, shape));
    MR_ASSIGN_OR_RETURN(Tensor out, Flat(batch));
    if (!paddings.empty()) {
      if (paddings[c].dtype() != dtype) {
        return InvalidArgument("PaddedBatch: padding value ", c, " must be ", dtype, ", got ",
                               paddings[c].dtype());
      }
      MR_ASSIGN_OR_RETURN(const Tensor value, Flat(paddings[c]));
      for (int64_t i = 0; i < out.num_elements(); ++i) CopyRows(value, 0, 1, &out, i);
    }
    const int64_t row_size = shape.NumElements(1, shape.rank());
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i][c].num_elements() == 0) continue;
      MR_ASSIGN_OR_RETURN(const Tensor in, Flat(rows[i][c]));
      CopyCorner(rows[i][c].shape().dims(), shape.dims().subspan(1), 0,
                 static_cast<int64_t>(i) * row_size,
                 [&](int64_t read, int64_t n, int64_t to) { CopyRows(in, read, n, &out, to); });
    }
    return batch;
  }

  const PaddedBatchNode* const node_;
};

StatusOr<std::unique_ptr<ElementIterator>> PaddedBatchNode::MakeIterator(
    const IteratorContext& context) const {
  return MakeOver<PaddedBatchNode, PaddedBatchIterator>(this, context);
}

// --- Unbatch

ElementSpec UnbatchedSpec(const ElementSpec& input) {
  ElementSpec spec = input;
  for (ComponentSpec& component : spec) {
    if (!component.shape.has_rank() || component.shape.rank() == 0) {
      component.shape = PartialShape::Unknown();
      continue;
    }
    StatusOr<PartialShape> row = PartialShape::Make(component.shape.dims().subspan(1));
    component.shape = row.ok() ? *std::move(row) : PartialShape::Unknown();
  }
  return spec;
}

class UnbatchNode : public DatasetNode {
 public:
  explicit UnbatchNode(const Inputs& inputs)
      : DatasetNode(UnbatchedSpec(inputs[0].spec()),
                    inputs[0].cardinality() == 0 ? 0 : kUnknownCardinality, inputs) {}
  std::string Text() const override { return "Unbatch"; }
  StatusOr<std::unique_ptr<ElementIterator>> MakeIterator(
      const IteratorContext& context) const override;
};

class UnbatchIterator : public ElementIterator {
 public:
  UnbatchIterator(const UnbatchNode*, const IteratorContext& context,
                  std::unique_ptr<ElementIterator> input)
      : context_(context), input_(std::move(input)) {}
  StatusOr<bool> Next(Element* element) override {
    MR_ASSIGN_OR_RETURN(const bool more, Refill());
    if (!more) return false;
    const int64_t row = row_++;  // an error takes the place of its element
    element->resize(batch_.size());
    for (size_t i = 0; i < batch_.size(); ++i) {
      MR_ASSIGN_OR_RETURN((*element)[i], RowOf(batch_[i], row));
    }
    return true;
  }
  bool ServesBlocks() const override { return true; }
  StatusOr<bool> NextBlock(int64_t max_rows, Block* block) override {
    MR_ASSIGN_OR_RETURN(const bool more, Refill());
    if (!more) return false;
    block->rows = std::min(max_rows, Rows() - row_);
    block->columns.clear();
    for (const Tensor& tensor : batch_) {
      block->columns.push_back({.stacked = tensor.Rows(row_, row_ + block->rows)});
    }
    row_ += block->rows;
    return true;
  }
  bool NextIsReady() const override { return row_ < Rows(); }
  bool NeverWaits() const override { return input_->NeverWaits(); }
  Status Save(StateWriter* state) override {
    state->PutInt(row_);
    MR_RETURN_IF_ERROR(state->PutElement(row_ < Rows() ? batch_ : Element()));
    return input_->Save(state);
  }
  Status Restore(StateReader* state) override {
    MR_ASSIGN_OR_RETURN(const int64_t row, state->GetInt(0, INT64_MAX));
    MR_ASSIGN_OR_RETURN(batch_, state->GetElement());
    row_ = batch_.empty() ? 0 : row;
    if (!batch_.empty()) {
      const Status status = CheckRows();
      if (!status.ok() || row_ > Rows()) {
        return absl::DataLossError("Iterator state: a batch has no such row");
      }
    }
    return input_->Restore(state);
  }

 private:
  int64_t Rows() const { return batch_.empty() ? 0 : batch_[0].dim(0); }
  // False: the end.
  StatusOr<bool> Refill() {
    while (row_ >= Rows()) {
      MR_RETURN_IF_ERROR(context_.CheckNotCancelled());
      batch_.clear();
      row_ = 0;
      Element next;
      MR_ASSIGN_OR_RETURN(const bool more, input_->Next(&next));
      if (!more) return false;
      batch_ = std::move(next);
      if (Status status = CheckRows(); !status.ok()) {
        batch_.clear();
        return status;
      }
    }
    return true;
  }
  Status CheckRows() const {
    for (size_t i = 0; i < batch_.size(); ++i) {
      if (batch_[i].rank() == 0) {
        return InvalidArgument("Unbatch: component ", i, " must have rows, got a scalar");
      }
      if (batch_[i].dim(0) != batch_[0].dim(0)) {
        return InvalidArgument(
            "Input element must have the same batch size in each component. Component 0 had size ",
            batch_[0].dim(0), " but component ", i, " had size ", batch_[i].dim(0), ".");
      }
    }
    return absl::OkStatus();
  }

  const IteratorContext context_;
  const std::unique_ptr<ElementIterator> input_;
  Element batch_;
  int64_t row_ = 0;  // of it, not given yet
};

StatusOr<std::unique_ptr<ElementIterator>> UnbatchNode::MakeIterator(
    const IteratorContext& context) const {
  return MakeOver<UnbatchNode, UnbatchIterator>(this, context);
}

}  // namespace

Dataset Dataset::PaddedBatch(int64_t batch_size, PaddedBatchOptions options) const {
  constexpr absl::string_view kWhere = "Dataset.PaddedBatch";
  if (!status_.ok()) return *this;
  // Its shapes are those of Batch where nothing is padded.
  const Dataset batch = Batch(batch_size, {.drop_remainder = options.drop_remainder});
  if (batch_size < 1) {
    return Error(InvalidArgument(kWhere, ": batch_size must be >= 1, got ", batch_size));
  }
  ElementSpec spec = batch.spec();
  const auto check_count = [&](const char* what, size_t count) -> Status {
    if (count == 0 || spec.empty() || count == spec.size()) return absl::OkStatus();
    return InvalidArgument(kWhere, ": there must be one ", what, " for each of ", spec.size(),
                           " components, got ", count);
  };
  Status status = check_count("padded shape", options.padded_shapes.size());
  if (status.ok()) status = check_count("padding value", options.padding_values.size());
  for (const PartialShape& shape : options.padded_shapes) {
    if (!shape.valid()) status = InvalidArgument(kWhere, ": a padded shape must be one, got none");
  }
  for (size_t i = 0; i < options.padding_values.size() && status.ok(); ++i) {
    const Tensor& value = options.padding_values[i];
    if (value.rank() != 0 || !value.has_value()) {
      status = InvalidArgument(kWhere, ": padding value ", i, " must be a scalar, got shape ",
                               value.shape());
    } else if (!spec.empty() && value.dtype() != spec[i].dtype) {
      status = InvalidArgument(kWhere, ": padding value ", i, " must be ", spec[i].dtype, ", got ",
                               value.dtype());
    }
  }
  if (!status.ok()) return Error(status);
  for (size_t i = 0; i < spec.size(); ++i) {
    PartialShape row = PartialShape::Unknown();
    if (!options.padded_shapes.empty() && options.padded_shapes[i].has_rank()) {
      row = options.padded_shapes[i];
    } else if (spec[i].shape.has_rank()) {
      row = PartialShape::UnknownOfRank(spec[i].shape.rank() - 1);
    }
    if (!row.has_rank()) {
      spec[i].shape = PartialShape::Unknown();
      continue;
    }
    std::vector<int64_t> dims = {spec[i].shape.has_rank() ? spec[i].shape.dim(0) : -1};
    dims.insert(dims.end(), row.dims().begin(), row.dims().end());
    StatusOr<PartialShape> shape = PartialShape::Make(dims);
    if (!shape.ok()) return Error(Prefixed(kWhere, shape.status()));
    spec[i].shape = *std::move(shape);
  }
  return MakeDataset<PaddedBatchNode>({*this}, batch_size, std::move(options), std::move(spec),
                                      batch.cardinality());
}

Dataset Dataset::Unbatch() const { return MakeDataset<UnbatchNode>({*this}); }

}  // namespace millrace::data
