// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_ASYNC_RUN_H_
#define MILLRACE_RUNTIME_ENGINE_ASYNC_RUN_H_

// AsyncRun: one run of an asynchronous kernel, from the call to its answer.
//
//   kIdle ─> kStarted ─> kReturned ─> kIdle   the kernel answers after ComputeAsync has returned
//                └─────> kAnswered ─> kIdle   ... before that
// From kStarted on by the loop that called and the thread that answers, whichever comes first; who
// comes second takes up what the kernel has made.
//
//   Prepare (KernelRunner) -> Call -> Answer -> TakeStatus -> KernelRuns::CheckAnswer
//
// Threads: Call by a loop, Answer by any thread, TakeStatus and after by the one that Call or
// Answer tells to. Lifetime: a member of the step's state; it may be freed once it is taken up.
// Failure: nothing throws; what the kernel throws is its status.

#include <atomic>
#include <cstdint>

#include "core/status.h"
#include "runtime/kernel.h"
#include "runtime/step_context.h"
#include "runtime/step_stats.h"

namespace millrace {

struct Iteration;
class Step;

struct AsyncRun {
  enum Phase : int { kIdle, kStarted, kReturned, kAnswered };

  Step* step = nullptr;
  Iteration* iteration = nullptr;  // null in a step without frames
  uint32_t node = 0;
  bool dead = false;
  EdgeValue* outputs = nullptr;
  KernelFrame frame;
  KernelContext context{&frame};
  NodeTimes times;

  // Calls the kernel, whose answer goes to step->KernelDone. True: it has answered already, and the
  // caller takes it up.
  [[nodiscard]] bool Call(const AsyncKernel& kernel) noexcept;
  // By the kernel. True: the caller takes it up; false: the loop does that has called.
  [[nodiscard]] bool Answer(Status status) noexcept;
  // What the kernel has answered or thrown. The run is idle again.
  Status TakeStatus() noexcept;
  // Called and not answered.
  bool IsSilent() const {
    const int now = phase.load(std::memory_order_acquire);
    return now == kStarted || now == kReturned;
  }

  Status status;  // what the kernel answered
  Status thrown;  // what ComputeAsync threw
  // acq_rel where both may meet.
  std::atomic<int> phase{kIdle};
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_ASYNC_RUN_H_
