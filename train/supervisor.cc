// SPDX-License-Identifier: Apache-2.0
#include "train/supervisor.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "core/exit_code.h"
#include "core/mutex.h"
#include "run/training_run.h"
#include "train/checkpoint_service.h"
#include "train/job_sessions.h"
#include "train/stop_time.h"
#include "train/training_job.h"

namespace millrace {
namespace {

constexpr char kName[] = "Supervisor";

}  // namespace

struct Supervisor::Impl {
  explicit Impl(SupervisorOptions o)
      : options(std::move(o)),
        job(std::make_shared<TrainingJob>(
            TrainingJobOptions{.speaker = kName,
                               .stop_grace = options.stop_grace,
                               .signal_grace = options.signal_grace,
                               .handle_signals = options.handle_signals,
                               .clock = options.clock})) {}

  Status CompleteGraph(const Scope& scope);
  std::string save_path() const { return JoinPath(options.logdir, options.checkpoint_basename); }

  const SupervisorOptions options;
  const std::shared_ptr<TrainingJob> job;
  Status status;  // of completing the graph

  mutable Mutex mu;
  SessionManager::Ready ready ABSL_GUARDED_BY(mu);  // the last one, without its session
  std::optional<RunEnd> run_end ABSL_GUARDED_BY(mu);
};

Status Supervisor::Impl::CompleteGraph(const Scope& scope) {
  JobSessionsOptions sessions;
  sessions.is_chief = options.is_chief;
  sessions.manager = {.name = kName,
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
  sessions.saver = options.saver;
  sessions.may_save = !options.logdir.empty();
  sessions.on_saved = options.on_checkpoint;
  MR_ASSIGN_OR_RETURN(auto made, JobSessions::Make(scope, std::move(sessions)));
  job->SetSessions(std::move(made));
  if (options.is_chief && job->saver() != nullptr && !options.logdir.empty()) {
    job->KeepCheckpoints({.directory = options.logdir,
                          .path = save_path(),
                          .period = options.save_model_period,
                          .recovery_wait = options.recovery_wait});
  }
  return absl::OkStatus();
}

Supervisor::Supervisor(ScopeAt at, SupervisorOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {
  impl_->status = impl_->CompleteGraph(at.here());
}

Supervisor::~Supervisor() {
  impl_->job->NothingToSave();
  impl_->job->RequestLeave(absl::OkStatus());  // no end of the run is told
  Stop().IgnoreError();
}

StatusOr<std::shared_ptr<Session>> Supervisor::ManagedSession(const std::string& target) {
  MR_RETURN_IF_ERROR(impl_->status);
  TrainingJob* const job = impl_->job.get();
  job->WatchSignals();
  const StopTime time = job->TimeToStop();
  job->EndCheckpoints(time);
  if (job->stop_requested()) return job->Stopped();  // Stop closes the session.
  if (job->checkpoints() != nullptr && job->checkpoints()->left_behind()) {
    return WithExitCode(
        absl::DeadlineExceededError(absl::StrCat(
            "Supervisor: the storage of '", impl_->options.logdir,
            "' must answer before training goes on, got a save that still waits for it after ",
            absl::FormatDuration(time.grace))),
        kExitRetryable);
  }
  job->Close(job->TakeSession());
  StatusOr<SessionManager::Ready> ready = job->Open(target);
  if (const std::optional<RunEnd> end = RunEndOf(ready.status())) {
    job->RequestEnd();
    MutexLock lock(&impl_->mu);
    impl_->run_end = end;
  }
  MR_RETURN_IF_ERROR(ready.status());
  MR_RETURN_IF_ERROR(job->Use(*ready, target));
  MutexLock lock(&impl_->mu);
  impl_->ready = *ready;
  impl_->ready.session = nullptr;
  return ready->session;
}

Supervisor::Start Supervisor::start() const {
  MutexLock lock(&impl_->mu);
  return impl_->ready.start;
}

std::string Supervisor::restored_checkpoint() const {
  MutexLock lock(&impl_->mu);
  return impl_->ready.restored_checkpoint;
}

int64_t Supervisor::first_step() const {
  MutexLock lock(&impl_->mu);
  return impl_->ready.global_step;
}

std::optional<RunEnd> Supervisor::run_end() const {
  MutexLock lock(&impl_->mu);
  return impl_->run_end;
}

bool Supervisor::ShouldStop() const { return impl_->job->ShouldStop(); }

bool Supervisor::WaitForStop(absl::Duration at_most) {
  return impl_->job->WaitForStop(impl_->options.clock->Now() + at_most);
}

const SupervisorOptions& Supervisor::options() const { return impl_->options; }

int Supervisor::signal() const { return impl_->job->signal(); }

StatusOr<std::string> Supervisor::Save(int64_t step) {
  CheckpointService* const checkpoints = impl_->job->checkpoints();
  return checkpoints != nullptr ? checkpoints->Save(step) : std::string();
}

void Supervisor::RequestStop(const Status& reason) {
  if (reason.ok()) {
    impl_->job->RequestStop("training is done");
  } else if (absl::IsOutOfRange(reason)) {
    impl_->job->RequestStop(reason.message());
  } else {
    impl_->job->RequestLeave(reason);
  }
}

void Supervisor::NothingToSave() { impl_->job->NothingToSave(); }

Status Supervisor::Stop() { return impl_->job->Stop(); }

StatusOr<std::string> Supervisor::SaveLast() { return impl_->job->SaveLast(); }

Saver* Supervisor::saver() const { return impl_->job->saver(); }

std::string Supervisor::save_path() const { return impl_->save_path(); }

Status Supervisor::status() const { return impl_->status; }

}  // namespace millrace
