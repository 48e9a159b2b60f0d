// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_QUEUE_RUNNER_H_
#define MILLRACE_TRAIN_QUEUE_RUNNER_H_

// QueueRunners: threads that fill the queues of a graph (ops/control/queue.h) while it is run.
//
//   AddQueueRunner(root, queue, {enqueue, enqueue});          // two threads
//   ...
//   Coordinator coordinator;
//   MR_RETURN_IF_ERROR(StartQueueRunners(root, session, coordinator).status());
//
// What runs which operations stands in the graph's collection "queue_runners" (QueueRunnerDef), so
// that it goes with an exported graph. A MonitoredSession and a Supervisor start what is there.
//
// Each enqueue operation is run again and again by a thread of its own:
//   it fails with OutOfRange          the data has ended: the last one of the queue closes it, and
//   (or a code of the def)            dequeues get what is left and then OutOfRange
//   it fails otherwise                the Coordinator's stop, with that error
//   the Coordinator is to stop        the cancel operation ends those that wait, and all threads
//                                     end
//
// Thread-safety: functions of their arguments; the threads are the Coordinator's.
// Failure: InvalidArgument for a collection that names what is not in the graph.

#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "core/status.h"
#include "graph/scope.h"
#include "proto/queue_runner.pb.h"
#include "runtime/session.h"
#include "train/coordinator.h"

namespace millrace {

// Adds operations that close `queue` and an entry of the collection. `enqueues`: one thread each,
// the same one several times for several threads.
void AddQueueRunner(ScopeAt at, Output queue, absl::Span<const Operation> enqueues);

// What the collection has.
StatusOr<std::vector<tensorflow::QueueRunnerDef>> QueueRunnersOf(const Scope& scope);

// Starts the threads of all of them; how many there are now. They hold the session.
StatusOr<int> StartQueueRunners(const Scope& scope, const std::shared_ptr<Session>& session,
                                const Coordinator& coordinator);
void StartQueueRunner(const tensorflow::QueueRunnerDef& def,
                      const std::shared_ptr<Session>& session, const Coordinator& coordinator);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_QUEUE_RUNNER_H_
