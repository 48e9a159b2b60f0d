// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/step_host.h"

#include "absl/time/clock.h"

namespace millrace {
namespace {

thread_local StepHost* current_host = nullptr;

}  // namespace

StepHost::StepHost(int num_steps) : outer_(current_host), unfinished_(num_steps) {
  current_host = this;
}
StepHost::~StepHost() { current_host = outer_; }

bool StepHost::Offer(Step* step, bool expensive) {
  const bool here = current_host == this;
  MutexLock lock(&mu_);
  if (!parked_ && (!here || expensive)) return false;
  if (step->host_place.loops++ == 0) {
    step->host_place.next = offered_;
    offered_ = step;
  }
  if (parked_) seated_.Signal();
  return true;
}

void StepHost::StepEnded() {
  MutexLock lock(&mu_);
  --unfinished_;
  seated_.Signal();
}

StepHost::Turn StepHost::Next(absl::Time limit, std::atomic<int64_t>* waits, Step** step) {
  MutexLock lock(&mu_);
  while (offered_ == nullptr && unfinished_ > 0) {
    if (!parked_) waits->fetch_add(1, std::memory_order_relaxed);
    parked_ = true;
    if (limit != absl::InfiniteFuture() && absl::Now() >= limit) {
      parked_ = false;
      return Turn::kTimeIsOver;
    }
    seated_.Wait(&mu_, limit);
  }
  parked_ = false;
  if (offered_ == nullptr) return Turn::kAllEnded;
  *step = offered_;
  if (--offered_->host_place.loops == 0) offered_ = offered_->host_place.next;
  return Turn::kWork;
}

}  // namespace millrace
