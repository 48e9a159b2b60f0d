// SPDX-License-Identifier: Apache-2.0
#include "estimator/model_graph.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/logging.h"
#include "data/dataset.h"
#include "data/element.h"
#include "distributed/replica_device_setter.h"
#include "estimator/dataset_input.h"
#include "estimator/input_fn.h"
#include "estimator/serving_input.h"
#include "estimator/shared_files.h"
#include "estimator/synced_optimizer.h"
#include "graph/graph.h"
#include "graph/table_parts.h"
#include "proto/meta_graph.pb.h"
#include "train/session_run_hook.h"

namespace millrace {
namespace {

// Seed and global step; the scope of the model.
StatusOr<Scope> BeginGraph(const EstimatorParts& parts, Mode mode, Placement placement,
                           ModelGraph* graph) {
  const RunConfig& config = parts.config;
  graph->root = graph->root.BuiltAt(parts.where);
  if (config.tf_random_seed()) graph->root.SetGraphSeed(*config.tf_random_seed());
  Scope model = graph->root;
  if (placement == Placement::kCluster ||
      (placement == Placement::kByMode && mode == Mode::kTrain)) {
    DeviceFunction places =
        config.device_fn() ? config.device_fn() : BalancedDeviceSetter(config.cluster());
    if (places && config.num_ps_replicas() > 1) {
      places = TablesInParts::On(config.num_ps_replicas(), config.partition_tables_above(),
                                 std::move(places));
    }
    model = model.WithDevice(std::move(places));
  }
  graph->global_step = GlobalStep(model);
  MR_RETURN_IF_ERROR(graph->root.status());
  return model;
}

// Each component of a batch has its rows as first dimension; a scalar has none.
bool HasNoBatches(const data::Dataset& dataset) {
  for (const data::ComponentSpec& component : dataset.spec()) {
    if (component.shape.has_rank() && component.shape.rank() == 0) return true;
  }
  return false;
}

struct ModelInput {
  Features features;
  Labels labels;
};

StatusOr<ModelInput> CallInputFn(const EstimatorParts& parts, Mode mode, const Scope& model,
                                 const InputFn& input_fn, ModelGraph* graph) {
  // On this task, whatever device function the model has.
  const Scope scope = model.WithDevice("/device:CPU:0");
  const RunConfig& config = parts.config;
  const Scope own = scope.BuiltWhereCalled();
  MR_ASSIGN_OR_RETURN(const Input input, input_fn(InputFnCall{own, mode, parts.params, config}));
  graph->cardinality = data::kUnknownCardinality;
  if (!input.dataset() && !input.shared()) {
    graph->has_reader = graph->root.collections()->contains("queue_runners");
    return ModelInput{input.features(), input.labels()};
  }
  std::optional<SharedDataset> shared;
  if (input.shared()) {
    MR_ASSIGN_OR_RETURN(shared, MakeSharedDataset(graph->root, *input.shared(),
                                                  mode == Mode::kTrain, config, parts.file_system));
  }
  data::Dataset dataset = shared ? shared->dataset : *input.dataset();
  graph->dataset = dataset;
  // Of several trainers one may have no share of the data, and a run may have done all of it; there
  // may be nothing to predict.
  const bool is_alone = config.num_worker_replicas() <= 1;
  const bool is_shared_out = shared && shared->hook != nullptr;
  if (is_shared_out) graph->input_hooks.push_back(shared->hook);
  if (mode == Mode::kEval || (mode == Mode::kTrain && is_alone && !is_shared_out)) {
    dataset = dataset.RequireElements();
  }
  graph->has_reader = true;
  graph->cardinality = dataset.cardinality();
  data::IteratorOptions options;
  options.seed = static_cast<uint64_t>(config.tf_random_seed().value_or(0));
  options.task = static_cast<uint64_t>(config.global_id_in_cluster().value_or(0));
  options.clock = parts.clock;
  options.file_system = parts.file_system;
  MR_ASSIGN_OR_RETURN(DatasetInput made,
                      MakeDatasetInput(scope.WithName("input"), dataset, input.columns(), options));
  graph->input_hooks.push_back(made.initializer);
  graph->iterator = std::move(made.iterator);
  return ModelInput{made.features, made.labels};
}

Status CallModelFn(const EstimatorParts& parts, Mode mode, const Scope& model, ModelInput input,
                   ModelGraph* graph) {
  const ModelFn& f = parts.model_fn;
  if (mode == Mode::kPredict) input.labels = Labels();
  if (input.features.empty()) {
    return InvalidArgument("Estimator: input_fn must return features, got none");
  }
  if (!input.labels.empty() && !f.takes_labels()) {
    return InvalidArgument(
        "Estimator: model_fn must take Labels, since input_fn returns some, got one that does not");
  }
  if (!parts.params.empty() && !f.takes_params()) {
    return InvalidArgument(
        "Estimator: model_fn must take Params, since some were given, got one that does not");
  }
  const Scope own = model.BuiltWhereCalled();
  const Features features = input.features.In(own);
  const Labels labels = input.labels.In(own);
  MR_ASSIGN_OR_RETURN(graph->spec,
                      f(ModelFnCall{own, features, labels, mode, parts.params, parts.config}));
  MR_RETURN_IF_ERROR(CheckSpec(graph->root, mode, &graph->spec));
  if (mode != Mode::kTrain) return absl::OkStatus();
  return CheckIsSynced(graph->spec.train_op, parts.config);
}

}  // namespace

Hooks ModelGraph::AllHooks(std::initializer_list<const Hooks*> further) const {
  Hooks all = input_hooks;
  for (const Hooks* hooks : further) all.insert(all.end(), hooks->begin(), hooks->end());
  return all;
}

StatusOr<ModelGraph> BuildModelGraph(const EstimatorParts& parts, Mode mode,
                                     const InputFn& input_fn, Placement placement) {
  ModelGraph graph;
  MR_ASSIGN_OR_RETURN(const Scope model, BeginGraph(parts, mode, placement, &graph));
  MR_ASSIGN_OR_RETURN(ModelInput input, CallInputFn(parts, mode, model, input_fn, &graph));
  const Status built = CallModelFn(parts, mode, model, std::move(input), &graph);
  if (absl::IsInvalidArgument(built) && graph.dataset && HasNoBatches(*graph.dataset)) {
    return Suffixed(built, absl::StrCat("; the elements of the dataset are ",
                                        data::SpecText(graph.dataset->spec()),
                                        ", no batches: did you forget Batch?"));
  }
  MR_RETURN_IF_ERROR(built);
  return graph;
}

StatusOr<ServingGraph> BuildServingGraph(const EstimatorParts& parts, Mode mode,
                                         const ServingInputReceiverFn& receiver_fn) {
  ServingGraph graph;
  MR_ASSIGN_OR_RETURN(const Scope model, BeginGraph(parts, mode, Placement::kHere, &graph.model));
  MR_ASSIGN_OR_RETURN(graph.receiver, receiver_fn(model.BuiltWhereCalled()));
  const Status built = CallModelFn(
      parts, mode, model, ModelInput{graph.receiver.features, graph.receiver.labels}, &graph.model);
  MR_RETURN_IF_ERROR(Prefixed("model over the features of serving_input_receiver_fn", built));
  return graph;
}

std::vector<SessionRunHook*> PointersOf(const Hooks& hooks) {
  std::vector<SessionRunHook*> pointers;
  for (const auto& hook : hooks) pointers.push_back(hook.get());
  return pointers;
}

Status CheckHooks(absl::string_view where, const Hooks& hooks) {
  for (const auto& hook : hooks) {
    if (hook == nullptr) {
      return InvalidArgument(where, ": hooks must be hooks, got a null one");
    }
  }
  return absl::OkStatus();
}

}  // namespace millrace
