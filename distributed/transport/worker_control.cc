// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/worker_control.h"

#include <utility>

#include "graph/graph.h"

namespace millrace {

void WorkerControl::RegisterGraph(const CallOptions& options,
                                  const tensorflow::RegisterGraphRequest& request,
                                  std::unique_ptr<Graph> graph,
                                  tensorflow::RegisterGraphResponse* response, Done done) {
  if (graph == nullptr) return RegisterGraph(options, request, response, std::move(done));
  auto whole = std::make_shared<tensorflow::RegisterGraphRequest>(request);
  graph->ToGraphDef(whole->mutable_graph_def(), 0, /*assigned=*/true);
  const tensorflow::RegisterGraphRequest& message = *whole;
  RegisterGraph(options, message, response,
                [whole = std::move(whole), done = std::move(done)](const Status& status) mutable {
                  done(status);
                });
}

}  // namespace millrace
