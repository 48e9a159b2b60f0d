// SPDX-License-Identifier: Apache-2.0
#include "net/poll_turns.h"

#include <grpcpp/alarm.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "core/mutex.h"
#include "net/grpc_events.h"

namespace millrace {

using NextStatus = grpc::CompletionQueue::NextStatus;

// Under the lock of Turns, but what is const.
struct PolledQueue::Member {
  Member(grpc::CompletionQueue* q, bool seat) : queue(q), has_seat(seat) {}
  grpc::CompletionQueue* const queue;
  const bool has_seat;
  bool is_open = true;
  bool is_called = false;  // an event that calls a thread away is under way
  int num_polling = 0;     // threads in the queue's Next
  int num_links = 0;
};

namespace {

using Steady = std::chrono::steady_clock;

// For so long after the seat was in use the other threads leave the network to the next one who
// sits down: longer than most steps pause.
constexpr std::chrono::milliseconds kPause(1);
// So many waits within kPause of each other, and the thread sits down. Before that it is cheaper to
// be woken than to call others away.
constexpr int kWaitsInTurn = 4;

// gRPC rounds times up to milliseconds, and leaves those to come to a thread of timers; what is
// past is now.
constexpr std::chrono::system_clock::time_point kAtOnce{};

// gRPC takes what is before 1970 for never.
std::chrono::system_clock::time_point LimitOfQueue(absl::Time limit) {
  return absl::ToChronoTime(std::max(limit, absl::UnixEpoch()));
}

struct Turns {
  bool InUse() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return is_asleep || Steady::now() - used < kPause;
  }
  void CallAway() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  Mutex mu;
  CondVar changed;
  std::vector<std::shared_ptr<PolledQueue::Member>> members ABSL_GUARDED_BY(mu);
  // The seat: free -> taken, asleep -> taken, awake -> free.
  bool is_taken ABSL_GUARDED_BY(mu) = false;
  bool is_asleep ABSL_GUARDED_BY(mu) = false;
  bool awaits_turn ABSL_GUARDED_BY(mu) = false;  // asleep until its queue's other threads are away
  bool is_woken ABSL_GUARDED_BY(mu) = false;     // meanwhile
  Steady::time_point used ABSL_GUARDED_BY(mu);
  Steady::time_point wished ABSL_GUARDED_BY(mu);
  int waits_in_turn ABSL_GUARDED_BY(mu) = 0;
};

Turns& TheTurns() {
  static Turns* const turns = new Turns;
  return *turns;
}

thread_local bool is_in_seat = false;

// An event that comes at once.
class EventNow : public QueueEvent {
 public:
  void Set(grpc::CompletionQueue* queue) {
    alarm_.Set(queue, kAtOnce, static_cast<QueueEvent*>(this));
  }

 protected:
  ~EventNow() = default;

 private:
  grpc::Alarm alarm_;
};

// Takes a thread out of its queue's Next: it finds the seat in use before it is there again.
class CallAwayEvent final : public EventNow {
 public:
  explicit CallAwayEvent(std::shared_ptr<PolledQueue::Member> member)
      : member_(std::move(member)) {}
  void Proceed(bool) override {
    {
      MutexLock lock(&TheTurns().mu);
      member_->is_called = false;
    }
    delete this;
  }

 private:
  const std::shared_ptr<PolledQueue::Member> member_;
};

void Turns::CallAway() {
  for (const auto& member : members) {
    if (member->num_polling == 0 || member->is_called) continue;
    if (member->num_links > 0 && !member->has_seat) continue;
    try {
      auto event = std::make_unique<CallAwayEvent>(member);
      member->is_called = true;
      event.release()->Set(member->queue);
    } catch (const std::bad_alloc&) {
    }
  }
}

}  // namespace

PolledQueue::PolledQueue(grpc::CompletionQueue* queue, bool has_seat)
    : member_(std::make_shared<Member>(queue, has_seat)) {
  Turns& turns = TheTurns();
  MutexLock lock(&turns.mu);
  turns.members.push_back(member_);
}

PolledQueue::~PolledQueue() { Close(); }

void PolledQueue::Close() {
  Turns& turns = TheTurns();
  MutexLock lock(&turns.mu);
  member_->is_open = false;
  turns.changed.SignalAll();
  auto& members = turns.members;
  members.erase(std::remove(members.begin(), members.end(), member_), members.end());
}

NextStatus PolledQueue::Next(void** tag, bool* ok, absl::Time limit) {
  Turns& turns = TheTurns();
  Member& member = *member_;
  for (;;) {
    bool looks;
    {
      MutexLock lock(&turns.mu);
      const bool serves_steps = member.num_links > 0 && !member.has_seat;
      if (!member.is_open || serves_steps || !turns.InUse()) {
        ++member.num_polling;
        break;
      }
      // The thread in the seat handles what comes at its own queue.
      looks = !member.has_seat || !turns.is_asleep;
      if (looks && member.has_seat) ++member.num_polling;
    }
    if (looks) {
      const NextStatus next = member.queue->AsyncNext(tag, ok, kAtOnce);
      if (member.has_seat) LeaveQueue();
      if (next != NextStatus::TIMEOUT || absl::Now() >= limit) return next;
    }
    MutexLock lock(&turns.mu);
    if (!member.is_open || !turns.InUse()) continue;
    Steady::duration left = kPause;
    if (!turns.is_asleep) left = turns.used + kPause - Steady::now();
    turns.changed.WaitWithTimeout(&turns.mu, absl::FromChrono(left));
  }
  const NextStatus next = member.queue->AsyncNext(tag, ok, LimitOfQueue(limit));
  LeaveQueue();
  return next;
}

void PolledQueue::LeaveQueue() {
  Turns& turns = TheTurns();
  MutexLock lock(&turns.mu);
  if (--member_->num_polling == 0 && turns.awaits_turn) turns.changed.SignalAll();
}

PolledQueue::Link::Link(const PolledQueue& queue) : member_(queue.member_) {
  MutexLock lock(&TheTurns().mu);
  ++member_->num_links;
}

PolledQueue::Link::~Link() {
  MutexLock lock(&TheTurns().mu);
  --member_->num_links;
}

// --- The seat

class QueueSeat::WakeUp final : public EventNow {
 public:
  explicit WakeUp(QueueSeat* seat) : seat_(seat) {}
  void Proceed(bool) override {
    // Another thread took it, and will stand aside. Whom it was meant for may still sleep.
    if (!is_in_seat) seat_->Wake();
    delete this;
  }

 private:
  QueueSeat* const seat_;
};

bool QueueSeat::IsThisThread() { return is_in_seat; }

bool QueueSeat::has_links() const {
  MutexLock lock(&TheTurns().mu);
  return member_->num_links > 0;
}

bool QueueSeat::Take() {
  Turns& turns = TheTurns();
  MutexLock lock(&turns.mu);
  if (turns.is_taken) return false;
  const Steady::time_point now = Steady::now();
  turns.waits_in_turn =
      now - std::exchange(turns.wished, now) < kPause ? turns.waits_in_turn + 1 : 0;
  if (member_->num_polling > 0 && turns.waits_in_turn < kWaitsInTurn) return false;
  turns.is_taken = turns.is_asleep = true;
  turns.is_woken = false;
  return true;
}

// False: awake, or time is over.
bool QueueSeat::AwaitTurn(absl::Time limit) {
  Turns& turns = TheTurns();
  MutexLock lock(&turns.mu);
  turns.CallAway();
  turns.awaits_turn = true;
  while (member_->num_polling > 0 && !turns.is_woken && absl::Now() < limit) {
    turns.changed.WaitWithTimeout(&turns.mu, limit - absl::Now());
  }
  turns.awaits_turn = false;
  if (member_->num_polling == 0 && !turns.is_woken) return true;
  turns.is_asleep = false;
  turns.used = Steady::now();
  return false;
}

void QueueSeat::Serve(absl::Time limit) noexcept {
  Turns& turns = TheTurns();
  if (!AwaitTurn(limit)) return;
  void* tag;
  bool ok;
  const NextStatus next = member_->queue->AsyncNext(&tag, &ok, LimitOfQueue(limit));
  {
    MutexLock lock(&turns.mu);
    turns.is_asleep = false;
    turns.used = next == NextStatus::GOT_EVENT ? Steady::now() : Steady::time_point();
    // Who has slept for so long in vain may not come back.
    if (next != NextStatus::GOT_EVENT) turns.changed.SignalAll();
  }
  if (next != NextStatus::GOT_EVENT) return;
  is_in_seat = true;
  HandleEvent(tag, ok);
  is_in_seat = false;
}

void QueueSeat::Leave() {
  Turns& turns = TheTurns();
  MutexLock lock(&turns.mu);
  turns.is_taken = turns.is_asleep = false;
  turns.wished = Steady::now();
}

void QueueSeat::Wake() noexcept {
  Turns& turns = TheTurns();
  MutexLock lock(&turns.mu);
  // Who does not sleep looks at its condition before it sleeps again.
  if (!turns.is_asleep) return;
  if (turns.awaits_turn) {
    turns.is_woken = true;
    turns.changed.SignalAll();
    return;
  }
  try {
    auto event = std::make_unique<WakeUp>(this);
    event.release()->Set(member_->queue);
  } catch (const std::bad_alloc&) {
    // It wakes at its limit.
  }
}

}  // namespace millrace
