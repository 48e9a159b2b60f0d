// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_SAVE_GRAPH_H_
#define MILLRACE_SAVER_SAVE_GRAPH_H_

// The nodes of a Saver: what saves its variables and saveables, each device its own, and what
// restores them, with TensorFlow's names and edges.
//
// Thread-safety: as the scope. Failure: InvalidArgument, by the names that users know.

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "graph/scope.h"
#include "proto/saver.pb.h"
#include "runtime/session.h"
#include "saver/saver.h"

namespace millrace {

// What the graph expects of a checkpoint under a name.
struct Expected {
  std::string name;
  DType dtype;
  PartialShape shape;
  std::string built_at;  // "file:line" of the variable; may be empty

  std::string built() const {
    return built_at.empty() ? "" : absl::StrCat("; built at ", built_at);
  }
};

struct SaveNodes {
  tensorflow::SaverDef def;  // without names of nodes when there is nothing to save
  std::vector<Expected> expected;
  // The tensor that follows the file name in those of the parts; "" when there are none.
  std::string temp_suffix;
  // What def names, as nodes of their graph: a session takes up those that it does not have yet.
  FetchName save_tensor = "";
  FetchName restore_op = "";
};

// Adds the nodes to the graph of `root`, under options.name. `scope`: whose collection "variables"
// is saved when the options name nothing.
StatusOr<SaveNodes> AddSaveNodes(const Scope& scope, const Scope& root,
                                 const SaverOptions& options);

}  // namespace millrace

#endif  // MILLRACE_SAVER_SAVE_GRAPH_H_
