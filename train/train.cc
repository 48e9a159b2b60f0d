// SPDX-License-Identifier: Apache-2.0
#include "train/train.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/logging.h"
#include "graph/graph.h"
#include "train/counted_step.h"
#include "train/ps_load.h"
#include "train/read_ahead.h"
#include "train/train_events.h"
#include "train/train_loop.h"

namespace millrace {
namespace {

Status Check(const Scope& model, const Operation& op, const TrainOptions& options) {
  MR_RETURN_IF_ERROR(model.status());
  if (!op.valid() || op.node()->graph() != model.graph()) {
    return InvalidArgument("Train: the operation to run must be of the model's graph, got ",
                           op.valid() ? "one of another Scope" : "an invalid one");
  }
  if (options.steps < 0) {
    return InvalidArgument("Train: steps must be >= 0, got ", options.steps);
  }
  if (options.steps == 0 && !options.data) {
    return InvalidArgument("Train: data or steps must say when training ends, got neither");
  }
  if (options.max_recoveries < 0) {
    return InvalidArgument("Train: max_recoveries must be >= 0, got ", options.max_recoveries);
  }
  for (const auto& [name, every] : {std::pair<const char*, Every>{"save", options.save_every},
                                    {"eval", options.eval_every},
                                    {"report", options.report_every},
                                    {"summary", options.summary_every}}) {
    if (every.valid()) continue;
    return InvalidArgument(
        "Train: ", name, "_every must be >= 0, got ",
        every.steps() < 0 ? absl::StrCat(every.steps()) : absl::FormatDuration(every.time()));
  }
  if (!options.eval &&
      (options.eval_every.steps() > 0 || options.eval_every.time() > absl::ZeroDuration())) {
    return InvalidArgument("Train: eval_every must come with eval, got none");
  }
  if (options.loss.valid()) {
    if (options.loss.node()->graph() != model.graph()) {
      return InvalidArgument("Train: loss must be of the model's graph, got one of another Scope");
    }
    const PartialShape shape = model.shape(options.loss);
    const DType dtype = options.loss.dtype();
    if ((dtype != DT_FLOAT && dtype != DT_DOUBLE) || !shape.IsCompatibleWith(Shape())) {
      return InvalidArgument("Train: loss '", options.loss.name(),
                             "' must be a float or double scalar, got ", dtype, " of shape ", shape,
                             "; ReduceMean makes one");
    }
  }
  if (options.export_to.empty() != options.signature.outputs.empty()) {
    return InvalidArgument(
        "Train: export_to must come with the signature of the model, got ",
        options.export_to.empty() ? "a signature alone" : "no outputs of a signature",
        "; .signature = {.inputs = {{\"x\", x}}, .outputs = {{\"y\", y}}}");
  }
  if (options.export_to.empty()) return absl::OkStatus();
  return Prefixed("Train", CheckServingSignature(model, options.signature));
}

StatusOr<ReadAhead> MakeReadAhead(const Scope& model, const CountedStep& step,
                                  const TrainOptions& options) {
  if (!options.read_ahead) return ReadAhead();
  if (options.target.empty()) {
    LogInfo("Train: read_ahead does nothing: all variables are in this process");
    return ReadAhead();
  }
  MR_ASSIGN_OR_RETURN(ReadAhead ahead, ReadAhead::Make(model, {.step_after = step.step_after,
                                                               .global_step = step.global_step,
                                                               .also = {options.loss}}));
  LogInfo("Train: ", ahead.ToString());
  return ahead;
}

}  // namespace

StatusOr<TrainResult> Train(ScopeAt at, const Operation& op, const TrainOptions& options) {
  const Scope model = at.here();
  MR_RETURN_IF_ERROR(Check(model, op, options));
  MR_ASSIGN_OR_RETURN(CountedStep step,
                      MakeCountedStep(model, op,
                                      {.update_ops = options.update_ops,
                                       .global_step = options.supervisor.global_step}));
  MR_ASSIGN_OR_RETURN(const ReadAhead ahead, MakeReadAhead(model, step, options));
  // In a process of its own a task has no others next to it. What is read ahead knows its step.
  if (!options.target.empty() && ahead.empty()) {
    MR_ASSIGN_OR_RETURN(step, AmongOthers(model, std::move(step)));
  }
  // As the model's device function has placed them: the graph was built before this call.
  if (options.is_chief && !options.target.empty()) {
    LogPsLoad("Train", PsLoad::Of(*model.graph()));
  }
  SupervisorOptions of_supervisor = options.supervisor;
  of_supervisor.is_chief = options.is_chief;
  of_supervisor.logdir = options.dir;
  of_supervisor.global_step = step.global_step;
  of_supervisor.last_step = options.steps;
  of_supervisor.save_model_period = options.save_every.time();
  of_supervisor.handle_signals = options.handle_signals;
  std::shared_ptr<TrainEvents> events;
  if (options.is_chief && !options.dir.empty() && !options.summary_every.never()) {
    events =
        std::make_shared<TrainEvents>(options.dir, of_supervisor.file_system, of_supervisor.clock);
    of_supervisor.on_checkpoint = [events, next = options.supervisor.on_checkpoint](
                                      int64_t step, const std::string& checkpoint) {
      events->AddCheckpoint(checkpoint, step);
      if (next) next(step, checkpoint);
    };
  }
  Supervisor supervisor(model, of_supervisor);
  MR_RETURN_IF_ERROR(supervisor.status());
  return TrainLoop(model, step, ahead, options, &supervisor, events.get()).Run();
}

}  // namespace millrace
