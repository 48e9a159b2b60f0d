// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_TASK_CALLS_H_
#define MILLRACE_DISTRIBUTED_MASTER_TASK_CALLS_H_

// TaskCalls: several calls to tasks at once, how long they may take, and what their errors mean.
//
//   TaskCalls calls(n, "Session on ...: registering its graph", clock);
//   for (int i = 0; i < n; ++i) tasks[i]->RegisterGraph(options, ..., calls.Done(i, *tasks[i]));
//   const std::vector<Status>& statuses = calls.Wait();
//
// While Wait lasts, the log names every 10 s the tasks that have not answered.
//
// Invariant: each Done is called exactly once, as every WorkerControl promises; Wait returns then.
// Thread-safety: Done's callbacks, from any thread; the rest belongs to one thread, never a poller.
// Lifetime: destroy it after Wait.

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/status.h"
#include "distributed/transport/worker_control.h"
#include "net/timers.h"

namespace millrace {

// For calls that only tidy up.
inline constexpr absl::Duration kCleanupTimeout = absl::Seconds(5);
// Setting up a session or graph on a task that has answered already.
inline constexpr absl::Duration kSetupTimeout = absl::Minutes(10);

class TaskCalls {
 public:
  // `what` is waited for; for the log.
  TaskCalls(int n, std::string what, Clock* clock);
  // What call number `i`, which goes to `task`, is given.
  WorkerControl::Done Done(int i, const WorkerControl& task);
  // The statuses by number, when all have come.
  const std::vector<Status>& Wait();

 private:
  const std::string what_;
  Clock* const clock_;
  Mutex mu_;
  CondVar answered_;
  int left_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> waits_for_ ABSL_GUARDED_BY(mu_);  // by number; "": nobody
  std::vector<Status> statuses_;  // each its own call's, until none is left
};

// How often a wait says what it waits for.
inline constexpr absl::Duration kWaitLogPeriod = absl::Seconds(10);

// "/job:ps/replica:0/task:0 at host:port"
std::string Whereabouts(const WorkerControl& task);

// Options of a call that must end within `timeout`.
CallOptions CallWithin(absl::Duration timeout, Timers* timers = Timers::Real());

// An error of a task, as the client sees it: "From /job:ps/replica:0/task:0:\n...". Errors that
// were only passed on stay as they are.
Status FromTask(const std::string& task, const Status& status);

// The task does not know the session: its process is another one.
bool TellsOfRestart(const Status& status);
// A link to a task cannot be, though all had links of one version as the step was compiled: the
// task's process may be another one, of another release.
bool TellsOfOtherRelease(const Status& status);
// The task knows the session, and not the graph.
bool TellsOfUnknownGraph(const Status& status);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_TASK_CALLS_H_
