// SPDX-License-Identifier: Apache-2.0
#include "distributed/master/endable_wait.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/dcheck.h"
#include "distributed/master/task_calls.h"

namespace millrace {

void EndableWait::Shared::Wake() {
  MutexLock lock(&mu_);
  woken_ = true;
  changed_.SignalAll();
}

void EndableWait::Shared::End(const Status& status) {
  MR_DCHECK(!status.ok(), "whatever ends a wait early says why: OK means that it goes on");
  {
    MutexLock lock(&mu_);
    if (ended_.ok()) ended_ = status;
    changed_.SignalAll();
  }
  calls_.StartCancel();
}

EndableWait::EndableWait(const WaitEnds& ends, const std::string& for_what, Clock* clock)
    : clock_(clock), next_say_(clock->Now() + kWaitLogPeriod) {
  EndWith(ends.shutdown,
          absl::AbortedError(
              absl::StrCat("Session: the server was stopped while it waited for ", for_what)),
          &shutdown_);
  EndWith(ends.caller,
          absl::CancelledError(
              absl::StrCat("Session: its client has gone while the master waited for ", for_what)),
          &caller_);
  EndWith(ends.closing, absl::CancelledError("Session has been closed."), &closing_);
}

EndableWait::~EndableWait() {
  // Their callbacks do not run any more after that.
  for (const Registration& end : {closing_, caller_, shutdown_}) {
    if (end.manager != nullptr) end.manager->Deregister(end.token);
  }
  calls()->StartCancel();
}

void EndableWait::EndWith(CancellationManager* manager, Status status, Registration* registration) {
  if (manager == nullptr) return;
  CancellationManager::Token token;
  if (manager->Register(&token, [shared = shared_, status] { shared->End(status); })) {
    *registration = {manager, token};
  } else {
    shared_->End(status);
  }
}

Status EndableWait::ended() const {
  MutexLock lock(&shared_->mu_);
  return shared_->ended_;
}

Status EndableWait::Until(absl::Time until) {
  Shared& shared = *shared_;
  MutexLock lock(&shared.mu_);
  while (shared.ended_.ok() && !shared.woken_ && clock_->Now() < until) {
    clock_->WaitUntil(&shared.changed_, &shared.mu_, until);
  }
  shared.woken_ = false;
  return shared.ended_;
}

bool EndableWait::IsTimeToSay() {
  const absl::Time now = clock_->Now();
  if (now < next_say_) return false;
  next_say_ = now + kWaitLogPeriod;
  return true;
}

}  // namespace millrace
