// SPDX-License-Identifier: Apache-2.0
#include "train/session_preparation.h"

#include <exception>
#include <system_error>
#include <utility>

#include "absl/time/time.h"
#include "core/bounded_call.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "train/stop_time.h"

namespace millrace {
namespace {

// How long what needs no storage and no server may take after a stop.
constexpr absl::Duration kOwnTime = absl::Seconds(1);

struct Prepared {
  StatusOr<SessionManager::Ready> ready = absl::UnknownError("not ended");
  std::exception_ptr thrown;
};

}  // namespace

struct SessionPreparation::State {
  Mutex mu;
  CondVar changed;
  bool stopped ABSL_GUARDED_BY(mu) = false;
  bool preparing ABSL_GUARDED_BY(mu) = false;
};

SessionPreparation::SessionPreparation(std::string speaker, Clock* clock)
    : speaker_(std::move(speaker)), clock_(clock), state_(std::make_shared<State>()) {}

void SessionPreparation::Stop() {
  MutexLock lock(&state_->mu);
  state_->stopped = true;
  state_->changed.SignalAll();
}

std::optional<StatusOr<SessionManager::Ready>> SessionPreparation::Run(
    Prepare prepare, const std::function<std::shared_ptr<Session>()>& opened) {
  const auto prepared = std::make_shared<Prepared>();
  {
    MutexLock lock(&state_->mu);
    state_->preparing = true;
  }
  std::optional<BoundedCall> call;
  try {
    call.emplace(clock_, [state = state_, prepare, prepared]() mutable {
      try {
        prepared->ready = prepare();
      } catch (...) {
        prepared->thrown = std::current_exception();
      }
      prepare = nullptr;  // perhaps with all that it used
      MutexLock lock(&state->mu);
      state->preparing = false;
      state->changed.SignalAll();
    });
  } catch (const std::system_error&) {  // no thread is left
    return prepare();
  }
  prepare = nullptr;
  const auto has_ended = [&](absl::Duration time) {
    MutexLock lock(&state_->mu);
    const absl::Time until = clock_->Now() + time;
    while (state_->preparing && clock_->Now() < until) {
      clock_->WaitUntil(&state_->changed, &state_->mu, until);
    }
    return !state_->preparing;
  };
  bool ended = false;
  {
    MutexLock lock(&state_->mu);
    while (state_->preparing && !state_->stopped) state_->changed.Wait(&state_->mu);
    ended = !state_->preparing;
  }
  if (ended || has_ended(kOwnTime)) {
    call->WaitUntil(absl::InfiniteFuture());  // its thread ends at once
    if (prepared->thrown) std::rethrow_exception(prepared->thrown);
    return std::move(prepared->ready);
  }
  LogWarning(speaker_, ": preparing a session did not end within ", absl::FormatDuration(kOwnTime),
             " of the request to stop; it is closed");
  if (std::shared_ptr<Session> session = opened(); session != nullptr) {
    CloseInTime(speaker_, clock_, std::move(session));
  }
  if (has_ended(kCloseTime)) {
    call->WaitUntil(absl::InfiniteFuture());
    if (prepared->ready.ok()) CloseInTime(speaker_, clock_, prepared->ready->session);
  } else {
    LogWarning(speaker_, ": what a session is prepared from still waits for its storage; its ",
               "thread is left behind");
  }
  return std::nullopt;
}

}  // namespace millrace
