// SPDX-License-Identifier: Apache-2.0
#include "graph/graph_growth.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace millrace {

AddedNodes::AddedNodes(Graph* graph, size_t count) : graph_(graph) { nodes_.reserve(count); }

AddedNodes::~AddedNodes() {
  for (auto it = nodes_.rbegin(); it != nodes_.rend(); ++it) graph_->RemoveNode(*it);
  // Bodies are made of what the graph has.
  graph_->set_library(graph_->shared_library());
}

tensorflow::VersionDef MergedVersions(tensorflow::VersionDef to,
                                      const tensorflow::VersionDef& from) {
  to.set_producer(std::min(to.producer(), from.producer()));
  to.set_min_consumer(std::max(to.min_consumer(), from.min_consumer()));
  for (int bad : from.bad_consumers()) {
    if (std::find(to.bad_consumers().begin(), to.bad_consumers().end(), bad) ==
        to.bad_consumers().end()) {
      to.add_bad_consumers(bad);
    }
  }
  return to;
}

Status CheckInputsConnected(absl::Span<Node* const> nodes) {
  for (const Node* node : nodes) {
    for (int i = 0; i < node->num_inputs(); ++i) {
      if (node->input(i).node != nullptr) continue;
      return absl::InvalidArgumentError(absl::StrCat(node->op(), " '", node->name(), "': input ", i,
                                                     " must have a source, got none"));
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace
