// SPDX-License-Identifier: Apache-2.0
#include "estimator/train_and_evaluate.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/termination.h"
#include "estimator/estimator_parts.h"
#include "estimator/evaluating_listener.h"
#include "estimator/evaluation_done.h"
#include "estimator/evaluation_round.h"
#include "estimator/run_evaluator.h"
#include "run/run_file.h"
#include "saver/saver.h"
#include "train/progress.h"
#include "train/session_run_hook.h"

namespace millrace {
namespace {

constexpr double kMaxWorkerDelaySecs = 60;
constexpr double kDelaySecsPerWorker = 5;
constexpr absl::Duration kPoll = absl::Milliseconds(500);
constexpr absl::Duration kReportPeriod = absl::Seconds(10);

// --- What can be known to be wrong before anything runs ------------------------------------------

Status CheckEvalSpec(const EvalSpec& spec) {
  if (!spec.input_fn.valid()) {
    return InvalidArgument("EvalSpec: input_fn must be a function, got none");
  }
  if (spec.steps && *spec.steps <= 0) {
    return InvalidArgument("EvalSpec: steps must be > 0 or none, got ", *spec.steps);
  }
  if (absl::StrContains(spec.name, '/')) {
    return InvalidArgument("EvalSpec: name must be part of a directory's name, got '", spec.name,
                           "'");
  }
  for (const auto& hook : spec.hooks) {
    if (hook == nullptr) return InvalidArgument("EvalSpec: hooks must be hooks, got a null one");
  }
  std::set<std::string> names;
  for (const auto& exporter : spec.exporters) {
    if (exporter == nullptr) {
      return InvalidArgument("EvalSpec: exporters must be exporters, got a null one");
    }
    const std::string name = exporter->name();
    if (name.empty() || absl::StrContains(name, '/')) {
      return InvalidArgument("EvalSpec: exporters must have names that directories can have, got '",
                             name, "'");
    }
    if (!names.insert(name).second) {
      return InvalidArgument("EvalSpec: exporters must have names that differ, got '", name,
                             "' twice");
    }
  }
  if (!(spec.start_delay_secs >= 0)) {
    return InvalidArgument("EvalSpec: start_delay_secs must be >= 0, got ", spec.start_delay_secs);
  }
  if (!(spec.throttle_secs >= 0)) {
    return InvalidArgument("EvalSpec: throttle_secs must be >= 0, got ", spec.throttle_secs);
  }
  return absl::OkStatus();
}

Status CheckTrainSpec(const TrainSpec& spec) {
  if (!spec.input_fn.valid()) {
    return InvalidArgument("TrainSpec: input_fn must be a function, got none");
  }
  if (spec.max_steps && *spec.max_steps <= 0) {
    return InvalidArgument("TrainSpec: max_steps must be > 0 or none, got ", *spec.max_steps);
  }
  for (const auto& hook : spec.hooks) {
    if (hook == nullptr) return InvalidArgument("TrainSpec: hooks must be hooks, got a null one");
  }
  for (const auto& listener : spec.saving_listeners) {
    if (listener == nullptr) {
      return InvalidArgument("TrainSpec: saving_listeners must be listeners, got a null one");
    }
  }
  return absl::OkStatus();
}

Status CheckOptions(const TrainAndEvaluateOptions& options) {
  for (const auto& [name, secs] :
       {std::pair<const char*, double>{"wait_for_evaluator_secs", options.wait_for_evaluator_secs},
        {"evaluator_idle_timeout_secs", options.evaluator_idle_timeout_secs},
        {"trainers_grace_secs", options.trainers_grace_secs},
        {"end_grace_secs", options.end_grace_secs}}) {
    if (secs >= 0) continue;
    return InvalidArgument("TrainAndEvaluateOptions: ", name, " must be >= 0, got ", secs);
  }
  return absl::OkStatus();
}

// By the tasks that ask them, and by the chief, whose training would be for nothing.
Status CheckExporters(const Estimator& estimator, const EvalSpec& spec) {
  const RunConfig& config = estimator.config();
  if (!config.is_chief() && config.task_type() != "evaluator") return absl::OkStatus();
  for (const auto& exporter : spec.exporters) {
    MR_RETURN_IF_ERROR(Prefixed(absl::StrCat("EvalSpec: exporter '", exporter->name(), "'"),
                                exporter->Check(estimator)));
  }
  return absl::OkStatus();
}

// --- The tasks -----------------------------------------------------------------------------------

// Ends a round of the loop of TensorFlow 1.4.
class StopAtSecsHook : public SessionRunHook {
 public:
  explicit StopAtSecsHook(absl::Duration time) : time_(time) {}
  std::string name() const override { return "StopAtSecsHook"; }
  Status AfterCreateSession(RunContext* context, const CreatedSession& created) override {
    if (!created.is_recovery) begin_ = context->now();
    return absl::OkStatus();
  }
  Status AfterRun(RunContext* context, const RunValues&) override {
    if (context->now() - begin_ >= time_) context->RequestLeave(absl::OkStatus());
    return absl::OkStatus();
  }

 private:
  const absl::Duration time_;
  absl::Time begin_;
};

class Job {
 public:
  Job(const Estimator& estimator, const TrainSpec& train_spec, const EvalSpec& eval_spec,
      const TrainAndEvaluateOptions& options)
      : estimator_(estimator),
        parts_(estimator.parts()),
        config_(estimator.config()),
        train_spec_(train_spec),
        eval_spec_(eval_spec),
        options_(options) {}

  StatusOr<TrainAndEvaluateResult> Run() {
    const std::string& role = config_.task_type();
    if (role == "evaluator") {
      if (config_.task_id() != 0) {
        return InvalidArgument(
            "TF_CONFIG: task.index must be 0 for the evaluator, of which there "
            "is one, got ",
            config_.task_id());
      }
      return RunEvaluator(estimator_, train_spec_.max_steps, eval_spec_, options_);
    }
    if (config_.cluster().is_local()) {
      return options_.legacy_local_loop ? RunLegacyLocal() : RunLocal();
    }
    if (role == "chief") return RunChief();
    if (role == "worker") return RunWorker();
    if (role == "master") return RunMaster();
    if (role == "ps") return RunPs();
    return InvalidArgument(
        "TF_CONFIG: task.type must be chief, worker, master, ps or evaluator, got '", role, "'");
  }

 private:
  // Of the latest checkpoint; 0 without one.
  StatusOr<int64_t> FirstStep() const {
    const std::string latest = estimator_.latest_checkpoint();
    if (latest.empty()) return int64_t{0};
    MR_ASSIGN_OR_RETURN(const std::optional<int64_t> step,
                        GlobalStepIn(parts_.file_system, latest));
    return step.value_or(0);
  }

  TrainCall CallOf(const TrainSpec& spec) const {
    return {.max_steps = spec.max_steps,
            .hooks = spec.hooks,
            .saving_listeners = spec.saving_listeners};
  }

  // Whether a job before this one has ended well with the latest checkpoint. What evaluates in the
  // process that trains had evaluated and exported it as the last one then.
  bool HasEndedBefore() const {
    const std::string latest = estimator_.latest_checkpoint();
    const StatusOr<std::optional<RunEndFile>> end =
        ReadRunEnd(parts_.file_system, parts_.model_dir);
    return !latest.empty() && end.ok() && *end && Basename((*end)->checkpoint) == Basename(latest);
  }

  static TrainAndEvaluateResult ResultOf(const TrainOutcome& outcome,
                                         TrainAndEvaluateResult result = {}) {
    result.reason = outcome.reason;
    return result;
  }

  // Trains as a process that evaluates, too.
  StatusOr<TrainAndEvaluateResult> TrainEvaluating(const TrainTaskOptions& task) {
    MR_ASSIGN_OR_RETURN(const int64_t first_step, FirstStep());
    const bool ends_are_final = !options_.tensorflow_ends;
    const auto listener = std::make_shared<EvaluatingListener>(
        estimator_, eval_spec_, train_spec_.max_steps,
        EvaluatingListener::Start{.step = first_step,
                                  .was_end = ends_are_final && HasEndedBefore()},
        ends_are_final);
    TrainCall call = CallOf(train_spec_);
    call.saving_listeners.push_back(listener);
    MR_ASSIGN_OR_RETURN(const TrainOutcome outcome,
                        TrainModel(parts_, train_spec_.input_fn, call, task));
    if (outcome.own_steps == 0 && !listener->result().evaluation &&
        options_.evaluate_when_trained_before) {
      EvaluationRound round(estimator_, eval_spec_, train_spec_.max_steps);
      MR_RETURN_IF_ERROR(round.EvaluateLatest(/*is_last=*/true).status());
      return ResultOf(outcome, round.result());
    }
    return ResultOf(outcome, listener->result());
  }

  StatusOr<TrainAndEvaluateResult> RunLocal() { return TrainEvaluating({}); }

  StatusOr<TrainAndEvaluateResult> RunLegacyLocal() {
    if (eval_spec_.throttle_secs <= 0) {
      return InvalidArgument("EvalSpec: throttle_secs must be > 0 with legacy_local_loop, got ",
                             eval_spec_.throttle_secs);
    }
    EvaluationRound round(estimator_, eval_spec_, train_spec_.max_steps);
    while (true) {
      TrainCall call = CallOf(train_spec_);
      call.hooks.push_back(
          std::make_shared<StopAtSecsHook>(absl::Seconds(eval_spec_.throttle_secs)));
      MR_ASSIGN_OR_RETURN(const TrainOutcome outcome,
                          TrainModel(parts_, train_spec_.input_fn, call));
      MR_RETURN_IF_ERROR(round.EvaluateLatest(/*is_last=*/false).status());
      if (round.reached_max_steps()) return ResultOf(outcome, round.result());
      if (!outcome.trained || outcome.own_steps == 0) {
        return FailedPrecondition(
            "Estimator: a round of training must make steps, got none at global step ",
            round.evaluated_step(), "; is there no data?");
      }
    }
  }

  // None where no server is needed: one node, or somebody else's.
  StatusOr<std::unique_ptr<Server>> StartServer() const {
    if (config_.environment() == "google" || config_.master().empty()) {
      return std::unique_ptr<Server>();
    }
    return Server::Start(config_.cluster(), options_.server);
  }

  TrainTaskOptions TaskOptions(const Server* server) const {
    TrainTaskOptions task;
    // A session_master of TF_CONFIG is another address than this task's.
    if (server != nullptr && !config_.cluster().extras().session_master) {
      task.target = server->target();
    }
    if (!options_.tensorflow_ends) {
      task.await_trainers = true;
      task.trainers_grace = absl::Seconds(options_.trainers_grace_secs);
      task.records_end = true;
    }
    task.end_grace = absl::Seconds(options_.end_grace_secs);
    return task;
  }

  // " ('best', 'final')"; "" without exporters.
  std::string ExporterNames() const {
    if (eval_spec_.exporters.empty()) return "";
    const auto quoted = [](std::string* out, const auto& exporter) {
      absl::StrAppend(out, "'", exporter->name(), "'");
    };
    return absl::StrCat(" (", absl::StrJoin(eval_spec_.exporters, ", ", quoted), ")");
  }

  // What a chief leaves to the evaluator. No cluster lists that task: whether it was started is not
  // known here, only what is missing without it.
  void SayWhoEvaluates() const {
    LogInfo(
        "Estimator: the chief trains and saves; evaluations, early stopping by a metric and "
        "exports",
        ExporterNames(), " are the evaluator's: without that task there are none");
  }

  void WarnIfNotEvaluated() const {
    const std::string directory = EvalDirectory(parts_.model_dir, eval_spec_.name);
    const StatusOr<std::vector<std::string>> files = parts_.file_system->GetChildren(directory);
    if (files.ok() ? !files->empty() : !absl::IsNotFound(files.status())) return;
    LogWarning("Estimator: training is over, and '", directory,
               "' has no evaluation: if no evaluator was started, none is made, nor an export",
               ExporterNames());
  }

  StatusOr<TrainAndEvaluateResult> RunChief() {
    SayWhoEvaluates();
    MR_ASSIGN_OR_RETURN(const auto server, StartServer());
    MR_ASSIGN_OR_RETURN(
        const TrainOutcome outcome,
        TrainModel(parts_, train_spec_.input_fn, CallOf(train_spec_), TaskOptions(server.get())));
    AwaitEvaluator();
    WarnIfNotEvaluated();
    return ResultOf(outcome);
  }

  StatusOr<TrainAndEvaluateResult> RunMaster() {
    MR_ASSIGN_OR_RETURN(const auto server, StartServer());
    return TrainEvaluating(TaskOptions(server.get()));
  }

  // Waits until this worker is to begin. The end of the run when it came meanwhile, by a chief that
  // did not own the run `before`: there is nothing left to wait for. An end by that one may be an
  // older job's, and is judged where the worker waits for the chief (train/session_manager.h).
  std::optional<RunEndFile> AwaitTurn(const StatusOr<std::optional<RunFile>>& before) const {
    const double delay = WorkerDelaySecs(config_);
    if (delay <= 0) return std::nullopt;
    LogInfo("Estimator: worker ", config_.task_id(), " begins to train in ", delay, " s");
    const absl::Time turn = parts_.clock->Now() + absl::Seconds(delay);
    const std::string owner = before.ok() && *before ? (*before)->token : "";
    for (absl::Time now; (now = parts_.clock->Now()) < turn;) {
      parts_.clock->SleepFor(std::min(kPoll, turn - now));
      if (options_.tensorflow_ends || !before.ok()) continue;
      const StatusOr<std::optional<RunEndFile>> end =
          ReadRunEnd(parts_.file_system, parts_.model_dir);
      if (end.ok() && *end && !(*end)->token.empty() && (*end)->token != owner) return *end;
    }
    return std::nullopt;
  }

  StatusOr<TrainAndEvaluateResult> RunWorker() {
    const StatusOr<std::optional<RunFile>> before =
        ReadRunFile(parts_.file_system, parts_.model_dir);
    MR_ASSIGN_OR_RETURN(const auto server, StartServer());
    if (const std::optional<RunEndFile> end = AwaitTurn(before)) {
      LogInfo("Estimator: worker ", config_.task_id(),
              " leaves before it has begun to train: the run has ended at step ", end->global_step,
              " (", end->reason, ")");
      TrainAndEvaluateResult result;
      result.reason = absl::StrCat("the run has ended: ", end->reason);
      return result;
    }
    TrainCall call = CallOf(train_spec_);
    call.saving_listeners.clear();
    MR_ASSIGN_OR_RETURN(const TrainOutcome outcome,
                        TrainModel(parts_, train_spec_.input_fn, call, TaskOptions(server.get())));
    return ResultOf(outcome);
  }

  StatusOr<TrainAndEvaluateResult> RunPs() {
    MR_ASSIGN_OR_RETURN(const auto server, Server::Start(config_.cluster(), options_.server));
    JoinOptions join;
    if (!options_.tensorflow_ends) {
      join.exit_when_done = true;
      join.logdir = parts_.model_dir;
      // A chief may begin as late as the others believe.
      join.stale_grace = 3 * absl::Seconds(options_.end_grace_secs);
    }
    MR_RETURN_IF_ERROR(server->Join(join));
    return TrainAndEvaluateResult();
  }

  // Until the end that this chief has recorded is evaluated.
  void AwaitEvaluator() {
    if (options_.tensorflow_ends || options_.wait_for_evaluator_secs <= 0) return;
    Clock* const clock = parts_.clock;
    const absl::Time begin = clock->Now();
    const absl::Time deadline = begin + absl::Seconds(options_.wait_for_evaluator_secs);
    absl::Time reported = begin;
    const TerminationRequest request;
    const StatusOr<std::optional<RunEndFile>> end =
        ReadRunEnd(parts_.file_system, parts_.model_dir);
    if (!end.ok() || !*end) return;  // the job goes on
    while (request.signal() == 0) {
      const auto done = ReadEvaluationDone(parts_.file_system, parts_.model_dir);
      if (done.ok() && *done && HasLastCheckpointOf(**done, **end)) {
        LogInfo("Estimator: the last checkpoint is evaluated");
        return;
      }
      const absl::Time now = clock->Now();
      if (now >= deadline) {
        LogWarning("Estimator: the checkpoint of step ", (*end)->global_step,
                   " was not evaluated within wait_for_evaluator_secs, ",
                   options_.wait_for_evaluator_secs, "; leaving");
        return;
      }
      if (now - reported >= kReportPeriod) {
        reported = now;
        LogInfo("Estimator: the chief waits for the evaluation of step ", (*end)->global_step,
                " since ", absl::FormatDuration(now - begin));
      }
      clock->SleepFor(std::min(kPoll, deadline - now));
    }
  }

  const Estimator& estimator_;
  const EstimatorParts& parts_;
  const RunConfig& config_;
  const TrainSpec& train_spec_;
  const EvalSpec& eval_spec_;
  const TrainAndEvaluateOptions& options_;
};

// The last line of the log: time, why training ended, evaluations, exports; "" for a ps.
std::string Summary(const TrainAndEvaluateResult& result, absl::Duration time) {
  if (result.reason.empty() && result.num_evaluations == 0) return "";
  std::string text = absl::StrCat("done in ", ClockText(absl::ToDoubleSeconds(time)),
                                  result.reason.empty() ? "" : absl::StrCat(": ", result.reason));
  if (result.best_evaluation) {
    absl::StrAppend(&text, "; ", result.num_evaluations,
                    result.num_evaluations == 1 ? " evaluation" : " evaluations",
                    ", smallest loss at step ", result.best_evaluation->global_step, ": ",
                    result.best_evaluation->ToString());
  }
  if (!result.exports.empty()) {
    absl::StrAppend(&text, "; exported '", absl::StrJoin(result.exports, "', '"), "'");
  }
  return text;
}

}  // namespace

double WorkerDelaySecs(const RunConfig& config) {
  // Workers that come one after the other would hold up the first synchronous step.
  const double most = config.sync() ? 0 : kMaxWorkerDelaySecs;
  return std::min(config.experimental_max_worker_delay_secs().value_or(most),
                  kDelaySecsPerWorker * (config.task_id() + 1));
}

StatusOr<TrainAndEvaluateResult> TrainAndEvaluate(const Estimator& estimator,
                                                  const TrainSpec& train_spec,
                                                  const EvalSpec& eval_spec,
                                                  const TrainAndEvaluateOptions& options) {
  MR_RETURN_IF_ERROR(CheckEvalSpec(eval_spec));
  MR_RETURN_IF_ERROR(estimator.status());
  MR_RETURN_IF_ERROR(CheckTrainSpec(train_spec));
  MR_RETURN_IF_ERROR(CheckOptions(options));
  MR_RETURN_IF_ERROR(CheckExporters(estimator, eval_spec));
  Clock* const clock = estimator.parts().clock;
  const absl::Time begin = clock->Now();
  MR_ASSIGN_OR_RETURN(const TrainAndEvaluateResult result,
                      Job(estimator, train_spec, eval_spec, options).Run());
  const std::string summary = Summary(result, clock->Now() - begin);
  if (!summary.empty()) LogInfo("Estimator: ", summary);
  return result;
}

}  // namespace millrace
