// SPDX-License-Identifier: Apache-2.0
//
// Estimator::Train.

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/status.h"
#include "core/tensor.h"
#include "estimator/estimator.h"
#include "estimator/estimator_parts.h"
#include "estimator/input_fn.h"
#include "estimator/model_fn.h"
#include "estimator/model_graph.h"
#include "estimator/run_config.h"
#include "estimator/synced_optimizer.h"
#include "estimator/warm_start_saver.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "proto/meta_graph.pb.h"
#include "run/run_file.h"
#include "run/run_id_text.h"
#include "run/run_session.h"
#include "run/training_run.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/every.h"
#include "train/hooks/monitored_training_session.h"
#include "train/hooks/nan_tensor.h"
#include "train/hooks/read_ahead_hook.h"
#include "train/hooks/step_log.h"
#include "train/hooks/stop_at_step.h"
#include "train/hooks/summary_saver.h"
#include "train/monitored_session.h"
#include "train/progress.h"
#include "train/ps_load.h"
#include "train/session_creator.h"
#include "train/session_run_hook.h"
#include "train/summaries.h"

namespace millrace {
namespace {

// A worker sees in its model_dir the run that its chief trains, or the directory is another one.
class SharedDirectoryHook : public SessionRunHook {
 public:
  SharedDirectoryHook(std::string model_dir, Clock* clock, FileSystem* fs)
      : model_dir_(std::move(model_dir)), clock_(clock), fs_(fs) {}
  std::string name() const override { return "SharedDirectoryHook"; }
  Status AfterCreateSession(RunContext*, const CreatedSession& created) override {
    RunSession* const run_session = created.session->run_session();
    const std::string id = run_session == nullptr ? "" : run_session->run_id();
    if (id.empty()) return absl::OkStatus();
    // Directories of a network file system show new files late.
    std::string found;
    for (int i = 0; i < kLooks; ++i) {
      if (i > 0) clock_->SleepFor(kWait);
      const StatusOr<std::optional<RunFile>> run = ReadRunFile(fs_, model_dir_);
      if (!run.ok() || (*run && (*run)->id == id)) return absl::OkStatus();
      found = *run ? absl::StrCat("that of run ", RunIdText((*run)->id)) : "none";
    }
    return FailedPrecondition("model_dir '", model_dir_,
                              "' must be one directory for all tasks, with the chief's run.json of "
                              "run ",
                              RunIdText(id), ", got ", found,
                              " there; give all tasks the same storage");
  }

 private:
  static constexpr int kLooks = 8;
  static constexpr absl::Duration kWait = absl::Milliseconds(200);
  const std::string model_dir_;
  Clock* const clock_;
  FileSystem* const fs_;
};

Every EveryOf(const RunConfig& config) {
  if (config.save_checkpoints_steps()) return *config.save_checkpoints_steps();
  if (config.save_checkpoints_secs()) return absl::Seconds(*config.save_checkpoints_secs());
  return 0;
}

Status CheckCall(const EstimatorParts& parts, const TrainCall& call) {
  const std::string& role = parts.config.task_type();
  if (role == "ps" || role == "evaluator") {
    return FailedPrecondition("Estimator: Train must be called by a task that trains, got ", role,
                              " ", parts.config.task_id(),
                              "; TrainAndEvaluate does what is this "
                              "task's");
  }
  if (call.steps && call.max_steps) {
    return InvalidArgument("Estimator: Train must be given steps or max_steps, got both, ",
                           *call.steps, " and ", *call.max_steps);
  }
  if (call.steps && *call.steps <= 0) {
    return InvalidArgument("Estimator: Train: steps must be > 0, got ", *call.steps);
  }
  if (call.max_steps && *call.max_steps <= 0) {
    return InvalidArgument("Estimator: Train: max_steps must be > 0, got ", *call.max_steps);
  }
  for (const auto& listener : call.saving_listeners) {
    if (listener == nullptr) {
      return InvalidArgument(
          "Estimator: Train: saving_listeners must be listeners, got a null one");
    }
  }
  return CheckHooks("Estimator: Train", call.hooks);
}

bool HasSaverHook(const Hooks& hooks) {
  for (const auto& hook : hooks) {
    if (hook->keeps_checkpoints()) return true;
  }
  return false;
}

// The loss in TensorBoard, unless the model shows one under that name.
void AddLossSummary(const Scope& root, const Output& loss) {
  const auto found = root.collections()->find("summaries");
  if (found != root.collections()->end()) {
    for (const std::string& name : found->second.node_list().value()) {
      if (name == "loss:0" || name == "loss") return;
    }
  }
  AddScalarSummary(root, "loss", loss);
}

TrainOutcome NotTrained(std::string reason) {
  TrainOutcome outcome;
  outcome.reason = std::move(reason);
  return outcome;
}

// One task's training, from the graph to the end of its session.
class TrainingLoop {
 public:
  TrainingLoop(const EstimatorParts& parts, const TrainCall& call, const TrainTaskOptions& task)
      : parts_(parts), config_(parts.config), call_(call), task_(task) {}

  StatusOr<TrainOutcome> Run(const InputFn& input_fn) {
    MR_ASSIGN_OR_RETURN(graph_, BuildModelGraph(parts_, Mode::kTrain, input_fn));
    Warn();
    if (config_.is_chief()) {
      LogPsLoad("Estimator: Train",
                PsLoad::Of(*graph_.root.graph(), config_.cluster().cluster().tasks("ps")));
    }
    AddLossSummary(graph_.root, graph_.spec.loss);
    MR_RETURN_IF_ERROR(graph_.root.status());
    MR_RETURN_IF_ERROR(Open());
    if (session_ == nullptr) return NotTrained(ended_);
    return Loop();
  }

 private:
  void Warn() const {
    if (config_.sync() && !SyncsTrainers(config_)) {
      LogInfo("Estimator: RunConfig's sync does nothing here: there is one trainer");
    }
    if (!call_.steps && !call_.max_steps && graph_.cardinality == data::kInfiniteCardinality) {
      LogWarning(
          "Estimator: Train has neither steps nor max_steps, and its data has no end: it "
          "trains until it is stopped");
    }
    if (graph_.cardinality >= 0 && config_.num_worker_replicas() > 1) {
      LogWarning("Estimator: the training data is finite: each of ", config_.num_worker_replicas(),
                 " trainers reads all of it, unless it takes its shard");
    }
  }

  bool others_show_summaries() const {
    return config_.task_type() == "master" && config_.num_worker_replicas() > 1;
  }
  bool shows_summaries_for_master() const {
    return config_.task_type() == "worker" && config_.task_id() == 0 &&
           config_.cluster_spec().num_tasks("master") > 0;
  }

  // In the order in which they are called; kept as long as the session.
  Hooks MakeHooks() {
    Hooks hooks = graph_.input_hooks;
    if (!config_.is_chief()) {
      hooks.push_back(std::make_shared<SharedDirectoryHook>(parts_.model_dir, parts_.clock,
                                                            parts_.file_system));
    }
    hooks.insert(hooks.end(), call_.hooks.begin(), call_.hooks.end());
    if (call_.steps || call_.max_steps) {
      hooks.push_back(std::make_shared<StopAtStepHook>(StopAtStepOptions{
          .last_step = call_.max_steps.value_or(0), .num_steps = call_.steps.value_or(0)}));
    }
    hooks.push_back(std::make_shared<NanTensorHook>(graph_.spec.loss));
    if (config_.read_ahead()) {
      hooks.push_back(std::make_shared<ReadAheadHook>(
          ReadAheadOptions{.train_op = graph_.spec.train_op, .fetches = {graph_.spec.loss}}));
    }
    const std::optional<int64_t> log_every = config_.log_step_count_steps();
    if (log_every) {
      // A master evaluates between two steps: what is measured over time is another task's.
      hooks.push_back(std::make_shared<StepLogHook>(StepLogOptions{
          .loss = graph_.spec.loss, .every = *log_every, .shows_rate = !others_show_summaries()}));
    }
    if (shows_summaries_for_master()) {
      if (config_.save_summary_steps() > 0) {
        hooks.push_back(std::make_shared<SummarySaverHook>(
            SummarySaverOptions{.every = config_.save_summary_steps(),
                                .summary_op = graph_.spec.scaffold.summary_op,
                                .output_dir = parts_.model_dir}));
      }
    }
    hooks.insert(hooks.end(), graph_.spec.training_hooks.begin(), graph_.spec.training_hooks.end());
    return hooks;
  }

  Status Open() {
    const bool is_chief = config_.is_chief();
    hooks_ = MakeHooks();
    MonitoredTrainingSessionOptions options;
    options.target = task_.target.value_or(config_.master());
    options.is_chief = is_chief;
    options.checkpoint_dir = parts_.model_dir;
    options.directory_option = "model_dir";
    options.scaffold = graph_.spec.scaffold;
    options.hooks = PointersOf(hooks_);
    options.save_checkpoint_every = EveryOf(config_);
    options.log_step_count_every = config_.log_step_count_steps().value_or(0);
    options.logs_step_count = false;  // in the line of the loss
    options.save_summaries_every = config_.save_summary_steps();
    if (others_show_summaries()) options.log_step_count_every = options.save_summaries_every = 0;
    options.saver.max_to_keep = static_cast<int>(config_.keep_checkpoint_max().value_or(0));
    options.saver.keep_checkpoint_every_n_hours = config_.keep_checkpoint_every_n_hours();
    options.saver.write_meta_graph = config_.checkpoint_save_graph_def();
    options.saver.clock = parts_.clock;
    options.max_wait = absl::Seconds(config_.session_creation_timeout_secs());
    options.end_grace = task_.end_grace;
    options.await_trainers = task_.await_trainers;
    options.num_trainers = task_.await_trainers ? config_.num_worker_replicas() : 0;
    options.trainers_grace = task_.trainers_grace;
    options.session.config = config_.session_config();
    options.session.creation_timeout = options.max_wait;
    options.clock = parts_.clock;
    options.file_system = parts_.file_system;
    if (is_chief) {
      options.chief_only_hooks = PointersOf(graph_.spec.training_chief_hooks);
      MR_RETURN_IF_ERROR(AddSaving(&options));
      MR_RETURN_IF_ERROR(AddWarmStart(&options.scaffold));
    }
    auto opened = MonitoredTrainingSession(graph_.root, options);
    if (opened.ok()) {
      session_ = *std::move(opened);
      return absl::OkStatus();
    }
    const std::optional<RunEnd> end = RunEndOf(opened.status());
    if (!end) return opened.status();
    LogInfo("Estimator: ", opened.status().message());
    ended_ = absl::StrCat("the run has ended", end->reason.empty() ? "" : ": ", end->reason);
    return absl::OkStatus();
  }

  Status AddSaving(MonitoredTrainingSessionOptions* options) {
    const bool has_own = HasSaverHook(call_.hooks) || HasSaverHook(graph_.spec.training_hooks) ||
                         HasSaverHook(graph_.spec.training_chief_hooks);
    if (has_own) options->save_checkpoint_every = 0;
    if (call_.saving_listeners.empty()) return absl::OkStatus();
    if (options->save_checkpoint_every.never()) {
      return InvalidArgument(
          "Estimator: Train: saving_listeners must come with checkpoints that the RunConfig asks "
          "for, got ",
          call_.saving_listeners.size(), " and ",
          has_own ? "a CheckpointSaverHook of the program's; give them to that hook"
                  : "no checkpoints");
    }
    for (const auto& listener : call_.saving_listeners) {
      options->saving_listeners.push_back(listener.get());
    }
    return absl::OkStatus();
  }

  Status AddWarmStart(Scaffold* scaffold) {
    if (!parts_.warm_start) return absl::OkStatus();
    if (LatestCheckpoint(parts_.file_system, parts_.model_dir)) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(warm_start_,
                        WarmStartSaver::Make(graph_.root, *parts_.warm_start, parts_.file_system));
    scaffold->init_fn = [warm = warm_start_, next = scaffold->init_fn](Session* session) -> Status {
      MR_RETURN_IF_ERROR(warm->Restore(session));
      return next ? next(session) : absl::OkStatus();
    };
    return absl::OkStatus();
  }

  StatusOr<TrainOutcome> Loop() {
    TrainOutcome outcome;
    outcome.trained = true;
    MR_ASSIGN_OR_RETURN(const MonitoredStep step,
                        session_->Prepare({}, {graph_.spec.loss}, {graph_.spec.train_op}));
    const absl::Time begin = parts_.clock->Now();
    Tensor loss;
    Status status;
    while (status.ok() && !session_->ShouldStop()) {
      status = step.RunInto({}, absl::MakeSpan(&loss, 1));
      if (!status.ok()) break;
      ++outcome.own_steps;
      outcome.loss = loss.dtype() == DT_DOUBLE ? loss.scalar<double>()
                                               : static_cast<double>(loss.scalar<float>());
    }
    const double seconds = absl::ToDoubleSeconds(parts_.clock->Now() - begin);
    // In one line, for the record of the end.
    if (absl::IsOutOfRange(status)) status = absl::OutOfRangeError("the data has ended");
    MR_RETURN_IF_ERROR(session_->Close(status));
    outcome.reason = session_->end_reason();
    if (outcome.own_steps == 0) {
      LogWarning("Estimator: Train ran no step: ", outcome.reason,
                 graph_.dataset ? absl::StrCat("; it reads ", graph_.dataset->DebugString()) : "");
    } else {
      LogInfo("Estimator: trained ", outcome.own_steps, " steps in ", ClockText(seconds),
              ". Loss for final step: ", *outcome.loss, ".");
    }
    return outcome;
  }

  const EstimatorParts& parts_;
  const RunConfig& config_;
  const TrainCall& call_;
  const TrainTaskOptions& task_;
  ModelGraph graph_;
  Hooks hooks_;
  std::shared_ptr<WarmStartSaver> warm_start_;
  std::string ended_;                          // why there is no session
  std::unique_ptr<MonitoredSession> session_;  // goes first
};

// Others wait for the end of a run whose chief died after its last checkpoint.
bool HasEndToRecord(const EstimatorParts& parts, const TrainTaskOptions& task) {
  if (!task.records_end || !parts.config.is_chief()) return false;
  const StatusOr<std::optional<RunEndFile>> end = ReadRunEnd(parts.file_system, parts.model_dir);
  return end.ok() && !*end;
}

}  // namespace

StatusOr<TrainOutcome> TrainModel(const EstimatorParts& parts, const InputFn& input_fn,
                                  const TrainCall& call, const TrainTaskOptions& task) {
  MR_RETURN_IF_ERROR(CheckCall(parts, call));
  if (call.max_steps) {
    const std::optional<std::string> latest = LatestCheckpoint(parts.file_system, parts.model_dir);
    if (latest) {
      MR_ASSIGN_OR_RETURN(const std::optional<int64_t> step,
                          GlobalStepIn(parts.file_system, *latest));
      if (step.value_or(0) >= *call.max_steps && !HasEndToRecord(parts, task)) {
        const std::string reason =
            absl::StrCat("max_steps ", *call.max_steps, " is reached by '", *latest, "'");
        LogInfo("Estimator: Train has nothing to do: ", reason);
        return NotTrained(reason);
      }
    }
  }
  return TrainingLoop(parts, call, task).Run(input_fn);
}

}  // namespace millrace
