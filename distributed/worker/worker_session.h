// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_WORKER_SESSION_H_
#define MILLRACE_DISTRIBUTED_WORKER_WORKER_SESSION_H_

// WorkerSession: what a master has opened on a task: devices with the resources that its steps see,
// and the graphs that it registers.
//
// Of a session that is open, `lease` and `is_idle` are guarded by the worker's lock, and the other
// plain members do not change. `life` and `graphs` have locks of their own. Lifetime: the table and
// the calls that use it share it; its steps keep only its life.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "core/status.h"
#include "distributed/cluster/lease_table.h"
#include "distributed/transport/worker_control.h"
#include "distributed/worker/graph_table.h"
#include "distributed/worker/session_life.h"
#include "distributed/worker/shared_plans.h"
#include "distributed/worker/task_devices.h"
#include "distributed/worker/worker_options.h"
#include "run/training_run.h"
#include "runtime/plan.h"
#include "runtime/session/function_runtime.h"

namespace millrace {

// Where a session was asked for.
enum class SessionFrom { kThisProcess, kAnotherProcess };

struct WorkerSession {
  explicit WorkerSession(const WorkerOptions* options) : graphs(options) {}
  // What is asked for, before it is open: without devices and lease. InvalidArgument for a handle
  // above kMaxHandleBytes, and for terms that cannot be kept. An opener that is no task, or has a
  // longer name, is nobody. `options` outlives it.
  static StatusOr<std::shared_ptr<WorkerSession>> Of(const SessionOrder& order,
                                                     const WorkerOptions* options,
                                                     SessionFrom from);

  // Nobody closes it for a master in another process that is gone: it asked for no lease.
  bool may_be_idle() const {
    return from == SessionFrom::kAnotherProcess && lease_time <= absl::ZeroDuration();
  }
  // For the plans of its graphs.
  PlanOwner plan_owner() const { return {devices, kernels, functions, run.id, isolated}; }
  // Once it has ended: drops its graphs, and tells the resources that hold something for it.
  void DropAll();

  std::string handle;
  SessionOpener opener;
  TrainingRun run;                                   // empty: none
  absl::Duration lease_time = absl::ZeroDuration();  // zero: none
  SessionFrom from = SessionFrom::kThisProcess;
  // Of a session that may be idle: until it is. Null: none.
  std::shared_ptr<Lease> lease;
  bool is_idle = false;
  DeviceList devices;
  bool isolated = false;
  const std::shared_ptr<KernelStore> kernels = std::make_shared<KernelStore>();
  // What kernels of this session call; stateful ones outlive the graphs that they were built for.
  std::shared_ptr<FunctionRuntime> functions;

  // Ends when it leaves the list. What its steps send is waited for so long (StepTable).
  const std::shared_ptr<SessionLife> life = std::make_shared<SessionLife>();
  GraphTable graphs;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_WORKER_SESSION_H_
