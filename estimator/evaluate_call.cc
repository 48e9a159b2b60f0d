// SPDX-License-Identifier: Apache-2.0
//
// Estimator::Evaluate: a graph with metrics, the values of a checkpoint, and where results go.

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/file_system.h"
#include "core/logging.h"
#include "core/tensor_proto.h"
#include "data/dataset.h"
#include "estimator/estimator.h"
#include "estimator/estimator_parts.h"
#include "estimator/input_fn.h"
#include "estimator/model_fn.h"
#include "estimator/model_graph.h"
#include "proto/summary.pb.h"
#include "runtime/session.h"
#include "saver/event_writer.h"
#include "train/hooks/final_ops.h"
#include "train/metrics.h"
#include "train/monitored_session.h"
#include "train/session_creator.h"
#include "train/session_run_hook.h"

namespace millrace {
namespace {

// Below so many batches each is told, above about ten times.
constexpr int64_t kFewSteps = 20;

Status CheckCall(const EvaluateCall& call) {
  if (call.steps && *call.steps <= 0) {
    return InvalidArgument("Estimator: Evaluate: steps must be > 0, got ", *call.steps);
  }
  if (absl::StrContains(call.name, '/')) {
    return InvalidArgument("Estimator: Evaluate: name must be part of a directory's name, got '",
                           call.name, "'");
  }
  return CheckHooks("Estimator: Evaluate", call.hooks);
}

// What one metric shows in TensorBoard.
Status AddValues(const std::string& name, const Tensor& value, tensorflow::Summary* summary) {
  if (value.dtype() == DT_STRING) {
    // What summary operations give.
    int number = 0;
    MR_ASSIGN_OR_RETURN(const auto texts, value.values<std::string>());
    for (const std::string& text : texts) {
      tensorflow::Summary inner;
      if (!inner.ParseFromString(text)) {
        LogWarning("Estimator: metric '", name, "' is a text that is no Summary: not written");
        continue;
      }
      for (const tensorflow::Summary::Value& one : inner.value()) {
        tensorflow::Summary::Value* const added = summary->add_value();
        *added = one;
        added->set_tag(absl::StrCat(name, "/", number++));
      }
    }
    return absl::OkStatus();
  }
  EvalResult numbers;
  numbers.metrics[name] = value;
  tensorflow::Summary::Value* const added = summary->add_value();
  added->set_tag(name);
  const bool is_number = value.dtype() == DT_FLOAT || value.dtype() == DT_DOUBLE ||
                         value.dtype() == DT_INT32 || value.dtype() == DT_INT64;
  if (is_number && value.num_elements() == 1) {
    added->set_simple_value(static_cast<float>(numbers[name]));
    return absl::OkStatus();
  }
  const Status encoded = TensorToProto(value, added->mutable_tensor());
  if (encoded.ok()) return absl::OkStatus();
  summary->mutable_value()->RemoveLast();
  LogWarning("Estimator: metric '", name, "' cannot be written: ", encoded.message());
  return absl::OkStatus();
}

Status WriteResult(const EstimatorParts& parts, const std::string& name, const EvalResult& result) {
  tensorflow::Summary summary;
  for (const auto& [metric, value] : result.metrics) {
    if (metric != "global_step") MR_RETURN_IF_ERROR(AddValues(metric, value, &summary));
  }
  const std::string directory = EvalDirectory(parts.model_dir, name);
  MR_ASSIGN_OR_RETURN(
      const std::shared_ptr<EventWriter> events,
      EventWriterCache::Default()->Get(directory, {.fs = parts.file_system, .clock = parts.clock}));
  MR_RETURN_IF_ERROR(events->AddSummary(std::move(summary), result.global_step));
  if (!result.checkpoint.empty()) {
    tensorflow::Summary path;
    tensorflow::Summary::Value* const value = path.add_value();
    value->set_tag("checkpoint_path");
    MR_RETURN_IF_ERROR(TensorToProto(Tensor::Scalar(result.checkpoint), value->mutable_tensor()));
    MR_RETURN_IF_ERROR(events->AddSummary(std::move(path), result.global_step));
  }
  return events->Flush();
}

// The updates run per batch, and what is fetched at the end.
struct Measured {
  std::vector<std::string> names;
  std::vector<FetchName> values, updates;
};

StatusOr<Measured> Measure(ModelGraph* graph) {
  std::map<std::string, metrics::Metric> all = graph->spec.eval_metric_ops;
  all["loss"] = metrics::Mean(graph->root, graph->spec.loss);
  MR_RETURN_IF_ERROR(graph->root.status());
  Measured measured;
  for (const auto& [name, metric] : all) {
    measured.names.push_back(name);
    measured.values.emplace_back(metric.value);
    measured.updates.emplace_back(metric.update.op());
  }
  measured.names.push_back("global_step");
  measured.values.emplace_back(graph->global_step.value);
  return measured;
}

}  // namespace

std::string EvalDirectory(const std::string& model_dir, const std::string& name) {
  return JoinPath(model_dir, name.empty() ? "eval" : absl::StrCat("eval_", name));
}

StatusOr<EvalResult> EvaluateModel(const EstimatorParts& parts, const InputFn& input_fn,
                                   const EvaluateCall& call) {
  MR_RETURN_IF_ERROR(CheckCall(call));
  MR_ASSIGN_OR_RETURN(const std::string checkpoint, CheckpointToUse(parts, call.checkpoint_path));
  if (checkpoint.empty()) {
    LogInfo("Estimator: Evaluate: '", parts.model_dir,
            "' has no checkpoint; the model has its initial values");
  }
  MR_ASSIGN_OR_RETURN(ModelGraph graph, BuildModelGraph(parts, Mode::kEval, input_fn));
  if (!call.steps && graph.cardinality == data::kInfiniteCardinality) {
    LogWarning(
        "Estimator: Evaluate has no number of steps, and its data has no end: it does not "
        "end by itself");
  }
  MR_ASSIGN_OR_RETURN(const Measured measured, Measure(&graph));
  const auto final_ops =
      std::make_shared<FinalOpsHook>(FinalOpsOptions{.fetches = measured.values});
  const Hooks last = {final_ops};
  const Hooks hooks = graph.AllHooks({&call.hooks, &graph.spec.evaluation_hooks, &last});

  SessionCreatorOptions creator;
  creator.scaffold = graph.spec.scaffold;
  creator.target = parts.config.evaluation_master();
  creator.checkpoint_path = checkpoint;
  creator.session.config = parts.config.session_config();
  creator.session.config.device_filters.clear();
  creator.clock = parts.clock;
  creator.file_system = parts.file_system;
  MonitoredSessionOptions options;
  options.hooks = PointersOf(hooks);
  options.max_recoveries = 0;
  options.clock = parts.clock;
  MR_ASSIGN_OR_RETURN(
      const auto session,
      MonitoredSession::Open(graph.root,
                             std::make_unique<ChiefSessionCreator>(graph.root, std::move(creator)),
                             std::move(options)));
  MR_ASSIGN_OR_RETURN(const MonitoredStep step, session->Prepare({}, {}, measured.updates));
  const int64_t steps = call.steps.value_or(0);
  const int64_t report_every = steps < kFewSteps ? 1 : steps / 10;
  int64_t done = 0;
  MR_RETURN_IF_ERROR(session->Loop([&]() -> Status {
    if (steps > 0 && done == steps) return OutOfRange("all steps are done");
    MR_RETURN_IF_ERROR(step.RunInto({}, {}));
    ++done;
    if (steps > 0 && done % report_every == 0) {
      LogInfo("Estimator: Evaluation [", done, "/", steps, "]");
    }
    return absl::OkStatus();
  }));
  if (final_ops->values().size() != measured.names.size()) {
    return FailedPrecondition("Estimator: Evaluate ended before it could measure");
  }
  if (done == 0) LogWarning("Estimator: Evaluate ran no step; is there no data?");

  EvalResult result;
  result.checkpoint = checkpoint;
  for (size_t i = 0; i < measured.names.size(); ++i) {
    result.metrics[measured.names[i]] = final_ops->values()[i];
  }
  result.global_step = StepIn(result.metrics["global_step"]);
  LogInfo("Estimator: evaluated ", checkpoint.empty() ? "initial values" : checkpoint, " over ",
          done, " steps: ", result.ToString());
  const Status written = WriteResult(parts, call.name, result);
  if (!written.ok()) {
    LogWarning("Estimator: the results of an evaluation are not in '",
               EvalDirectory(parts.model_dir, call.name), "': ", written.message());
  }
  parts.evaluations->fetch_add(1, std::memory_order_relaxed);
  return result;
}

}  // namespace millrace
