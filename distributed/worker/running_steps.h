// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_RUNNING_STEPS_H_
#define MILLRACE_DISTRIBUTED_WORKER_RUNNING_STEPS_H_

// RunningSteps: the steps that run in a task, and the session of each, by its life.
//
//   Add -> running -> Remove     by RunGraph before it starts, and when it has ended
//
// A step may run on when its session is gone. It holds the session's life (SessionLife), so no
// other session is taken for that one.
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

class SessionLife;
class WorkerStep;

class RunningSteps {
 public:
  explicit RunningSteps(const WorkerOptions* options) : options_(options) {}

  void Add(WorkerStep* step, const SessionLife* session);
  void Remove(WorkerStep* step);

  std::vector<std::shared_ptr<WorkerStep>> All() const;
  std::vector<std::shared_ptr<WorkerStep>> Of(const SessionLife* session) const;
  int CountOf(const SessionLife* session) const;

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
  std::map<WorkerStep*, const SessionLife*> running_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_RUNNING_STEPS_H_
