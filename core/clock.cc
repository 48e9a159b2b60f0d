// SPDX-License-Identifier: Apache-2.0
#include "core/clock.h"

#include <algorithm>

#include "core/dcheck.h"

namespace millrace {
namespace {

class RealClock : public Clock {
 public:
  absl::Time Now() override { return absl::Now(); }
  bool WaitUntil(CondVar* cv, Mutex* mu, absl::Time deadline) override {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) return true;
    cv->WaitWithTimeout(mu, left);
    return absl::Now() >= deadline;
  }
  void SleepFor(absl::Duration duration) override { absl::SleepFor(duration); }
};

}  // namespace

Clock* Clock::Real() {
  static RealClock* const clock = new RealClock;
  return clock;
}

absl::Time FakeClock::Now() {
  MutexLock lock(&mu_);
  return now_;
}

// The waiter holds `*mu` from here until it sleeps in cv->Wait, so an Advance() that comes after
// the entry was made cannot signal too early. Lock order: a waiter's mutex, then mu_.
bool FakeClock::WaitUntil(CondVar* cv, Mutex* mu, absl::Time deadline) {
  Waiter self{cv, mu};
  {
    MutexLock lock(&mu_);
    if (now_ >= deadline) return true;
    waiters_.push_back(&self);
    changed_.SignalAll();
  }
  cv->Wait(mu);
  const auto leave = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto place = std::find(waiters_.begin(), waiters_.end(), &self);
    MR_DCHECK(place != waiters_.end(), "only the waiter takes its own entry out");
    MR_DCHECK(self.pins == 0, "an Advance that still needs the entry keeps it here");
    waiters_.erase(place);
    return now_ >= deadline;
  };
  {
    MutexLock lock(&mu_);
    if (self.pins == 0) return leave();
  }
  // An Advance() is about to lock `*mu` for this entry: let it.
  mu->Unlock();
  bool reached;
  {
    MutexLock lock(&mu_);
    while (self.pins > 0) changed_.Wait(&mu_);
    reached = leave();
  }
  mu->Lock();
  return reached;
}

void FakeClock::SleepFor(absl::Duration duration) {
  MutexLock lock(&mu_);
  const absl::Time deadline = now_ + duration;
  ++num_sleepers_;
  changed_.SignalAll();
  while (now_ < deadline) changed_.Wait(&mu_);
  --num_sleepers_;
}

void FakeClock::Advance(absl::Duration duration) {
  std::vector<Waiter*> pinned;
  {
    MutexLock lock(&mu_);
    now_ += duration;
    pinned = waiters_;
    for (Waiter* waiter : pinned) ++waiter->pins;
    changed_.SignalAll();
  }
  for (Waiter* waiter : pinned) {
    {
      MutexLock lock(waiter->mu);
      waiter->cv->SignalAll();
    }
    MutexLock lock(&mu_);
    MR_DCHECK(waiter->pins > 0, "each Advance lets go of its own pin only");
    --waiter->pins;
    changed_.SignalAll();
  }
}

int FakeClock::NumWaiters() {
  MutexLock lock(&mu_);
  return static_cast<int>(waiters_.size()) + num_sleepers_;
}

void FakeClock::AwaitWaiters(int n) {
  MutexLock lock(&mu_);
  while (static_cast<int>(waiters_.size()) + num_sleepers_ < n) changed_.Wait(&mu_);
}

}  // namespace millrace
