// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_STEP_H_
#define MILLRACE_RUNTIME_ENGINE_STEP_H_

// Step: one run of a plan, whichever engine runs it, as its caller and its kernels see it.
//
//   begun ─> worked for ─> ended ─────────────────────> TakeResult, by its host or StepEnd
//                 └─ its time is over and only kernels that do not answer are left
//                    └─> abandoned ─> the last of these kernels frees it
//
// Work comes in loops: the caller's, further ones of the host thread, and ones of arena threads,
// which the step asks for itself. The loop or kernel that lets go last ends the step.
//
// Threads: a loop belongs to the thread that called it; Fail, FailOverdue, AppendSilentKernels and
// KernelDone from any thread while the result has not been taken.
// Lifetime: an Engine makes a step and gets it back by TakeResult. The context outlives the step,
// an abandoned one too (Abandon).
// Failure: the first error is the step's. Nothing here throws.

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "runtime/step_context.h"
#include "runtime/step_stats.h"

namespace millrace {

class Step;
class StepHost;

// Takes the result of a step that has no host.
class StepEnd {
 public:
  virtual ~StepEnd() = default;
  // The last thing that is done to a step by its loops and kernels; on the thread of one of them.
  virtual void StepEnded(Step* step) = 0;
};

struct AsyncRun;

// What a step is begun with.
struct StepStart {
  const StepContext* context = nullptr;
  StepStatsCollector* stats = nullptr;  // may be null
  absl::Time deadline = absl::InfiniteFuture();
  // One of them is told of the step's end.
  StepHost* host = nullptr;
  StepEnd* end = nullptr;
};

// A step's place among those that its host is offered; the host's, under its lock.
struct HostPlace {
  Step* next = nullptr;
  int loops = 0;  // asked of the host and not begun
};

class Step {
 public:
  virtual ~Step() = default;

  // Works in the calling thread until nothing is left to do there: from the roots on, or in a
  // further loop of the host thread. True: the step has ended, and the caller takes its result.
  [[nodiscard]] virtual bool WorkFromRoots() noexcept = 0;
  [[nodiscard]] virtual bool WorkAsHost() noexcept = 0;
  // The step's status; the state goes back to the engine. After the step has ended.
  virtual Status TakeResult() = 0;

  // Ends the step with `status` unless it has failed already.
  virtual void Fail(const Status& status) noexcept = 0;
  // The same when its time is over; a step that was cancelled before ends with that.
  virtual void FailOverdue(const Status& status) noexcept = 0;
  // Appends the WaitLabel (plan.h) of each asynchronous kernel that has not answered.
  virtual void AppendSilentKernels(std::vector<std::string>* names) const = 0;
  // Leaves a failed step to the kernels that do not answer and frees it with the last of them; from
  // then on it keeps `keep`, the owner of all that its context refers to. False, and nothing done,
  // while another thread works for it, or when it has ended.
  virtual bool Abandon(std::shared_ptr<const void> keep, Status* status) = 0;

  // By an asynchronous kernel that was started by this step, on any thread.
  virtual void KernelDone(AsyncRun* run, Status status) noexcept = 0;

  HostPlace host_place;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_STEP_H_
