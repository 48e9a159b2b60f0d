// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_ROW_STORE_H_
#define MILLRACE_DATA_ROW_STORE_H_

// RowStore: elements at numbered places, as rows of columns: what a shuffle keeps of small elements
// costs their bytes, no object each, and a row moves by a copy of these.
//
// For elements whose components are numbers or strings of known shapes. What is put in is copied:
// nothing keeps the block alive that it came in.
//
// Thread-safety: one thread at a time.
// Failure: ResourceExhausted without memory; InvalidArgument for rows that are not of the spec.

#include <cstdint>
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

  // The row as an element; what is there may be gone afterwards, or stays.
  Status Take(int64_t place, Element* element);
  Status Copy(int64_t place, Element* element) const;
  // Columns of `rows` rows to be filled by TakeRow.
  StatusOr<Block> AllocateRows(int64_t rows) const;
  void TakeRow(int64_t place, int64_t row, Block* to);

 private:
  struct StoredColumn {
    DType dtype;
    Shape shape;   // of a row
    size_t count;  // elements of a row
    size_t bytes;  // of a row of numbers
    std::vector<char> numbers = {};
    std::vector<std::string> strings = {};
  };
  void Grow(int64_t place);

  std::vector<StoredColumn> columns_;
  int64_t size_ = 0;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_ROW_STORE_H_
