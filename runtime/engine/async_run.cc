// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/async_run.h"

#include <utility>

#include "runtime/engine/kernel_runner.h"
#include "runtime/engine/step.h"

namespace millrace {

bool AsyncRun::Call(const AsyncKernel& kernel) noexcept {
  phase.store(kStarted, std::memory_order_release);
  try {
    kernel.ComputeAsync(&context,
                        [run = this](Status s) { run->step->KernelDone(run, std::move(s)); });
  } catch (...) {
    // The `done` that it had is dropped already, or with somebody who will call or drop it.
    thrown = StatusOfException();
  }
  int started = kStarted;
  return !phase.compare_exchange_strong(started, kReturned, std::memory_order_acq_rel);
}

bool AsyncRun::Answer(Status answer) noexcept {
  status = std::move(answer);
  int started = kStarted;
  return !phase.compare_exchange_strong(started, kAnswered, std::memory_order_acq_rel);
}

Status AsyncRun::TakeStatus() noexcept {
  Status answered = std::exchange(status, absl::OkStatus());
  Status caught = std::exchange(thrown, absl::OkStatus());
  phase.store(kIdle, std::memory_order_relaxed);
  const bool says_nothing = answered.ok() || AsyncKernel::DoneCallback::WasDropped(answered);
  return !caught.ok() && says_nothing ? caught : answered;
}

}  // namespace millrace
