// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_GRAPH_TABLE_H_
#define MILLRACE_DISTRIBUTED_WORKER_GRAPH_TABLE_H_

// GraphTable: the partitions that a master has registered in one session, by handle.
//
// Invariant: there are never more of them, in number and in bytes of their messages, than
// ServerLimits allows a session.
// Thread-safety: all methods, from any thread; graphs are built, and destroyed, without the lock.
// Lifetime: a step keeps the graph that it runs, also when its handle is gone.
// Failure: ResourceExhausted beyond a limit; Aborted for a handle that is not there.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/mutex.h"
#include "core/status.h"
#include "distributed/transport/worker_control.h"
#include "distributed/worker/sent_reads.h"
#include "distributed/worker/shared_plans.h"
#include "distributed/worker/step_edges.h"
#include "distributed/worker/worker_options.h"
#include "proto/node_def.pb.h"

namespace millrace {

// What a graph handle stands for.
struct RegisteredGraph {
  std::shared_ptr<const WorkerPlan> plan;
  std::shared_ptr<const StepEdges> edges;
  // For each of edges->sends: of all steps of this graph.
  std::vector<std::shared_ptr<SentReads>> sent_reads;
  // Nodes that the plan, which others share, has with other tasks' names.
  std::vector<tensorflow::NodeDef> transfers;
  int64_t num_bytes = 0;  // of the GraphDef that registered it
};

// The partition in `order`, which is used up, with a plan of `plans`. `task`: whose partition it
// is. What plans and StepEdges say of a graph that is malformed.
StatusOr<std::shared_ptr<RegisteredGraph>> BuildRegisteredGraph(PartOrder* order,
                                                                const PlanOwner& owner,
                                                                SharedPlans* plans,
                                                                const std::string& task);

class GraphTable {
 public:
  // `options` outlives it.
  explicit GraphTable(const WorkerOptions* options) : options_(options) {}

  // Whether one more of so many bytes has room, before it is built.
  Status CheckRoomFor(int64_t num_bytes) const;
  // Its handle. Room is checked again: others may have come meanwhile.
  StatusOr<std::string> Add(std::shared_ptr<RegisteredGraph> graph);
  StatusOr<std::shared_ptr<RegisteredGraph>> Find(const std::string& handle) const;
  Status Drop(const std::string& handle);
  void Clear();
  // Of the graphs that are registered now. For tests.
  std::vector<std::shared_ptr<const WorkerPlan>> Plans() const;

 private:
  Status CheckRoomLocked(int64_t num_bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const WorkerOptions* const options_;
  mutable Mutex mu_;
  std::map<std::string, std::shared_ptr<RegisteredGraph>> graphs_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_GRAPH_TABLE_H_
