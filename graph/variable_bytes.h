// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_VARIABLE_BYTES_H_
#define MILLRACE_GRAPH_VARIABLE_BYTES_H_

// VariableBytes: how large the state of a node is, for those that spread variables over parameter
// servers.
//
//   shape and dtype known      elements * bytes of one; strings count 8 each, as in TensorFlow
//   one of them not known      1: a table, a variable of unknown shape
//
// It is TensorFlow's byte_size_load_fn, but for two cases. TensorFlow reads the shape of the node's
// output, which is a scalar handle for resource variables: each counts 1 byte there. And it refuses
// a reference variable of unknown shape, which counts 1 here.
//
// At most 2^40 elements of 16 bytes (core/shape.h): sums of many do not overflow.

#include <cstdint>

#include "graph/attr.h"

namespace millrace {

// Of a node with the attrs `dtype` and `shape`; always >= 0.
int64_t VariableBytes(const NodeAttrs& attrs);
// Whether the size of this node is known.
bool HasVariableBytes(const NodeAttrs& attrs);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_VARIABLE_BYTES_H_
