// SPDX-License-Identifier: Apache-2.0
#include "data/row_store.h"

#include <cstring>
#include <utility>

#include "absl/container/fixed_array.h"
#include "core/allocator.h"
#include "core/buffer.h"

namespace millrace::data {
namespace {

// Of a few bytes, mostly: a call of memcpy with an unknown size costs more than the copy. The
// pieces of a size between two powers of two overlap.
inline void CopyBytes(const char* from, size_t n, char* to) {
  const auto both_ends = [&]<typename Piece>(Piece first) {
    Piece last;
    std::memcpy(&first, from, sizeof(Piece));
    std::memcpy(&last, from + n - sizeof(Piece), sizeof(Piece));
    std::memcpy(to, &first, sizeof(Piece));
    std::memcpy(to + n - sizeof(Piece), &last, sizeof(Piece));
  };
  struct Sixteen {
    uint64_t low, high;
  };
  if (n > 32) {
    std::memcpy(to, from, n);
  } else if (n >= 16) {
    both_ends(Sixteen());
  } else if (n >= 8) {
    both_ends(uint64_t());
  } else if (n >= 4) {
    both_ends(uint32_t());
  } else {
    for (size_t i = 0; i < n; ++i) to[i] = from[i];
  }
}

// Lengths of texts: one byte, or this and eight bytes.
constexpr size_t kLong = 255;

inline size_t PackedSize(absl::string_view text) {
  return text.size() + (text.size() < kLong ? 1 : 1 + sizeof(uint64_t));
}
inline char* PackText(absl::string_view text, char* to) {
  if (text.size() < kLong) {
    *to++ = static_cast<char>(text.size());
  } else {
    *to++ = static_cast<char>(kLong);
    const uint64_t size = text.size();
    std::memcpy(to, &size, sizeof(size));
    to += sizeof(size);
  }
  CopyBytes(text.data(), text.size(), to);
  return to + text.size();
}
inline absl::string_view PackedText(const char* from) {
  uint64_t size = static_cast<unsigned char>(*from++);
  if (size == kLong) {
    std::memcpy(&size, from, sizeof(size));
    from += sizeof(size);
  }
  return {from, static_cast<size_t>(size)};
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
    const bool text = component.dtype == DT_STRING;
    columns_.push_back(
        {component.dtype, shape, count, text ? 0 : count * DTypeSize(component.dtype)});
    const size_t bytes = columns_.back().bytes;
    if (text) {
      strings_.push_back(columns_.size() - 1);
    } else if (bytes > 0) {
      (bytes == 4   ? fours_
       : bytes == 8 ? eights_
                    : others_)
          .push_back({columns_.size() - 1, row_bytes_, bytes});
    }
    row_bytes_ += bytes;
    has_texts_ = has_texts_ || text;
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
  numbers_.resize(rows * row_bytes_);
  if (has_texts_) texts_.resize(rows);
  size_ = place + 1;
}

template <typename TextOf, typename NumbersOf>
void RowStore::Pack(int64_t place, const TextOf& text_of, const NumbersOf& numbers_of) {
  Grow(place);
  char* const numbers = NumbersAt(place);
  for (const Numbers& n : fours_) std::memcpy(numbers + n.offset, numbers_of(n.column), 4);
  for (const Numbers& n : eights_) std::memcpy(numbers + n.offset, numbers_of(n.column), 8);
  for (const Numbers& n : others_) CopyBytes(numbers_of(n.column), n.bytes, numbers + n.offset);
  if (!has_texts_) return;
  size_t size = 0;
  for (const size_t i : strings_) {
    for (size_t j = 0; j < columns_[i].count; ++j) {
      const size_t packed = PackedSize(text_of(i, j));
      size += packed;
      has_long_texts_ = has_long_texts_ || packed > kLongText;
    }
  }
  Texts& texts = texts_[static_cast<size_t>(place)];
  if (texts.capacity < size) {
    // Rows are about equally long: some room spares the next ones from asking.
    texts.capacity = 0;
    texts.bytes.reset(new char[size + size / 4]);
    texts.capacity = size + size / 4;
  }
  char* to = texts.bytes.get();
  for (const size_t i : strings_) {
    for (size_t j = 0; j < columns_[i].count; ++j) to = PackText(text_of(i, j), to);
  }
}

void RowStore::Unpack(int64_t place, int64_t row, absl::Span<void* const> columns) const {
  const auto at = static_cast<size_t>(row);
  const char* const numbers = NumbersAt(place);
  const auto to = [&](const Numbers& n) { return static_cast<char*>(columns[n.column]); };
  for (const Numbers& n : fours_) std::memcpy(to(n) + at * 4, numbers + n.offset, 4);
  for (const Numbers& n : eights_) std::memcpy(to(n) + at * 8, numbers + n.offset, 8);
  for (const Numbers& n : others_) CopyBytes(numbers + n.offset, n.bytes, to(n) + at * n.bytes);
  if (!has_texts_) return;
  const char* texts = texts_[static_cast<size_t>(place)].bytes.get();
  for (const size_t i : strings_) {
    const size_t count = columns_[i].count;
    std::string* const out = static_cast<std::string*>(columns[i]) + at * count;
    for (size_t j = 0; j < count; ++j) {
      const absl::string_view text = PackedText(texts);
      out[j].assign(text.data(), text.size());
      texts = text.data() + text.size();
    }
  }
}

RowStore::RowsOf RowStore::Rows(const Block& block) const {
  RowsOf rows = {.block = &block};
  for (const Column& column : block.columns) {
    rows.columns.push_back(column.stacked.has_value() ? column.stacked.raw_data() : nullptr);
  }
  return rows;
}

void RowStore::Put(const RowsOf& rows, int64_t row, int64_t place) {
  const auto at = static_cast<size_t>(row);
  Pack(
      place,
      [&](size_t i, size_t j) -> absl::string_view {
        const void* const texts = rows.columns[i];
        if (texts == nullptr) return rows.block->columns[i].strings[at];
        return static_cast<const std::string*>(texts)[at * columns_[i].count + j];
      },
      [&](size_t i) { return static_cast<const char*>(rows.columns[i]) + at * columns_[i].bytes; });
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
  Pack(
      place,
      [&](size_t i, size_t j) -> absl::string_view { return element[i].raw<std::string>()[j]; },
      [&](size_t i) { return static_cast<const char*>(element[i].raw_data()); });
  return absl::OkStatus();
}

void RowStore::Move(int64_t from, int64_t to) {
  if (from == to) return;
  CopyBytes(NumbersAt(from), row_bytes_, NumbersAt(to));
  if (has_texts_) std::swap(texts_[static_cast<size_t>(from)], texts_[static_cast<size_t>(to)]);
}

Status RowStore::Copy(int64_t place, Element* element) const {
  element->resize(columns_.size());
  absl::FixedArray<void*> columns(columns_.size());
  for (size_t i = 0; i < columns_.size(); ++i) {
    Tensor& component = (*element)[i];
    MR_ASSIGN_OR_RETURN(component, Tensor::Allocate(columns_[i].dtype, columns_[i].shape));
    columns[i] = component.mutable_raw_data();
  }
  Unpack(place, 0, columns);
  return absl::OkStatus();
}

StatusOr<Tensor> RowStore::AllocateStrings(size_t column, const Shape& shape, bool has_long_texts) {
  made_.resize(columns_.size());
  std::deque<Tensor>& made = made_[column];
  if (has_long_texts) {
    made.clear();
    return Tensor::Allocate(DT_STRING, shape);
  }
  // Elements are mostly used up in their order: if the oldest is still held, so are the others.
  Tensor tensor;
  const bool is_free = !made.empty() && made.front().BufferIsUnique();
  if (is_free && made.front().shape() == shape) tensor = made.front();
  if (is_free || made.size() == kMostMade) made.pop_front();
  if (!tensor.has_value()) {
    MR_ASSIGN_OR_RETURN(tensor, Tensor::Allocate(DT_STRING, shape));
  }
  made.push_back(tensor);
  return tensor;
}

Status RowStore::Lay(int64_t rows) {
  block_shapes_.clear();
  block_offsets_.clear();
  block_bytes_ = 0;
  for (const StoredColumn& column : columns_) {
    std::vector<int64_t> dims = {rows};
    dims.insert(dims.end(), column.shape.dims().begin(), column.shape.dims().end());
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
    block_shapes_.push_back(shape);
    block_offsets_.push_back(block_bytes_);
    // A line between columns: a row is written to all of them in turns, and those that are a power
    // of two apart would drive each other out of the cache.
    const size_t lines = static_cast<size_t>(rows) * column.bytes / kLineBytes + 2;
    if (column.bytes > 0) block_bytes_ += lines * kLineBytes;
  }
  block_rows_ = rows;
  return absl::OkStatus();
}

StatusOr<RowStore::NewRows> RowStore::AllocateRows(int64_t rows, bool has_long_texts) {
  if (rows != block_rows_) MR_RETURN_IF_ERROR(Lay(rows));
  NewRows made;
  Block& block = made.block;
  block.rows = rows;
  block.columns.resize(columns_.size());
  BufferRef numbers;
  if (row_bytes_ > 0 && row_bytes_ <= kMostSharedBytes) {
    numbers = Buffer::Allocate(DefaultAllocator(), block_bytes_);
    if (!numbers)
      return absl::ResourceExhaustedError("Dataset: there is no memory for a block of rows");
  }
  for (size_t i = 0; i < columns_.size(); ++i) {
    Column& column = block.columns[i];
    const StoredColumn& stored = columns_[i];
    column.is_new = true;
    if (stored.dtype == DT_STRING) {
      MR_ASSIGN_OR_RETURN(column.stacked, AllocateStrings(i, block_shapes_[i], has_long_texts));
    } else if (numbers && stored.bytes > 0 && stored.dtype != DT_BOOL) {  // which must be 0 or 1
      MR_ASSIGN_OR_RETURN(column.stacked, Tensor::FromBuffer(stored.dtype, block_shapes_[i],
                                                             numbers, block_offsets_[i]));
      made.columns.push_back(static_cast<char*>(numbers->data()) + block_offsets_[i]);
      continue;
    } else {
      MR_ASSIGN_OR_RETURN(column.stacked, Tensor::Allocate(stored.dtype, block_shapes_[i]));
    }
    made.columns.push_back(column.stacked.mutable_raw_data());
  }
  return made;
}

void RowStore::CopyRow(int64_t place, int64_t row, const NewRows& to) const {
  Unpack(place, row, to.columns);
}

}  // namespace millrace::data
