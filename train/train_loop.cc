// SPDX-License-Identifier: Apache-2.0
#include "train/train_loop.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "layers/variable.h"
#include "proto/config.pb.h"
#include "run/training_run.h"
#include "saver/export_model.h"
#include "saver/saved_model_reader.h"
#include "train/loss_guard.h"
#include "train/run_with_recovery.h"
#include "train/staleness_aware.h"
#include "train/step_runner.h"
#include "train/training_metrics.h"

namespace millrace {
namespace {

// Steps between two looks at the clock, at most, and the time that they may take together: a look
// costs as much as a short step where the clock is a system call, and a long step after short ones
// is noticed late.
constexpr int kMaxStepsPerLook = 16;
constexpr absl::Duration kLookTime = absl::Milliseconds(1);
// What is shown of the staleness goes by about so many steps.
constexpr double kRecentSteps = 16;

}  // namespace

TrainLoop::TrainLoop(const Scope& model, const CountedStep& step, const ReadAhead& ahead,
                     const TrainOptions& options, Supervisor* supervisor, TrainEvents* events)
    : model_(model),
      counted_(step),
      ahead_(ahead),
      options_(options),
      supervisor_(supervisor),
      events_(events),
      clock_(options.supervisor.clock),
      progress_({.last_step = options.steps, .clock = clock_}) {}

StatusOr<TrainResult> TrainLoop::Run() {
  MR_ASSIGN_OR_RETURN(trace_, StepTrace::OfEnvironment());
  Status status = RunCountedWithRecovery(
      supervisor_, options_.target, options_.max_recoveries, [this] { return result_.own_steps; },
      [this](Session* session) { return RunInSession(session); });
  trace_->End();
  progress_.EndLine();
  if (status.ok() && !at_goal_ && supervisor_->signal() != 0)
    status = EndedBy(supervisor_->signal());
  if (status.ok() && idle_) supervisor_->NothingToSave();
  // Only at its goal is training over: others leave then.
  if (!status.ok() || at_goal_) {
    supervisor_->RequestStop(status.ok() ? absl::OutOfRangeError(goal_) : status);
  }
  const Status stopped = supervisor_->Stop();
  for (const Status& error : {status, failed_, stopped}) MR_RETURN_IF_ERROR(error);
  result_.reason = idle_ && options_.steps > 0
                       ? absl::StrCat("step ", step_, " of ", options_.steps, " was reached before")
                       : goal_;
  if (const std::optional<RunEnd> end = supervisor_->run_end()) {
    result_.global_step = std::max(result_.global_step, end->global_step);
    result_.reason =
        absl::StrCat("the run has ended", end->reason.empty() ? "" : ": ", end->reason);
  }
  if (result_.reason.empty()) result_.reason = "a stop was asked for";
  if (result_.own_steps == 0 && options_.loss.valid() && !options_.dir.empty()) {
    result_.loss = LossShownAt(options_.supervisor.file_system, options_.dir, result_.global_step)
                       .value_or(result_.loss);
  }
  LogInfo("Train: training has ended: ", result_.reason);
  return result_;
}

Status TrainLoop::RunInSession(Session* session) {
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> begin,
                      session->Run({}, {counted_.global_step.value}));
  step_ = StepOf(begin[0]);
  result_.global_step = step_;
  LogInfo("Train: First step is ", step_);
  recent_staleness_ = recent_steps_ = 0;
  const bool done_before = options_.steps > 0 && step_ >= options_.steps;
  bool exported = false;
  if (exports()) {
    FileSystem* const fs = options_.supervisor.file_system;
    const Status is_new = CheckExportDirectory(options_.export_to, fs);
    exported = !is_new.ok() && done_before && SavedModelPath(fs, options_.export_to).has_value();
    if (!exported) MR_RETURN_IF_ERROR(Prefixed("Train", is_new));
  }

  now_ = clock_->Now();
  steps_per_look_ = until_look_ = 1;
  const bool saves = options_.is_chief && supervisor_->saver() != nullptr;
  save_ = Due(saves ? Every(options_.save_every.steps()) : Every(), step_, now_);
  eval_ = Due(options_.is_chief ? options_.eval_every : Every(), step_, now_);
  report_ = Due(options_.report_every, step_, now_);
  summary_ = Due(events_ != nullptr ? options_.summary_every : Every(), step_, now_);
  evaluated_at_ = shown_at_ = rate_from_ = -1;
  std::vector<FetchName> fetches = {counted_.step_after};
  if (options_.loss.valid()) fetches.emplace_back(options_.loss);
  const size_t first_ahead = fetches.size();
  fetches.insert(fetches.end(), ahead_.next().begin(), ahead_.next().end());
  StepRunner runner(session, std::move(fetches), {ahead_.fed().begin(), ahead_.fed().end()});
  values_.clear();
  const Feeds no_feeds;

  while (options_.steps == 0 || step_ < options_.steps) {
    // A signal, or a checkpoint that no try can write: nothing is exported.
    if (supervisor_->ShouldStop()) return absl::OkStatus();
    if (options_.data && !pending_) {
      FeedsOrEnd next = options_.data();
      if (absl::IsOutOfRange(next.status())) break;
      if (!next.ok()) {
        // Not a loss of the session, whatever its code.
        failed_ = Prefixed(absl::StrCat("Train: data after global step ", step_), next.status());
        return absl::OkStatus();
      }
      if (!*next) break;
      pending_ = **std::move(next);
    }
    if (values_.empty() && !ahead_.empty()) MR_RETURN_IF_ERROR(ReadNow(session));
    // Kept until the step is done: with a lost session no batch is lost.
    // The first run of a session compiles the step: its trace is none.
    std::optional<tensorflow::RunMetadata> traced;
    if (result_.own_steps > 0 && trace_->Wants(step_)) traced.emplace();
    const Status ran =
        runner.Run(pending_ ? *pending_ : no_feeds, values_, traced ? &*traced : nullptr);
    if (absl::IsOutOfRange(ran)) break;  // the graph's own input has ended
    if (absl::IsInvalidArgument(ran) && result_.own_steps == 0 && !counted_.added.empty()) {
      return Suffixed(ran, absl::StrCat("; a step runs ", counted_.added,
                                        ", too; .update_ops = false leaves another model's out"));
    }
    MR_RETURN_IF_ERROR(ran);
    pending_.reset();
    ++result_.own_steps;
    CountTrainSteps(1);
    // What other tasks have counted meanwhile may be more.
    step_ = std::max(step_, Counted(runner.result(0)));
    if (traced) trace_->Add(step_, traced->step_stats());
    for (size_t i = 0; i < values_.size(); ++i) values_[i] = runner.result(first_ahead + i);
    result_.global_step = step_;
    if (options_.loss.valid()) {
      const Tensor& loss = runner.result(1);
      if (loss.num_elements() != 1) {
        return InvalidArgument("Train: loss '", options_.loss.name(),
                               "' must be a scalar, got shape ", loss.shape());
      }
      MR_RETURN_IF_ERROR(CheckLossIsFinite(loss, step_, result_.staleness));
      result_.loss = loss.dtype() == DT_FLOAT ? static_cast<double>(loss.scalar<float>())
                                              : loss.scalar<double>();
    }
    MR_RETURN_IF_ERROR(AfterStep(session));
  }
  at_goal_ = true;
  goal_ = options_.steps > 0 && step_ >= options_.steps
              ? absl::StrCat("reached step ", step_, " of ", options_.steps)
              : absl::StrCat("the data ended after step ", step_);
  if (options_.is_chief && (options_.steps == 0 || step_ < options_.steps)) {
    LogInfo("Train: ", goal_, ", which ends the run for all tasks");
  }
  return AtEnd(session, exported);
}

Status TrainLoop::ReadNow(Session* session) {
  // The count first: what others update in between is in the values, and counts as not seen.
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> step,
                      session->Run({}, {counted_.global_step.value}));
  MR_ASSIGN_OR_RETURN(values_, session->Run({}, ahead_.first()));
  read_at_ = StepOf(step[0]);
  return absl::OkStatus();
}

int64_t TrainLoop::Counted(const Tensor& steps) {
  if (!ahead_.empty()) {
    const int64_t after = StepOf(steps);
    NoteStaleness(std::exchange(read_at_, after), after);
    return after;
  }
  if (steps.num_elements() != 2) return StepOf(steps);
  const auto at = [&steps](size_t i) {
    return steps.dtype() == DT_INT32 ? int64_t{steps.flat<int32_t>()[i]} : steps.flat<int64_t>()[i];
  };
  NoteStaleness(at(1), at(0));
  return at(0);
}

void TrainLoop::NoteStaleness(int64_t read_at, int64_t after) {
  // The own update is none of others; a counter that was set back meanwhile says nothing.
  const int64_t stale = std::max<int64_t>(0, after - read_at - 1);
  Staleness& all = result_.staleness;
  all.max = std::max(all.max, stale);
  all.mean += (static_cast<double>(stale) - all.mean) / static_cast<double>(result_.own_steps);
  ++recent_steps_;
  recent_staleness_ +=
      (static_cast<double>(stale) - recent_staleness_) / std::min(recent_steps_, kRecentSteps);
}

Status TrainLoop::AfterStep(Session* session) {
  const bool last = options_.steps > 0 && step_ >= options_.steps;
  if (--until_look_ > 0 && !last && !save_.AtStep(step_) && !eval_.AtStep(step_) &&
      !report_.AtStep(step_) && !summary_.AtStep(step_)) {
    return absl::OkStatus();
  }
  Look();
  if (rate_from_ < 0 || summary_.AtStep(step_) || summary_.AtTime(now_)) {
    summary_.Next(step_, now_);
    Show();
  }
  if (options_.progress && options_.is_chief) {
    progress_.Update(options_.steps > 0 ? std::min(step_, options_.steps) : step_, ShownLoss(),
                     recent_staleness_);
  }
  if (report_.AtStep(step_) || report_.AtTime(now_)) {
    report_.Next(step_, now_);
    const auto stale = static_cast<int64_t>(std::llround(recent_staleness_));
    Say(absl::StrCat("Step: ", step_,
                     options_.loss.valid() ? absl::StrCat(", loss: ", result_.loss) : "",
                     stale > 0 ? absl::StrCat(", staleness: ", stale) : ""));
  }
  // AtEnd does the rest of the last step.
  if (last) return absl::OkStatus();
  if (save_.AtStep(step_)) {
    values_.clear();  // others train on meanwhile
    save_.Next(step_, now_);
    MR_ASSIGN_OR_RETURN(const std::string saved, supervisor_->Save(step_));
    if (!saved.empty()) {  // else it is tried again
      result_.checkpoint = saved;
      Say(absl::StrCat("Saved ", saved));
    }
  }
  if (eval_.AtStep(step_) || eval_.AtTime(now_)) {
    values_.clear();
    MR_RETURN_IF_ERROR(Evaluate(session));
    eval_.Next(step_, clock_->Now());
  }
  return absl::OkStatus();
}

void TrainLoop::Look() {
  const absl::Time before = std::exchange(now_, clock_->Now());
  if (now_ - before > kLookTime) {
    steps_per_look_ = 1;
  } else if (steps_per_look_ < kMaxStepsPerLook) {
    ++steps_per_look_;
  }
  until_look_ = steps_per_look_;
  NoteGlobalStep(step_);
  if (options_.loss.valid() && result_.own_steps > 0) NoteLoss(result_.loss);
  if (recent_steps_ > 0) millrace::NoteStaleness(recent_staleness_);
}

void TrainLoop::Show() {
  if (events_ == nullptr || result_.own_steps == 0 || shown_at_ == step_) return;
  shown_at_ = step_;
  if (options_.loss.valid()) events_->AddScalar(kLossTag, result_.loss, step_);
  const absl::Duration took = now_ - rate_since_;
  if (rate_from_ >= 0 && step_ > rate_from_ && took > absl::ZeroDuration()) {
    events_->AddScalar(absl::StrCat(counted_.global_step.name, "/sec"),
                       static_cast<double>(step_ - rate_from_) / absl::ToDoubleSeconds(took),
                       step_);
  }
  rate_from_ = step_;
  rate_since_ = now_;
}

Status TrainLoop::Evaluate(Session* session) {
  evaluated_at_ = step_;
  StatusOr<std::string> line = options_.eval(session);
  if (!line.ok()) {
    return Prefixed(absl::StrCat("Train: eval at global step ", step_), line.status());
  }
  if (!line->empty()) Say(absl::StrCat("Step: ", step_, ", ", *line));
  return absl::OkStatus();
}

Status TrainLoop::AtEnd(Session* session, bool exported) {
  // Not where some variables were newer than the checkpoint that the others came from, nor where
  // it is another directory's.
  idle_ = result_.own_steps == 0 && supervisor_->start() == Supervisor::Start::kRestored &&
          Dirname(supervisor_->restored_checkpoint()) == Dirname(supervisor_->save_path()) &&
          absl::EndsWith(supervisor_->restored_checkpoint(), absl::StrCat("-", step_));
  if (!idle_) SayStalenessCounts(session);
  if (!options_.is_chief) return absl::OkStatus();
  Look();
  Show();
  if (idle_) {
    result_.checkpoint = supervisor_->restored_checkpoint();
    LogInfo("Train: no step to run after global step ", step_);
  } else {
    MR_ASSIGN_OR_RETURN(result_.checkpoint, supervisor_->SaveLast());
    if (!result_.checkpoint.empty()) Say(absl::StrCat("Saved ", result_.checkpoint));
  }
  if (options_.eval && evaluated_at_ != step_) MR_RETURN_IF_ERROR(Evaluate(session));
  if (!exports()) return absl::OkStatus();
  if (exported) {
    LogInfo("Train: the model is in '", options_.export_to, "' already");
    return absl::OkStatus();
  }
  const Status exported_now =
      Prefixed("Train", ExportModel(session, model_, options_.signature, options_.export_to,
                                    options_.supervisor.file_system));
  // The steps are done: a task that is started again has only the export to do.
  if (absl::IsResourceExhausted(exported_now)) return WithExitCode(exported_now, kExitRetryable);
  MR_RETURN_IF_ERROR(exported_now);
  Say(absl::StrCat("Exported ", options_.export_to));
  return absl::OkStatus();
}

void TrainLoop::SayStalenessCounts(Session* session) {
  for (const Variable& counts : VariablesOf(model_, kStalenessCounts)) {
    const StatusOr<std::vector<Tensor>> read = session->Run({}, {counts.value});
    if (!read.ok() || (*read)[0].num_elements() != 2) continue;
    const auto values = (*read)[0].flat<int64_t>();
    LogInfo("Train: gradients of this task in its last session: ", values[0],
            " scaled because they were stale, ", values[1], " dropped");
  }
}

Status TrainLoop::EndedBy(int signal) {
  std::string text = absl::StrCat("Train: ended by ", signal == SIGINT ? "SIGINT" : "SIGTERM",
                                  " at global step ", step_);
  if (!options_.is_chief) {
    absl::StrAppend(&text, "; the chief keeps the checkpoints");
  } else if (options_.dir.empty()) {
    absl::StrAppend(&text, "; nothing is kept without a dir");
  } else {
    Look();
    Show();
    const StatusOr<std::string> saved = supervisor_->SaveLast();
    if (!saved.ok()) return Prefixed(text, saved.status());
    // "": the session was lost before, and what there is since the last checkpoint with it.
    absl::StrAppend(&text, saved->empty() ? "; " : absl::StrCat("; saved ", *saved, ", "),
                    "start again to go on from ", saved->empty() ? "the last checkpoint" : "it");
  }
  return WithExitCode(absl::CancelledError(text), 128 + signal);
}

std::optional<double> TrainLoop::ShownLoss() const {
  return options_.loss.valid() ? std::optional<double>(result_.loss) : std::nullopt;
}

void TrainLoop::Say(const std::string& line) {
  if (!options_.progress) return;
  progress_.EndLine();
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

}  // namespace millrace
