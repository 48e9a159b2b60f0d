// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_CONTEXT_COLLECTIONS_H_
#define MILLRACE_GRAPH_CONTEXT_COLLECTIONS_H_

// ContextCollections: the branches and loops of a graph as the collections "cond_context" and
// "while_context", in which TensorFlow finds them again: it can differentiate what it reads.
//
// Thread-safety: as the Scope's that has it.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "graph/control_flow_context.h"
#include "graph/graph.h"

namespace tensorflow {
class CollectionDef;
}

namespace millrace {

class ContextCollections {
 public:
  // Replaces what the last call wrote, and leaves alone what stood there before (of an imported
  // graph).
  void Update(const Graph& graph, const std::vector<std::unique_ptr<ControlFlowContext>>& contexts,
              const absl::flat_hash_map<const Node*, ControlFlowContext*>& context_of,
              std::map<std::string, tensorflow::CollectionDef>* collections);

 private:
  std::map<std::string, std::vector<std::string>> written_;  // by collection
};

}  // namespace millrace

#endif  // MILLRACE_GRAPH_CONTEXT_COLLECTIONS_H_
