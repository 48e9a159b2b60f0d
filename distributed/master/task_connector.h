// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_TASK_CONNECTOR_H_
#define MILLRACE_DISTRIBUTED_MASTER_TASK_CONNECTOR_H_

// Task connector: waits until the tasks of a session answer, and opens worker sessions on them.
//
// Tasks may start in any order: each is asked who it is (GetStatus) again and again, all at the
// same time, until every one has answered with its devices. The log names those that are missing,
// with their addresses, every 10 s.
//
// Sessions on tasks in other processes are leases (lease_keeper.h): kept from the moment they are
// open until they are closed, and closed even when the task cannot be reached then.
//
// Thread-safety: all functions, from any thread. They block; never on a poller.
// Lifetime: attempts that are still under way when AwaitTasks fails are cancelled; they hold what
// they need themselves.
// Failure: DeadlineExceeded names all tasks that did not answer within the timeout, and the first
// one's last error; Aborted when the server stops; Cancelled when the client has gone.

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/status.h"
#include "distributed/lease_keeper.h"
#include "distributed/transport/session_terms.h"
#include "distributed/transport/timers.h"
#include "distributed/transport/transport.h"

namespace millrace {

struct ReachedTask {
  std::shared_ptr<Transport> transport;
  std::vector<tensorflow::DeviceAttributes> devices;  // at least one
};

struct AwaitOptions {
  std::string own_task;  // whose master waits; for the message
  absl::Duration timeout;
  Clock* clock = Clock::Real();
  Timers* timers = Timers::Real();
  // End the wait: the server stops; the client for whom it is has gone. May be null.
  CancellationManager* shutdown = nullptr;
  CancellationManager* caller = nullptr;
};

// In the order given.
StatusOr<std::vector<ReachedTask>> AwaitTasks(
    absl::Span<const std::shared_ptr<Transport>> transports, const AwaitOptions& options);

// The session `request`, with these terms, on each task, or, with the first error of a task and its
// name, on none. Tasks in this process get no lease.
Status OpenWorkerSessions(absl::Span<const ReachedTask> tasks,
                          const tensorflow::CreateWorkerSessionRequest& request,
                          const SessionTerms& terms, LeaseKeeper* keeper, Clock* clock,
                          Timers* timers = Timers::Real());

// A session on a task.
struct OpenSession {
  std::shared_ptr<Transport> task;
  std::string handle;
};

// Ends the sessions on their tasks, all at once, within kCleanupTimeout. A task that does not
// answer is told again later; what one that answers says against it is in the log.
void CloseWorkerSessions(absl::Span<const OpenSession> sessions, LeaseKeeper* keeper, Clock* clock,
                         Timers* timers = Timers::Real());

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_TASK_CONNECTOR_H_
