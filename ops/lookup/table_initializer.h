// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOKUP_TABLE_INITIALIZER_H_
#define MILLRACE_OPS_LOOKUP_TABLE_INITIALIZER_H_

// The initialisers of HashTableV2: from tensors, from a text file. What they put in stays.
//
// A table that is initialised already is left as it is: from a file without a look at the file,
// from tensors when they have as many entries as the table, and FailedPrecondition otherwise. One
// key with two values: FailedPrecondition "HashTable has different value for same key. Key K has A
// and trying to add value B"; the table is then as it was.

#include <cstdint>
#include <string>

#include "graph/node_builder.h"

namespace millrace {

// `keys`, `values`: of one shape and the table's types.
inline Operation InitializeTableV2(ScopeAt at, Output table_handle, Output keys, Output values) {
  return BuildOp(at, "InitializeTableV2", {table_handle, keys, values});
}
// Of a table of the old form.
inline Operation InitializeTable(ScopeAt at, Output table_handle, Output keys, Output values) {
  return BuildOp(at, "InitializeTable", {table_handle, keys, values});
}

// What of a line of a file is a key or a value, besides the number (from 0 on) of a column.
inline constexpr int64_t kLineNumber = -1;  // int64, from 0 on
inline constexpr int64_t kWholeLine = -2;   // string or integer

struct InitializeTableFromTextFileAttrs {
  // Entries, one a line, of the file: -1 all. A file with fewer is InvalidArgument, more are left
  // out, with a warning.
  int64_t vocab_size = -1;
  std::string delimiter = "\t";  // between columns; one character
};
// `filename`: a string scalar. Lines end with "\n" or "\r\n", the last one also with the file; none
// may be empty. What is wrong is InvalidArgument with file and line.
inline Operation InitializeTableFromTextFileV2(ScopeAt at, Output table_handle, Output filename,
                                               int64_t key_index, int64_t value_index,
                                               const InitializeTableFromTextFileAttrs& attrs = {}) {
  return BuildOp(at, "InitializeTableFromTextFileV2", {table_handle, filename}, "key_index",
                 key_index, "value_index", value_index, "vocab_size", attrs.vocab_size, "delimiter",
                 attrs.delimiter);
}
// Of a table of the old form.
inline Operation InitializeTableFromTextFile(ScopeAt at, Output table_handle, Output filename,
                                             int64_t key_index, int64_t value_index,
                                             const InitializeTableFromTextFileAttrs& attrs = {}) {
  return BuildOp(at, "InitializeTableFromTextFile", {table_handle, filename}, "key_index",
                 key_index, "value_index", value_index, "vocab_size", attrs.vocab_size, "delimiter",
                 attrs.delimiter);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_LOOKUP_TABLE_INITIALIZER_H_
