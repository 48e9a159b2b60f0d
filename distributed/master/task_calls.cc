// SPDX-License-Identifier: Apache-2.0
#include "distributed/master/task_calls.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/logging.h"
#include "runtime/plan.h"

namespace millrace {

TaskCalls::TaskCalls(int n, std::string what, Clock* clock)
    : what_(std::move(what)),
      clock_(clock),
      left_(n),
      waits_for_(static_cast<size_t>(n)),
      statuses_(static_cast<size_t>(n)) {}

WorkerControl::Done TaskCalls::Done(int i, const WorkerControl& task) {
  {
    MutexLock lock(&mu_);
    waits_for_[static_cast<size_t>(i)] = Whereabouts(task);
  }
  return [this, i](const Status& status) {
    statuses_[static_cast<size_t>(i)] = status;
    // Under the lock: when the last one has let go of it, this object may be gone.
    MutexLock lock(&mu_);
    waits_for_[static_cast<size_t>(i)].clear();
    if (--left_ == 0) answered_.SignalAll();
  };
}

const std::vector<Status>& TaskCalls::Wait() {
  const absl::Time begun = clock_->Now();
  absl::Time next_log = begun + kWaitLogPeriod;
  MutexLock lock(&mu_);
  while (left_ > 0) {
    clock_->WaitUntil(&answered_, &mu_, next_log);
    const absl::Time now = clock_->Now();
    if (left_ == 0 || now < next_log) continue;
    next_log = now + kWaitLogPeriod;
    for (const std::string& task : waits_for_) {
      if (task.empty()) continue;
      LogInfo(what_, ": still waits for ", task, " since ", absl::FormatDuration(now - begun));
    }
  }
  return statuses_;
}

std::string Whereabouts(const WorkerControl& task) {
  return absl::StrCat(task.task(), " at ", task.address());
}

CallOptions CallWithin(absl::Duration timeout, Timers* timers) {
  CallOptions options;
  options.deadline = timers->Now() + timeout;
  return options;
}

Status FromTask(const std::string& task, const Status& status) {
  if (IsDerived(status)) return status;
  Status result(status.code(), absl::StrCat("From ", task, ":\n", status.message()));
  status.ForEachPayload([&result](absl::string_view type, const absl::Cord& payload) {
    result.SetPayload(type, payload);
  });
  return result;
}

bool TellsOfRestart(const Status& status) {
  return absl::IsAborted(status) &&
         absl::StrContains(status.message(), "Session handle is not found");
}

bool TellsOfOtherRelease(const Status& status) {
  return absl::IsFailedPrecondition(status) &&
         (absl::StrContains(status.message(), "both tasks must speak version") ||
          absl::StrContains(status.message(), "of Millrace's wire") ||
          absl::StrContains(status.message(), "the task must have links"));
}

bool TellsOfUnknownGraph(const Status& status) {
  return absl::IsAborted(status) &&
         absl::StrContains(status.message(), "Graph handle is not found");
}

}  // namespace millrace
