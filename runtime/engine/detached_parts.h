// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_DETACHED_PARTS_H_
#define MILLRACE_RUNTIME_ENGINE_DETACHED_PARTS_H_

// DetachedParts: the parts of one step, run without a thread that waits for them. The thread that
// starts them works until nothing is left there; the code that started them watches the time.
//
//   Start -> running -> `done`
//               └─ EndOverdue, once the deadline has passed
//                     -> LeaveSilent, kAnswerTime later, and again while it is false -> `done`
//
// What ends such a step is what ends one of RunPartitions: the error of the part that failed by
// itself, or the time with the names of the kernels that had not answered when it was over. A part
// that was only taken along by a part elsewhere whose time was over says the names, too.
//
// Invariant: `done` is called exactly once, without a lock.
// Threads: Start once; the others from any thread after it, also after `done`.
// Lifetime: until `done` has been called and no method runs. Failure: that of the parts.

#include <memory>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "core/mutex.h"
#include "core/status.h"
#include "runtime/engine/executor.h"
#include "runtime/engine/step.h"

namespace millrace {

class DetachedParts final : private StepEnd {
 public:
  using Done = absl::AnyInvocable<void(Status)>;

  DetachedParts() = default;
  DetachedParts(const DetachedParts&) = delete;
  DetachedParts& operator=(const DetachedParts&) = delete;

  // `parts` and what they refer to outlive the steps; kernels that LeaveSilent left are kept from
  // `options.keep` on.
  void Start(absl::Span<const PartitionRun> parts, const ExecutorOptions& options, Done done);
  // Once. The time is over: every part ends with that, unless it has a better reason. Returns it,
  // with the names of the kernels that have not answered.
  Status EndOverdue();
  // Kernels had their time to answer: parts that wait for nothing else are left to them. False
  // while other threads work for a part, or until EndOverdue has returned.
  bool LeaveSilent();

 private:
  void StepEnded(Step* step) override;
  // Ends a hold: while there are any no result is taken, so that steps may be used without the
  // lock.
  void Release();
  void Forget(Step* step) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PartEnded(const Status& status);

  Done done_;

  Mutex mu_;
  std::shared_ptr<const void> keep_ ABSL_GUARDED_BY(mu_);       // until `done`
  absl::InlinedVector<Step*, 4> steps_ ABSL_GUARDED_BY(mu_);    // that have not ended
  absl::InlinedVector<Step*, 4> ended_ ABSL_GUARDED_BY(mu_);    // while held
  absl::InlinedVector<Step*, 4> watched_ ABSL_GUARDED_BY(mu_);  // EndOverdue's; has room
  int holds_ ABSL_GUARDED_BY(mu_) = 0;
  int left_ ABSL_GUARDED_BY(mu_) = 0;
  Status status_ ABSL_GUARDED_BY(mu_);
  Status overdue_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_DETACHED_PARTS_H_
