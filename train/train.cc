// SPDX-License-Identifier: Apache-2.0
#include "train/train.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/clock.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "layers/normalization.h"
#include "layers/variable.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/state/state.h"
#include "run/training_run.h"
#include "saver/saved_model_reader.h"
#include "train/optimizer.h"
#include "train/progress.h"
#include "train/session_manager.h"

namespace millrace {
namespace {

constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
// Steps between two looks at the clock, at most, and the time that they may take together: a look
// costs as much as a short step where the clock is a system call, and a long step after short ones
// is noticed late.
constexpr int kMaxStepsPerLook = 16;
constexpr absl::Duration kLookTime = absl::Milliseconds(1);
// What is shown of the staleness goes by about so many steps.
constexpr double kRecentSteps = 16;

// All nodes that run when `op` runs.
std::set<const Node*> NodesOf(const Node* op) {
  std::set<const Node*> seen = {op};
  std::vector<const Node*> todo = {op};
  while (!todo.empty()) {
    const Node* const node = todo.back();
    todo.pop_back();
    const auto visit = [&](const Node* next) {
      if (next != nullptr && seen.insert(next).second) todo.push_back(next);
    };
    for (const OutputRef& input : node->inputs()) visit(input.node);
    for (const Node* control : node->control_inputs()) visit(control);
  }
  return seen;
}

// Does one of them change `variable`, as an optimizer with a global step does?
bool Write(const std::set<const Node*>& nodes, const Node* variable) {
  for (const Node* node : nodes) {
    // What hands a reference on reads it: the result is no reference.
    if (node->traits().hands_on != HandsOn::kNothing) continue;
    for (int i = 0; i < node->num_inputs(); ++i) {
      if (node->input(i).node == variable &&
          node->traits().VariableUseOf(i) == VariableUse::kMayWrite) {
        return true;
      }
    }
  }
  return false;
}

int64_t StepOf(const Tensor& value) {
  return value.dtype() == DT_INT32 ? int64_t{value.scalar<int32_t>()} : value.scalar<int64_t>();
}

// When something is to be done again.
class Due {
 public:
  Due() = default;
  Due(const Every& every, int64_t step, absl::Time now) : every_(every) { Next(step, now); }
  bool AtStep(int64_t step) const { return step >= step_; }
  bool AtTime(absl::Time now) const { return now >= time_; }
  // Multiples of the steps, however many a step of other tasks has skipped.
  void Next(int64_t step, absl::Time now) {
    if (every_.steps() > 0) step_ = (step / every_.steps() + 1) * every_.steps();
    if (every_.time() > absl::ZeroDuration()) time_ = now + every_.time();
  }

 private:
  Every every_;
  int64_t step_ = kNever;
  absl::Time time_ = absl::InfiniteFuture();
};

// Runs the same fetches with ever new feeds: by name at first, which checks what they are, then
// by position for as long as the names stay.
class StepRunner {
 public:
  StepRunner(Session* session, std::vector<FetchName> fetches)
      : session_(session), fetches_(std::move(fetches)), results_(fetches_.size()) {}

  Status Run(const Feeds& feeds) {
    if (prepared_ == nullptr || !AsPrepared(feeds)) return RunByName(feeds);
    for (size_t i = 0; i < feeds.size(); ++i) values_[i] = feeds[i].value;
    const Status status = prepared_->RunInto(values_, absl::MakeSpan(results_));
    for (Tensor& value : values_) value = Tensor();  // memory for the next batch
    return status;
  }
  const Tensor& result(size_t i) const { return results_[i]; }

 private:
  bool AsPrepared(const Feeds& feeds) const {
    if (feeds.size() != names_.size()) return false;
    for (size_t i = 0; i < feeds.size(); ++i) {
      if (feeds[i].name.node_id() != names_[i].node_id() ||
          feeds[i].name.graph_id() != names_[i].graph_id() ||
          feeds[i].name.name() != names_[i].name()) {
        return false;
      }
    }
    return true;
  }

  Status RunByName(const Feeds& feeds) {
    MR_ASSIGN_OR_RETURN(results_, session_->Run(feeds, fetches_));
    if (prepare_tried_) return absl::OkStatus();
    prepare_tried_ = true;
    auto prepared = session_->Prepare(NamesOf(feeds, fetches_, {}));
    if (!prepared.ok()) {
      // Some sessions cannot: names will do.
      return absl::IsUnimplemented(prepared.status()) ? absl::OkStatus() : prepared.status();
    }
    prepared_ = *std::move(prepared);
    for (const Feed& feed : feeds) names_.push_back(feed.name);
    values_.resize(feeds.size());
    return absl::OkStatus();
  }

  Session* const session_;
  const std::vector<FetchName> fetches_;
  std::vector<Tensor> results_;
  bool prepare_tried_ = false;
  std::unique_ptr<PreparedStep> prepared_;
  std::vector<FetchName> names_;  // of the feeds of prepared_
  std::vector<Tensor> values_;
};

class Trainer {
 public:
  Trainer(const Scope& model, const Operation& op, const TrainOptions& options)
      : model_(model), op_(op), options_(options), clock_(options.supervisor.clock) {}

  StatusOr<TrainResult> Run() {
    MR_RETURN_IF_ERROR(Check());
    MR_RETURN_IF_ERROR(CompleteGraph());
    SupervisorOptions options = options_.supervisor;
    options.is_chief = options_.is_chief;
    options.logdir = options_.dir;
    options.global_step = global_step_;
    options.last_step = options_.steps;
    options.save_model_period = options_.save_every.time();
    options.handle_signals = options_.handle_signals;
    Supervisor supervisor(model_, options);
    MR_RETURN_IF_ERROR(supervisor.status());
    supervisor_ = &supervisor;
    progress_.emplace(ProgressOptions{.last_step = options_.steps, .clock = clock_});

    Status status = RunWithRecovery(&supervisor, options_.target, options_.max_recoveries,
                                    [this](Session* session) { return RunInSession(session); });
    progress_->EndLine();
    if (status.ok() && !at_goal_ && supervisor.signal() != 0) status = EndedBy(supervisor.signal());
    if (status.ok() && idle_) supervisor.NothingToSave();
    // Only at its goal is training over: others leave then.
    if (!status.ok() || at_goal_) {
      supervisor.RequestStop(status.ok() ? absl::OutOfRangeError(goal_) : status);
    }
    const Status stopped = supervisor.Stop();
    for (const Status& error : {status, failed_, stopped}) MR_RETURN_IF_ERROR(error);
    if (const std::optional<RunEnd> end = supervisor.run_end()) {
      result_.global_step = std::max(result_.global_step, end->global_step);
    }
    return result_;
  }

 private:
  bool exports() const { return options_.is_chief && !options_.export_to.empty(); }

  Status Check() const {
    MR_RETURN_IF_ERROR(model_.status());
    if (!op_.valid() || op_.node()->graph() != model_.graph()) {
      return InvalidArgument("Train: the operation to run must be of the model's graph, got ",
                             op_.valid() ? "one of another Scope" : "an invalid one");
    }
    if (options_.steps < 0) {
      return InvalidArgument("Train: steps must be >= 0, got ", options_.steps);
    }
    if (options_.steps == 0 && !options_.data) {
      return InvalidArgument("Train: data or steps must say when training ends, got neither");
    }
    if (options_.max_recoveries < 0) {
      return InvalidArgument("Train: max_recoveries must be >= 0, got ", options_.max_recoveries);
    }
    for (const auto& [name, every] : {std::pair<const char*, Every>{"save", options_.save_every},
                                      {"eval", options_.eval_every},
                                      {"report", options_.report_every}}) {
      if (every.valid()) continue;
      return InvalidArgument(
          "Train: ", name, "_every must be >= 0, got ",
          every.steps() < 0 ? absl::StrCat(every.steps()) : absl::FormatDuration(every.time()));
    }
    if (!options_.eval &&
        (options_.eval_every.steps() > 0 || options_.eval_every.time() > absl::ZeroDuration())) {
      return InvalidArgument("Train: eval_every must come with eval, got none");
    }
    if (options_.loss.valid()) {
      if (options_.loss.node()->graph() != model_.graph()) {
        return InvalidArgument(
            "Train: loss must be of the model's graph, got one of another Scope");
      }
      const PartialShape shape = model_.shape(options_.loss);
      const DType dtype = options_.loss.dtype();
      if ((dtype != DT_FLOAT && dtype != DT_DOUBLE) || !shape.IsCompatibleWith(Shape())) {
        return InvalidArgument("Train: loss '", options_.loss.name(),
                               "' must be a float or double scalar, got ", dtype, " of shape ",
                               shape, "; ReduceMean makes one");
      }
    }
    if (options_.export_to.empty() != options_.signature.outputs.empty()) {
      return InvalidArgument(
          "Train: export_to must come with the signature of the model, got ",
          options_.export_to.empty() ? "a signature alone" : "no outputs of a signature",
          "; .signature = {.inputs = {{\"x\", x}}, .outputs = {{\"y\", y}}}");
    }
    if (options_.export_to.empty()) return absl::OkStatus();
    return Prefixed("Train", CheckServingSignature(model_, options_.signature));
  }

  // The global step, counted by what a step runs, and the updates that belong to it.
  Status CompleteGraph() {
    const Scope root = model_.WithRootPrefix().WithoutControlDependencies();
    if (options_.supervisor.global_step) {
      global_step_ = *options_.supervisor.global_step;
    } else {
      // Where the variables are, also when `model` has no device function: all tasks share it.
      const std::vector<Variable> variables = VariablesOf(root);
      const std::string device =
          variables.empty() ? "" : variables[0].handle.node()->requested_device();
      global_step_ = GlobalStep(device.empty() ? root : root.WithDevice(device));
    }
    MR_RETURN_IF_ERROR(model_.status());
    const std::set<const Node*> run = NodesOf(op_.node());
    std::vector<Operation> operations;
    if (options_.update_ops) {
      const std::vector<Operation> updates = UpdateOps(root);
      if (!model_.ok()) return Suffixed(Prefixed("Train", model_.status()), "; or .update_ops off");
      for (const Operation& update : updates) {
        if (run.count(update.node()) == 0) operations.push_back(update);
      }
    }
    Operation counted = op_;
    if (!operations.empty()) {
      added_ = absl::StrCat(operations.size(), " operation(s) of 'update_ops', first '",
                            operations[0].name(), "'");
      LogInfo("Train: a step runs ", added_);
      operations.push_back(op_);
      counted = Group(root.WithName("train_with_updates"), operations);
    }
    const Scope beside = root.ColocatedWith(global_step_.handle.op());
    if (!Write(run, global_step_.handle.node())) {
      const Scope after = beside.WithControlDependencies({counted});
      const Output one =
          global_step_.dtype == DT_INT32 ? Const(after, int32_t{1}) : Const(after, int64_t{1});
      counted = AssignAddVariableOp(after.WithName("count_step"), global_step_.handle, one);
    }
    step_after_ = StepAfter(root.WithName("step_after"), counted, global_step_);
    // What was counted when the step began to read comes with it, in one tensor; in a process of
    // its own a task has no others beside it.
    if (!options_.target.empty()) {
      step_after_ =
          Pack(beside.WithName("step_after_and_before"), {step_after_, global_step_.value});
    }
    return model_.status();
  }

  // One session's life, from ready to the end of training or to its loss.
  Status RunInSession(Session* session) {
    MR_ASSIGN_OR_RETURN(const std::vector<Tensor> begin, session->Run({}, {global_step_.value}));
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
    evaluated_at_ = -1;
    std::vector<FetchName> fetches = {step_after_};
    if (options_.loss.valid()) fetches.emplace_back(options_.loss);
    StepRunner runner(session, std::move(fetches));
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
      // Kept until the step is done: with a lost session no batch is lost.
      const Status ran = runner.Run(pending_ ? *pending_ : no_feeds);
      if (absl::IsOutOfRange(ran)) break;  // the graph's own input has ended
      if (absl::IsInvalidArgument(ran) && result_.own_steps == 0 && !added_.empty()) {
        return Suffixed(ran, absl::StrCat("; a step runs ", added_,
                                          ", too; .update_ops = false leaves another model's out"));
      }
      MR_RETURN_IF_ERROR(ran);
      pending_.reset();
      ++result_.own_steps;
      // What other tasks have counted meanwhile may be more.
      step_ = std::max(step_, Counted(runner.result(0)));
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

  // The global step after the own one; notes how stale that was.
  int64_t Counted(const Tensor& steps) {
    if (steps.num_elements() != 2) return StepOf(steps);
    const auto at = [&steps](size_t i) {
      return steps.dtype() == DT_INT32 ? int64_t{steps.flat<int32_t>()[i]}
                                       : steps.flat<int64_t>()[i];
    };
    // The own update is none of others; a counter that was set back meanwhile says nothing.
    const int64_t stale = std::max<int64_t>(0, at(0) - at(1) - 1);
    Staleness& all = result_.staleness;
    all.max = std::max(all.max, stale);
    all.mean += (static_cast<double>(stale) - all.mean) / static_cast<double>(result_.own_steps);
    ++recent_steps_;
    recent_staleness_ +=
        (static_cast<double>(stale) - recent_staleness_) / std::min(recent_steps_, kRecentSteps);
    return at(0);
  }

  // What is due besides training; almost always nothing.
  Status AfterStep(Session* session) {
    const bool last = options_.steps > 0 && step_ >= options_.steps;
    if (--until_look_ > 0 && !last && !save_.AtStep(step_) && !eval_.AtStep(step_) &&
        !report_.AtStep(step_)) {
      return absl::OkStatus();
    }
    Look();
    if (options_.progress && options_.is_chief) {
      progress_->Update(options_.steps > 0 ? std::min(step_, options_.steps) : step_, ShownLoss(),
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
      save_.Next(step_, now_);
      MR_ASSIGN_OR_RETURN(const std::string saved, supervisor_->Save(step_));
      if (!saved.empty()) {  // else it is tried again
        result_.checkpoint = saved;
        Say(absl::StrCat("Saved ", saved));
      }
    }
    if (eval_.AtStep(step_) || eval_.AtTime(now_)) {
      MR_RETURN_IF_ERROR(Evaluate(session));
      eval_.Next(step_, clock_->Now());
    }
    return absl::OkStatus();
  }

  void Look() {
    const absl::Time before = std::exchange(now_, clock_->Now());
    if (now_ - before > kLookTime) {
      steps_per_look_ = 1;
    } else if (steps_per_look_ < kMaxStepsPerLook) {
      ++steps_per_look_;
    }
    until_look_ = steps_per_look_;
  }

  Status Evaluate(Session* session) {
    evaluated_at_ = step_;
    StatusOr<std::string> line = options_.eval(session);
    if (!line.ok()) {
      return Prefixed(absl::StrCat("Train: eval at global step ", step_), line.status());
    }
    if (!line->empty()) Say(absl::StrCat("Step: ", step_, ", ", *line));
    return absl::OkStatus();
  }

  Status AtEnd(Session* session, bool exported) {
    // Not where some variables were newer than the checkpoint that the others came from, nor where
    // it is another directory's.
    idle_ = result_.own_steps == 0 && supervisor_->start() == Supervisor::Start::kRestored &&
            Dirname(supervisor_->restored_checkpoint()) == Dirname(supervisor_->save_path()) &&
            absl::EndsWith(supervisor_->restored_checkpoint(), absl::StrCat("-", step_));
    if (!options_.is_chief) return absl::OkStatus();
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
    // The steps are done: who is started again has the export to do alone.
    if (absl::IsResourceExhausted(exported_now)) return WithExitCode(exported_now, kExitRetryable);
    MR_RETURN_IF_ERROR(exported_now);
    Say(absl::StrCat("Exported ", options_.export_to));
    return absl::OkStatus();
  }

  // A last checkpoint, and the error that says how to end the program.
  Status EndedBy(int signal) {
    std::string text = absl::StrCat("Train: ended by ", signal == SIGINT ? "SIGINT" : "SIGTERM",
                                    " at global step ", step_);
    if (!options_.is_chief) {
      absl::StrAppend(&text, "; the chief keeps the checkpoints");
    } else if (options_.dir.empty()) {
      absl::StrAppend(&text, "; nothing is kept without a dir");
    } else {
      const StatusOr<std::string> saved = supervisor_->SaveLast();
      if (!saved.ok()) return Prefixed(text, saved.status());
      // "": the session was lost before, and what there is since the last checkpoint with it.
      absl::StrAppend(&text, saved->empty() ? "; " : absl::StrCat("; saved ", *saved, ", "),
                      "start again to go on from ", saved->empty() ? "the last checkpoint" : "it");
    }
    return WithExitCode(absl::CancelledError(text), 128 + signal);
  }

  std::optional<double> ShownLoss() const {
    return options_.loss.valid() ? std::optional<double>(result_.loss) : std::nullopt;
  }

  void Say(const std::string& line) {
    if (!options_.progress) return;
    progress_->EndLine();
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }

  const Scope& model_;
  const Operation& op_;
  const TrainOptions& options_;
  Clock* const clock_;
  Variable global_step_;
  Output step_after_;
  std::string added_;  // what a step runs beside op_, for people
  Supervisor* supervisor_ = nullptr;
  std::optional<Progress> progress_;

  TrainResult result_;
  Status failed_;                 // of the data
  bool idle_ = false;             // the steps were done before
  std::optional<Feeds> pending_;  // of the step that is next, or was lost
  bool at_goal_ = false;
  std::string goal_;  // in words

  // Of the session.
  int64_t step_ = 0;
  int64_t evaluated_at_ = -1;
  Due save_, eval_, report_;
  absl::Time now_;  // at the last look
  int steps_per_look_ = 1, until_look_ = 1;
  double recent_staleness_ = 0, recent_steps_ = 0;
};

}  // namespace

StatusOr<TrainResult> Train(const Scope& model, const Operation& op, const TrainOptions& options) {
  return Trainer(model, op, options).Run();
}

}  // namespace millrace
