// SPDX-License-Identifier: Apache-2.0
#include "train/training_job.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/bounded_call.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "run/run_session.h"
#include "run/training_run.h"
#include "train/loss_guard.h"
#include "train/training_metrics.h"

namespace millrace {
namespace {

// A save may take so many times as long as the last one before it counts as one that hangs.
constexpr int kSlowerSave = 3;
// After a signal: the last checkpoint has this part of the grace, however late the stop begins.
constexpr int kLastSavePart = 2;

}  // namespace

Status WithWhatIsKept(const Status& why, const StatusOr<std::string>& saved) {
  if (!saved.ok()) return Prefixed(why.message(), saved.status());
  return saved->empty() ? why : Suffixed(why, absl::StrCat("; saved ", *saved));
}

TrainingJob::TrainingJob(TrainingJobOptions options)
    : options_(std::move(options)),
      clock_(options_.clock),
      preparation_(options_.speaker, clock_),
      signals_({.speaker = options_.speaker,
                .grace = AskedGrace(/*by_signal=*/true),
                .clock = clock_,
                .keeps_checkpoints = [this] { return checkpoints_ != nullptr; },
                .request_leave = [this](const Status& why) { RequestLeave(why); },
                .end_step = [this](absl::Duration time) { EndStep(time); }}) {}

void TrainingJob::SetSessions(std::shared_ptr<JobSessions> sessions) {
  MutexLock lock(&mu_);
  sessions_ = std::move(sessions);
  if (stop_requested()) sessions_->Stop(StoppedLocked());
}

void TrainingJob::KeepCheckpoints(const JobCheckpointsOptions& options) {
  checkpoints_ = std::make_unique<CheckpointService>(CheckpointServiceOptions{
      .speaker = options_.speaker,
      .saver = saver(),
      .directory = options.directory,
      .path = options.path,
      .period = options.period,
      .recovery_wait = options.recovery_wait,
      .variable_bytes = sessions_->variable_bytes(),
      .clock = clock_,
      .read_step = [this](Session* s) { return sessions_->ReadGlobalStep(s); },
      .on_error = [this](const Status& error) { RequestLeave(error); },
      .keep_alive = [this] { return shared_from_this(); }});
}

// --- The request to stop -------------------------------------------------------------------------

void TrainingJob::AskLocked() {
  stop_requested_.store(true, std::memory_order_release);
  // Waits end: of the creation of sessions, of a recovery, of the face.
  if (sessions_ != nullptr) sessions_->Stop(StoppedLocked());
  preparation_.Stop();
  if (options_.on_stop) options_.on_stop();
  changed_.SignalAll();
}

void TrainingJob::RequestStop(absl::string_view goal) {
  MutexLock lock(&mu_);
  if (!goal_) goal_ = std::string(goal);
  AskLocked();
}

void TrainingJob::RequestLeave(const Status& result) {
  MutexLock lock(&mu_);
  if (!leave_) leave_ = absl::OkStatus();
  leave_->Update(result);
  AskLocked();
}

void TrainingJob::RequestEnd() {
  MutexLock lock(&mu_);
  AskLocked();
}

bool TrainingJob::ShouldStop() {
  signals_.Note();
  return stop_requested();
}

bool TrainingJob::WaitForStop(absl::Time until) {
  MutexLock lock(&mu_);
  while (!stop_requested() && clock_->Now() < until) clock_->WaitUntil(&changed_, &mu_, until);
  return stop_requested();
}

std::optional<std::string> TrainingJob::goal() const {
  MutexLock lock(&mu_);
  return goal_;
}

std::optional<Status> TrainingJob::leave() const {
  MutexLock lock(&mu_);
  return leave_;
}

Status TrainingJob::Stopped() const {
  MutexLock lock(&mu_);
  return StoppedLocked();
}

Status TrainingJob::StoppedLocked() const {
  if (leave_ && !leave_->ok()) return *leave_;
  return absl::CancelledError(absl::StrCat(options_.speaker, ": a stop has been requested"));
}

int TrainingJob::signal() const {
  const std::optional<JobSignals::Noted> noted = signals_.noted();
  return noted ? noted->signal : 0;
}

// --- The session ---------------------------------------------------------------------------------

void TrainingJob::WatchSignals() {
  if (options_.handle_signals) signals_.Watch();
}

StatusOr<SessionManager::Ready> TrainingJob::Open(const std::string& target) {
  std::optional<StatusOr<SessionManager::Ready>> ready =
      preparation_.Run([sessions = sessions_, target] { return sessions->Open(target); },
                       [sessions = sessions_] { return sessions->opening(); });
  if (ready) return *std::move(ready);
  return Stopped();
}

Status TrainingJob::Use(const SessionManager::Ready& ready, const std::string& target) {
  {
    MutexLock lock(&mu_);
    if (!stop_requested()) {
      session_ = ready.session;
      target_ = target;
      last_save_done_ = false;
      if (checkpoints_ != nullptr) checkpoints_->Begin(session_, ready.global_step);
      NoteGlobalStep(ready.global_step);
      if (RunSession* const run = session_->run_session()) SetLogRun(run->run_id());
      CountTrainSession(ready.start == SessionManager::Start::kRestored);
      return absl::OkStatus();
    }
  }
  Close(ready.session);
  return Stopped();
}

std::shared_ptr<Session> TrainingJob::session() const {
  MutexLock lock(&mu_);
  return session_;
}

std::shared_ptr<Session> TrainingJob::TakeSession() {
  MutexLock lock(&mu_);
  if (checkpoints_ != nullptr) checkpoints_->Forget();
  return std::exchange(session_, nullptr);
}

void TrainingJob::Close(std::shared_ptr<Session> session) {
  if (session != nullptr) CloseInTime(options_.speaker, clock_, std::move(session));
}

// --- The end -------------------------------------------------------------------------------------

absl::Duration TrainingJob::AskedGrace(bool by_signal) const {
  return by_signal ? std::min(options_.stop_grace, options_.signal_grace) : options_.stop_grace;
}

StopTime TrainingJob::TimeToStop() const {
  const std::optional<JobSignals::Noted> signal = signals_.noted();
  absl::Duration grace = AskedGrace(signal.has_value());
  if (saver() != nullptr) grace = std::max(grace, kSlowerSave * saver()->last_took());
  const absl::Time now = clock_->Now();
  if (!signal) return {grace, now + grace};
  return {grace, std::max(signal->at + grace, now + grace / kLastSavePart)};
}

bool TrainingJob::EndCheckpoints(const StopTime& time) {
  return checkpoints_ == nullptr || checkpoints_->End(time);
}

StatusOr<std::string> TrainingJob::SaveLast() {
  MutexLock stopping(&stop_mu_);
  const StopTime time = TimeToStop();
  return SaveLast(EndCheckpoints(time), time);
}

StatusOr<std::string> TrainingJob::SaveLast(bool checkpoints_ended, const StopTime& time) {
  if (checkpoints_ == nullptr) return std::string();
  const bool by_signal = signal() != 0;
  bool with_others = false;  // who may have been asked to end, too
  {
    MutexLock lock(&mu_);
    if (session_ == nullptr) return saved_beside_;
    last_save_done_ = true;
    with_others = by_signal && !target_.empty();
  }
  return checkpoints_->SaveLast(checkpoints_ended, with_others, time);
}

void TrainingJob::NothingToSave() {
  if (saver() != nullptr) saver()->ForgetFailures(saver()->failures());
  MutexLock lock(&mu_);
  last_save_done_ = true;
}

StatusOr<std::string> TrainingJob::saved_beside() const {
  MutexLock lock(&mu_);
  return saved_beside_;
}

StatusOr<std::string> TrainingJob::SaveLastAfter(const Status& error) {
  return NeedsLastSave(error) ? SaveLast() : std::string();
}

bool TrainingJob::NeedsLastSave(const Status& error) const {
  MutexLock lock(&mu_);
  return !last_save_done_ && !IsSessionLost(error) && !IsLossNotFinite(error) && !IsFenced(error);
}

void TrainingJob::EndStep(absl::Duration time) {
  if (session() == nullptr) return;  // Open has none, or is told to end what it is at
  MutexLock stopping(&stop_mu_);
  LogWarning(options_.speaker, ": the step that runs did not end within ",
             absl::FormatDuration(time), ", its session is closed");
  const StopTime left = TimeToStop();
  const bool ended = EndCheckpoints(left);
  StatusOr<std::string> saved = std::string();
  if (NeedsLastSave(leave().value_or(absl::OkStatus()))) saved = SaveLast(ended, left);
  if (!saved.ok()) LogWarning(saved.status().message());
  {
    MutexLock lock(&mu_);
    saved_beside_ = std::move(saved);
  }
  Close(TakeSession());
}

void TrainingJob::EndBegins() {
  signals_.EndBegins();
  if (checkpoints_ != nullptr) checkpoints_->Refuse();
}

void TrainingJob::TellEnd(const std::shared_ptr<Session>& session, const std::string& reason,
                          absl::Time deadline) {
  BoundedCall call(clock_, [sessions = sessions_, session, reason, speaker = options_.speaker] {
    const Status told = sessions->TellEnd(session.get(), {.reason = reason});
    if (told.ok()) return;
    LogWarning(speaker, ": the end of training was not told to all: ", told.message());
  });
  if (!AwaitAloud(options_.speaker, clock_, &call, deadline,
                  "the parameter servers and the directory to hear of the end")) {
    LogWarning(options_.speaker, ": the end of training was not told to all in time");
  }
}

Status TrainingJob::Stop() {
  Status error = SaveAndClose();
  signals_.Unwatch();
  return error;
}

Status TrainingJob::SaveAndClose() {
  RequestEnd();
  EndBegins();
  MutexLock stopping(&stop_mu_);
  const StopTime time = TimeToStop();
  const bool ended = EndCheckpoints(time);
  StatusOr<std::string> saved = std::string();
  if (NeedsLastSave(leave().value_or(absl::OkStatus()))) {
    saved = SaveLast(ended, time);
    if (!saved.ok()) LogWarning(saved.status().message());
  }
  std::shared_ptr<Session> session = TakeSession();
  const int by_signal = signal();
  Status error;
  std::optional<std::string> goal;
  {
    MutexLock lock(&mu_);
    error = leave_.value_or(absl::OkStatus());
    if (saved.ok() && saved->empty()) saved = std::exchange(saved_beside_, std::string());
    if (by_signal != 0 && ExitCode(error) == 128 + by_signal) {
      error = WithWhatIsKept(error, saved);
    }
    error.Update(saved.status());
    // A save that the service could not make, and no later one that succeeded.
    if (saver() != nullptr) error.Update(saver()->failure());
    if (leave_ || !error.ok()) leave_ = error;
    if (!leave_) goal = goal_;
  }
  if (session == nullptr) return error;
  if (goal) {
    // A small file and a call, also when the last checkpoint took all the time.
    TellEnd(session, *goal, std::max(time.deadline, clock_->Now() + kCloseTime));
  }
  // What is still blocked in the session ends with it; its own errors do not matter any more.
  Close(std::move(session));
  return error;
}

}  // namespace millrace
