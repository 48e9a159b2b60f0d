// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_GRPC_EVENTS_H_
#define MILLRACE_NET_GRPC_EVENTS_H_

// gRPC events: what the completion queues of servers and channels hand back.
//
// An operation of gRPC is begun with a tag, and its queue gives the tag back once, when the
// operation is over. Here a tag is a QueueEvent: a member of the object that began the operation.
//
// Threads: Arm before the operation begins; Proceed on the thread that took the event. Lifetime: an
// OwnedEvent keeps its owner alive while its operation is under way.
// Failure: HandleEvent lets no exception out; it is logged.

#include <grpcpp/completion_queue.h>

#include <memory>
#include <utility>

#include "core/dcheck.h"

namespace millrace {

// What a completion queue hands back.
class QueueEvent {
 public:
  virtual void Proceed(bool ok) = 0;

 protected:
  ~QueueEvent() = default;
};

// One of the operations of `Owner` that may be under way at the same time. While it is, it keeps
// the owner alive.
template <typename Owner>
class OwnedEvent final : public QueueEvent {
 public:
  using Method = void (Owner::*)(bool);
  void* Arm(std::shared_ptr<Owner> owner, Method method) {
    MR_DCHECK(owner_ == nullptr, "an operation begins again after its last event has come");
    owner_ = std::move(owner);
    method_ = method;
    return static_cast<QueueEvent*>(this);
  }
  void Disarm() { owner_ = nullptr; }
  void Proceed(bool ok) override {
    MR_DCHECK(owner_ != nullptr, "an operation that was begun gives one event");
    const std::shared_ptr<Owner> owner = std::move(owner_);
    owner_ = nullptr;
    (owner.get()->*method_)(ok);
  }

 private:
  std::shared_ptr<Owner> owner_;
  Method method_ = nullptr;
};

// Runs the event of a tag that a queue has given back. No exception ends the thread, and so the
// process. Those of handlers end their calls.
void HandleEvent(void* tag, bool ok);

// Handles the events of a queue that is shut down, until there are none any more.
void HandleLastEvents(grpc::CompletionQueue* queue);

}  // namespace millrace

#endif  // MILLRACE_NET_GRPC_EVENTS_H_
