// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/running_steps.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "core/clock.h"
#include "core/dcheck.h"
#include "core/logging.h"
#include "core/status.h"
#include "distributed/worker/session_life.h"
#include "distributed/worker/worker_step.h"
#include "runtime/engine/executor.h"

namespace millrace {

void RunningSteps::Add(WorkerStep* step, const SessionLife* session) {
  MutexLock lock(&mu_);
  running_.emplace(step, session);
}

void RunningSteps::Remove(WorkerStep* step) {
  MutexLock lock(&mu_);
  const size_t erased = running_.erase(step);
  MR_DCHECK(erased == 1, "RunGraph lists a step before it starts, and it ends once");
  step_ended_.SignalAll();
}

std::vector<std::shared_ptr<WorkerStep>> RunningSteps::All() const {
  std::vector<std::shared_ptr<WorkerStep>> steps;
  MutexLock lock(&mu_);
  for (const auto& [step, session] : running_) {
    // One that has just ended waits for the lock to say so.
    if (auto alive = step->weak_from_this().lock()) steps.push_back(std::move(alive));
  }
  return steps;
}

std::vector<std::shared_ptr<WorkerStep>> RunningSteps::Of(const SessionLife* session) const {
  std::vector<std::shared_ptr<WorkerStep>> steps;
  MutexLock lock(&mu_);
  for (const auto& [step, of] : running_) {
    if (of != session) continue;
    if (auto alive = step->weak_from_this().lock()) steps.push_back(std::move(alive));
  }
  return steps;
}

int RunningSteps::CountOf(const SessionLife* session) const {
  MutexLock lock(&mu_);
  return static_cast<int>(std::count_if(running_.begin(), running_.end(),
                                        [&](const auto& r) { return r.second == session; }));
}

bool RunningSteps::Await(absl::Time deadline) {
  MutexLock lock(&mu_);
  while (!running_.empty() && options_->clock->Now() < deadline) {
    options_->clock->WaitUntil(&step_ended_, &mu_, deadline);
  }
  return running_.empty();
}

void RunningSteps::AwaitCancelled() {
  const absl::Duration bound = options_->shutdown_bound;
  const absl::Time deadline = options_->clock->Now() + bound;
  if (Await(deadline - std::min(kAnswerTime, bound / 2))) return;
  std::vector<std::pair<std::shared_ptr<WorkerStep>, Status>> overdue;
  for (auto& run : All()) {
    const Status waits = run->EndOverdue();
    overdue.emplace_back(std::move(run), waits);
  }
  if (Await(deadline)) return;
  for (const auto& run : All()) {
    const auto it = std::find_if(overdue.begin(), overdue.end(),
                                 [&run](const auto& entry) { return entry.first == run; });
    LogWarning(options_->task, ": ", run->Name(), " has not ended ", absl::FormatDuration(bound),
               " after it was cancelled (", it == overdue.end() ? "" : it->second.message(),
               "); it is left behind");
    run->LeaveSilent();
  }
}

}  // namespace millrace
