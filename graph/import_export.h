// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_IMPORT_EXPORT_H_
#define MILLRACE_GRAPH_IMPORT_EXPORT_H_

// GraphDefs from outside: into a Graph, and to and from files, binary (.pb) and text (.pbtxt).
//
// Import verifies the message (graph/verify.h) before it touches the graph. Nodes may come in
// any order; they get ids in the order of the message, so that exporting an imported graph gives
// the message again, with default attrs filled in. Op kinds that this program does not know are
// kept.
//
// Thread-safety: pure functions of their arguments.
// Failure: InvalidArgument as verification says, or for a name that the graph already has; the
// graph is then as it was. Files: the file system's error, DataLoss when the bytes are no GraphDef.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/hash_table.h"
#include "core/status.h"
#include "graph/graph.h"
#include "graph/verify.h"
#include "proto/graph.pb.h"

namespace millrace {

struct ImportOptions {
  // "a" makes node "n" into "a/n", also in `_class` attrs, and loop "l" (attr frame_name) into
  // "a/l".
  std::string prefix;
  // A node or loop whose name is taken gets the next free one (name_1, ...) instead of being an
  // error.
  bool uniquify_names = false;
  // Tensors of the message ("x" or "x:1"), as its inputs name them -> tensors of the graph used
  // in their place; "^x" -> a node for control inputs (its index is ignored). The message need not
  // have the nodes named here.
  HashMap<std::string, OutputRef> input_map;
  // Imported nodes without an input from another imported node wait for these.
  std::vector<Node*> control_dependencies;
  bool allow_internal_names = false;
  UnknownOps unknown_ops = UnknownOps::kKeep;
};

// Names in the message -> nodes made.
using ImportedNodes = HashMap<std::string, Node*>;

// `imported` may be null. Functions are added to the graph's library; one of a name that is there
// must be equal. Into an empty graph the versions are taken over; otherwise the graph's producer
// becomes the smaller, min_consumer the larger of both.
Status ImportGraphDef(const tensorflow::GraphDef& def, const ImportOptions& options, Graph* graph,
                      ImportedNodes* imported = nullptr);
// The attrs of `def` are moved into the graph; what is left of it (after an error, too) is good for
// nothing. The bytes of constants are copied once in either form: into their tensors.
Status ImportGraphDef(tensorflow::GraphDef&& def, const ImportOptions& options, Graph* graph,
                      ImportedNodes* imported = nullptr);

// Some nodes of a message, `nodes->indices`; `nodes` is used up. For graphs that grow, see
// graph/graph_extension.h. Verifies these nodes and, where the graph has loops, the frames of all.
Status ImportNodes(IncomingNodes* nodes, const ImportOptions& options, Graph* graph,
                   ImportedNodes* imported = nullptr);

// Binary or text: ".pbtxt" and ".txt" are text, ".pb" is binary; other names are decided by the
// bytes.
StatusOr<tensorflow::GraphDef> ReadGraphDef(FileSystem* fs, const std::string& path);
StatusOr<tensorflow::GraphDef> ParseGraphDefText(absl::string_view text);

enum class GraphFormat { kBinary, kText };
// Written atomically; binary is deterministic (sorted maps).
Status WriteGraphDef(FileSystem* fs, const std::string& path, const tensorflow::GraphDef& def,
                     GraphFormat format);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_IMPORT_EXPORT_H_
