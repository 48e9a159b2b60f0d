// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/compile_path.h"

#include <algorithm>
#include <utility>

#include "core/dtype.h"
#include "core/tensor.h"
#include "graph/device_name.h"
#include "graph/function_library.h"
#include "graph/rewrite/calls.h"
#include "graph/rewrite/rewrite.h"
#include "proto/attr_value.pb.h"
#include "proto/node_def.pb.h"
#include "proto/tensor.pb.h"
#include "runtime/constant_evaluator.h"
#include "runtime/device.h"

namespace millrace {
namespace {

// An estimate of what a plan, its executor and pooled step states take for a node without its
// constants: a few cache lines, names, a kernel.
constexpr int64_t kBytesPerNode = 1024;

// Of a constant whose value the node's body does not hold: each plan has its own.
int64_t OwnConstantBytes(const Node& node) {
  const auto value = node.def().attr().find("value");
  if (value == node.def().attr().end()) return 0;
  const tensorflow::TensorProto& tensor = value->second.tensor();
  int64_t bytes = static_cast<int64_t>(DTypeSize(static_cast<DType>(tensor.dtype())));
  if (bytes == 0) return static_cast<int64_t>(tensor.ByteSizeLong());  // strings and the like
  for (const auto& dim : tensor.tensor_shape().dim()) bytes *= dim.size();
  return bytes;
}

}  // namespace

PartitionOptions PartitionOptionsFor(CutBy cut, absl::Span<const DeviceInfo> devices) {
  PartitionOptions options;
  options.get_incarnation = [devices](absl::string_view name) -> uint64_t {
    for (const DeviceInfo& device : devices) {
      if (device.name == name) return device.incarnation;
    }
    return 0;
  };
  switch (cut) {
    case CutBy::kDevice:
      break;
    case CutBy::kTask:
      options.new_name_mark = "_S";
      options.marks_waves = true;
      options.node_to_loc = [](const Node& node) {
        const StatusOr<std::string> task = TaskOfDevice(node.assigned_device());
        return task.ok() ? *task : std::string();
      };
      break;
    case CutBy::kDeviceOfTask:
      options.new_name_mark = "_G";
      options.has_control_loops = true;
      break;
  }
  return options;
}

StatusOr<GraphPartitions> CutForSignature(const Graph& graph, const RunSignature& signature,
                                          const CutOptions& options) {
  RunGraphOptions boundary;
  boundary.device = options.boundary_device;
  MR_ASSIGN_OR_RETURN(RunGraph run, BuildRunGraph(graph, signature, boundary));
  return CutRunGraph(std::move(run), options);
}

StatusOr<GraphPartitions> CutRunGraph(RunGraph run, const CutOptions& options) {
  MR_RETURN_IF_ERROR(PrepareCalls(&run, CallOptionsFor(options.config->graph_options())));
  const KernelRegistrySupport kernels;
  PlacementOptions placement;
  placement.allow_soft_placement = options.config->allow_soft_placement();
  placement.log_device_placement = options.config->log_device_placement();
  placement.default_device = options.default_device;
  placement.stateful_placements = options.placements;
  placement.warned_of_missing_gpu = options.warned_of_missing_gpu;
  MR_RETURN_IF_ERROR(PlaceGraph(run.graph.get(), options.devices, &kernels, placement));
  KernelEvaluator evaluator;
  MR_RETURN_IF_ERROR(RewriteRunGraph(&run, &evaluator, options.config->graph_options()).status());
  PartitionOptions partition = PartitionOptionsFor(options.cut, options.devices);
  // Devices of one task share its memory: only between tasks are bytes worth bits.
  partition.floats_as_bfloat16 =
      options.cut == CutBy::kTask && options.config->graph_options().enable_bfloat16_sendrecv();
  MR_ASSIGN_OR_RETURN(GraphPartitions partitions, PartitionGraph(std::move(run.graph), partition));
  if (options.cut == CutBy::kTask) {
    // A task gets the functions that its own nodes call.
    for (const auto& [location, graph] : partitions) {
      graph->set_library(graph->library().ReachableFrom(*graph));
    }
  }
  return partitions;
}

StatusOr<std::vector<StepPart>> BuildParts(
    const GraphPartitions& partitions, absl::FunctionRef<Device*(absl::string_view)> find_device,
    KernelStore* kernels, FunctionRunner* functions, HeldBytes* held) {
  std::vector<StepPart> parts;
  const auto transfers = std::make_shared<TransferTable>();
  for (const auto& [location, graph] : partitions) {
    Device* const device = find_device(location);
    if (device == nullptr) {
      return Internal("Compile: a partition must be for a device of this task, got '", location,
                      "'");
    }
    MR_ASSIGN_OR_RETURN(std::shared_ptr<const Plan> plan,
                        Plan::Build(*graph, device, kernels, transfers, functions));
    MR_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor, Executor::Make(std::move(plan)));
    parts.push_back({device, std::move(executor)});
    if (held != nullptr) AddHeldBytes(*graph, held);
  }
  return parts;
}

std::shared_ptr<const TransferTable> TransfersOf(absl::Span<const StepPart> parts) {
  for (const StepPart& part : parts) {
    const Plan& plan = part.executor->plan();
    if (!plan.transfers().empty()) return plan.transfer_table();
  }
  return nullptr;
}

void AddHeldBytes(const Graph& graph, HeldBytes* held) {
  held->own += kBytesPerNode * graph.num_nodes();
  for (const auto& node : graph.nodes()) {
    if (node == nullptr || !node->is_const()) continue;
    const Tensor* const value = node->body()->value();
    if (value == nullptr) {
      held->own += OwnConstantBytes(*node);
    } else if (IsMemcopyable(value->dtype())) {
      // One body may be that of several nodes, and of other graphs.
      held->shared.emplace_back(node->body().get(), static_cast<int64_t>(value->bytes().size()));
    }
  }
}

int64_t HeldBytes::total() const {
  int64_t sum = own;
  for (const auto& [address, bytes] : shared) sum += bytes;
  return sum;
}

int ComputeThreads(const tensorflow::ConfigProto& config) {
  int threads = config.intra_op_parallelism_threads();
  if (threads <= 0) threads = config.inter_op_parallelism_threads();
  return threads < 0 ? 1 : threads;  // negative: "in the caller"
}

Status CheckRunOptions(const tensorflow::ConfigProto& config,
                       const tensorflow::RunOptions& options) {
  const int pool = options.inter_op_thread_pool();
  if (pool < -1 || pool > std::max(0, config.session_inter_op_thread_pool_size() - 1)) {
    return InvalidArgument("Invalid inter_op_thread_pool: ", pool);
  }
  return absl::OkStatus();
}

}  // namespace millrace
