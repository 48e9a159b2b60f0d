// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_SESSION_COMPILE_PATH_H_
#define MILLRACE_RUNTIME_SESSION_COMPILE_PATH_H_

// The compile path: from a session's graph and a signature to executors.
//
//   graph -> prune                                     BuildRunGraph
//         -> place -> rewrite -> partition             CutRunGraph
//         -> plan and executor per device              BuildParts
//
// CutForSignature is the first two; a function that is called begins with the second
// (function_runtime.h).
//
// The session of this process walks it whole, with one partition per device. On a cluster the
// master walks the first line, with one partition per task, and each task's worker cuts its
// partition by device (PartitionByDevice) and walks the second.
//
// Thread-safety: graphs are only read; `placements` belongs to the caller, who compiles serially.
// Failure: what the passes say, with the node's or tensor's name; nothing is kept then.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "graph/graph.h"
#include "graph/place/partition.h"
#include "graph/place/placer.h"
#include "graph/prune.h"
#include "graph/signature.h"
#include "proto/config.pb.h"
#include "runtime/device.h"
#include "runtime/engine/executor.h"
#include "runtime/function_runner.h"
#include "runtime/plan.h"
#include "runtime/rendezvous.h"

namespace millrace {

// Who cuts a graph: the names that it gives to new nodes, and what one partition is.
enum class CutBy {
  kDevice,        // a session of this process: "/_<n>"
  kTask,          // a master: "/_S<n>"
  kDeviceOfTask,  // a worker, its partition: "/_G<n>"
};
PartitionOptions PartitionOptionsFor(CutBy cut, absl::Span<const DeviceInfo> devices);

struct CutOptions {
  const tensorflow::ConfigProto* config = nullptr;  // outlives the call
  CutBy cut = CutBy::kDevice;
  // All there are, and the full name of the one that nodes go to which may go anywhere.
  absl::Span<const DeviceInfo> devices;
  std::string default_device;
  // Feeds and fetches live here; when empty the placer chooses.
  std::string boundary_device = "";
  // Where earlier signatures of the session put stateful nodes; extended.
  StatefulPlacements* placements = nullptr;
  // Whether the session has warned of a GPU that is not there; set.
  bool* warned_of_missing_gpu = nullptr;
};

StatusOr<GraphPartitions> CutForSignature(const Graph& graph, const RunSignature& signature,
                                          const CutOptions& options);
StatusOr<GraphPartitions> CutRunGraph(RunGraph run, const CutOptions& options);

// One device's part of a step.
struct StepPart {
  Device* device = nullptr;  // outlives it
  std::unique_ptr<Executor> executor;
};

// What a compiled signature keeps in memory.
struct HeldBytes {
  int64_t own = 0;
  // Constants, by the address of their memory: several signatures may hold one.
  std::vector<std::pair<const void*, int64_t>> shared;
  int64_t total() const;
};

// The numbers of what the parts send and receive; null when that is nothing.
std::shared_ptr<const TransferTable> TransfersOf(absl::Span<const StepPart> parts);

// Adds what the plan of `graph` holds.
void AddHeldBytes(const Graph& graph, HeldBytes* held);

// A plan and executor for each partition, whose location is the name of a device. `find_device`
// answers null for a device that is not here; `kernels` (may be null) keeps stateful kernels;
// `functions` (null: there are none) runs what nodes call. `held` (may be null) is added to.
StatusOr<std::vector<StepPart>> BuildParts(
    const GraphPartitions& partitions, absl::FunctionRef<Device*(absl::string_view)> find_device,
    KernelStore* kernels, FunctionRunner* functions, HeldBytes* held);

// How many threads compute, by a config: one number, intra-op wins, since loops inside of kernels
// and nodes share the arena. 0: those of the process.
int ComputeThreads(const tensorflow::ConfigProto& config);
// InvalidArgument for options that name a thread pool that the config does not have.
Status CheckRunOptions(const tensorflow::ConfigProto& config,
                       const tensorflow::RunOptions& options);

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_SESSION_COMPILE_PATH_H_
