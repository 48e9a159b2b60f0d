// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_POLL_TURNS_H_
#define MILLRACE_NET_POLL_TURNS_H_

// Poll turns: which of a process's threads wait at gRPC's queues.
//
// gRPC has one epoll descriptor for the process, and one thread polls it. An event for another
// queue is handed on to a thread that waits there, and who leaves with an event wakes the next one
// to poll: each message takes several switches of threads. So a thread that waits for messages of
// steps that follow each other polls itself, in the seat (core/network_seat.h). All others leave
// their queues to it, and come back a millisecond after it was there last.
//
//   PolledQueue polled(&queue);                           // of who has threads at a queue
//   if (polled.Next(&tag, &ok, limit) == GOT_EVENT) HandleEvent(tag, ok);
//
// A queue without the seat whose calls carry steps keeps its threads: they wait for nobody.
//
// Threads: all methods, from any thread. Lifetime: a PolledQueue may end while its queue has
// events; one with the seat never ends. Failure: none; what needs memory to call a thread away, or
// to wake one, is left out without it, and costs time.

#include <grpcpp/completion_queue.h>

#include <memory>

#include "absl/time/time.h"
#include "core/network_seat.h"

namespace millrace {

class PolledQueue {
 public:
  // `has_seat`: the thread in the seat waits at this queue.
  explicit PolledQueue(grpc::CompletionQueue* queue, bool has_seat = false);
  ~PolledQueue();
  PolledQueue(const PolledQueue&) = delete;
  PolledQueue& operator=(const PolledQueue&) = delete;

  // As the queue's own AsyncNext. While its threads stand aside, the first of what comes at this
  // queue is seen up to a millisecond later. A queue with the seat has one thread.
  grpc::CompletionQueue::NextStatus Next(void** tag, bool* ok, absl::Time limit);
  // Before the server and its queue are shut down: from then on nobody is called away from it, and
  // nobody stands aside.
  void Close();

  struct Member;
  const std::shared_ptr<Member>& member() const { return member_; }

  // While one lives a call at the queue may carry steps. It may outlive the queue.
  class Link {
   public:
    explicit Link(const PolledQueue& queue);
    ~Link();
    Link(const Link&) = delete;
    Link& operator=(const Link&) = delete;

   private:
    const std::shared_ptr<Member> member_;
  };

 private:
  void LeaveQueue();

  const std::shared_ptr<Member> member_;
};

// The seat at a queue, one in a process.
class QueueSeat final : public NetworkSeat {
 public:
  explicit QueueSeat(const PolledQueue& queue) : member_(queue.member()) {}

  // Whether the calling thread handles an event in the seat.
  static bool IsThisThread();

  bool has_links() const override;
  bool Take() override;
  void Serve(absl::Time limit) noexcept override;
  void Leave() override;
  void Wake() noexcept override;

 private:
  class WakeUp;
  bool AwaitTurn(absl::Time limit);

  const std::shared_ptr<PolledQueue::Member> member_;
};

}  // namespace millrace

#endif  // MILLRACE_NET_POLL_TURNS_H_
