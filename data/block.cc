// SPDX-License-Identifier: Apache-2.0
#include "data/block.h"

#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/allocator.h"
#include "core/resource_handle.h"

namespace millrace::data {
namespace {

// A row of so many bytes is worth sharing, if its address suits kernels.
constexpr int64_t kSharedRowBytes = 4096;

template <typename T>
void CopyObjects(const Tensor& from, int64_t begin, int64_t n, Tensor* to, int64_t at) {
  const T* in = from.raw<T>().data() + begin;
  T* out = to->mutable_raw<T>().data() + at;
  for (int64_t i = 0; i < n; ++i) out[i] = in[i];
}

// Elements, not rows.
void CopyElements(const Tensor& from, int64_t begin, int64_t n, Tensor* to, int64_t at) {
  if (n == 0) return;
  switch (from.dtype()) {
    case DT_STRING:
      return CopyObjects<std::string>(from, begin, n, to, at);
    case DT_RESOURCE:
      return CopyObjects<ResourceHandle>(from, begin, n, to, at);
    case DT_VARIANT:
      return CopyObjects<Variant>(from, begin, n, to, at);
    default: {
      const size_t size = DTypeSize(from.dtype());
      std::memcpy(static_cast<char*>(to->mutable_raw_data()) + static_cast<size_t>(at) * size,
                  static_cast<const char*>(from.raw_data()) + static_cast<size_t>(begin) * size,
                  static_cast<size_t>(n) * size);
    }
  }
}

int64_t RowElements(const Tensor& stacked) {
  return stacked.shape().NumElements(1, stacked.rank());
}

StatusOr<Shape> WithRows(int64_t rows, const Shape& row) {
  std::vector<int64_t> dims = {rows};
  dims.insert(dims.end(), row.dims().begin(), row.dims().end());
  return Shape::Make(dims);
}

Status DifferentShapes(size_t component, const Shape& first, size_t i, const Shape& other) {
  return InvalidArgument("Cannot batch tensors with different shapes in component ", component,
                         ". First element had shape ", first, " and element ", i, " had shape ",
                         other, ".");
}

StatusOr<Tensor> StackedComponent(absl::Span<Element> elements, size_t component) {
  const Tensor& first = elements[0][component];
  MR_ASSIGN_OR_RETURN(const Shape shape,
                      WithRows(static_cast<int64_t>(elements.size()), first.shape()));
  MR_ASSIGN_OR_RETURN(Tensor batch, Tensor::Allocate(first.dtype(), shape));
  const int64_t n = first.num_elements();
  for (size_t i = 0; i < elements.size(); ++i) {
    Tensor& row = elements[i][component];
    if (row.dtype() != batch.dtype()) {
      return InvalidArgument("Batch: component ", component, " of element ", i, " must be ",
                             batch.dtype(), ", got ", row.dtype());
    }
    if (row.shape() != first.shape()) {
      return DifferentShapes(component, first.shape(), i, row.shape());
    }
    const int64_t at = static_cast<int64_t>(i) * n;
    // The first stays as it is: its shape is read until the end.
    if (row.dtype() == DT_STRING && row.BufferIsUnique()) {
      const absl::Span<std::string> in = row.mutable_raw<std::string>();
      std::string* const out = batch.mutable_raw<std::string>().data() + at;
      for (size_t j = 0; j < in.size(); ++j) out[j] = std::move(in[j]);
    } else {
      CopyElements(row, 0, n, &batch, at);
    }
  }
  return batch;
}

}  // namespace

void CopyRows(const Tensor& from, int64_t begin, int64_t n, Tensor* to, int64_t at) {
  const int64_t row = RowElements(from);
  CopyElements(from, begin * row, n * row, to, at * row);
}

StatusOr<Tensor> RowOf(const Tensor& stacked, int64_t row) {
  const Shape shape = stacked.shape().WithoutDim(0);
  const int64_t bytes = shape.num_elements() * static_cast<int64_t>(DTypeSize(stacked.dtype()));
  if (bytes >= kSharedRowBytes && bytes % static_cast<int64_t>(Allocator::kAlignment) == 0) {
    return stacked.Rows(row, row + 1).Reshaped(shape);
  }
  MR_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(stacked.dtype(), shape));
  const int64_t n = shape.num_elements();
  CopyElements(stacked, row * n, n, &tensor, 0);
  return tensor;
}

Status ElementOf(const Block& block, int64_t row, Element* element) {
  element->resize(block.columns.size());
  for (size_t i = 0; i < block.columns.size(); ++i) {
    const Column& column = block.columns[i];
    if (column.stacked.has_value()) {
      MR_ASSIGN_OR_RETURN((*element)[i], RowOf(column.stacked, row));
    } else {
      MR_ASSIGN_OR_RETURN((*element)[i], Tensor::Allocate(DT_STRING, Shape()));
      const absl::string_view text = column.strings[static_cast<size_t>(row)];
      (*element)[i].mutable_raw<std::string>()[0].assign(text.data(), text.size());
    }
  }
  return absl::OkStatus();
}

Status RowOrigin::Tell(int64_t row, const Status& status) const {
  if (file == nullptr) return status;
  return Prefixed(absl::StrCat(kind, " '", *file, "', ", unit, " ", first + row), status);
}

Block Slice(const Block& block, int64_t begin, int64_t end) {
  Block slice;
  slice.rows = end - begin;
  slice.origin = block.origin;
  slice.origin.first += begin;
  for (const Column& column : block.columns) {
    Column part;
    if (column.stacked.has_value()) {
      part.stacked = column.stacked.Rows(begin, end);
    } else {
      part.strings.assign(column.strings.begin() + begin, column.strings.begin() + end);
      part.owners = column.owners;
    }
    slice.columns.push_back(std::move(part));
  }
  return slice;
}

StatusOr<Tensor> TensorOfColumn(Column column, int64_t rows) {
  if (column.stacked.has_value()) return std::move(column.stacked);
  MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make({rows}));
  MR_ASSIGN_OR_RETURN(Tensor tensor, Tensor::Allocate(DT_STRING, shape));
  std::string* out = tensor.mutable_raw<std::string>().data();
  for (const absl::string_view text : column.strings) (out++)->assign(text.data(), text.size());
  return tensor;
}

StatusOr<Element> Concatenated(absl::Span<Block> blocks) {
  Element element;
  int64_t rows = 0;
  for (const Block& block : blocks) rows += block.rows;
  for (size_t c = 0; c < blocks[0].columns.size(); ++c) {
    Column& first = blocks[0].columns[c];
    if (blocks.size() == 1 &&
        (!first.stacked.has_value() || first.is_new || first.stacked.BufferIsUnique())) {
      MR_ASSIGN_OR_RETURN(Tensor tensor, TensorOfColumn(std::move(first), rows));
      element.push_back(std::move(tensor));
      continue;
    }
    const bool strings = !first.stacked.has_value();
    const Shape row_shape = strings ? Shape() : first.stacked.shape().WithoutDim(0);
    MR_ASSIGN_OR_RETURN(const Shape shape, WithRows(rows, row_shape));
    MR_ASSIGN_OR_RETURN(Tensor tensor,
                        Tensor::Allocate(strings ? DT_STRING : first.stacked.dtype(), shape));
    int64_t at = 0;
    for (const Block& block : blocks) {
      const Column& column = block.columns[c];
      if (column.stacked.has_value()) {
        if (column.stacked.dtype() != tensor.dtype()) {
          return InvalidArgument("Batch: component ", c, " must be ", tensor.dtype(), ", got ",
                                 column.stacked.dtype());
        }
        if (column.stacked.shape().WithoutDim(0) != row_shape) {
          return DifferentShapes(c, row_shape, static_cast<size_t>(at),
                                 column.stacked.shape().WithoutDim(0));
        }
        CopyRows(column.stacked, 0, block.rows, &tensor, at);
      } else {
        if (tensor.dtype() != DT_STRING || !row_shape.is_scalar()) {
          return InvalidArgument("Batch: component ", c, " must be ", tensor.dtype(),
                                 ", got string");
        }
        std::string* out = tensor.mutable_raw<std::string>().data() + at;
        for (const absl::string_view text : column.strings) {
          (out++)->assign(text.data(), text.size());
        }
      }
      at += block.rows;
    }
    element.push_back(std::move(tensor));
  }
  return element;
}

StatusOr<Element> Stacked(absl::Span<Element> elements) {
  Element batch;
  const size_t components = elements[0].size();
  for (size_t i = 1; i < elements.size(); ++i) {
    if (elements[i].size() != components) {
      return InvalidArgument("Batch: element ", i, " must have ", components, " components, got ",
                             elements[i].size());
    }
  }
  batch.reserve(components);
  for (size_t c = 0; c < components; ++c) {
    MR_ASSIGN_OR_RETURN(Tensor tensor, StackedComponent(elements, c));
    batch.push_back(std::move(tensor));
  }
  return batch;
}

}  // namespace millrace::data
