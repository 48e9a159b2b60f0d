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

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/types/span.h"
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

  // Where the columns of a checked block are: asked for once, and then for each row. The block
  // outlives it.
  struct RowsOf {
    const Block* block = nullptr;
    std::vector<const void*> columns = {};  // null: views of texts
  };
  RowsOf Rows(const Block& block) const;
  // Row `row` at `place`, which is there, or the next one.
  void Put(const RowsOf& rows, int64_t row, int64_t place);
  Status Put(absl::string_view where, const Element& element, int64_t place);
  // What is at `from` may be gone afterwards.
  void Move(int64_t from, int64_t to);

  // The row as an element.
  Status Copy(int64_t place, Element* element) const;
  // Columns of `rows` rows to be filled by CopyRow. Those of strings are, where possible, such that
  // were made before and that nobody else holds any more: their texts have memory already.
  struct NewRows {
    Block block = {};
    std::vector<void*> columns = {};
  };
  StatusOr<NewRows> AllocateRows(int64_t rows) { return AllocateRows(rows, has_long_texts_); }
  // For rows of another store, whose texts are long or not.
  StatusOr<NewRows> AllocateRows(int64_t rows, bool has_long_texts);
  void CopyRow(int64_t place, int64_t row, const NewRows& to) const;

  bool has_texts() const { return has_texts_; }
  // About what a row needs; how long its texts are is not known before.
  size_t row_bytes() const { return row_bytes_ + (has_texts_ ? 2 * kLineBytes : 0); }
  // Is any of them, or was, longer than most are?
  bool has_long_texts() const { return has_long_texts_; }
  // Fetches what is at `place`, which is there, into the cache, for a CopyRow some rows later; the
  // texts in a second step, which looks at what the first has fetched. Inline: GCC takes a function
  // that only prefetches for one without effects, and leaves calls of it out.
  ABSL_ATTRIBUTE_ALWAYS_INLINE void Fetch(int64_t place) const {
    const char* const numbers = NumbersAt(place);
    for (size_t at = 0; at < row_bytes_; at += kLineBytes) __builtin_prefetch(numbers + at);
    // A row may begin anywhere in a line.
    if (row_bytes_ > 0) __builtin_prefetch(numbers + row_bytes_ - 1);
    if (has_texts_) __builtin_prefetch(&texts_[static_cast<size_t>(place)]);
  }
  ABSL_ATTRIBUTE_ALWAYS_INLINE void FetchTexts(int64_t place) const {
    const Texts& texts = texts_[static_cast<size_t>(place)];
    const size_t bytes = std::min(texts.capacity, kMostFetched);
    for (size_t at = 0; at < bytes; at += kLineBytes) __builtin_prefetch(texts.bytes.get() + at);
  }

 private:
  static constexpr size_t kLineBytes = 64;
  static constexpr size_t kMostFetched = 256;  // of texts: more of them are fetched in their order
  struct StoredColumn {
    DType dtype;
    Shape shape;   // of a row
    size_t count;  // elements of a row
    size_t bytes;  // of a row of numbers; 0 of strings
  };
  // A column of numbers, or a part of one: `offset` is its place in the numbers of a row.
  struct Numbers {
    size_t column, offset, bytes;
  };
  // The texts of a row, one after the other, each behind its length.
  struct Texts {
    std::unique_ptr<char[]> bytes;
    size_t capacity = 0;
  };

  // What blocks of so many rows look like from now on.
  Status Lay(int64_t rows);
  StatusOr<Tensor> AllocateStrings(size_t column, const Shape& shape, bool has_long_texts);
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
  // The rows at `row` of the columns that begin there become what is at `place`.
  void Unpack(int64_t place, int64_t row, absl::Span<void* const> columns) const;

  std::vector<StoredColumn> columns_;
  // Columns by what a copy of their rows is: most have 4 or 8 bytes.
  std::vector<Numbers> fours_, eights_, others_;
  std::vector<size_t> strings_;
  size_t row_bytes_ = 0;  // of all numbers of a row
  bool has_texts_ = false;
  std::vector<char> numbers_;
  std::vector<Texts> texts_;
  int64_t size_ = 0;
  // Of the columns of blocks of so many rows: mostly they are equally long.
  int64_t block_rows_ = -1;
  std::vector<Shape> block_shapes_;
  // The numbers of a block are in one piece of memory where rows have few: who keeps one column
  // keeps all of them.
  static constexpr size_t kMostSharedBytes = 128;
  std::vector<size_t> block_offsets_;
  size_t block_bytes_ = 0;
  // The tensors of strings of blocks that were made, by column, the oldest first. None when rows
  // have long texts: memory of a few of them must not stay for ever.
  static constexpr size_t kMostMade = 72;  // as many as a Prefetch that is tuned, and some in use
  static constexpr size_t kLongText = 256;
  std::vector<std::deque<Tensor>> made_;
  bool has_long_texts_ = false;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_ROW_STORE_H_
