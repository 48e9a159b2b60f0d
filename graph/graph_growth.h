// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_GRAPH_GROWTH_H_
#define MILLRACE_GRAPH_GRAPH_GROWTH_H_

// Graph growth: what an import and an extension (graph/import_export.h, graph/graph_extension.h)
// share: nodes that go again after an error, and the versions of two graphs that become one.

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "core/status.h"
#include "graph/graph.h"
#include "proto/versions.pb.h"

namespace millrace {

// Nodes added to a graph, which the destructor removes again unless Keep was called.
class AddedNodes {
 public:
  // `count`: how many will be added, at most.
  AddedNodes(Graph* graph, size_t count);
  ~AddedNodes();
  AddedNodes(const AddedNodes&) = delete;
  AddedNodes& operator=(const AddedNodes&) = delete;

  void Add(Node* node) { nodes_.push_back(node); }
  absl::Span<Node* const> nodes() const { return nodes_; }
  void Keep() { nodes_.clear(); }

 private:
  Graph* const graph_;
  std::vector<Node*> nodes_;
};

// The smaller producer, the larger min_consumer, the bad consumers of both.
tensorflow::VersionDef MergedVersions(tensorflow::VersionDef to,
                                      const tensorflow::VersionDef& from);

// InvalidArgument when a data input has no source.
Status CheckInputsConnected(absl::Span<Node* const> nodes);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_GRAPH_GROWTH_H_
