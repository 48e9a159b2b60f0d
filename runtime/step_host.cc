// SPDX-License-Identifier: Apache-2.0
#include "runtime/step_host.h"

#include <utility>

#include "absl/time/clock.h"
#include "runtime/plan.h"

namespace millrace {
namespace {

thread_local StepHost* current_host = nullptr;

}  // namespace

StepHost::StepHost(int num_steps) : outer_(current_host), unfinished_(num_steps) {
  current_host = this;
}
StepHost::~StepHost() { current_host = outer_; }

bool StepHost::Offer(FlatStep* step, bool expensive) {
  const bool here = current_host == this;
  MutexLock lock(&mu_);
  if (!parked_ && (!here || expensive)) return false;
  offered_.push_back(step);
  if (parked_) cv_.Signal();
  return true;
}

void StepHost::StepFinished(const Status& status) {
  MutexLock lock(&mu_);
  if (!status.ok() && (status_.ok() || (IsDerived(status_) && !IsDerived(status)))) {
    status_ = status;
  }
  --unfinished_;
  cv_.Signal();
}

FlatStep* StepHost::Next(absl::Time deadline, std::atomic<int64_t>* waits, bool* timed_out) {
  MutexLock lock(&mu_);
  while (offered_.empty() && unfinished_ > 0) {
    if (!parked_) waits->fetch_add(1, std::memory_order_relaxed);
    parked_ = true;
    if (deadline == absl::InfiniteFuture()) {
      cv_.Wait(&mu_);
    } else {
      const absl::Duration left = deadline - absl::Now();
      if (left <= absl::ZeroDuration()) {
        parked_ = false;
        *timed_out = true;
        return nullptr;
      }
      cv_.WaitWithTimeout(&mu_, left);
    }
  }
  parked_ = false;
  if (offered_.empty()) return nullptr;
  FlatStep* step = offered_.back();
  offered_.pop_back();
  return step;
}

Status StepHost::TakeStatus() {
  MutexLock lock(&mu_);
  return std::move(status_);
}

}  // namespace millrace
