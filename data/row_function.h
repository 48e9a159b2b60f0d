// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DATA_ROW_FUNCTION_H_
#define MILLRACE_DATA_ROW_FUNCTION_H_

// RowFunction: a function of elements that does many at once better than one by one (a parser).
//
// Dataset::Map takes one where it takes a MapFunction; the elements are the same as if each had
// been given to it alone.
//
// Immutable; called from any thread, several at once.

#include <cstdint>
#include <string>

#include "core/status.h"   // IWYU pragma: export
#include "data/block.h"    // IWYU pragma: export
#include "data/element.h"  // IWYU pragma: export

namespace millrace {
class Arena;
}

namespace millrace::data {

class RowFunction {
 public:
  virtual ~RowFunction() = default;
  // "DecodeCsv", for messages.
  virtual std::string Name() const = 0;
  // Of the results for elements of `input`; InvalidArgument when it takes no such elements.
  virtual StatusOr<ElementSpec> OutputSpec(const ElementSpec& input) const = 0;
  // `arena` may take part in the work.
  virtual StatusOr<Element> Call(const Element& element, Arena* arena) const = 0;
  // The results of all rows, or of the rows before the first that has none: then `out->rows` is
  // less than `in.rows` and `*error` is that row's.
  virtual Status CallBlock(const Block& in, Arena* arena, Block* out, Status* error) const = 0;
};

}  // namespace millrace::data

#endif  // MILLRACE_DATA_ROW_FUNCTION_H_
