// SPDX-License-Identifier: Apache-2.0
#include "distributed/replica_device_setter.h"

#include <algorithm>
#include <array>
#include <memory>
#include <vector>

#include "core/dtype.h"
#include "core/mutex.h"
#include "core/shape.h"
#include "graph/attr.h"
#include "graph/device_name.h"
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

// 0 when dtype or shape is not known.
int64_t BytesOf(const tensorflow::NodeDef& node) {
  const StatusOr<DType> dtype = GetAttr<DType>(node, "dtype");
  const StatusOr<PartialShape> shape = GetAttr<PartialShape>(node, "shape");
  if (!dtype.ok() || !shape.ok() || !shape->IsFullyDefined()) return 0;
  return shape->num_elements() * static_cast<int64_t>(DTypeSize(*dtype));
}

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
  struct State {
    Mutex mu;
    std::vector<int64_t> bytes ABSL_GUARDED_BY(mu);
  };
  auto state = std::make_shared<State>();
  state->bytes.assign(static_cast<size_t>(std::max(num_tasks, 1)), 0);
  return [state](const tensorflow::NodeDef& node) {
    MutexLock lock(&state->mu);
    const auto least = std::min_element(state->bytes.begin(), state->bytes.end());
    *least += BytesOf(node);
    return static_cast<int>(least - state->bytes.begin());
  };
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
  return [ps_text = options.ps_device, worker_device, merge = options.merge_devices, ps_tasks,
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
}

}  // namespace millrace
