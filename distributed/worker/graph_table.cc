// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/graph_table.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/random_bits.h"
#include "distributed/cluster/server_limits.h"
#include "distributed/worker/handles.h"
#include "net/call_limits.h"
#include "runtime/session/compile_path.h"

namespace millrace {
namespace {

Status NoSuchGraph(const std::string& handle) {
  return absl::AbortedError(absl::StrCat("Graph handle is not found: ", ShownHandle(handle)));
}

}  // namespace

StatusOr<std::shared_ptr<RegisteredGraph>> BuildRegisteredGraph(PartOrder* order,
                                                                const PlanOwner& owner,
                                                                SharedPlans* plans,
                                                                const std::string& task) {
  auto registered = std::make_shared<RegisteredGraph>();
  std::vector<tensorflow::NodeDef> transfers;
  if (order->graph != nullptr) {
    transfers = TransfersIn(*order->graph);
    MR_ASSIGN_OR_RETURN(registered->plan, plans->Build(std::move(order->graph), owner));
  } else {
    transfers = TransfersIn(order->graph_def);
    MR_ASSIGN_OR_RETURN(registered->plan, plans->FindOrBuild(std::move(order->graph_def), owner));
    registered->transfers = transfers;
  }
  StatusOr<StepEdges> edges = StepEdges::Of(*registered->plan->graph, transfers,
                                            TransfersOf(registered->plan->parts), task);
  MR_RETURN_IF_ERROR(edges.status());
  registered->edges = std::make_shared<const StepEdges>(*std::move(edges));
  for (const StepEdges::Peer& peer : registered->edges->sends) {
    registered->sent_reads.push_back(std::make_shared<SentReads>(peer.numbers.size()));
  }
  return registered;
}

Status GraphTable::CheckRoomFor(int64_t num_bytes) const {
  MutexLock lock(&mu_);
  return CheckRoomLocked(num_bytes);
}

Status GraphTable::CheckRoomLocked(int64_t num_bytes) const {
  const ServerLimits& limits = options_->limits;
  int64_t graphs = 1, bytes = num_bytes;
  for (const auto& [handle, other] : graphs_) {
    ++graphs;
    bytes += other->num_bytes;
  }
  const std::string where = absl::StrCat("RegisterGraph on ", options_->task);
  if (graphs > limits.max_graphs) {
    return BeyondLimit(where, "graphs of a session", "max_graphs", limits.max_graphs, graphs);
  }
  if (bytes <= limits.max_graph_bytes) return absl::OkStatus();
  return BeyondLimit(where, "bytes of a session's graphs", "max_graph_bytes",
                     limits.max_graph_bytes, bytes);
}

StatusOr<std::string> GraphTable::Add(std::shared_ptr<RegisteredGraph> graph) {
  const std::string handle = RandomHexName();
  MutexLock lock(&mu_);
  MR_RETURN_IF_ERROR(CheckRoomLocked(graph->num_bytes));
  graphs_[handle] = std::move(graph);
  return handle;
}

StatusOr<std::shared_ptr<RegisteredGraph>> GraphTable::Find(const std::string& handle) const {
  MutexLock lock(&mu_);
  const auto it = graphs_.find(handle);
  if (it == graphs_.end()) return NoSuchGraph(handle);
  return it->second;
}

Status GraphTable::Drop(const std::string& handle) {
  std::shared_ptr<RegisteredGraph> dropped;  // destroyed without the lock
  MutexLock lock(&mu_);
  const auto it = graphs_.find(handle);
  if (it == graphs_.end()) return NoSuchGraph(handle);
  dropped = std::move(it->second);
  graphs_.erase(it);
  return absl::OkStatus();
}

void GraphTable::Clear() {
  std::map<std::string, std::shared_ptr<RegisteredGraph>> graphs;  // destroyed without the lock
  MutexLock lock(&mu_);
  graphs.swap(graphs_);
}

std::vector<std::shared_ptr<const WorkerPlan>> GraphTable::Plans() const {
  std::vector<std::shared_ptr<const WorkerPlan>> plans;
  MutexLock lock(&mu_);
  for (const auto& [handle, graph] : graphs_) plans.push_back(graph->plan);
  return plans;
}

}  // namespace millrace
