// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_STEP_LIFE_H_
#define MILLRACE_RUNTIME_ENGINE_STEP_LIFE_H_

// StepLife: how a step lives and ends, the same for every engine: who still has a part in it, what
// stops it, its first error.
//
// One word counts the parts:
//   active  loops, working or asked for, and threads inside of a kernel's `done`
//   silent  asynchronous kernels that have not answered
// A kernel that answers turns from silent to active in one operation, so a thread that sees no
// active part knows that no thread is inside of the step. With neither the step has ended; with
// silent parts alone it may be orphaned, once and for all.
//
// Solo: while one loop is the only part, it changes nothing by read-modify-write operations. It
// leaves solo before it hands anything to another thread and may return to it when its part is the
// only one.
//
// Threads: Begin by the thread that begins the step; solo is the only loop's; the rest any.
// Lifetime: a member of the step; the context outlives it.
// Failure: nothing throws. Where there is no memory to say what happened the error is NoMemory().

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/base/optimization.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/cancellation.h"
#include "core/mutex.h"
#include "core/status.h"
#include "runtime/engine/step.h"
#include "runtime/engine/step_host.h"
#include "runtime/plan.h"
#include "runtime/step_context.h"

namespace millrace {

// ResourceExhausted; takes no memory to return or copy.
const Status& NoMemory();

// TimedOutWaitingFor (plan.h) these kernels.
Status StepTimedOut(absl::Span<const std::string> names);
// The same for those of the steps that have not answered.
Status TimedOutOf(absl::Span<Step* const> steps);

class StepLife {
 public:
  void Begin(const StepStart& start);
  // After the end: the status; what Begin was given is let go.
  Status End();

  const StepContext* context() const { return context_; }
  StepHost* host() const { return host_; }
  StepEnd* end() const { return end_; }

  // --- Parts

  bool solo() const { return solo_; }
  // Others read the flag: it is written only while nobody does.
  void LeaveSolo() {
    if (solo_) solo_ = false;
  }
  // By the only part.
  void EnterSolo() { solo_ = true; }
  // Whether the caller's active part is the only one. Acquire: what others did is visible then.
  bool IsOnlyPart() const { return parts_.load(std::memory_order_acquire) == kActive; }

  void AddLoop() { parts_.fetch_add(kActive, std::memory_order_relaxed); }
  // True: the step has ended and the caller has to see to it.
  [[nodiscard]] bool DropLoop() {
    return solo_ || parts_.fetch_sub(kActive, std::memory_order_acq_rel) == kActive;
  }
  void AddKernel() { parts_.fetch_add(kSilent, std::memory_order_relaxed); }
  // By the loop that started the kernel. True: the caller's is the only part left.
  bool DropKernel() {
    return parts_.fetch_sub(kSilent, std::memory_order_acq_rel) == kActive + kSilent;
  }
  // By the thread in which a kernel answers. True: from here to DropLoop it has an active part.
  // False: the step is an orphan, and DropOrphan follows.
  [[nodiscard]] bool TurnActive() {
    return (parts_.fetch_add(kActive - kSilent, std::memory_order_acq_rel) & kOrphan) == 0;
  }
  // True: the caller was the last and frees the step.
  [[nodiscard]] bool DropOrphan() {
    return parts_.fetch_sub(kActive, std::memory_order_acq_rel) == kOrphan + kActive;
  }
  // True: only silent kernels are left, and the step is theirs from now on.
  [[nodiscard]] bool TryOrphan();
  // By the thread that has dropped the last part, unless that is the host: its host or StepEnd is
  // told.
  void TellEnded(Step* step);

  // --- Errors

  // Nothing further is to be started.
  bool Stopped() {
    if (ABSL_PREDICT_FALSE(failed_.load(std::memory_order_relaxed))) return true;
    if (cancellation_ != nullptr && ABSL_PREDICT_FALSE(cancellation_->IsCancelled())) {
      FailCancelled();
      return true;
    }
    if (ABSL_PREDICT_FALSE(has_deadline_) && absl::Now() > deadline_) {
      Fail(StepTimedOut({}));
      return true;
    }
    return false;
  }
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  // The first one counts. It aborts the rendezvous and starts the cancellation.
  void Fail(const Status& status) noexcept;
  // With the cancellation when the step was cancelled.
  void FailOverdue(const Status& status) noexcept;
  // In the form of NodeError.
  void FailNode(const Plan& plan, const Plan::Node& node, const Status& status) noexcept;
  Status status();

 private:
  static constexpr uint64_t kSilent = 1;
  static constexpr uint64_t kActive = uint64_t{1} << 32;
  static constexpr uint64_t kActiveMask = ((uint64_t{1} << 31) - 1) << 32;
  static constexpr uint64_t kOrphan = uint64_t{1} << 63;

  void FailCancelled() noexcept;

  const StepContext* context_ = nullptr;
  CancellationManager* cancellation_ = nullptr;
  bool has_deadline_ = false;
  bool solo_ = true;                 // written only while one thread knows the step
  std::atomic<bool> failed_{false};  // relaxed: only stops; the status is under mu_
  absl::Time deadline_;
  StepHost* host_ = nullptr;
  StepEnd* end_ = nullptr;
  // Release when let go, acquire by the last one.
  alignas(64) std::atomic<uint64_t> parts_{kActive};
  Mutex mu_;
  Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_STEP_LIFE_H_
