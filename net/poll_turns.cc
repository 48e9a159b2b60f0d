// SPDX-License-Identifier: Apache-2.0
#include "net/poll_turns.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <new>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "core/mutex.h"
#include "net/grpc_events.h"

namespace millrace {

using NextStatus = grpc::CompletionQueue::NextStatus;

// All of it under the lock of Turns, but what is const.
struct PolledQueue::Member {
  grpc::CompletionQueue* queue = nullptr;
  bool has_seat = false;
  bool is_open = true;
  bool is_called = false;  // an event that calls a thread away is under way
  int num_polling = 0;     // threads in the queue's Next
};

namespace {

// For so long after the seat was in use the other threads leave the network to the next one who
// sits down: longer than most steps pause.
constexpr absl::Duration kPause = absl::Milliseconds(1);

struct Turns {
  bool InUse() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return is_on || absl::Now() - used < kPause;
  }

  Mutex mu;
  CondVar never;  // whoever stands aside looks at the time
  bool is_on ABSL_GUARDED_BY(mu) = false;
  absl::Time used ABSL_GUARDED_BY(mu) = absl::InfinitePast();
  std::vector<std::shared_ptr<PolledQueue::Member>> members ABSL_GUARDED_BY(mu);
};

Turns& TheTurns() {
  static Turns* const turns = new Turns;
  return *turns;
}

// Takes a thread out of its queue's Next: it finds the seat in use before it is there again.
class CallAway final : public QueueEvent {
 public:
  explicit CallAway(std::shared_ptr<PolledQueue::Member> member) : member_(std::move(member)) {}
  void Set() {
    alarm_.Set(member_->queue, absl::ToChronoTime(absl::Now()), static_cast<QueueEvent*>(this));
  }
  void Proceed(bool) override {
    {
      Turns& turns = TheTurns();
      MutexLock lock(&turns.mu);
      member_->is_called = false;
    }
    delete this;
  }

 private:
  const std::shared_ptr<PolledQueue::Member> member_;
  grpc::Alarm alarm_;
};

}  // namespace

PolledQueue::PolledQueue(grpc::CompletionQueue* queue, bool has_seat)
    : member_(std::make_shared<Member>()) {
  member_->queue = queue;
  member_->has_seat = has_seat;
  Turns& turns = TheTurns();
  MutexLock lock(&turns.mu);
  turns.members.push_back(member_);
}

PolledQueue::~PolledQueue() { Close(); }

void PolledQueue::Close() {
  Turns& turns = TheTurns();
  MutexLock lock(&turns.mu);
  member_->is_open = false;
  auto& members = turns.members;
  members.erase(std::remove(members.begin(), members.end(), member_), members.end());
}

NextStatus PolledQueue::Next(void** tag, bool* ok, absl::Time limit) {
  Turns& turns = TheTurns();
  for (;;) {
    {
      MutexLock lock(&turns.mu);
      if (!member_->is_open || !turns.InUse()) {
        ++member_->num_polling;
        break;
      }
      turns.never.WaitWithTimeout(&turns.mu, kPause);
      // The thread in the seat handles what comes at its own queue.
      if (member_->has_seat) continue;
    }
    const absl::Time now = absl::Now();
    const NextStatus next = member_->queue->AsyncNext(tag, ok, absl::ToChronoTime(now));
    if (next != NextStatus::TIMEOUT || now >= limit) return next;
  }
  const NextStatus next = member_->queue->AsyncNext(tag, ok, absl::ToChronoTime(limit));
  MutexLock lock(&turns.mu);
  --member_->num_polling;
  return next;
}

void PollTurns::Begin() {
  Turns& turns = TheTurns();
  MutexLock lock(&turns.mu);
  turns.is_on = true;
  for (const auto& member : turns.members) {
    // At the queue of the seat the event could come to who calls; its other threads leave with the
    // next message.
    if (member->num_polling == 0 || member->is_called || member->has_seat) continue;
    auto* const call = new (std::nothrow) CallAway(member);
    if (call == nullptr) return;
    member->is_called = true;
    call->Set();
  }
}

void PollTurns::End() {
  Turns& turns = TheTurns();
  MutexLock lock(&turns.mu);
  turns.is_on = false;
  turns.used = absl::Now();
}

bool PollTurns::IsOn() {
  Turns& turns = TheTurns();
  MutexLock lock(&turns.mu);
  return turns.is_on;
}

}  // namespace millrace
