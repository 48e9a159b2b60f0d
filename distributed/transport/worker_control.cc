// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/worker_control.h"

#include <utility>

#include "graph/graph.h"

namespace millrace {

PartOrder::PartOrder() = default;
PartOrder::PartOrder(std::string session, tensorflow::GraphDef def)
    : session_handle(std::move(session)), graph_def(std::move(def)) {}
PartOrder::PartOrder(PartOrder&& other) noexcept = default;
PartOrder& PartOrder::operator=(PartOrder&& other) noexcept = default;
PartOrder::~PartOrder() = default;

void PartOrder::Flatten() {
  if (graph == nullptr) return;
  graph->ToGraphDef(&graph_def, 0, /*assigned=*/true);
  graph = nullptr;
}

}  // namespace millrace
