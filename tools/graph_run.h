// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_GRAPH_RUN_H_
#define MILLRACE_TOOLS_GRAPH_RUN_H_

// Runs a GraphDef file with arrays of numpy: what the program run_graph does.
//
// Targets are run first, in the order given, each as a step of its own with the feeds (an
// initialiser, say); then one step fetches everything. Nodes that ask for a device that this
// machine lacks run on the CPU; one warning says so.
//
// Arrays are keyed by tensor name. Strings become numpy 'S' plus an int64 array "<key>#lengths",
// because numpy drops trailing NULs; fed strings may come with such an array. float16 is float16,
// quantised types are integers, bfloat16 is float32; resources and variants are refused by name.
//
// Thread-safety: pure functions and files. Failure: InvalidArgument for feeds and names, and the
// session's errors.

#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "formats/npy.h"
#include "proto/graph.pb.h"

namespace millrace {

struct GraphRun {
  std::vector<std::string> targets, fetches;
};

// `feeds` by tensor name, without or with "#lengths" companions. Returns the arrays to write, a
// "#lengths" array after each string array.
StatusOr<NamedArrays> RunGraphOnArrays(const tensorflow::GraphDef& graph, const NamedArrays& feeds,
                                       const GraphRun& run);

// What RunGraphOnArrays returned, as JSON: an object of tensors (formats/tensor_json.h) by fetch.
StatusOr<std::string> OutputsJson(const NamedArrays& outputs, const GraphRun& run);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_GRAPH_RUN_H_
