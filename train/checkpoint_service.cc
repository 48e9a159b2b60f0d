// SPDX-License-Identifier: Apache-2.0
#include "train/checkpoint_service.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "train/session_manager.h"

namespace millrace {
namespace {

// Others may have got the same signal in the same moment. A chief waits until they count no more,
// so long at most, and such a part of the grace; they do not when the global step has stayed for
// the second time.
constexpr absl::Duration kOthersTime = absl::Seconds(1);
constexpr int kOthersPart = 4;
constexpr absl::Duration kStillTime = absl::Milliseconds(250);
constexpr int kLooksAtOthers = 4;  // in it
// Last checkpoints after a signal, while others count on as one is written.
constexpr int kLastSaves = 3;

// That of a program that ends with it: it may be started again, and adopts what others hold.
Status WithCodeOfSave(const Status& status) {
  return MayTryAgain(status) ? WithExitCode(status, kExitRetryable) : status;
}

// For the log: other tasks' errors have several.
std::string OneLine(const Status& status) {
  return absl::StrReplaceAll(status.message(), {{"\n", " "}});
}

}  // namespace

std::string CheckpointService::Path() const {
  if (!options_.path.empty()) return options_.path;
  const std::string last = options_.saver->last_saved();
  const size_t dash = last.rfind('-');
  return dash == std::string::npos ? std::string() : last.substr(0, dash);
}

std::string CheckpointService::PathOfStep(int64_t step) const {
  return step >= 0 ? absl::StrCat(Path(), "-", step) : Path();
}

void CheckpointService::Begin(std::shared_ptr<Session> session, int64_t first_step) {
  MutexLock lock(&mu_);
  session_ = std::move(session);
  first_step_ = first_step;
  const bool by_time = options_.period > absl::ZeroDuration();
  // A save of the session before that is still to be made.
  const bool is_pending = retry_at_ != absl::InfiniteFuture();
  retry_at_ = is_pending && !by_time ? options_.clock->Now() : absl::InfiniteFuture();
  retry_.Reset();
  if (by_time || is_pending) Start();
}

void CheckpointService::Forget() {
  MutexLock lock(&mu_);
  session_ = nullptr;
}

void CheckpointService::Refuse() {
  MutexLock lock(&mu_);
  refused_ = true;
}

bool CheckpointService::left_behind() const {
  MutexLock lock(&mu_);
  return left_behind_;
}

void CheckpointService::Start() {
  if (refused_) return;
  call_ = std::make_shared<BoundedCall>(
      options_.clock,
      [this, keep = options_.keep_alive(), s = session_, number = ++service_]() mutable {
        SaveLoop(s.get(), number);
        s = nullptr;
        keep = nullptr;  // perhaps with this object
      });
}

bool CheckpointService::End(const StopTime& time) {
  std::shared_ptr<Session> blocked;
  std::shared_ptr<BoundedCall> call;
  {
    MutexLock lock(&mu_);
    ++service_;
    changed_.SignalAll();
    if (call_ == nullptr) return !left_behind_;
    call = call_;
    blocked = session_;
  }
  const bool ended = AwaitAloud(
      options_.speaker, options_.clock, call.get(), time.deadline,
      absl::StrCat("the checkpoint that is being written to '", options_.directory, "'"));
  bool ended_late = ended;
  if (!ended) {
    LogWarning(options_.speaker, ": the checkpoint service did not end within ",
               absl::FormatDuration(time.grace), ", closing its session");
    if (blocked != nullptr) CloseInTime(options_.speaker, options_.clock, blocked);
    ended_late = call->WaitUntil(options_.clock->Now() + kCloseTime);
    if (!ended_late) {
      LogWarning(options_.speaker, ": the checkpoint that is being written to '",
                 options_.directory, "' still waits for its storage; its thread is left behind");
    }
  }
  MutexLock lock(&mu_);
  left_behind_ = left_behind_ || !ended_late;
  if (call_ == call) call_ = nullptr;
  return ended;
}

// --- By time, and again
// --------------------------------------------------------------------------

// The first checkpoint is written at once, so that a job that dies early loses nothing it started
// from. One that fails is tried again soon, and ever more rarely; the others keep their times.
void CheckpointService::SaveLoop(Session* session, int64_t number) {
  Clock* const clock = options_.clock;
  GuardedSaver* const saver = options_.saver;
  const absl::Duration period = options_.period;
  // Of the save that is next by the period.
  absl::Time due = period > absl::ZeroDuration() ? clock->Now() : absl::InfiniteFuture();
  while (true) {
    {
      MutexLock lock(&mu_);
      while (service_ == number) {
        const absl::Time next = retry_at_ != absl::InfiniteFuture() ? retry_at_ : due;
        if (clock->Now() >= next) break;
        clock->WaitUntil(&changed_, &mu_, next);
      }
      if (service_ != number) return;
      retry_at_ = absl::InfiniteFuture();
    }
    // Somebody else has saved meanwhile.
    if (clock->Now() < due && saver->failure().ok()) continue;
    int64_t step = -1;
    const auto read_step = [&]() -> StatusOr<std::optional<int64_t>> {
      MR_ASSIGN_OR_RETURN(step, options_.read_step(session));
      return step >= 0 ? std::optional<int64_t>(step) : std::nullopt;
    };
    // The call that stops it closes its session, too: that is no failure.
    const auto as_kept = [&](const Status& why) {
      MutexLock lock(&mu_);
      return service_ == number ? FailureOf(PathOfStep(step), why) : absl::OkStatus();
    };
    const Status saved = saver->SaveAndKeepFailure(session, Path(), read_step, as_kept).status();
    {
      MutexLock lock(&mu_);
      const absl::Time now = clock->Now();
      while (saved.ok() && due <= now) due += period;
      if (saved.ok()) retry_.Reset();
      if (!saved.ok() && service_ != number) return;
    }
    if (saved.ok()) continue;
    if (!MayTryAgain(saved)) return options_.on_error(FailureOf(PathOfStep(step), saved));
    TryAgain(PathOfStep(step), saved);
  }
}

Status CheckpointService::FailureOf(const std::string& path, const Status& saved) const {
  const Status failure =
      Prefixed(absl::StrCat(options_.speaker, ": checkpoint not written"), saved);
  if (!MayTryAgain(saved)) return failure;
  return WithCodeOfSave(Suffixed(
      failure,
      absl::StrCat("; '", path, "' has ", options_.variable_bytes, " bytes of variables")));
}

void CheckpointService::TryAgain(const std::string& path, const Status& saved) {
  absl::Duration wait;
  {
    MutexLock lock(&mu_);
    wait = retry_.NextPause();
    retry_at_ = options_.clock->Now() + wait;
    changed_.SignalAll();
  }
  LogWarning(OneLine(FailureOf(path, saved)), "; it is tried again in ",
             absl::FormatDuration(wait));
}

StatusOr<std::string> CheckpointService::Save(int64_t step) {
  std::shared_ptr<Session> session;
  {
    MutexLock lock(&mu_);
    session = session_;
    // In the pause before the next try.
    const bool is_due = retry_at_ == absl::InfiniteFuture() || retry_at_ <= options_.clock->Now();
    if (session == nullptr || (!is_due && !options_.saver->failure().ok())) return std::string();
  }
  const StatusOr<std::string> path = options_.saver->SaveAndKeepFailure(
      session.get(), Path(), [&]() -> StatusOr<std::optional<int64_t>> { return step; },
      [&](const Status& why) {
        const bool is_told = !MayTryAgain(why) || IsSessionLost(why);
        return is_told ? absl::OkStatus() : FailureOf(PathOfStep(step), why);
      });
  if (path.ok()) {
    MutexLock lock(&mu_);
    retry_.Reset();
    return path;
  }
  if (!MayTryAgain(path.status()) || IsSessionLost(path.status())) return path;
  TryAgain(PathOfStep(step), path.status());
  MutexLock lock(&mu_);
  // Who refuses makes the last checkpoint itself, and would not end this service.
  if (call_ == nullptr && session_ == session) Start();
  return std::string();
}

// --- The last one
// --------------------------------------------------------------------------------

StatusOr<std::string> CheckpointService::SaveLast(bool ended, bool with_others,
                                                  const StopTime& time) {
  std::shared_ptr<Session> session;
  int64_t first = 0;
  {
    MutexLock lock(&mu_);
    session = session_;
    first = first_step_;
  }
  if (session == nullptr || Path().empty()) return std::string();
  const auto not_written = [this](const Status& why) {
    return WithCodeOfSave(
        Prefixed(absl::StrCat(options_.speaker, ": last checkpoint not written"), why));
  };
  const std::string grace = absl::FormatDuration(time.grace);
  if (!ended) {
    return not_written(absl::DeadlineExceededError(absl::StrCat(
        "the one before it did not end within ", grace, ", and the session was closed")));
  }
  const auto saved = std::make_shared<StatusOr<std::string>>(absl::UnknownError("not ended"));
  BoundedCall call(options_.clock, [this, keep = options_.keep_alive(), session, first, with_others,
                                    deadline = time.deadline, saved]() mutable {
    *saved = SaveLastNow(session.get(), first, with_others, deadline);
    session = nullptr;
    keep = nullptr;  // perhaps with this object
  });
  if (!AwaitAloud(options_.speaker, options_.clock, &call, time.deadline,
                  absl::StrCat("the last checkpoint in '", options_.directory, "'"))) {
    MutexLock lock(&mu_);
    left_behind_ = true;
    return not_written(absl::DeadlineExceededError(
        absl::StrCat("it did not end within ", grace, ", and is left behind")));
  }
  if (!saved->ok()) return not_written(saved->status());
  return **saved;
}

StatusOr<std::string> CheckpointService::SaveLastNow(Session* session, int64_t first_step,
                                                     bool with_others, absl::Time deadline) {
  Clock* const clock = options_.clock;
  if (with_others) AwaitOthers(session, deadline);
  SaveRetry retry(options_.recovery_wait);
  absl::Duration wait = retry.NextPause();
  std::string written;  // by now; what others have counted since may not be in it
  int64_t step = -1;
  for (int saves = 0; saves < kLastSaves;) {
    const absl::Time begin = clock->Now();
    const int64_t failures = options_.saver->failures();
    const StatusOr<int64_t> now = options_.read_step(session);
    if (!written.empty() && (!now.ok() || *now == step)) return written;
    MR_ASSIGN_OR_RETURN(step, now);
    const StatusOr<std::string> path = SaveLastStep(session, first_step, step, failures);
    if (path.ok()) {
      if (!with_others) return path;
      written = *path;
      ++saves;
      continue;
    }
    if (!written.empty() && MayTryAgain(path.status())) {
      LogWarning(options_.speaker, ": '", written, "' is the last checkpoint, without what was ",
                 "counted since: ", OneLine(path.status()));
      return written;
    }
    const Status& failed = path.status();
    // There may be space in a moment; a session that is gone does not come again.
    const absl::Time next = clock->Now() + wait;
    if (!MayTryAgain(failed) || IsSessionLost(failed) || absl::IsCancelled(failed) ||
        next + (clock->Now() - begin) >= deadline) {
      return failed;
    }
    LogWarning(options_.speaker, ": last checkpoint not written: ", OneLine(failed), "; '",
               PathOfStep(step), "' has ", options_.variable_bytes,
               " bytes of variables, and is tried again in ", absl::FormatDuration(wait));
    wait = retry.NextPause();
    MutexLock lock(&mu_);
    while (clock->Now() < next) clock->WaitUntil(&changed_, &mu_, next);
  }
  return written;
}

StatusOr<std::string> CheckpointService::SaveLastStep(Session* session, int64_t first_step,
                                                      int64_t step, int64_t failures) {
  // A step that does not count tells nothing about the variables: a loop may train without it.
  const std::string last = options_.saver->last_saved();
  if (step > first_step && step >= 0 && last == PathOfStep(step)) {
    options_.saver->ForgetFailures(failures);
    return last;
  }
  MR_ASSIGN_OR_RETURN(
      const std::string path,
      options_.saver->Save(session, Path(),
                           step >= 0 ? std::optional<int64_t>(step) : std::nullopt));
  LogInfo(options_.speaker, ": saved ", path,
          step >= 0 ? absl::StrCat(" at global step ", step) : "");
  return path;
}

void CheckpointService::AwaitOthers(Session* session, absl::Time deadline) {
  const absl::Time begin = options_.clock->Now();
  const absl::Duration at_most = std::min(kOthersTime, (deadline - begin) / kOthersPart);
  absl::Time since = begin;  // the step has stayed
  int64_t last = -1;
  while (true) {
    const StatusOr<int64_t> step = options_.read_step(session);
    const absl::Time now = options_.clock->Now();
    if (!step.ok() || *step < 0 || now >= begin + at_most) return;
    if (*step != last) since = now;
    last = *step;
    if (now >= since + kStillTime) return;
    options_.clock->SleepFor(kStillTime / kLooksAtOthers);
  }
}

}  // namespace millrace
