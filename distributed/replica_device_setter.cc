// SPDX-License-Identifier: Apache-2.0
#include "distributed/replica_device_setter.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/mutex.h"
#include "core/status.h"
#include "graph/attr.h"
#include "graph/device_name.h"
#include "graph/variable_bytes.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

// The ops whose state lives on parameter servers (tf-core B8.1).
constexpr std::array<absl::string_view, 13> kPsOps = {
    "Variable",
    "VariableV2",
    "AutoReloadVariable",
    "MutableHashTable",
    "MutableHashTableV2",
    "MutableHashTableOfTensors",
    "MutableHashTableOfTensorsV2",
    "MutableDenseHashTable",
    "MutableDenseHashTableV2",
    "VarHandleOp",
    "BoostedTreesEnsembleResourceHandleOp",
    "BoostedTreesQuantileStreamResourceHandleOp",
    "ResourceConditionalAccumulator",
};

bool IsPsOp(absl::string_view op) {
  return std::find(kPsOps.begin(), kPsOps.end(), op) != kPsOps.end();
}

// Bytes by ps, and where variables are. Each method is the whole of one decision.
class GreedyPlaces {
 public:
  explicit GreedyPlaces(std::vector<int> tasks) : tasks_(std::move(tasks)) {
    bytes_.assign(std::max<size_t>(tasks_.size(), 1), 0);
  }

  int Place(const tensorflow::NodeDef& node) {
    MutexLock lock(&mu_);
    const std::vector<std::string> groups =
        GetAttr<std::vector<std::string>>(node, "_class").value_or(std::vector<std::string>());
    for (absl::string_view group : groups) {
      if (!absl::ConsumePrefix(&group, "loc:@") || group == node.name()) continue;
      const auto other = places_.find(std::string(group));
      // With what no ps holds it goes to another job: nothing is counted.
      return other == places_.end() ? Least() : Count(node, other->second);
    }
    const StatusOr<DeviceName> own = DeviceName::Parse(node.device());
    if (own.ok() && own->task) {
      const auto asked = std::find(tasks_.begin(), tasks_.end(), *own->task);
      return asked == tasks_.end() ? Least()
                                   : Count(node, static_cast<int>(asked - tasks_.begin()));
    }
    return Count(node, Least());
  }

 private:
  int Least() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return static_cast<int>(std::min_element(bytes_.begin(), bytes_.end()) - bytes_.begin());
  }
  int Count(const tensorflow::NodeDef& node, int place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    bytes_[static_cast<size_t>(place)] += VariableBytes(&node);
    places_[node.name()] = place;
    return place;
  }

  const std::vector<int> tasks_;
  Mutex mu_;
  std::vector<int64_t> bytes_ ABSL_GUARDED_BY(mu_);
  std::unordered_map<std::string, int> places_ ABSL_GUARDED_BY(mu_);  // by the node's name
};

}  // namespace

PsStrategy RoundRobinStrategy(int num_tasks) {
  struct State {
    Mutex mu;
    int next ABSL_GUARDED_BY(mu) = 0;
  };
  return [num_tasks, state = std::make_shared<State>()](const tensorflow::NodeDef&) {
    MutexLock lock(&state->mu);
    const int task = state->next;
    state->next = num_tasks > 0 ? (task + 1) % num_tasks : 0;
    return task;
  };
}

PsStrategy GreedyByteStrategy(int num_tasks) {
  std::vector<int> tasks;
  for (int task = 0; task < num_tasks; ++task) tasks.push_back(task);
  return GreedyByteStrategy(std::move(tasks));
}

PsStrategy GreedyByteStrategy(std::vector<int> tasks) {
  return [places = std::make_shared<GreedyPlaces>(std::move(tasks))](
             const tensorflow::NodeDef& node) { return places->Place(node); };
}

DeviceFunction ReplicaDeviceSetter(const ClusterConfig& cluster,
                                   const ReplicaDeviceSetterOptions& options) {
  const StatusOr<DeviceName> ps = DeviceName::Parse(options.ps_device);
  const std::string ps_job = ps.ok() && ps->job ? *ps->job : "ps";
  const std::vector<int> ps_tasks = cluster.cluster().tasks(ps_job);
  // An evaluator is no task of the cluster: it holds all by itself.
  if (ps_tasks.empty() || cluster.job() == "evaluator") return nullptr;
  const std::string worker_device =
      options.worker_device.empty() ? cluster.task_device() : options.worker_device;
  PsStrategy strategy =
      options.strategy ? options.strategy : RoundRobinStrategy(static_cast<int>(ps_tasks.size()));
  DeviceFunction places =
      [ps_text = options.ps_device, worker_device, merge = options.merge_devices, ps_tasks,
       strategy = std::move(strategy)](const tensorflow::NodeDef& node) -> std::string {
    if (!merge && !node.device().empty()) return node.device();
    const bool is_ps = IsPsOp(node.op());
    const StatusOr<DeviceName> own = DeviceName::Parse(node.device());
    StatusOr<DeviceName> chosen = DeviceName::Parse(is_ps ? ps_text : worker_device);
    // What cannot be read is left for the placer, which says why.
    if (!own.ok()) return node.device();
    if (!chosen.ok()) return is_ps ? ps_text : worker_device;
    if (is_ps && chosen->job && (!own->job || *own->job == *chosen->job)) {
      const int place = strategy(node);
      // The strategy counts 0, 1, ...; task numbers may have gaps.
      const bool known = place >= 0 && static_cast<size_t>(place) < ps_tasks.size();
      chosen->task = known ? ps_tasks[static_cast<size_t>(place)] : place;
    }
    chosen->Override(*own);
    return chosen->ToString();
  };
  return TablesInParts::On(static_cast<int>(ps_tasks.size()), options.partition_tables_above,
                           std::move(places));
}

DeviceFunction BalancedDeviceSetter(const ClusterConfig& cluster) {
  ReplicaDeviceSetterOptions options;
  options.strategy = GreedyByteStrategy(cluster.cluster().tasks("ps"));
  return ReplicaDeviceSetter(cluster, options);
}

}  // namespace millrace
