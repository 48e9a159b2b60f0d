// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/transport.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "graph/graph.h"

namespace millrace {

void Transport::RegisterGraph(const CallOptions& options,
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

void Transport::RunGraph(const CallOptions&, const tensorflow::RunGraphRequest&,
                         const tensorflow::RunGraphRequest&, absl::Span<const NamedTensor>, bool,
                         tensorflow::RunGraphResponse*, std::vector<NamedTensor>*, Done done) {
  done(absl::UnimplementedError(
      absl::StrCat("RunGraph: the worker must be of this process, got ", task())));
}

}  // namespace millrace
