// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_RUNNING_STEPS_H_
#define MILLRACE_DISTRIBUTED_WORKER_RUNNING_STEPS_H_

// RunningSteps: the steps that run in a task, and the session of each.
//
//   Add -> running -> Remove     by RunGraph before it starts, and when it has ended
//
// Sessions are only compared, never followed: a step may run on when its session is gone.
//
// Thread-safety: all methods, from any thread. Its lock is taken under the worker's, and no other
// under it.
// Lifetime: `options` outlives it; a step is listed no longer than it lives.

#include <map>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "core/mutex.h"
#include "distributed/worker/worker_options.h"

namespace millrace {

struct WorkerSession;
class WorkerStep;

class RunningSteps {
 public:
  explicit RunningSteps(const WorkerOptions* options) : options_(options) {}

  void Add(WorkerStep* step, const WorkerSession* session);
  void Remove(WorkerStep* step);

  std::vector<std::shared_ptr<WorkerStep>> All() const;
  std::vector<std::shared_ptr<WorkerStep>> Of(const WorkerSession* session) const;
  int CountOf(const WorkerSession* session) const;

  // False when some still run at `deadline`.
  bool Await(absl::Time deadline);
  // Waits until all steps, which have been cancelled, have ended; for
  // WorkerOptions::shutdown_bound at most: then the log names what they wait for, and they are left
  // behind.
  void AwaitCancelled();

 private:
  const WorkerOptions* const options_;
  mutable Mutex mu_;
  CondVar step_ended_;
  // Abseil's sets break when there is no memory to grow, in which steps are refused.
  std::map<WorkerStep*, const WorkerSession*> running_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_RUNNING_STEPS_H_
