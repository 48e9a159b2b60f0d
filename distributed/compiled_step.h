// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_COMPILED_STEP_H_
#define MILLRACE_DISTRIBUTED_COMPILED_STEP_H_

// CompiledStep: one signature (feeds, fetches, targets) of a session, ready to run on its tasks.
//
//   graph -> pruned to the signature -> placed over the session's devices -> cut by task
//         -> registered on each task, which answers with a handle
//
// Everything that does not change between two steps of a signature is in it; a step is one RunGraph
// per part. The master's own part comes last: it may keep the thread that starts the step.
//
// Thread-safety: immutable once compiled, so that steps share it. CompileStep blocks; never on a
// poller.
// Lifetime: the last owner deregisters the parts, without waiting. Forget() before that when the
// tasks have dropped the whole session.
// Failure: what pruning and placing say of the signature, what a task says of its part.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "distributed/transport.h"
#include "graph/graph.h"
#include "graph/placer.h"
#include "graph/prune.h"
#include "proto/config.pb.h"

namespace millrace {

struct CompiledStep {
  struct Part {
    std::shared_ptr<Transport> transport;
    std::string handle;
  };

  CompiledStep() = default;
  ~CompiledStep();
  CompiledStep(const CompiledStep&) = delete;
  CompiledStep& operator=(const CompiledStep&) = delete;

  // The parts need not be deregistered.
  void Forget() { forgotten.store(true, std::memory_order_relaxed); }

  std::string session_handle;
  std::vector<Part> parts;
  int own_part = -1;  // index in parts, or -1
  RunSignature signature;
  std::vector<DType> feed_types;          // DT_INVALID: any
  std::vector<PartialShape> feed_shapes;  // what the fed node says
  std::vector<std::string> feed_keys;     // "" for a feed that nothing needs
  std::vector<std::string> recv_keys;     // distinct
  std::vector<size_t> fetch_index;        // of fetch i in recv_keys

  // Relaxed: whoever destroys has synchronised with the other owners.
  std::atomic<bool> forgotten{false};
};

// InvalidArgument unless `feeds` has a value of the right dtype and shape for each feed.
Status CheckFeeds(const CompiledStep& compiled, absl::Span<const Tensor> feeds);

// What of a session a signature is compiled for.
struct CompileTarget {
  std::string own_task;
  std::string session_handle;
  const tensorflow::ConfigProto* config = nullptr;          // outlives the call
  std::vector<tensorflow::DeviceAttributes> devices;        // of all tasks
  std::map<std::string, std::shared_ptr<Transport>> tasks;  // by name
  StatefulPlacements* placements = nullptr;                 // the session's; outlives the call
  // Makes the step's error of a task's answer that tells of a restart. Blocks.
  std::function<Status(const std::shared_ptr<Transport>& task, const Status& answer)> explain;
};

StatusOr<std::shared_ptr<CompiledStep>> CompileStep(const Graph& graph,
                                                    const RunSignature& signature,
                                                    const CompileTarget& target);

// The incarnation of a device of the list; 0 when it is not there.
uint64_t IncarnationOf(absl::Span<const tensorflow::DeviceAttributes> devices,
                       absl::string_view device);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_COMPILED_STEP_H_
