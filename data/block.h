// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_BLOCK_H_
#define MILLRACE_DATA_BLOCK_H_

// Block: several consecutive elements side by side, as sources make them and batches need them.
//
// A column holds one component of all of them: a tensor whose row i belongs to element i, or, for
// scalar strings, views into memory that the column keeps (the bytes of a file as they were read).
// A block is never longer than asked for; it may keep alive more memory than its rows have, so
// nobody holds blocks for long: what is kept (a shuffle's buffer) is copied out as elements.
//
// Plain data; the functions are pure.
// Failure: ResourceExhausted without memory; InvalidArgument where shapes differ.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/buffer.h"
#include "core/status.h"
#include "core/tensor.h"
#include "data/element.h"

namespace millrace::data {

struct Column {
  Tensor stacked = {};  // [rows, ...], or no value:
  // Nobody reads or writes `stacked` as long as somebody has it who got it from this block, though
  // it may be held elsewhere, to be used again: it may become an element as it is.
  bool is_new = false;
  std::vector<absl::string_view> strings = {};  // one per row
  std::vector<BufferRef> owners = {};           // keep the memory of `strings`
};

// Where rows were read: consecutive lines or records of a file. For messages about what is in them.
struct RowOrigin {
  std::shared_ptr<const std::string> file = nullptr;  // null: not known
  int64_t first = 0;                                  // number of row 0, counted from 1
  std::string kind = "Text lines";                    // or "CSV", "Records"
  std::string unit = "line";                          // or "record"

  // `status` of row `row` behind "Text lines 'census.csv', line 7: ", where that is known.
  Status Tell(int64_t row, const Status& status) const;
};

struct Block {
  int64_t rows = 0;
  std::vector<Column> columns;
  RowOrigin origin = {};
};

// `n` rows of `from` to where `to`, of the same row shape and dtype, has row `at`.
void CopyRows(const Tensor& from, int64_t begin, int64_t n, Tensor* to, int64_t at);
// Row `row` of a tensor of rank >= 1 as a tensor of its own.
StatusOr<Tensor> RowOf(const Tensor& stacked, int64_t row);
// Element `row` of the block.
Status ElementOf(const Block& block, int64_t row, Element* element);
// Rows [begin, end) of the block; shares the memory.
Block Slice(const Block& block, int64_t begin, int64_t end);

// The tensor of one column: strings are copied.
StatusOr<Tensor> TensorOfColumn(Column column, int64_t rows);
// One element whose components are those of the blocks' rows, in order. `blocks` is used up.
StatusOr<Element> Concatenated(absl::Span<Block> blocks);

// One element whose components are those of `elements` stacked; strings are moved where nobody else
// holds them. InvalidArgument, in TensorFlow's words, when shapes differ. `elements` is used up.
StatusOr<Element> Stacked(absl::Span<Element> elements);

}  // namespace millrace::data

#endif  // MILLRACE_DATA_BLOCK_H_
