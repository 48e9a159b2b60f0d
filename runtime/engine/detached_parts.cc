// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/detached_parts.h"

#include <algorithm>
#include <new>
#include <utility>

#include "core/dcheck.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/step_life.h"
#include "runtime/plan.h"

namespace millrace {

void DetachedParts::Start(absl::Span<const PartitionRun> parts, const ExecutorOptions& options,
                          Done done) {
  done_ = std::move(done);
  absl::InlinedVector<Step*, 4> begun;
  Status failed;
  try {
    begun.reserve(parts.size());
    {
      MutexLock lock(&mu_);
      steps_.reserve(parts.size());
      ended_.reserve(parts.size());
      watched_.reserve(parts.size());
    }
    for (const PartitionRun& part : parts) {
      begun.push_back(part.executor->engine()->Begin({.context = part.step,
                                                      .stats = options.stats,
                                                      .deadline = options.deadline,
                                                      .end = this}));
    }
  } catch (const std::bad_alloc&) {
    for (Step* const step : begun) {
      step->Fail(NoMemory());
      static_cast<void>(step->TakeResult());
    }
    begun.clear();
    failed = NoMemory();
  }
  {
    MutexLock lock(&mu_);
    keep_ = options.keep;
    steps_.assign(begun.begin(), begun.end());
    left_ = static_cast<int>(begun.size()) + 1;
  }
  for (Step* const step : begun) {
    if (step->WorkFromRoots()) StepEnded(step);
  }
  PartEnded(failed);
}

Status DetachedParts::EndOverdue() {
  absl::InlinedVector<Step*, 4> steps;
  {
    MutexLock lock(&mu_);
    ++holds_;
    steps.swap(watched_);  // which has room for all
    MR_DCHECK(steps.capacity() >= steps_.size(),
              "Start took room for all: a step can be ended without memory");
    steps = steps_;
  }
  const Status overdue = TimedOutOf(steps);
  {
    MutexLock lock(&mu_);
    overdue_ = overdue;
  }
  for (Step* const step : steps) step->FailOverdue(overdue);
  Release();
  return overdue;
}

bool DetachedParts::LeaveSilent() {
  for (;;) {
    Status status;
    {
      MutexLock lock(&mu_);
      if (keep_ == nullptr) return true;
      // Its thread uses the steps without the lock, and they have not all been told.
      if (overdue_.ok() || holds_ > 0) return false;
      const auto left = std::find_if(steps_.begin(), steps_.end(), [&](Step* step) {
        return std::find(ended_.begin(), ended_.end(), step) == ended_.end() &&
               step->Abandon(keep_, &status);
      });
      if (left == steps_.end()) return steps_.empty();
      steps_.erase(left);
    }
    PartEnded(status);
  }
}

void DetachedParts::StepEnded(Step* step) {
  {
    MutexLock lock(&mu_);
    if (holds_ > 0) {
      ended_.push_back(step);
      return;
    }
    MR_DCHECK(ended_.empty(), "the last hold that goes takes the ended steps along");
    Forget(step);
  }
  PartEnded(step->TakeResult());
}

void DetachedParts::Release() {
  absl::InlinedVector<Step*, 4> ended;
  {
    MutexLock lock(&mu_);
    if (--holds_ > 0) return;
    ended.swap(ended_);
    for (Step* const step : ended) Forget(step);
  }
  for (Step* const step : ended) PartEnded(step->TakeResult());
}

void DetachedParts::Forget(Step* step) {
  const auto place = std::find(steps_.begin(), steps_.end(), step);
  MR_DCHECK(place != steps_.end(), "a step ends once, and not after it was left to its kernels");
  steps_.erase(place);
}

void DetachedParts::PartEnded(const Status& status) {
  Status result;
  std::shared_ptr<const void> keep;
  Done done;
  {
    MutexLock lock(&mu_);
    if (!status.ok() && (status_.ok() || (IsDerived(status_) && !IsDerived(status)))) {
      status_ = status;
    }
    MR_DCHECK(left_ > 0, "each part is counted and ends once, and so does Start");
    if (--left_ > 0) return;
    // A part that saw its time pass before it was told names nobody.
    const bool unnamed =
        absl::IsDeadlineExceeded(status_) &&
        (IsDerived(status_) || (IsTimedOut(status_) && WaitedFor(status_).empty()));
    result = unnamed && !overdue_.ok() ? overdue_ : status_;
    done = std::move(done_);
    keep = std::move(keep_);
  }
  done(std::move(result));
}

}  // namespace millrace
