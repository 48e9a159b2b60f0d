// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_POLL_TURNS_H_
#define MILLRACE_NET_POLL_TURNS_H_

// PollTurns: which of a process's threads wait at gRPC's queues.
//
// gRPC has one epoll descriptor for the process, and one thread polls it. An event for another
// queue is handed on to a thread that waits there, and who leaves with an event wakes the next one
// to poll: each message takes several switches of threads. So when a thread that waits for a
// message of a step polls itself (core/network_seat.h), all others leave their queues to it, and
// come back a millisecond after it was there last.
//
//   PolledQueue polled(&queue);                           // of who has threads at a queue
//   while (polled.Next(&tag, &ok, limit) != SHUTDOWN) HandleEvent(tag, ok);
//
// Threads: all methods, from any thread. Lifetime: a PolledQueue may end while its queue has
// events. Failure: none; without memory for the event that calls threads away they stay where they
// are, which costs time.

#include <grpcpp/completion_queue.h>

#include <memory>

#include "absl/time/time.h"

namespace millrace {

class PolledQueue {
 public:
  // `has_seat`: the thread in the seat waits at this queue.
  explicit PolledQueue(grpc::CompletionQueue* queue, bool has_seat = false);
  ~PolledQueue();
  PolledQueue(const PolledQueue&) = delete;
  PolledQueue& operator=(const PolledQueue&) = delete;

  // As the queue's own AsyncNext. While its threads stand aside, what comes at this queue is seen
  // up to a millisecond later.
  grpc::CompletionQueue::NextStatus Next(void** tag, bool* ok, absl::Time limit);
  // Before the queue is shut down: from then on nobody is called away from it.
  void Close();

  struct Member;

 private:
  const std::shared_ptr<Member> member_;
};

// The turn of the thread in the seat, of which a process has one.
class PollTurns {
 public:
  // It is about to poll, and calls the others away.
  static void Begin();
  // It has an event, or leaves.
  static void End();
  // Whether it is between Begin and End.
  static bool IsOn();
};

}  // namespace millrace

#endif  // MILLRACE_NET_POLL_TURNS_H_
