// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_SHARED_PLANS_H_
#define MILLRACE_DISTRIBUTED_WORKER_SHARED_PLANS_H_

// SharedPlans: the plans of a task's partitions. Partitions that are equal but for the names of
// other tasks share one, as those of many workers of one model do on a parameter server.
//
//   message -> canonical form (other tasks by the order in which they appear) -> digest
//           -> the plan that is there, or: graph -> cut by device -> executors
//
// Invariants: a plan is shared by sessions that have the same devices (those of a run are its own)
// and only when the state of its stateful nodes lives in resources; an isolated session's plans are
// its own. A plan lives as long as a registered graph or a step has it.
//
// Thread-safety: all methods, from any thread; plans are built without a lock.
// Failure: InvalidArgument for a partition that is malformed or of another task; what the import
// and the kernels say.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/mutex.h"
#include "core/status.h"
#include "graph/graph.h"
#include "proto/graph.pb.h"
#include "runtime/device.h"
#include "runtime/plan.h"
#include "runtime/session/compile_path.h"
#include "runtime/session/function_runtime.h"

namespace millrace {

// The executors of a partition, one per device that it uses.
struct WorkerPlan {
  std::vector<std::shared_ptr<Device>> devices;  // keeps those of `parts`
  std::shared_ptr<FunctionRuntime> functions;    // that nodes of `parts` call; null: none
  std::vector<StepPart> parts;
  // What they were cut from: for RunMetadata.partition_graphs, and for what goes to other tasks.
  std::unique_ptr<const Graph> graph;
  // Places of its _Arg and _Retval nodes: what a step gets and gives by position.
  int num_args = 0;
  int num_results = 0;
};

// What a session gives to the plans of its partitions.
struct PlanOwner {
  std::vector<std::shared_ptr<Device>> devices;
  std::shared_ptr<KernelStore> kernels;
  std::shared_ptr<FunctionRuntime> functions;
  std::string run_id;  // "": of no run
  bool is_isolated = false;
};

// Functions on these devices, with kernels of that store.
std::shared_ptr<FunctionRuntime> FunctionsOn(const std::vector<std::shared_ptr<Device>>& devices,
                                             std::shared_ptr<KernelStore> kernels);

// The nodes that send and receive, as other tasks know them.
std::vector<tensorflow::NodeDef> TransfersIn(const tensorflow::GraphDef& partition);
std::vector<tensorflow::NodeDef> TransfersIn(const Graph& partition);

class SharedPlans {
 public:
  // `task`: "/job:ps/replica:0/task:0".
  explicit SharedPlans(std::string task) : task_(std::move(task)) {}

  // The plan of a partition as its master sent it.
  StatusOr<std::shared_ptr<const WorkerPlan>> FindOrBuild(tensorflow::GraphDef partition,
                                                          const PlanOwner& owner);
  // A plan of its own.
  StatusOr<std::shared_ptr<const WorkerPlan>> Build(std::unique_ptr<const Graph> partition,
                                                    const PlanOwner& owner) const {
    return Build(std::move(partition), owner, /*shared=*/false);
  }

  // Those that are shared and in use. For tests.
  int size() const;

 private:
  StatusOr<std::shared_ptr<const WorkerPlan>> Build(std::unique_ptr<const Graph> partition,
                                                    const PlanOwner& owner, bool shared) const;

  const std::string task_;
  mutable Mutex mu_;
  // By digest of the canonical graph.
  std::map<std::string, std::weak_ptr<const WorkerPlan>> plans_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_SHARED_PLANS_H_
