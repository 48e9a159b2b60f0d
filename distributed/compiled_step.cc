// SPDX-License-Identifier: Apache-2.0
#include "distributed/compiled_step.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "distributed/task_calls.h"
#include "graph/attr.h"
#include "graph/device_name.h"
#include "graph/partition.h"
#include "graph/rewrite/rewrite.h"
#include "runtime/constant_evaluator.h"
#include "runtime/rendezvous.h"

namespace millrace {
namespace {

// Of a client-terminated _Recv or _Send: both ends are on one device.
StatusOr<std::string> ClientKeyOf(const Node& node) {
  MR_ASSIGN_OR_RETURN(const std::string device, GetAttr<std::string>(node.def(), "send_device"));
  MR_ASSIGN_OR_RETURN(const std::string name, GetAttr<std::string>(node.def(), "tensor_name"));
  MR_ASSIGN_OR_RETURN(const int64_t incarnation,
                      GetAttr<int64_t>(node.def(), "send_device_incarnation"));
  return RendezvousKey::Make(device, static_cast<uint64_t>(incarnation), device, name, 0, 0);
}

// How feeds and fetches became nodes.
Status RecordSignature(const RewrittenSignature& rewritten, CompiledStep* compiled) {
  compiled->feed_types = rewritten.feed_types;
  for (const Node* node : rewritten.feed_nodes) {
    std::string key;
    PartialShape shape;
    if (node != nullptr) {
      MR_ASSIGN_OR_RETURN(key, ClientKeyOf(*node));
      const auto shapes = GetAttr<std::vector<PartialShape>>(node->def(), "_output_shapes");
      if (shapes.ok() && shapes->size() == 1) shape = shapes->front();
    }
    compiled->feed_keys.push_back(std::move(key));
    compiled->feed_shapes.push_back(std::move(shape));
  }
  for (const Node* node : rewritten.fetch_nodes) {
    MR_ASSIGN_OR_RETURN(const std::string key, ClientKeyOf(*node));
    const auto it = std::find(compiled->recv_keys.begin(), compiled->recv_keys.end(), key);
    compiled->fetch_index.push_back(static_cast<size_t>(it - compiled->recv_keys.begin()));
    if (it == compiled->recv_keys.end()) compiled->recv_keys.push_back(key);
  }
  return absl::OkStatus();
}

// Gives each task its part, all at once, and fills in the handles.
Status RegisterParts(std::map<std::string, tensorflow::GraphDef> parts, const CompileTarget& target,
                     CompiledStep* compiled) {
  std::vector<tensorflow::RegisterGraphRequest> requests;
  std::vector<std::shared_ptr<Transport>> transports;
  for (const bool own : {false, true}) {
    for (auto& [task, graph] : parts) {
      if ((task == target.own_task) != own) continue;
      const auto it = target.tasks.find(task);
      if (it == target.tasks.end()) {
        return absl::InternalError(
            absl::StrCat("Session: a partition must be for a task of it, got ", task));
      }
      if (own) compiled->own_part = static_cast<int>(transports.size());
      transports.push_back(it->second);
      tensorflow::RegisterGraphRequest& request = requests.emplace_back();
      request.set_session_handle(target.session_handle);
      request.set_create_worker_session_called(true);
      request.mutable_graph_def()->Swap(&graph);
      *request.mutable_graph_options() = target.config->graph_options();
    }
  }
  std::vector<tensorflow::RegisterGraphResponse> responses(requests.size());
  TaskCalls calls(static_cast<int>(requests.size()));
  for (size_t i = 0; i < requests.size(); ++i) {
    transports[i]->RegisterGraph(CallWithin(kSetupTimeout), requests[i], &responses[i],
                                 calls.Done(static_cast<int>(i)));
  }
  Status first;
  const std::vector<Status>& statuses = calls.Wait();
  for (size_t i = 0; i < requests.size(); ++i) {
    if (statuses[i].ok()) {
      compiled->parts.push_back({transports[i], responses[i].graph_handle()});
    } else if (first.ok()) {
      first = TellsOfRestart(statuses[i]) ? target.explain(transports[i], statuses[i])
                                          : FromTask(transports[i]->task(), statuses[i]);
    }
  }
  return first;
}

}  // namespace

CompiledStep::~CompiledStep() {
  if (forgotten.load(std::memory_order_relaxed)) return;
  for (const Part& part : parts) {
    auto request = std::make_shared<tensorflow::DeregisterGraphRequest>();
    request->set_session_handle(session_handle);
    request->set_create_worker_session_called(true);
    request->set_graph_handle(part.handle);
    // Nobody waits: a task that is gone has forgotten the graph anyway.
    part.transport->DeregisterGraph(CallWithin(kCleanupTimeout), *request,
                                    [request](const Status&) {});
  }
}

Status CheckFeeds(const CompiledStep& compiled, absl::Span<const Tensor> feeds) {
  const RunSignature& signature = compiled.signature;
  if (feeds.size() != signature.feeds.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Run: ", signature.feeds.size(), " tensors must be fed, got ", feeds.size()));
  }
  for (size_t i = 0; i < feeds.size(); ++i) {
    if (!feeds[i].has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("Cannot feed Tensor '", signature.feeds[i],
                                                     "' without a value, got an empty Tensor"));
    }
    if (compiled.feed_types[i] != DT_INVALID && feeds[i].dtype() != compiled.feed_types[i]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Cannot feed value of type ", DTypeName(feeds[i].dtype()), " for Tensor '",
          signature.feeds[i], "', which has type ", DTypeName(compiled.feed_types[i])));
    }
    if (!compiled.feed_shapes[i].IsCompatibleWith(feeds[i].shape())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Cannot feed value of shape ", feeds[i].shape().ToString(), " for Tensor '",
          signature.feeds[i], "', which has shape ", compiled.feed_shapes[i].ToString()));
    }
  }
  return absl::OkStatus();
}

StatusOr<std::shared_ptr<CompiledStep>> CompileStep(const Graph& graph,
                                                    const RunSignature& signature,
                                                    const CompileTarget& target) {
  auto compiled = std::make_shared<CompiledStep>();
  compiled->session_handle = target.session_handle;
  compiled->signature = signature;
  RunGraphOptions run_options;
  run_options.client_terminated = true;
  run_options.device = absl::StrCat(target.own_task, "/device:CPU:0");
  run_options.incarnation = IncarnationOf(target.devices, run_options.device);
  MR_ASSIGN_OR_RETURN(millrace::RunGraph run, BuildRunGraph(graph, signature, run_options));

  std::vector<DeviceInfo> devices;
  for (const auto& device : target.devices) {
    devices.push_back({device.name(), device.device_type(), device.incarnation()});
  }
  KernelRegistrySupport kernels;
  PlacementOptions placement;
  placement.allow_soft_placement = target.config->allow_soft_placement();
  placement.log_device_placement = target.config->log_device_placement();
  placement.default_device = run_options.device;
  placement.stateful_placements = target.placements;
  MR_RETURN_IF_ERROR(PlaceGraph(run.graph.get(), devices, &kernels, placement));
  KernelEvaluator evaluator;
  MR_RETURN_IF_ERROR(RewriteRunGraph(&run, &evaluator, target.config->graph_options()).status());
  MR_RETURN_IF_ERROR(RecordSignature(run.signature, compiled.get()));

  PartitionOptions partition;
  partition.new_name_mark = std::string("_S");
  partition.node_to_loc = [](const Node& node) {
    const StatusOr<std::string> task = TaskOfDevice(node.assigned_device());
    return task.ok() ? *task : std::string();
  };
  partition.get_incarnation = [&target](absl::string_view device) {
    return IncarnationOf(target.devices, device);
  };
  std::map<std::string, tensorflow::GraphDef> parts;
  MR_RETURN_IF_ERROR(PartitionGraph(*run.graph, partition, &parts));
  MR_RETURN_IF_ERROR(RegisterParts(std::move(parts), target, compiled.get()));
  return compiled;
}

uint64_t IncarnationOf(absl::Span<const tensorflow::DeviceAttributes> devices,
                       absl::string_view device) {
  for (const auto& known : devices) {
    if (known.name() == device) return known.incarnation();
  }
  return 0;
}

}  // namespace millrace
