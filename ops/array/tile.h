// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_TILE_H_
#define MILLRACE_OPS_ARRAY_TILE_H_

// Tile: repeats a tensor along each of its dimensions. All dtypes.
//
//   output.shape[i] = input.shape[i] * multiples[i]
//
// The gradient adds up the copies: an input element tiled k times receives k contributions.
// Errors: InvalidArgument for a negative multiple and for a vector whose length is not the rank.

#include "graph/node_builder.h"

namespace millrace {

// The input repeated multiples[d] times along dimension d.
inline Output Tile(ScopeAt at, Output input, const TensorArg& multiples) {
  return BuildOp(at, "Tile", {input, multiples});
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_TILE_H_
