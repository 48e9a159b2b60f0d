// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STRINGS_STRING_SPLIT_H_
#define MILLRACE_OPS_STRINGS_STRING_SPLIT_H_

// Strings taken apart into words, and tensors of strings joined along dimensions.

#include <cstdint>
#include <string>

#include "graph/node_builder.h"

namespace millrace {

struct StringSplitOutputs {
  // A sparse matrix: word `values[i]` is number indices[i,1] of string indices[i,0].
  Output indices;  // int64 [words, 2]
  Output values;   // string [words]
  Output shape;    // int64 [2]: the number of strings, the largest number of words
};
struct StringSplitAttrs {
  bool skip_empty = true;  // no empty words
};
// `input`: a vector. Each byte of `delimiter` (a scalar) separates words; without any, every byte
// is a word.
inline StringSplitOutputs StringSplit(ScopeAt at, Output input, Output delimiter,
                                      const StringSplitAttrs& attrs = {}) {
  const BuiltNode node =
      BuildOp(at, "StringSplit", {input, delimiter}, "skip_empty", attrs.skip_empty);
  return {node.output(0), node.output(1), node.output(2)};
}

struct StringSplitV2Attrs {
  int64_t maxsplit =
      -1;  // at most this many times, what is left in one word; -1: as often as it goes
};
// As Python's str.split: `sep`, a scalar, separates words as a whole, also empty ones; without any,
// blanks do, however many, and no word is empty. `input`: a vector.
inline StringSplitOutputs StringSplitV2(ScopeAt at, Output input, Output sep,
                                        const StringSplitV2Attrs& attrs = {}) {
  const BuiltNode node = BuildOp(at, "StringSplitV2", {input, sep}, "maxsplit", attrs.maxsplit);
  return {node.output(0), node.output(1), node.output(2)};
}

struct ReduceJoinAttrs {
  bool keep_dims = false;
  std::string separator = "";
};
// Joins the strings along `reduction_indices` (int32 scalar or vector; the dimension that stands
// first varies fastest; negative ones count from the end; none: the input itself).
inline Output ReduceJoin(ScopeAt at, Output inputs, Output reduction_indices,
                         const ReduceJoinAttrs& attrs = {}) {
  return BuildOp(at, "ReduceJoin", {inputs, reduction_indices}, "keep_dims", attrs.keep_dims,
                 "separator", attrs.separator);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_STRINGS_STRING_SPLIT_H_
