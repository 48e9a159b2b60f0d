// SPDX-License-Identifier: Apache-2.0
#include "distributed/master/task_calls.h"

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "runtime/plan.h"

namespace millrace {

TaskCalls::TaskCalls(int n, Timers* timers)
    : timers_(timers), left_(n), statuses_(static_cast<size_t>(n)) {}

Transport::Done TaskCalls::Done(int i) {
  return [this, i](const Status& status) {
    statuses_[static_cast<size_t>(i)] = status;
    // Under the lock: when the last one has let go of it, this object may be gone.
    MutexLock lock(&mu_);
    if (--left_ <= 0) answered_.SignalAll();
  };
}

const std::vector<Status>& TaskCalls::Wait() {
  MutexLock lock(&mu_);
  while (left_ > 0) timers_->clock()->WaitUntil(&answered_, &mu_, absl::InfiniteFuture());
  return statuses_;
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
         (absl::StrContains(status.message(), "Session handle is not found") ||
          absl::StrContains(status.message(), "a different device incarnation"));
}

}  // namespace millrace
