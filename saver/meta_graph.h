// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_META_GRAPH_H_
#define MILLRACE_SAVER_META_GRAPH_H_

// MetaGraphDef: a graph with what programs need to go on with it: collections, the Saver's nodes,
// signatures, and the definitions of the ops it was made with.
//
// Thread-safety: pure functions. Failure: InvalidArgument for graphs that do not verify; files: the
// file system's error, DataLoss when the bytes are no MetaGraphDef.

#include <optional>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "graph/scope.h"
#include "graph/shape_inference.h"
#include "proto/meta_graph.pb.h"
#include "proto/node_def.pb.h"
#include "proto/op_def.pb.h"
#include "saver/message_file.h"

namespace millrace {

// What exported files say that wrote them; readers compare it with their own.
inline constexpr char kTensorFlowVersion[] = "1.15.0";

struct MetaGraphOptions {
  std::vector<std::string> tags = {};
  std::optional<tensorflow::SaverDef> saver_def = std::nullopt;
  // Without the devices of nodes: the model runs anywhere.
  bool clear_devices = false;
  // Without attrs that have their defaults, so that older programs read the graph.
  bool strip_default_attrs = false;
};

// The finished graph of the scope. Its error when it has one.
StatusOr<tensorflow::MetaGraphDef> ExportMetaGraph(const Scope& scope,
                                                   const MetaGraphOptions& options = {});

// A scope over the meta graph's graph, with its collections. `evaluator` as in Scope::ForGraph.
StatusOr<Scope> ImportMetaGraph(tensorflow::MetaGraphDef meta,
                                ConstantEvaluator* evaluator = nullptr);

// Removes attrs that this program's ops lack and that have the default of the program that made the
// graph. InvalidArgument when one has another value, which would be lost on the node, unless its op
// heeds it (graph/later_attrs.h): then it stays.
Status RemoveUnknownDefaultAttrs(tensorflow::MetaGraphDef* meta);
// Of one node; `producer` is the op as that program defines it.
Status RemoveUnknownDefaultAttrs(const tensorflow::OpDef& producer, tensorflow::NodeDef* node);

// Binary, or text when the path ends with "txt"; written atomically. InvalidArgument when it is
// larger than any reader takes (2 GiB).
Status WriteMetaGraph(FileSystem* fs, const std::string& path,
                      const tensorflow::MetaGraphDef& meta);
StatusOr<tensorflow::MetaGraphDef> ReadMetaGraph(FileSystem* fs, const std::string& path);

}  // namespace millrace

#endif  // MILLRACE_SAVER_META_GRAPH_H_
