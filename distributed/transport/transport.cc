// SPDX-License-Identifier: Apache-2.0
#include "distributed/transport/transport.h"

#include <utility>

#include "graph/graph.h"

namespace millrace {
namespace {

Status HasNot(const Transport& transport, const char* method) {
  return Unimplemented(method, " on ", transport.task(), ": this transport has not got it");
}

}  // namespace

void Transport::RenewSessions(const CallOptions&, absl::Span<const std::string>,
                              std::vector<std::string>*, Done done) {
  done(HasNot(*this, "RenewSessions"));
}
void Transport::FindRun(const CallOptions&, const std::string&, const std::string&, FoundRun*,
                        Done done) {
  done(HasNot(*this, "FindRun"));
}
void Transport::EndRun(const CallOptions&, const std::string&, const RunEnd&, Done done) {
  done(HasNot(*this, "EndRun"));
}

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

}  // namespace millrace
