// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_TASK_CONNECTOR_H_
#define MILLRACE_DISTRIBUTED_MASTER_TASK_CONNECTOR_H_

// Task connector: waits until the tasks of a session answer, and opens worker sessions on them.
//
// Tasks may start in any order: each is asked who it is (GetStatus) again and again, all at the
// same time, until every one has answered with its devices. The log names those that are missing,
// with their addresses, every 10 s.
//
// A task that refuses us ends the wait. One of another release does not: while the tasks of a job
// are replaced, an old one may answer until it is stopped. The log names it once.
//
// Sessions on tasks in other processes are leases (lease_keeper.h): kept from the moment they are
// open until they are closed, and closed even when the task cannot be reached then.
//
// Thread-safety: all functions, from any thread. They block; never on a poller.
// Lifetime: attempts that are still under way when AwaitTasks fails are cancelled; they hold what
// they need themselves.
// Failure: DeadlineExceeded names all tasks that did not answer within the timeout, and the first
// one's last error, or that of a task of another release; that of endable_wait.h when the wait has
// ended early.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/clock.h"
#include "core/status.h"
#include "distributed/cluster/lease_keeper.h"
#include "distributed/master/endable_wait.h"
#include "distributed/transport/worker_control.h"
#include "net/timers.h"

namespace millrace {

struct ReachedTask {
  std::shared_ptr<WorkerControl> control;
  std::vector<tensorflow::DeviceAttributes> devices;  // at least one
};

struct AwaitOptions {
  std::string own_task;  // whose master waits; for the message
  absl::Duration timeout;
  Clock* clock = Clock::Real();
  Timers* timers = Timers::Real();
  WaitEnds ends;
};

// In the order given.
StatusOr<std::vector<ReachedTask>> AwaitTasks(
    absl::Span<const std::shared_ptr<WorkerControl>> controls, const AwaitOptions& options);

// A session on a task, as that one knows it.
struct OpenSession {
  std::shared_ptr<WorkerControl> task;
  std::string handle;
};

// The session of `order` on each task, or, with the first error of a task and its
// name, on none. No call is longer than `options.timeout` (or a second), or goes on when the wait
// has ended early.
//
// The handle must be one that was never sent before: a task that has not answered may open or end
// the session of this attempt at any later time. Tasks in this process get no lease. `lost` is
// called, in any thread, when a task does not know its session any more.
Status OpenWorkerSessions(absl::Span<const ReachedTask> tasks, const SessionOrder& order,
                          LeaseKeeper* keeper, const AwaitOptions& options,
                          const std::function<void(const OpenSession&)>& lost = nullptr);

// Ends a session that nobody uses, without waiting: its task is told now, and again if it does not
// answer.
void EndWorkerSession(const OpenSession& session, LeaseKeeper* keeper,
                      Timers* timers = Timers::Real());

// Ends the sessions on their tasks, all at once, and waits for the first answer of each, or
// kTellTimeout.
void CloseWorkerSessions(absl::Span<const OpenSession> sessions, LeaseKeeper* keeper, Clock* clock,
                         Timers* timers = Timers::Real());

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_TASK_CONNECTOR_H_
