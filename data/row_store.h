// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_ROW_STORE_H_
#define MILLRACE_DATA_ROW_STORE_H_

// RowStore: elements at numbered places, packed: what a shuffle keeps of small elements costs their
// bytes, no object each. The numbers of a row lie side by side, and so do its texts, so that a row
// that is taken from anywhere costs a few lines of the cache, and no memory is taken for a row
// where an older one was.
//
// For elements whose components are numbers or strings of known shapes. What is put in is copied:
// nothing keeps the block alive that it came in.
//
// Thread-safety: one thread at a time.
// Failure: ResourceExhausted without memory; InvalidArgument for rows that are not of the spec.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "data/block.h"
#include "data/element.h"

namespace millrace::data {

class RowStore {
 public:
  // Numbers and strings whose shapes are known, in rows of at most kMostRowBytes.
  static bool CanHold(const ElementSpec& spec);
  static constexpr int64_t kMostRowBytes = 1024;

  // Requires CanHold(spec).
  explicit RowStore(const ElementSpec& spec);

  int64_t size() const { return size_; }
  // Are the block's rows of the spec? `where` begins the message.
  Status Check(absl::string_view where, const Block& block) const;

  // Row `row` of a checked block at `place`, which is there, or the next one.
  void Put(const Block& block, int64_t row, int64_t place);
  Status Put(absl::string_view where, const Element& element, int64_t place);
  // What is at `from` may be gone afterwards.
  void Move(int64_t from, int64_t to);

  // The row as an element.
  Status Copy(int64_t place, Element* element) const;
  // Columns of `rows` rows to be filled by CopyRow. Those of strings are, where possible, such that
  // were made before and that nobody else holds any more: their texts have memory already.
  StatusOr<Block> AllocateRows(int64_t rows);
  void CopyRow(int64_t place, int64_t row, Block* to) const;

 private:
  struct StoredColumn {
    DType dtype;
    Shape shape;   // of a row
    size_t count;  // elements of a row
    size_t bytes;  // of a row of numbers; 0 of strings
  };
  // The texts of a row, one after the other, each behind its length.
  struct Texts {
    std::unique_ptr<char[]> bytes;
    size_t capacity = 0;
  };

  StatusOr<Tensor> AllocateStrings(size_t column, const Shape& shape);
  char* NumbersAt(int64_t place) {
    return numbers_.data() + static_cast<size_t>(place) * row_bytes_;
  }
  const char* NumbersAt(int64_t place) const {
    return numbers_.data() + static_cast<size_t>(place) * row_bytes_;
  }
  // Makes `place` be there.
  void Grow(int64_t place);
  // `text_of(column, j)` and `numbers_of(column)` are the row's.
  template <typename TextOf, typename NumbersOf>
  void Pack(int64_t place, const TextOf& text_of, const NumbersOf& numbers_of);
  // The rows of `out(column)` at `row` become what is at `place`.
  template <typename Out>
  void Unpack(int64_t place, int64_t row, const Out& out) const;

  std::vector<StoredColumn> columns_;
  size_t row_bytes_ = 0;  // of all numbers of a row
  bool has_texts_ = false;
  std::vector<char> numbers_;
  std::vector<Texts> texts_;
  int64_t size_ = 0;
  // Of the columns of blocks of so many rows: mostly they are equally long.
  int64_t block_rows_ = -1;
  std::vector<Shape> block_shapes_;
  // The tensors of strings of blocks that were made, by column, the oldest first. None when rows
  // have long texts: memory of a few of them must not stay for ever.
  static constexpr size_t kMostMade = 72;  // as many as a Prefetch that is tuned, and some in use
  static constexpr size_t kLongText = 256;
  std::vector<std::deque<Tensor>> made_;
  bool has_long_texts_ = false;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_ROW_STORE_H_
