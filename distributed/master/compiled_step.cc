// SPDX-License-Identifier: Apache-2.0
#include "distributed/master/compiled_step.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "distributed/link/frame.h"
#include "distributed/master/task_calls.h"
#include "graph/place/partition.h"

namespace millrace {
namespace {

// Whether steps can go to a task, whose links have this version.
Status CheckLinks(const WorkerControl& task, uint64_t version, const CompileTarget& target) {
  if (target.links != nullptr && version == kLinkVersion) return absl::OkStatus();
  const bool is_none = target.links == nullptr || version == 0;
  return FailedPrecondition("Session on ", target.own_task, ": ",
                            target.links == nullptr ? target.own_task : Whereabouts(task),
                            " must have links of version ", kLinkVersion, ", got ",
                            is_none ? "none" : absl::StrCat("version ", version),
                            "; run the same release in all tasks");
}

// Gives each task its part, all at once, and fills in the handles.
Status RegisterParts(GraphPartitions parts, const CompileTarget& target, CompiledStep* compiled) {
  std::vector<PartOrder> orders;
  std::vector<OpenSession> sessions;
  for (const bool own : {false, true}) {
    for (auto& [task, graph] : parts) {
      if ((task == target.own_task) != own) continue;
      if (own && target.local_part == nullptr) {
        return Internal("Session: the master of ", task, " must have a worker in its process");
      }
      const auto it = target.tasks.find(task);
      if (it == target.tasks.end()) {
        return Internal("Session: a partition must be for a task of it, got ", task);
      }
      AddHeldBytes(*graph, &compiled->held);
      sessions.push_back(it->second);
      PartOrder& order = orders.emplace_back();
      order.session_handle = it->second.handle;
      order.graph = std::move(graph);
      if (own) {
        compiled->own_part = static_cast<int>(orders.size()) - 1;
        compiled->local_part = target.local_part;
      } else {
        order.Flatten();
      }
    }
  }
  std::vector<RegisteredPart> registered(orders.size());
  std::string where;
  for (const OpenSession& session : sessions) {
    absl::StrAppend(&where, where.empty() ? "" : ", ", Whereabouts(*session.task));
  }
  target.on_phase(absl::StrCat("registering its parts on ", where));
  TaskCalls calls(static_cast<int>(orders.size()),
                  absl::StrCat("Session ", target.session_handle, " on ", target.own_task,
                               ", which registers a graph"),
                  target.clock);
  for (size_t i = 0; i < orders.size(); ++i) {
    const int part = static_cast<int>(i);
    CallOptions call = CallWithin(kSetupTimeout, target.timers);
    call.cancellation = target.cancellation;
    WorkerControl& task = *sessions[i].task;
    task.RegisterGraph(call, std::move(orders[i]), &registered[i], calls.Done(part, task));
  }
  Status first;
  const std::vector<Status>& statuses = calls.Wait();
  for (size_t i = 0; i < orders.size(); ++i) {
    const std::shared_ptr<WorkerControl>& task = sessions[i].task;
    if (statuses[i].ok()) {
      CompiledStep::Part& part = compiled->parts.emplace_back();
      part.control = task;
      part.request.set_session_handle(sessions[i].handle);
      part.request.set_create_worker_session_called(true);
      part.request.set_graph_handle(registered[i].graph_handle);
      part.request.set_store_errors_in_response_body(true);
      part.linked = {task->task(), sessions[i].handle, registered[i].graph_handle};
      const bool own = static_cast<int>(i) == compiled->own_part;
      if (first.ok() && !own) first = CheckLinks(*task, registered[i].link_version, target);
    } else if (first.ok()) {
      first = TellsOfRestart(statuses[i]) || TellsOfOtherRelease(statuses[i])
                  ? target.explain(task, FromTask(task->task(), statuses[i]))
                  : FromTask(task->task(), statuses[i]);
    }
  }
  const bool has_others = compiled->own_part < 0 || compiled->parts.size() > 1;
  if (has_others) compiled->links = target.links;
  return first;
}

}  // namespace

CompiledStep::~CompiledStep() {
  for (size_t i = 0; links != nullptr && i < parts.size(); ++i) links->Forget(parts[i].linked);
  if (forgotten.load(std::memory_order_relaxed)) return;
  for (const Part& part : parts) {
    // Nobody waits: a task that is gone has forgotten the graph anyway.
    part.control->DeregisterGraph(CallWithin(kCleanupTimeout, timers),
                                  part.request.session_handle(), part.request.graph_handle(),
                                  [](const Status&) {});
  }
}

StatusOr<std::shared_ptr<CompiledStep>> CompileStep(const Graph& graph,
                                                    const RunSignature& signature,
                                                    const CompileTarget& target) {
  auto compiled = std::make_shared<CompiledStep>();
  compiled->timers = target.timers;
  compiled->signature = signature;
  std::vector<DeviceInfo> devices;
  for (const auto& device : target.devices) {
    devices.push_back({device.name(), device.device_type(), device.incarnation()});
  }
  CutOptions options;
  options.config = target.config;
  options.cut = CutBy::kTask;
  options.devices = devices;
  options.default_device = absl::StrCat(target.own_task, "/device:CPU:0");
  options.boundary_device = options.default_device;
  options.placements = target.placements;
  options.warned_of_missing_gpu = target.warned_of_missing_gpu;
  target.on_phase("placing and cutting the graph");
  MR_ASSIGN_OR_RETURN(GraphPartitions parts, CutForSignature(graph, signature, options));
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
