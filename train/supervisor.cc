// SPDX-License-Identifier: Apache-2.0
#include "train/supervisor.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "core/bounded_call.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "core/mutex.h"
#include "core/tensor.h"
#include "run/training_run.h"
#include "train/checkpoint_service.h"
#include "train/guarded_saver.h"
#include "train/job_recovery.h"
#include "train/job_sessions.h"
#include "train/job_signals.h"
#include "train/session_preparation.h"
#include "train/stop_time.h"

namespace millrace {
namespace {

constexpr char kName[] = "Supervisor";
// A save may take so many times as long as the last one before it counts as one that hangs.
constexpr int kSlowerSave = 3;
// After a signal: the last checkpoint has this part of the grace, however late the stop begins.
constexpr int kLastSavePart = 2;

// What the variables of the graph have, as far as their shapes say.
int64_t BytesOf(const std::vector<Variable>& variables) {
  int64_t bytes = 0;
  for (const Variable& variable : variables) {
    const int64_t elements = variable.shape.num_elements();
    if (elements > 0) bytes += elements * static_cast<int64_t>(DTypeSize(variable.dtype));
  }
  return bytes;
}

}  // namespace

// Shared with the threads of calls that may be left behind.
struct Supervisor::Impl : std::enable_shared_from_this<Supervisor::Impl> {
  Impl(const Scope& s, SupervisorOptions o)
      : scope(s),
        options(std::move(o)),
        preparation(kName, options.clock),
        signals({.speaker = kName,
                 .grace = AskedGrace(/*by_signal=*/true),
                 .clock = options.clock,
                 .keeps_checkpoints = [this] { return keeps_checkpoints(); },
                 .request_leave = [this](const Status& why) { RequestStop(why, /*asked=*/true); },
                 .end_step = [this](absl::Duration time) { EndStep(time); }}) {}

  void CompleteGraph();
  // Opens the session and makes it ready; ends soon after a request to stop.
  StatusOr<SessionManager::Ready> PrepareUnlessStopped(const std::string& target);
  // Refuses when a stop has been requested: Stop may have gone by already.
  Status StartServices(const SessionManager::Ready& ready);
  // False when a save did not end in time and its session was closed.
  bool StopServices(const StopTime& time) {
    return checkpoints == nullptr || checkpoints->End(time);
  }
  // `services_ended`: what StopServices returned.
  StatusOr<std::string> SaveLast(bool services_ended, const StopTime& time)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stop_mu);
  bool NeedsLastSave() const;
  // All that Stop does but for the watch of signals.
  Status End();
  // There is no session any more; null when there was none.
  std::shared_ptr<Session> TakeSession() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void Close(std::shared_ptr<Session> s) { CloseInTime(kName, options.clock, std::move(s)); }
  // Tells the parameter servers and the directory that training is over.
  void TellEnd(const std::shared_ptr<Session>& s, const std::string& reason, absl::Time deadline);
  std::string save_path() const { return JoinPath(options.logdir, options.checkpoint_basename); }
  // How long a stop may take by the options.
  absl::Duration AskedGrace(bool by_signal) const {
    return by_signal ? std::min(options.stop_grace, options.signal_grace) : options.stop_grace;
  }
  // The same, but that a last save as long as the one before it must not be cut off.
  absl::Duration StopGrace(bool by_signal) const {
    return saver() == nullptr ? AskedGrace(by_signal)
                              : std::max(AskedGrace(by_signal), kSlowerSave * saver()->last_took());
  }
  // What a stop may take that begins now, and when it is over: after a signal the time counts from
  // there, but for the part that is the last checkpoint's.
  StopTime TimeToStop() const {
    const absl::Time now = options.clock->Now();
    const std::optional<JobSignals::Noted> signal = signals.noted();
    const absl::Duration grace = StopGrace(signal.has_value());
    if (!signal) return {grace, now + grace};
    return {grace, std::max(signal->at + grace, now + grace / kLastSavePart)};
  }
  bool keeps_checkpoints() const { return checkpoints != nullptr; }
  GuardedSaver* saver() const { return sessions != nullptr ? sessions->saver() : nullptr; }
  // After a signal, of a step that hangs, or what feeds it does: what is trained is saved next to
  // it and its session is closed. Where there is no session, ManagedSession has none, or is told to
  // end what it is at.
  void EndStep(absl::Duration time);
  // `asked`: by the program, not by an error of a service or by Stop itself.
  void RequestStop(const Status& reason, bool asked) {
    MutexLock lock(&mu);
    RequestStopLocked(reason, asked);
  }
  void RequestStopLocked(const Status& reason, bool asked) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // Why there is no session after a request to stop.
  Status Stopped() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  Scope scope;
  SupervisorOptions options;
  Status status;  // of completing the graph

  std::shared_ptr<JobSessions> sessions;  // null: `status` says why
  SessionPreparation preparation;
  // Of a chief with a logdir and something to save.
  std::unique_ptr<CheckpointService> checkpoints;

  Mutex stop_mu;  // held by who stops, before mu: the others wait for the last checkpoint
  mutable Mutex mu;
  CondVar stop_cv;
  bool should_stop ABSL_GUARDED_BY(mu) = false;
  Status first_error ABSL_GUARDED_BY(mu);
  // The program asked to stop without an error, and why.
  std::optional<std::string> done ABSL_GUARDED_BY(mu);
  std::optional<RunEnd> run_end ABSL_GUARDED_BY(mu);
  Start start ABSL_GUARDED_BY(mu) = Start::kInitialized;
  std::string restored ABSL_GUARDED_BY(mu);
  std::shared_ptr<Session> session ABSL_GUARDED_BY(mu);
  int64_t first_step ABSL_GUARDED_BY(mu) = -1;      // the global step that `session` began with
  bool last_save_done ABSL_GUARDED_BY(mu) = false;  // SaveLast was called for `session`
  std::string target ABSL_GUARDED_BY(mu);           // of `session`

  // What EndStep's last checkpoint came to; "": there is none.
  StatusOr<std::string> saved_beside ABSL_GUARDED_BY(mu) = std::string();
  JobSignals signals;  // its methods are called without `mu`
};

void Supervisor::Impl::CompleteGraph() {
  JobSessionsOptions of_job;
  of_job.is_chief = options.is_chief;
  of_job.manager = {.name = kName,
                    .ready_op = options.ready_op,
                    .ready_for_local_init_op = options.ready_for_local_init_op,
                    .init_op = options.init_op,
                    .init_feeds = options.init_feeds,
                    .init_fn = options.init_fn,
                    .local_init_op = options.local_init_op,
                    .checkpoint_dir = options.logdir,
                    .begin_from = options.is_chief ? options.begin_from : "",
                    .global_step = options.global_step,
                    .last_step = options.last_step,
                    .recovery_wait = options.recovery_wait,
                    .end_grace = options.end_grace,
                    .max_wait = options.max_wait,
                    .session = options.session,
                    .clock = options.clock,
                    .file_system = options.file_system};
  of_job.saver = options.saver;
  of_job.may_save = !options.logdir.empty();
  StatusOr<std::shared_ptr<JobSessions>> made = JobSessions::Make(scope, std::move(of_job));
  status = made.status();
  if (!status.ok()) return;
  sessions = *std::move(made);
  if (!options.is_chief || saver() == nullptr || options.logdir.empty()) return;
  checkpoints = std::make_unique<CheckpointService>(CheckpointServiceOptions{
      .speaker = kName,
      .saver = saver(),
      .directory = options.logdir,
      .path = save_path(),
      .period = options.save_model_period,
      .recovery_wait = options.recovery_wait,
      .variable_bytes = BytesOf(VariablesOf(scope.WithRootPrefix(), "variables")),
      .clock = options.clock,
      .read_step = [this](Session* s) { return sessions->ReadGlobalStep(s); },
      .on_error = [this](const Status& error) { RequestStop(error, /*asked=*/false); },
      .keep_alive = [this] { return shared_from_this(); }});
}

StatusOr<SessionManager::Ready> Supervisor::Impl::PrepareUnlessStopped(const std::string& target) {
  std::optional<StatusOr<SessionManager::Ready>> ready =
      preparation.Run([self = shared_from_this(), target] { return self->sessions->Open(target); },
                      [this] { return sessions->opening(); });
  if (ready) return *std::move(ready);
  MutexLock lock(&mu);
  return Stopped();
}

void Supervisor::Impl::RequestStopLocked(const Status& reason, bool asked) {
  should_stop = true;
  const bool is_end = reason.ok() || absl::IsOutOfRange(reason);
  if (!is_end) first_error.Update(reason);
  if (is_end && asked && !done) {
    done = reason.ok() ? "training is done" : std::string(reason.message());
  }
  stop_cv.SignalAll();
  if (sessions != nullptr) sessions->Stop(Stopped());
  preparation.Stop();
}

Status Supervisor::Impl::Stopped() const {
  return first_error.ok() ? absl::CancelledError("Supervisor: a stop has been requested")
                          : first_error;
}

Status Supervisor::Impl::StartServices(const SessionManager::Ready& ready) {
  MutexLock lock(&mu);
  if (should_stop) return Stopped();
  session = ready.session;
  start = ready.start;
  restored = ready.restored_checkpoint;
  first_step = ready.global_step;
  last_save_done = false;
  if (checkpoints != nullptr) checkpoints->Begin(session, first_step);
  return absl::OkStatus();
}

std::shared_ptr<Session> Supervisor::Impl::TakeSession() {
  if (checkpoints != nullptr) checkpoints->Forget();
  return std::exchange(session, nullptr);
}

StatusOr<std::string> Supervisor::Impl::SaveLast(bool services_ended, const StopTime& time) {
  if (!keeps_checkpoints()) return std::string();
  const bool by_signal = signals.noted().has_value();
  bool with_others = false;  // who may have been asked to end, too
  {
    MutexLock lock(&mu);
    if (session == nullptr) return saved_beside;
    last_save_done = true;
    with_others = by_signal && !target.empty();
  }
  return checkpoints->SaveLast(services_ended, with_others, time);
}

void Supervisor::Impl::TellEnd(const std::shared_ptr<Session>& s, const std::string& reason,
                               absl::Time deadline) {
  BoundedCall call(options.clock, [of_job = sessions, s, reason] {
    const Status told = of_job->TellEnd(s.get(), {.reason = reason});
    if (!told.ok())
      LogWarning("Supervisor: the end of training was not told to all: ", told.message());
  });
  if (!AwaitAloud(kName, options.clock, &call, deadline,
                  "the parameter servers and the directory to hear of the end")) {
    LogWarning("Supervisor: the end of training was not told to all in time");
  }
}

void Supervisor::Impl::EndStep(absl::Duration time) {
  {
    MutexLock lock(&mu);
    if (session == nullptr) return;
  }
  MutexLock stopping(&stop_mu);
  LogWarning("Supervisor: the step that runs did not end within ", absl::FormatDuration(time),
             ", its session is closed");
  const StopTime left = TimeToStop();
  const bool services_ended = StopServices(left);
  StatusOr<std::string> saved = std::string();
  if (NeedsLastSave()) saved = SaveLast(services_ended, left);
  std::shared_ptr<Session> s;
  {
    MutexLock lock(&mu);
    s = TakeSession();
    saved_beside = saved;
  }
  if (!saved.ok()) LogWarning(saved.status().message());
  if (s != nullptr) Close(std::move(s));
}

bool Supervisor::Impl::NeedsLastSave() const {
  MutexLock lock(&mu);
  return !last_save_done && !IsSessionLost(first_error) && !IsLossNotFinite(first_error) &&
         !IsFenced(first_error);
}

Supervisor::Supervisor(const Scope& scope, SupervisorOptions options)
    : impl_(std::make_shared<Impl>(scope, std::move(options))) {
  impl_->CompleteGraph();
}

Supervisor::~Supervisor() {
  {
    MutexLock lock(&impl_->mu);
    impl_->last_save_done = true;
    impl_->done.reset();
  }
  Stop().IgnoreError();
}

StatusOr<std::shared_ptr<Session>> Supervisor::ManagedSession(const std::string& target) {
  MR_RETURN_IF_ERROR(impl_->status);
  if (impl_->options.handle_signals) impl_->signals.Watch();
  const StopTime time = impl_->TimeToStop();
  impl_->StopServices(time);
  std::shared_ptr<Session> former;
  {
    MutexLock lock(&impl_->mu);
    if (impl_->should_stop) return impl_->Stopped();  // Stop closes the session.
    if (impl_->keeps_checkpoints() && impl_->checkpoints->left_behind()) {
      return WithExitCode(
          absl::DeadlineExceededError(absl::StrCat(
              "Supervisor: the storage of '", impl_->options.logdir,
              "' must answer before training goes on, got a save that still waits for it after ",
              absl::FormatDuration(time.grace))),
          kExitRetryable);
    }
    former = impl_->TakeSession();
    impl_->target = target;
  }
  if (former != nullptr) impl_->Close(std::move(former));
  StatusOr<SessionManager::Ready> ready = impl_->PrepareUnlessStopped(target);
  if (const std::optional<RunEnd> end = RunEndOf(ready.status())) {
    impl_->RequestStop(absl::OkStatus(), /*asked=*/false);
    MutexLock lock(&impl_->mu);
    impl_->run_end = end;
  }
  MR_RETURN_IF_ERROR(ready.status());
  const Status started = impl_->StartServices(*ready);
  if (!started.ok()) {
    impl_->Close(ready->session);
    return started;
  }
  return ready->session;
}

Supervisor::Start Supervisor::start() const {
  MutexLock lock(&impl_->mu);
  return impl_->start;
}

std::string Supervisor::restored_checkpoint() const {
  MutexLock lock(&impl_->mu);
  return impl_->restored;
}

int64_t Supervisor::first_step() const {
  MutexLock lock(&impl_->mu);
  return impl_->first_step;
}

std::optional<RunEnd> Supervisor::run_end() const {
  MutexLock lock(&impl_->mu);
  return impl_->run_end;
}

bool Supervisor::ShouldStop() const {
  impl_->signals.Note();
  MutexLock lock(&impl_->mu);
  return impl_->should_stop;
}

bool Supervisor::WaitForStop(absl::Duration at_most) {
  Clock* const clock = impl_->options.clock;
  const absl::Time until = clock->Now() + at_most;
  MutexLock lock(&impl_->mu);
  while (!impl_->should_stop && clock->Now() < until) {
    clock->WaitUntil(&impl_->stop_cv, &impl_->mu, until);
  }
  return impl_->should_stop;
}

const SupervisorOptions& Supervisor::options() const { return impl_->options; }

int Supervisor::signal() const {
  const std::optional<JobSignals::Noted> noted = impl_->signals.noted();
  return noted ? noted->signal : 0;
}

StatusOr<std::string> Supervisor::Save(int64_t step) {
  return impl_->keeps_checkpoints() ? impl_->checkpoints->Save(step) : std::string();
}

void Supervisor::RequestStop(const Status& reason) { impl_->RequestStop(reason, /*asked=*/true); }

void Supervisor::NothingToSave() {
  GuardedSaver* const saver = impl_->saver();
  if (saver != nullptr) saver->ForgetFailures(saver->failures());
  MutexLock lock(&impl_->mu);
  impl_->last_save_done = true;
}

Status Supervisor::Stop() {
  Status error = impl_->End();
  impl_->signals.Unwatch();
  return error;
}

Status Supervisor::Impl::End() {
  RequestStop(absl::OkStatus(), /*asked=*/false);
  signals.EndBegins();
  if (checkpoints != nullptr) checkpoints->Refuse();
  MutexLock stopping(&stop_mu);
  const StopTime time = TimeToStop();
  const bool services_ended = StopServices(time);
  StatusOr<std::string> saved = std::string();
  if (NeedsLastSave()) {
    saved = SaveLast(services_ended, time);
    if (!saved.ok()) LogWarning(saved.status().message());
  }
  const std::optional<JobSignals::Noted> signal = signals.noted();
  std::shared_ptr<Session> s;
  std::optional<std::string> done_reason;
  Status error;
  {
    MutexLock lock(&mu);
    s = TakeSession();
    if (saved.ok() && saved->empty()) saved = std::exchange(saved_beside, std::string());
    if (signal && ExitCode(first_error) == 128 + signal->signal) {
      // What the program ends with says whether what was trained is kept.
      if (!saved.ok()) first_error = Prefixed(first_error.message(), saved.status());
      if (saved.ok() && !saved->empty()) {
        first_error = Suffixed(first_error, absl::StrCat("; saved ", *saved));
      }
    }
    first_error.Update(saved.status());
    // A save that the service could not make, and nobody since.
    if (saver() != nullptr) first_error.Update(saver()->failure());
    error = first_error;
    done_reason = done;
  }
  if (s == nullptr) return error;
  if (error.ok() && done_reason && options.is_chief) {
    // A small file and a call, also when the last checkpoint took all the time.
    TellEnd(s, *done_reason, std::max(time.deadline, options.clock->Now() + kCloseTime));
  }
  // What is still blocked in the session ends with it; its own errors do not matter any more.
  Close(std::move(s));
  return error;
}

StatusOr<std::string> Supervisor::SaveLast() {
  MutexLock stopping(&impl_->stop_mu);
  const StopTime time = impl_->TimeToStop();
  return impl_->SaveLast(impl_->StopServices(time), time);
}

Saver* Supervisor::saver() const { return impl_->saver(); }

std::string Supervisor::save_path() const { return impl_->save_path(); }

Status Supervisor::status() const { return impl_->status; }

namespace {

// OK, said in one line, when `status` says that the run has ended: nothing is left to do.
Status EndedWell(const Status& status) {
  const std::optional<RunEnd> end = RunEndOf(status);
  if (!end) return status;
  LogInfo(status.message());
  return absl::OkStatus();
}

}  // namespace

Status RunWithRecovery(Supervisor* supervisor, const std::string& target, int max_recoveries,
                       absl::FunctionRef<Status(Session*)> body) {
  JobRecovery recovery({.speaker = kName,
                        .max_losses = max_recoveries,
                        .longest_pause = supervisor->options().recovery_wait});
  while (true) {
    const StatusOr<std::shared_ptr<Session>> session = supervisor->ManagedSession(target);
    if (!session.ok()) {
      return supervisor->signal() != 0 ? absl::OkStatus() : EndedWell(session.status());
    }
    recovery.SessionBegan(supervisor->first_step());
    const Status status = body(session->get());
    // Who asked this task to end may have asked the parameter servers, too, and a step that did not
    // end had its session closed.
    if (supervisor->signal() != 0 && (IsSessionLost(status) || absl::IsCancelled(status))) {
      return absl::OkStatus();
    }
    if (!IsSessionLost(status)) return EndedWell(status);
    MR_RETURN_IF_ERROR(recovery.NoteLoss(status));
    supervisor->WaitForStop(recovery.pause());
  }
}

Status RunStepsWithRecovery(Supervisor* supervisor, const std::string& target, int max_recoveries,
                            absl::FunctionRef<Status(Session*)> begin,
                            absl::FunctionRef<StatusOr<bool>(Session*)> step) {
  return RunWithRecovery(supervisor, target, max_recoveries, [&](Session* session) -> Status {
    MR_RETURN_IF_ERROR(begin(session));
    while (!supervisor->ShouldStop()) {
      MR_ASSIGN_OR_RETURN(const bool more, step(session));
      if (!more) break;
    }
    return absl::OkStatus();
  });
}

}  // namespace millrace
