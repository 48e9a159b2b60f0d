// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_RESTORE_VARIABLES_H_
#define MILLRACE_SAVER_RESTORE_VARIABLES_H_

// RestoreVariables: restores single variables of a graph from a checkpoint.
//
// A Saver restores all that it saves with one node. This finds the node of each variable, an
// assignment of what a RestoreV2 node has read, in the graph that the Saver's nodes are in: also in
// an imported one, of which there is only the SaverDef.
//
// Thread-safety: thread-compatible; Restore is const.

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "layers/variable.h"

namespace tensorflow {
class SaverDef;
}  // namespace tensorflow

namespace millrace {

class Graph;    // graph/graph.h
class Session;  // runtime/session.h

class RestoreVariables {
 public:
  // Restores none.
  RestoreVariables() = default;
  // Those of `variables` that the Saver of `def` saves. Keeps no reference.
  RestoreVariables(const Graph& graph, const tensorflow::SaverDef& def,
                   absl::Span<const Variable> variables);

  // Gives the variables of these names the values of `checkpoint`, in one step. NotFound for a name
  // that the Saver does not save, with `where` in front; errors of the step as they are.
  Status Restore(Session* session, const std::string& checkpoint,
                 absl::Span<const std::string> names, absl::string_view where) const;

 private:
  std::map<std::string, std::string> nodes_;  // variable -> the node that restores it
  std::string filename_tensor_;
};

}  // namespace millrace

#endif  // MILLRACE_SAVER_RESTORE_VARIABLES_H_
