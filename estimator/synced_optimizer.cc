// SPDX-License-Identifier: Apache-2.0
#include "estimator/synced_optimizer.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "graph/graph.h"
#include "train/sync_replicas.h"

namespace millrace {
namespace {

constexpr char kGive[] = "SyncReplicasGive";  // ops/training/sync_replicas.h

// Whether `node` needs one of the op kind.
bool Runs(const Node* node, absl::string_view op) {
  std::vector<bool> seen(static_cast<size_t>(node->graph()->num_node_ids()));
  std::vector<const Node*> next = {node};
  const auto add = [&](const Node* source) {
    if (source == nullptr || seen[static_cast<size_t>(source->id())]) return;
    seen[static_cast<size_t>(source->id())] = true;
    next.push_back(source);
  };
  while (!next.empty()) {
    const Node* const one = next.back();
    next.pop_back();
    if (one->op() == op) return true;
    for (const OutputRef& input : one->inputs()) add(input.node);
    for (const Node* control : one->control_inputs()) add(control);
  }
  return false;
}

}  // namespace

bool SyncsTrainers(const RunConfig& config) {
  return config.sync().has_value() && config.num_worker_replicas() > 1;
}

std::shared_ptr<Optimizer> SyncedOptimizer(std::shared_ptr<Optimizer> optimizer,
                                           const RunConfig& config) {
  if (!SyncsTrainers(config)) return optimizer;
  if (std::dynamic_pointer_cast<SyncReplicasOptimizer>(optimizer) != nullptr) return optimizer;
  const SyncTraining& sync = *config.sync();
  const int64_t all = config.num_worker_replicas();
  SyncReplicasOptions options;
  options.replicas_to_aggregate =
      sync.replicas_to_aggregate > 0 ? sync.replicas_to_aggregate : all - sync.backup_workers;
  options.total_num_replicas = all;
  options.backup_workers = sync.backup_workers;
  options.start_wait = sync.start_wait;
  return std::make_shared<SyncReplicasOptimizer>(std::move(optimizer), options);
}

Status CheckIsSynced(const Operation& train_op, const RunConfig& config) {
  if (!SyncsTrainers(config) || !train_op.valid()) return absl::OkStatus();
  if (Runs(train_op.node(), kGive)) return absl::OkStatus();
  return InvalidArgument(
      "EstimatorSpec: train_op must be synchronous, since RunConfig's sync is "
      "given, got '",
      train_op.name(), "', which is not; make it with SyncedOptimizer(optimizer, config)");
}

}  // namespace millrace
