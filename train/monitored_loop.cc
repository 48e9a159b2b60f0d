// SPDX-License-Identifier: Apache-2.0
#include "train/monitored_loop.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/exit_code.h"
#include "core/logging.h"
#include "proto/meta_graph.pb.h"
#include "run/training_run.h"
#include "saver/saver.h"
#include "train/queue_runner.h"
#include "train/run_state.h"
#include "train/session_manager.h"
#include "train/session_run_hook.h"
#include "train/step_trace.h"
#include "train/stop_time.h"
#include "train/sync_collections.h"
#include "train/training_metrics.h"

namespace millrace {
namespace {

constexpr char kName[] = "MonitoredSession";
constexpr absl::Duration kMaxRecoveryWait = absl::Seconds(2);
// While others train on: between two looks, and how long nobody must be seen, as a trainer that
// makes a session anew has none for a moment.
constexpr absl::Duration kTrainersPoll = absl::Milliseconds(200);
constexpr absl::Duration kTrainersGone = absl::Seconds(1);
// Waits are logged this often.
constexpr absl::Duration kReportPeriod = absl::Seconds(10);

// With the hook of the trace as the last one.
MonitoredSessionOptions WithTrace(MonitoredSessionOptions options,
                                  StatusOr<std::unique_ptr<StepTrace>>* trace) {
  if (!trace->ok()) return options;
  options.own_hooks.push_back(std::make_unique<StepTraceHook>(*std::move(*trace)));
  options.hooks.push_back(options.own_hooks.back().get());
  return options;
}

}  // namespace

MonitoredLoop::MonitoredLoop(const Scope& scope, MonitoredSessionOptions options)
    : trace_(StepTrace::OfEnvironment()),
      options_(WithTrace(std::move(options), &trace_)),
      clock_(options_.clock),
      scope_(scope.WithRootPrefix()),
      job_(std::make_shared<TrainingJob>(
          TrainingJobOptions{.speaker = kName,
                             .stop_grace = options_.stop_grace,
                             .signal_grace = options_.signal_grace,
                             .handle_signals = options_.handle_signals,
                             .clock = clock_,
                             .on_stop = [this] { StopThreads(); }})),
      recovery_({.speaker = kName,
                 .max_losses = options_.max_recoveries,
                 .longest_pause = options_.recovery_wait}),
      hooked_(scope, options_.hooks, clock_),
      coordinator_(clock_),
      shared_coordinator_(coordinator_) {}

Status MonitoredLoop::Open(SessionCreator* creator) {
  MR_RETURN_IF_ERROR(Prefixed(kName, trace_.status()));
  if (options_.max_recoveries < 0 || options_.recovery_wait < absl::ZeroDuration() ||
      options_.recovery_wait > kMaxRecoveryWait) {
    return InvalidArgument(kName, ": max_recoveries must be >= 0 and recovery_wait 0 to ",
                           absl::FormatDuration(kMaxRecoveryWait), ", got ",
                           options_.max_recoveries, " and ",
                           absl::FormatDuration(options_.recovery_wait));
  }
  MR_RETURN_IF_ERROR(hooked_.Begin());
  MR_ASSIGN_OR_RETURN(auto sessions, creator->CompleteGraph(hooked_.last_step()));
  job_->SetSessions(std::move(sessions));
  // Hooks write them, and the job the one next to a step that hangs.
  if (job_->saver() != nullptr) job_->KeepCheckpoints({.recovery_wait = options_.recovery_wait});
  job_->WatchSignals();
  return Recovering([] { return absl::OkStatus(); });
}

Status MonitoredLoop::Recovering(absl::FunctionRef<Status()> attempt) {
  while (true) {
    Status status = EnsureSession();
    if (status.ok()) status = attempt();
    if (status.ok()) {
      last_error_ = absl::OkStatus();
      return status;
    }
    // What a thread has met may be why the step failed: its queue was closed, say.
    const Status of_threads = coordinator_.error();
    if (!IsSessionLost(status) && IsSessionLost(of_threads)) status = of_threads;
    if (absl::IsOutOfRange(status)) {
      EndOfData(status);
      return status;
    }
    const std::optional<Status> left = LeftWith(status);
    if (left || !IsSessionLost(status) || options_.max_recoveries == 0) {
      last_error_ = left.value_or(status);
      return last_error_;
    }
    const Status gave_up = NoteLoss(status);
    if (!gave_up.ok()) {
      last_error_ = gave_up;
      return gave_up;
    }
  }
}

Status MonitoredLoop::Run(size_t step, absl::Span<const Tensor> feeds, absl::Span<Tensor> results) {
  MR_RETURN_IF_ERROR(CheckMayRun());
  return Recovering([&]() -> Status {
    MR_RETURN_IF_ERROR(hooked_.Run(step, feeds, results));
    ++own_steps_;
    CountTrainSteps(1);
    return absl::OkStatus();
  });
}

StatusOr<std::vector<Tensor>> MonitoredLoop::RunByName(const std::vector<Feed>& feeds,
                                                       const std::vector<FetchName>& fetches,
                                                       const std::vector<FetchName>& targets,
                                                       bool recover) {
  MR_RETURN_IF_ERROR(CheckMayRun());
  const size_t step = hooked_.FindOrAddStep(feeds, fetches, targets);
  std::vector<Tensor> values;
  for (const Feed& feed : feeds) values.push_back(feed.value);
  std::vector<Tensor> results(hooked_.num_results(step));
  const auto run = [&]() -> Status {
    MR_RETURN_IF_ERROR(hooked_.Run(step, values, absl::MakeSpan(results)));
    ++own_steps_;
    CountTrainSteps(1);
    return absl::OkStatus();
  };
  MR_RETURN_IF_ERROR(recover ? Recovering(run) : run());
  return results;
}

Status MonitoredLoop::CheckMayRun() const {
  if (closed_) return FailedPrecondition(kName, ": Run must come before Close, got it after");
  if (!data_ended_ && !hooked_.run().stop_requested) return absl::OkStatus();
  return FailedPrecondition(kName, ": Run called even after should_stop requested.");
}

bool MonitoredLoop::ShouldStop() {
  job_->ShouldStop();
  TakeAsked();
  return closed_ || data_ended_ || hooked_.run().stop_requested || StoppedByThreads();
}

void MonitoredLoop::RequestStop(absl::string_view reason) {
  RunContext(hooked_.mutable_run(), 0).RequestStop(reason);
}

void MonitoredLoop::EndOfData(const Status& status) {
  data_ended_ = true;
  if (!status.message().empty()) end_of_data_ = std::string(status.message());
  last_error_ = absl::OkStatus();
}

Status MonitoredLoop::Close(const Status& ended_with, bool in_order) {
  if (closed_) return closed_with_;
  // Only the program's own end of data comes here so.
  if (absl::IsOutOfRange(ended_with)) EndOfData(ended_with);
  Status status = absl::IsOutOfRange(ended_with) ? absl::OkStatus() : ended_with;
  if (in_order && status.ok() && last_error_.ok() && data_ended_) status = AwaitOtherTrainers();
  job_->EndBegins();
  TakeAsked();
  status.Update(last_error_);
  Status of_threads = coordinator_.error();
  status.Update(of_threads);
  const std::optional<RunEnd> ended_elsewhere = RunEndOf(status);
  const bool has_session = session_ != nullptr;
  const bool well = in_order && status.ok() && has_session;
  const RunState& run = hooked_.run();
  if (well) {
    status.Update(hooked_.End());
  } else if (in_order && has_session && !ended_elsewhere && !run.nothing_to_save) {
    // Where hooks have written checkpoints.
    const StatusOr<std::string> saved = job_->SaveLastAfter(status);
    if (!saved.ok()) LogWarning(saved.status().message());
  }
  closed_ = true;
  coordinator_.RequestStop();
  // After an error nothing is worth waiting for: what threads wait for in the session ends.
  if (!well) CloseSession();
  status.Update(
      coordinator_.Join({.stop_grace = options_.stop_grace, .ignore_live_threads = !well}));
  if (well && status.ok() && run.leave_with.ok() && (run.is_goal || data_ended_)) {
    // A small file and a call; storage that hangs does not hold up the end.
    job_->TellEnd(session_, run.is_goal ? run.reason : end_of_data_, clock_->Now() + kCloseTime);
  }
  if (in_order) status.Update(run.leave_with);
  CloseSession();
  end_reason_ = EndReason(status, ended_elsewhere);
  if (ended_elsewhere) {
    LogInfo(status.message());
    status = absl::OkStatus();
  }
  if (options_.logs_end && in_order && status.ok()) {
    LogInfo(kName, ": training has ended: ", end_reason_);
  }
  closed_with_ = status;
  job_->Unwatch();
  return status;
}

std::string MonitoredLoop::EndReason(const Status& status,
                                     const std::optional<RunEnd>& ended_elsewhere) const {
  if (ended_elsewhere) {
    const std::string& why = ended_elsewhere->reason;
    return absl::StrCat("the run has ended", why.empty() ? "" : ": ", why);
  }
  if (!status.ok()) return std::string(status.message());
  if (hooked_.run().is_goal) return hooked_.run().reason;
  if (data_ended_) return end_of_data_;
  return "this task was to leave";
}

void MonitoredLoop::StopThreads() {
  MutexLock lock(&mu_);
  shared_coordinator_.RequestStop();
}

void MonitoredLoop::TakeAsked() {
  if (!job_->stop_requested()) return;
  const RunContext run(hooked_.mutable_run(), 0);
  if (const std::optional<Status> leave = job_->leave()) {
    run.RequestLeave(*leave);
  } else if (const std::optional<std::string> goal = job_->goal()) {
    run.RequestStop(*goal);
  }
}

std::optional<Status> MonitoredLoop::LeftWith(const Status& status) {
  if (!job_->ShouldStop()) return std::nullopt;
  if (!IsSessionLost(status) && !absl::IsCancelled(status)) return std::nullopt;
  const Status why = job_->Stopped();
  if (job_->saver() == nullptr || status.message() == why.message()) return why;
  const StatusOr<std::string> saved = job_->saved_beside();
  if (saved.ok() && !saved->empty()) return WithWhatIsKept(why, saved);
  const Status left = WithWhatIsKept(why, saved.ok() ? status : saved.status());
  return WithExitCode(left, std::max(ExitCode(left), kExitRetryable));
}

Status MonitoredLoop::LeaveRounds() {
  const auto found = scope_.collections()->find(kSyncReplicasLeaves);
  if (found == scope_.collections()->end()) return absl::OkStatus();
  std::vector<FetchName> leaves;
  for (const std::string& name : found->second.node_list().value()) leaves.emplace_back(name);
  return session_->Run({}, {}, leaves).status();
}

Status MonitoredLoop::AwaitOtherTrainers() {
  if (!options_.await_trainers || job_->saver() == nullptr) return absl::OkStatus();
  LogThrottle throttle(kReportPeriod, /*wait_first=*/false, clock_);
  bool seen = false;
  absl::Time gone_since = absl::InfiniteFuture();
  return Recovering([&]() -> Status {
    // Each session has joined.
    MR_RETURN_IF_ERROR(LeaveRounds());
    while (true) {
      TakeAsked();
      if (hooked_.run().stop_requested || StoppedByThreads()) return absl::OkStatus();
      MR_ASSIGN_OR_RETURN(const RunTrainers others,
                          job_->sessions()->OtherTrainers(session_.get()));
      const absl::Time now = clock_->Now();
      const std::vector<std::string>& training = others.training;
      const int64_t came = static_cast<int64_t>(training.size() + others.ended.size());
      const int64_t missing = now < begun_ + options_.trainers_grace
                                  ? std::max<int64_t>(0, options_.num_trainers - 1 - came)
                                  : 0;
      gone_since = training.empty() ? std::min(gone_since, now) : absl::InfiniteFuture();
      seen = seen || !training.empty();
      if (training.empty() && missing == 0 && (!seen || now - gone_since >= kTrainersGone)) {
        return absl::OkStatus();
      }
      MR_RETURN_IF_ERROR(hooked_.WhileOthersTrain());
      if ((!training.empty() || missing > 0) && throttle.ShouldLog()) {
        LogInfo(kName, ": ", end_of_data_, "; the run goes on until the data of other trainers ",
                "has ended: ", SomeNames(training),
                missing > 0
                    ? absl::StrCat(training.empty() ? "" : ", ", missing, " that have not come yet")
                    : "");
      }
      job_->WaitForStop(now + kTrainersPoll);
    }
  });
}

bool MonitoredLoop::StoppedByThreads() const {
  // A session that is lost is replaced by the next run.
  return coordinator_.ShouldStop() &&
         !(options_.max_recoveries > 0 && IsSessionLost(coordinator_.error()));
}

Status MonitoredLoop::EnsureSession() {
  if (session_ != nullptr) {
    if (!coordinator_.ShouldStop()) return absl::OkStatus();
    const Status of_threads = coordinator_.error();
    return IsSessionLost(of_threads) ? of_threads : absl::OkStatus();
  }
  const std::string& target = job_->sessions()->target();
  MR_ASSIGN_OR_RETURN(const SessionManager::Ready ready, job_->Open(target));
  MR_RETURN_IF_ERROR(job_->Use(ready, target));
  session_ = ready.session;
  if (++sessions_made_ == 1) {
    begun_ = clock_->Now();
    first_step_ = ready.global_step;
  }
  recovery_.SessionBegan(ready.global_step, own_steps_);
  CreatedSession created;
  created.session = session_;
  created.coordinator = coordinator_;
  created.saver = std::shared_ptr<Saver>(job_, job_->saver());
  created.start = ready.start;
  created.restored_checkpoint = ready.restored_checkpoint;
  created.global_step = ready.global_step;
  created.last_step = hooked_.LastStepFrom(first_step_);
  created.is_recovery = had_session_;
  Status started = StartQueueRunners(scope_, session_, coordinator_).status();
  if (started.ok()) started = hooked_.Start(created);
  if (started.ok()) {
    had_session_ = true;
  } else {
    // No run may use a session that some hook has not seen; the next one makes another.
    DropSession();
  }
  return started;
}

void MonitoredLoop::DropSession() {
  // What threads wait for in the session ends with it; first, so that queues, which may outlive
  // it, are not closed by who runs them.
  CloseSession();
  coordinator_.RequestStop();
  const Status joined = coordinator_.Join({.stop_grace = kCloseTime, .ignore_live_threads = true});
  if (!joined.ok() && !IsSessionLost(joined) && !absl::IsCancelled(joined))
    LogWarning(kName, ": ", joined.message());
  coordinator_ = Coordinator(clock_);
  {
    MutexLock lock(&mu_);
    shared_coordinator_ = coordinator_;
  }
  if (job_->stop_requested()) coordinator_.RequestStop();
}

Status MonitoredLoop::NoteLoss(const Status& why) {
  MR_RETURN_IF_ERROR(recovery_.NoteLoss(why));
  DropSession();
  job_->WaitForStop(clock_->Now() + recovery_.pause());
  return absl::OkStatus();
}

void MonitoredLoop::CloseSession() {
  hooked_.Drop();
  // One that a signal has ended is not the job's any more.
  job_->TakeSession();
  job_->Close(std::exchange(session_, nullptr));
}

}  // namespace millrace
