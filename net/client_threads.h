// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_CLIENT_THREADS_H_
#define MILLRACE_NET_CLIENT_THREADS_H_

// Client threads: the queue of all channels of this process, and the threads that wait at it.
//
// Made when the first call begins, and never destroyed, like the arena and the I/O pool. A thread
// that a message has given work does that itself (core/visit.h). While links are open a thread that
// waits for a message of a step may sit down at the queue (net/poll_turns.h); what its events make
// ready of other steps runs on other threads.
//
// Thread-safety: ClientQueue and PolledClientQueue, from any thread; RunOnClient, on the thread of
// an event.
// Failure: they throw std::system_error while the system gives no thread at all; the next call
// tries again.

#include <grpcpp/completion_queue.h>

#include "core/visit.h"
#include "net/poll_turns.h"

namespace millrace {

grpc::CompletionQueue* ClientQueue();

// The same one, for its links.
const PolledQueue& PolledClientQueue();

// As the last thing that an event of the client does: polls no more until the work is done. Runs
// the work also when there is no memory.
void RunOnClient(Visit::Work* work);

}  // namespace millrace

#endif  // MILLRACE_NET_CLIENT_THREADS_H_
