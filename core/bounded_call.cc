// SPDX-License-Identifier: Apache-2.0
#include "core/bounded_call.h"

#include <utility>

#include "core/dcheck.h"

namespace millrace {

BoundedCall::BoundedCall(Clock* clock, std::function<void()> work)
    : clock_(clock), state_(std::make_shared<State>()) {
  thread_ = std::thread([state = state_, work = std::move(work)]() mutable {
    work();
    work = nullptr;
    MutexLock lock(&state->mu);
    state->ended = true;
    state->changed.SignalAll();
  });
}

BoundedCall::~BoundedCall() {
  bool ended = false;
  {
    MutexLock lock(&state_->mu);
    ended = state_->ended;
  }
  if (ended) {
    Join();
  } else {
    // A call that ends just now does no harm: it touches only its work and the state, which it
    // holds.
    MutexLock lock(&join_mu_);
    MR_DCHECK(thread_.joinable(), "only a call that has ended is joined");
    thread_.detach();
  }
}

bool BoundedCall::WaitUntil(absl::Time deadline) {
  {
    MutexLock lock(&state_->mu);
    while (!state_->ended && clock_->Now() < deadline) {
      clock_->WaitUntil(&state_->changed, &state_->mu, deadline);
    }
    if (!state_->ended) return false;
  }
  Join();
  return true;
}

void BoundedCall::Join() {
  MutexLock lock(&join_mu_);
  if (thread_.joinable()) thread_.join();
}

}  // namespace millrace
