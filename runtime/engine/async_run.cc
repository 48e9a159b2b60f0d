// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/async_run.h"

#include <utility>

#include "core/dcheck.h"
#include "runtime/engine/kernel_runner.h"
#include "runtime/engine/step.h"

namespace millrace {

bool AsyncRun::Call(const AsyncKernel& kernel) noexcept {
  MR_DCHECK(phase.load(std::memory_order_relaxed) == kIdle,
            "a kernel is started once a step, after its last answer was taken");
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
  MR_DCHECK(phase.load(std::memory_order_acquire) == kStarted ||
                phase.load(std::memory_order_acquire) == kReturned,
            "a kernel answers once, after it was started");
  status = std::move(answer);
  int started = kStarted;
  return !phase.compare_exchange_strong(started, kAnswered, std::memory_order_acq_rel);
}

Status AsyncRun::TakeStatus() noexcept {
  MR_DCHECK(phase.load(std::memory_order_acquire) != kIdle, "an answer is taken once");
  Status answered = std::exchange(status, absl::OkStatus());
  Status caught = std::exchange(thrown, absl::OkStatus());
  phase.store(kIdle, std::memory_order_relaxed);
  const bool says_nothing = answered.ok() || AsyncKernel::DoneCallback::WasDropped(answered);
  return !caught.ok() && says_nothing ? caught : answered;
}

}  // namespace millrace
