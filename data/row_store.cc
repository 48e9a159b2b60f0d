// SPDX-License-Identifier: Apache-2.0
#include "data/row_store.h"

#include <cstring>
#include <utility>

namespace millrace::data {
namespace {

template <typename C>
char* PlaceOf(C& column, int64_t place) {
  return column.numbers.data() + static_cast<size_t>(place) * column.bytes;
}
template <typename C>
std::string* StringsAt(C& column, int64_t place) {
  return column.strings.data() + static_cast<size_t>(place) * column.count;
}

// Of a few bytes, mostly: a call of memcpy with an unknown size costs more than the copy.
void CopyBytes(const char* from, size_t n, char* to) {
  switch (n) {
    case 4:
      std::memcpy(to, from, 4);
      return;
    case 8:
      std::memcpy(to, from, 8);
      return;
    default:
      std::memcpy(to, from, n);
  }
}

Status WrongComponent(absl::string_view where, size_t i, DType want, const Shape& shape, DType got,
                      const Shape& got_shape) {
  return InvalidArgument(where, ": component ", i, " must be ", want, " ", shape, ", got ", got,
                         " ", got_shape);
}

}  // namespace

bool RowStore::CanHold(const ElementSpec& spec) {
  int64_t bytes = 0;
  for (const ComponentSpec& component : spec) {
    if (!component.shape.IsFullyDefined()) return false;
    const StatusOr<Shape> shape = component.shape.ToShape();
    if (!shape.ok() || shape->num_elements() > kMostRowBytes) return false;
    if (!IsMemcopyable(component.dtype) && component.dtype != DT_STRING) return false;
    const size_t size =
        component.dtype == DT_STRING ? sizeof(std::string) : DTypeSize(component.dtype);
    bytes += shape->num_elements() * static_cast<int64_t>(size);
  }
  return !spec.empty() && bytes <= kMostRowBytes;
}

RowStore::RowStore(const ElementSpec& spec) {
  for (const ComponentSpec& component : spec) {
    const Shape shape = *component.shape.ToShape();
    const size_t count = static_cast<size_t>(shape.num_elements());
    columns_.push_back({component.dtype, shape, count, count * DTypeSize(component.dtype)});
  }
}

Status RowStore::Check(absl::string_view where, const Block& block) const {
  if (block.columns.size() != columns_.size()) {
    return InvalidArgument(where, ": an element must have ", columns_.size(), " components, got ",
                           block.columns.size());
  }
  for (size_t i = 0; i < columns_.size(); ++i) {
    const StoredColumn& column = columns_[i];
    const Tensor& rows = block.columns[i].stacked;
    const bool fits = rows.has_value()
                          ? rows.dtype() == column.dtype && rows.rank() > 0 &&
                                rows.dim(0) == block.rows &&
                                rows.shape().WithoutDim(0) == column.shape
                          : column.dtype == DT_STRING && column.shape.is_scalar() &&
                                static_cast<int64_t>(block.columns[i].strings.size()) == block.rows;
    if (fits) continue;
    if (!rows.has_value()) {
      return WrongComponent(where, i, column.dtype, column.shape, DT_STRING, Shape());
    }
    return WrongComponent(where, i, column.dtype, column.shape, rows.dtype(),
                          rows.rank() > 0 ? rows.shape().WithoutDim(0) : rows.shape());
  }
  return absl::OkStatus();
}

void RowStore::Grow(int64_t place) {
  if (place < size_) return;
  const size_t rows = static_cast<size_t>(place) + 1;
  for (StoredColumn& column : columns_) {
    if (column.dtype == DT_STRING) {
      column.strings.resize(rows * column.count);
    } else {
      column.numbers.resize(rows * column.bytes);
    }
  }
  size_ = place + 1;
}

void RowStore::Put(const Block& block, int64_t row, int64_t place) {
  Grow(place);
  for (size_t i = 0; i < columns_.size(); ++i) {
    StoredColumn& column = columns_[i];
    const Column& from = block.columns[i];
    if (column.dtype != DT_STRING) {
      const char* const rows = static_cast<const char*>(from.stacked.raw_data());
      if (column.bytes > 0) {
        CopyBytes(rows + static_cast<size_t>(row) * column.bytes, column.bytes,
                  PlaceOf(column, place));
      }
    } else if (from.stacked.has_value()) {
      const std::string* const rows = from.stacked.raw<std::string>().data();
      for (size_t j = 0; j < column.count; ++j) {
        StringsAt(column, place)[j] = rows[static_cast<size_t>(row) * column.count + j];
      }
    } else {
      const absl::string_view text = from.strings[static_cast<size_t>(row)];
      StringsAt(column, place)->assign(text.data(), text.size());
    }
  }
}

Status RowStore::Put(absl::string_view where, const Element& element, int64_t place) {
  if (element.size() != columns_.size()) {
    return InvalidArgument(where, ": an element must have ", columns_.size(), " components, got ",
                           element.size());
  }
  for (size_t i = 0; i < columns_.size(); ++i) {
    const StoredColumn& column = columns_[i];
    if (element[i].dtype() != column.dtype || element[i].shape() != column.shape) {
      return WrongComponent(where, i, column.dtype, column.shape, element[i].dtype(),
                            element[i].shape());
    }
  }
  Grow(place);
  for (size_t i = 0; i < columns_.size(); ++i) {
    StoredColumn& column = columns_[i];
    if (column.dtype == DT_STRING) {
      const absl::Span<const std::string> from = element[i].raw<std::string>();
      for (size_t j = 0; j < column.count; ++j) StringsAt(column, place)[j] = from[j];
    } else if (column.bytes > 0) {
      CopyBytes(static_cast<const char*>(element[i].raw_data()), column.bytes,
                PlaceOf(column, place));
    }
  }
  return absl::OkStatus();
}

void RowStore::Move(int64_t from, int64_t to) {
  if (from == to) return;
  for (StoredColumn& column : columns_) {
    if (column.dtype == DT_STRING) {
      for (size_t j = 0; j < column.count; ++j) {
        StringsAt(column, to)[j].swap(StringsAt(column, from)[j]);
      }
    } else if (column.bytes > 0) {
      CopyBytes(PlaceOf(column, from), column.bytes, PlaceOf(column, to));
    }
  }
}

Status RowStore::Take(int64_t place, Element* element) {
  element->resize(columns_.size());
  for (size_t i = 0; i < columns_.size(); ++i) {
    StoredColumn& column = columns_[i];
    MR_ASSIGN_OR_RETURN((*element)[i], Tensor::Allocate(column.dtype, column.shape));
    if (column.dtype == DT_STRING) {
      std::string* const out = (*element)[i].mutable_raw<std::string>().data();
      for (size_t j = 0; j < column.count; ++j) out[j].swap(StringsAt(column, place)[j]);
    } else if (column.bytes > 0) {
      CopyBytes(PlaceOf(column, place), column.bytes,
                static_cast<char*>((*element)[i].mutable_raw_data()));
    }
  }
  return absl::OkStatus();
}

Status RowStore::Copy(int64_t place, Element* element) const {
  element->resize(columns_.size());
  for (size_t i = 0; i < columns_.size(); ++i) {
    const StoredColumn& column = columns_[i];
    MR_ASSIGN_OR_RETURN((*element)[i], Tensor::Allocate(column.dtype, column.shape));
    if (column.dtype == DT_STRING) {
      std::string* const out = (*element)[i].mutable_raw<std::string>().data();
      for (size_t j = 0; j < column.count; ++j) {
        out[j] = column.strings[static_cast<size_t>(place) * column.count + j];
      }
    } else if (column.bytes > 0) {
      CopyBytes(column.numbers.data() + static_cast<size_t>(place) * column.bytes, column.bytes,
                static_cast<char*>((*element)[i].mutable_raw_data()));
    }
  }
  return absl::OkStatus();
}

StatusOr<Block> RowStore::AllocateRows(int64_t rows) const {
  Block block;
  block.rows = rows;
  for (const StoredColumn& column : columns_) {
    std::vector<int64_t> dims = {rows};
    dims.insert(dims.end(), column.shape.dims().begin(), column.shape.dims().end());
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
    Column& made = block.columns.emplace_back();
    MR_ASSIGN_OR_RETURN(made.stacked, Tensor::Allocate(column.dtype, shape));
  }
  return block;
}

void RowStore::TakeRow(int64_t place, int64_t row, Block* to) {
  for (size_t i = 0; i < columns_.size(); ++i) {
    StoredColumn& column = columns_[i];
    Tensor& rows = to->columns[i].stacked;
    if (column.dtype == DT_STRING) {
      std::string* const out =
          rows.mutable_raw<std::string>().data() + static_cast<size_t>(row) * column.count;
      for (size_t j = 0; j < column.count; ++j) out[j].swap(StringsAt(column, place)[j]);
    } else if (column.bytes > 0) {
      CopyBytes(
          PlaceOf(column, place), column.bytes,
          static_cast<char*>(rows.mutable_raw_data()) + static_cast<size_t>(row) * column.bytes);
    }
  }
}

}  // namespace millrace::data
