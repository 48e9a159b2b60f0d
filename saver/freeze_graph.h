// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_FREEZE_GRAPH_H_
#define MILLRACE_SAVER_FREEZE_GRAPH_H_

// Freezing: a trained graph with its variables made constants, for programs that only run it.
//
//   MR_ASSIGN_OR_RETURN(auto model, LoadSavedModel({}, "export/1", {"serve"}));
//   MR_ASSIGN_OR_RETURN(auto frozen, FreezeGraph(model.session.get(), graph, {.outputs = {"y"}}));
//
// What the outputs do not need is left out. Functions are put where they are called. A variable
// keeps its name: `w` becomes a Const `w`, a read of a resource variable an Identity, a gather from
// one a GatherV2. Values pass through Switch, Merge, Enter and Identity as references and handles
// did. What a constant predicate never lets run is left out (saver/dead_branches.h). What remains
// writes nothing, so a graph whose outputs need an op that changes a frozen variable is refused. In
// a branch that the default of a PlaceholderWithDefault turns off, writes are left out and the rest
// stays: who feeds the placeholder gets the branch's values, and variables as they were frozen.
// Look-up tables take their content along (saver/freeze_tables.h).
//
// Thread-safety: as its session. Failure: NotFound for an output that the graph does not have;
// InvalidArgument for an op that a constant cannot feed (node, op and variable named) and for a
// graph beyond what a message holds (2 GiB); the session's error for a variable or table without
// a value.

#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/file_system.h"
#include "core/status.h"
#include "proto/graph.pb.h"
#include "runtime/session.h"

namespace millrace {

struct FreezeOptions {
  // Nodes ("y" or "y:0") that the frozen graph is for. At least one.
  std::vector<std::string> outputs;
  // The variables that become constants; empty: all. Names that the graph lacks are no error.
  std::vector<std::string> only = {};
  // Those that stay variables.
  std::vector<std::string> except = {};
  bool clear_devices = true;
};

struct FrozenGraph {
  tensorflow::GraphDef graph;
  std::vector<std::string> variables;  // that are constants, sorted
  std::vector<std::string> tables;     // that are filled from constants, sorted
};

// `graph` is the session's graph, or a part of it; the session holds the values. Nodes that read
// variables are added to the session's graph.
StatusOr<FrozenGraph> FreezeGraph(Session* session, const tensorflow::GraphDef& graph,
                                  const FreezeOptions& options);

// Gives the variables of `graph`, which the session has, the values that a checkpoint (of either
// format, named as saver/checkpoint_name.h says) has under their names; returns how many they are.
// Variables that the checkpoint lacks are left as they are, and so are parts of partitioned
// variables: only the graph's own Saver knows where these are. NotFound: no variable has a value.
// InvalidArgument: another dtype, or a shape that the variable cannot have.
StatusOr<int> RestoreByName(Session* session, const tensorflow::GraphDef& graph,
                            const std::string& checkpoint,
                            FileSystem* file_system = FileSystem::Default());

}  // namespace millrace

#endif  // MILLRACE_SAVER_FREEZE_GRAPH_H_
