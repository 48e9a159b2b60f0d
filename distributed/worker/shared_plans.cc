// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/shared_plans.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/dcheck.h"
#include "core/deterministic_bytes.h"
#include "core/dtype.h"
#include "core/sha256.h"
#include "graph/arg_range.h"
#include "graph/attr.h"
#include "graph/device_name.h"
#include "graph/function_library.h"
#include "graph/import_export.h"
#include "graph/node_body.h"
#include "graph/place/partition.h"
#include "graph/place/placer.h"
#include "graph/place/waves.h"
#include "proto/config.pb.h"
#include "proto/node_def.pb.h"

namespace millrace {
namespace {

constexpr char kClassAttr[] = "_class";

bool IsTransfer(const tensorflow::NodeDef& node) {
  const NodeBody::Kind kind = NodeBody::KindOf(node.op());
  return kind == NodeBody::Kind::kSend || kind == NodeBody::Kind::kRecv;
}

// The partition with other tasks named by the order in which they appear, so that partitions made
// for different workers are equal. Their incarnations are left out, and waves, which only what goes
// to other tasks needs.
Status MakeCanonical(absl::string_view own_task, tensorflow::GraphDef* graph) {
  std::map<std::string, std::string> names;  // task -> job name that stands for it
  for (tensorflow::NodeDef& node : *graph->mutable_node()) {
    // It is placed. What it was to stand with may be no part of this step.
    node.mutable_attr()->erase(kClassAttr);
    if (!IsTransfer(node)) continue;
    node.mutable_attr()->erase(kWaveAttr);
    for (const char* attr : {"send_device", "recv_device"}) {
      MR_ASSIGN_OR_RETURN(const std::string device, GetAttr<std::string>(node, attr));
      MR_ASSIGN_OR_RETURN(const std::string task, TaskOfDevice(device));
      if (task == own_task) continue;
      MR_ASSIGN_OR_RETURN(DeviceName name, DeviceName::Parse(device));
      std::string& job = names[task];
      if (job.empty()) job = absl::StrCat("peer", names.size() - 1);
      name.job = job;
      name.replica = 0;
      name.task = 0;
      SetAttr(name.ToString(), &(*node.mutable_attr())[attr]);
      if (absl::string_view(attr) == "send_device") {
        SetAttr(int64_t{0}, &(*node.mutable_attr())["send_device_incarnation"]);
      }
    }
  }
  return absl::OkStatus();
}

// The state of its stateful nodes lives in resources, where every plan finds it, and not in
// kernels.
bool KeepsStateInResources(const Graph& graph) {
  // Whatever is in a function.
  for (const auto& function : graph.library().functions()) {
    if (graph.library().IsStateful(*function)) return false;
  }
  const auto is_resource = [](DType t) { return t == DT_RESOURCE || IsRef(t); };
  for (const auto& node : graph.nodes()) {
    if (node == nullptr || !node->is_stateful() || absl::StartsWith(node->op(), "_")) continue;
    const auto inputs = node->input_types(), outputs = node->output_types();
    if (std::none_of(inputs.begin(), inputs.end(), is_resource) &&
        std::none_of(outputs.begin(), outputs.end(), is_resource)) {
      return false;
    }
  }
  return true;
}

// The same for equal graphs, and nobody can make a graph with that of another. The bytes of large
// constants are read where they are: a copy of them would be the largest thing in the process.
// `graph` is left as it was, unless this fails.
StatusOr<std::string> DigestOf(tensorflow::GraphDef* graph) {
  std::vector<std::pair<std::string*, std::string>> taken;  // place, content
  std::string large;                                        // whose contents, and their digests
  for (int i = 0; i < graph->node_size(); ++i) {
    tensorflow::NodeDef& node = *graph->mutable_node(i);
    const auto value = node.mutable_attr()->find("value");
    if (value == node.mutable_attr()->end() || !value->second.has_tensor()) continue;
    std::string* const content = value->second.mutable_tensor()->mutable_tensor_content();
    if (content->size() < kDetachedConstantBytes) continue;
    MR_ASSIGN_OR_RETURN(const std::string digest, Sha256(*content));
    absl::StrAppend(&large, i, ":", digest);
    taken.emplace_back(content, std::string());
    content->swap(taken.back().second);
  }
  const std::string bytes = DeterministicBytes(*graph);
  for (auto& [place, content] : taken) place->swap(content);
  if (bytes.empty() && graph->node_size() > 0) {
    return InvalidArgument(
        "RegisterGraph: a graph without its large constants must be below 2 GiB");
  }
  MR_ASSIGN_OR_RETURN(const std::string of_large, Sha256(large));
  MR_ASSIGN_OR_RETURN(const std::string of_rest, Sha256(bytes));
  return of_large + of_rest;
}

}  // namespace

std::shared_ptr<FunctionRuntime> FunctionsOn(const std::vector<std::shared_ptr<Device>>& devices,
                                             std::shared_ptr<KernelStore> kernels) {
  return FunctionRuntime::Make(tensorflow::ConfigProto(), devices, std::move(kernels));
}

std::vector<tensorflow::NodeDef> TransfersIn(const tensorflow::GraphDef& partition) {
  std::vector<tensorflow::NodeDef> transfers;
  for (const tensorflow::NodeDef& node : partition.node()) {
    if (IsTransfer(node)) transfers.push_back(node);
  }
  return transfers;
}

std::vector<tensorflow::NodeDef> TransfersIn(const Graph& partition) {
  std::vector<tensorflow::NodeDef> transfers;
  for (const auto& node : partition.nodes()) {
    if (node != nullptr && (node->is_send() || node->is_recv())) {
      transfers.push_back(partition.NodeToDef(*node));
    }
  }
  return transfers;
}

StatusOr<std::shared_ptr<const WorkerPlan>> SharedPlans::FindOrBuild(tensorflow::GraphDef partition,
                                                                     const PlanOwner& owner) {
  MR_RETURN_IF_ERROR(MakeCanonical(task_, &partition));
  MR_ASSIGN_OR_RETURN(std::string digest, DigestOf(&partition));
  // Plans know their devices, and those of a run are its own. A step may keep a plan longer than
  // the run's container lives: the devices must be those of the one that is there now.
  absl::StrAppend(&digest, owner.run_id);
  if (!owner.is_isolated) {
    MutexLock lock(&mu_);
    const auto it = plans_.find(digest);
    if (it != plans_.end()) {
      auto plan = it->second.lock();
      if (plan != nullptr && plan->devices == owner.devices) return plan;
    }
  }
  auto graph = std::make_unique<Graph>();
  ImportOptions import;
  import.allow_internal_names = true;
  MR_RETURN_IF_ERROR(ImportGraphDef(std::move(partition), import, graph.get()));
  for (const auto& node : graph->nodes()) {
    if (node != nullptr) node->set_assigned_device(node->requested_device());
  }
  const bool shared = !owner.is_isolated && KeepsStateInResources(*graph);
  MR_ASSIGN_OR_RETURN(std::shared_ptr<const WorkerPlan> plan,
                      Build(std::move(graph), owner, shared));
  if (shared) {
    MutexLock lock(&mu_);
    std::weak_ptr<const WorkerPlan>& place = plans_[digest];
    // Somebody else may have been faster.
    auto other = place.lock();
    if (other != nullptr && other->devices == plan->devices) return other;
    place = plan;
    for (auto it = plans_.begin(); it != plans_.end();) {
      it = it->second.expired() ? plans_.erase(it) : std::next(it);
    }
  }
  return plan;
}

StatusOr<std::shared_ptr<const WorkerPlan>> SharedPlans::Build(std::unique_ptr<const Graph> own,
                                                               const PlanOwner& owner,
                                                               bool shared) const {
  const Graph& graph = *own;
  const auto find_device = [&owner](absl::string_view name) -> Device* {
    for (const auto& device : owner.devices) {
      if (device->name == name) return device.get();
    }
    return nullptr;
  };
  std::vector<DeviceInfo> devices;
  for (const auto& device : owner.devices) {
    devices.push_back({device->name, device->type, device->incarnation});
  }
  auto plan = std::make_shared<WorkerPlan>();
  plan->devices = owner.devices;
  for (const auto& node : graph.nodes()) {
    if (node == nullptr) continue;
    if (find_device(node->assigned_device()) == nullptr) {
      return InvalidArgument("RegisterGraph on ", task_, ": node '", node->name(),
                             "' must be placed on a device of this task, got '",
                             node->assigned_device(), "'");
    }
    int* const places = node->is_arg()      ? &plan->num_args
                        : node->is_retval() ? &plan->num_results
                                            : nullptr;
    if (places == nullptr) continue;
    MR_ASSIGN_OR_RETURN(const int64_t index, GetAttr<int64_t>(node->def(), "index"));
    if (index >= kMaxNodeArgs) {
      return InvalidArgument("RegisterGraph on ", task_, ": node '", node->name(),
                             "': index must be below ", kMaxNodeArgs, ", got ", index);
    }
    *places = std::max(*places, static_cast<int>(index) + 1);
  }
  const PartitionOptions cut = PartitionOptionsFor(CutBy::kDeviceOfTask, devices);
  MR_ASSIGN_OR_RETURN(const GraphPartitions parts, PartitionGraph(graph, cut));
  for (const auto& [name, part] : parts) FillIncarnations(part.get(), cut.get_incarnation);
  plan->functions = owner.functions;
  // A shared plan may outlive its session: functions of its own do not keep the session's kernels.
  if (shared && !graph.library().empty()) {
    plan->functions = FunctionsOn(plan->devices, std::make_shared<KernelStore>());
  }
  MR_ASSIGN_OR_RETURN(plan->parts,
                      BuildParts(parts, find_device, shared ? nullptr : owner.kernels.get(),
                                 plan->functions.get(), nullptr));
  MR_DCHECK(plan->parts.size() <= plan->devices.size(), "the graph was cut by these devices");
  plan->graph = std::move(own);
  return std::shared_ptr<const WorkerPlan>(std::move(plan));
}

int SharedPlans::size() const {
  MutexLock lock(&mu_);
  return static_cast<int>(std::count_if(plans_.begin(), plans_.end(),
                                        [](const auto& p) { return !p.second.expired(); }));
}

}  // namespace millrace
