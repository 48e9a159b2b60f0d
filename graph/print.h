// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_PRINT_H_
#define MILLRACE_GRAPH_PRINT_H_

// A graph as text that a person reads and `diff` compares.
//
//   versions: producer 134
//   node dense/MatMul = MatMul(x, dense/kernel/read, ^init) @/job:ps/task:0
//     T = DT_FLOAT
//     transpose_a = false
//
// Nodes are sorted by name, control inputs and attrs too: two graphs that mean the same print the
// same, in whatever order they were built. Tensors print their type, shape and first elements.
//
// Failure: none; what is malformed prints as such.

#include <string>

#include "graph/graph.h"
#include "proto/graph.pb.h"

namespace millrace {

struct PrintOptions {
  bool attrs = true;
  // Attrs that begin with '_' ("_class", "_output_shapes"); only when `attrs`.
  bool internal_attrs = true;
  bool functions = true;
};

std::string GraphToText(const tensorflow::GraphDef& def, const PrintOptions& options = {});
// Devices are the assigned ones where there are any.
std::string GraphToText(const Graph& graph, const PrintOptions& options = {});

}  // namespace millrace

#endif  // MILLRACE_GRAPH_PRINT_H_
