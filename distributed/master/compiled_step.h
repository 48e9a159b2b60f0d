// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_COMPILED_STEP_H_
#define MILLRACE_DISTRIBUTED_MASTER_COMPILED_STEP_H_

// CompiledStep: one signature (feeds, fetches, targets) of a session, ready to run on its tasks.
//
//   graph -> cut by task (CutForSignature) -> registered on each task, which answers with a handle
//
// Everything that does not change between two steps of a signature is in it; a step is one RUN on a
// link for each part on another task, and a call for the master's own, which comes last: it may
// keep the thread that starts the step. All feeds and fetches are in it, by position; its graph is
// handed over as it is.
//
// Thread-safety: immutable once compiled, so that steps share it. CompileStep blocks; never on a
// poller.
// Lifetime: the last owner deregisters the parts, without waiting. Forget() before that when the
// tasks have dropped the whole session.
// Failure: what pruning and placing say of the signature, what a task says of its part;
// FailedPrecondition for a task whose links have another version than this one's, or that has none.

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/cancellation.h"
#include "core/clock.h"
#include "core/status.h"
#include "distributed/master/link_parts.h"
#include "distributed/master/task_connector.h"
#include "distributed/transport/local_part.h"
#include "distributed/transport/worker_control.h"
#include "graph/graph.h"
#include "graph/place/placer.h"
#include "graph/signature.h"
#include "net/timers.h"
#include "proto/config.pb.h"
#include "runtime/session/compile_path.h"

namespace millrace {

struct CompiledStep {
  struct Part {
    std::shared_ptr<WorkerControl> control;
    tensorflow::RunGraphRequest request;  // what is the same for all steps
    LinkedGraph linked;                   // the same for links
  };

  CompiledStep() = default;
  ~CompiledStep();
  CompiledStep(const CompiledStep&) = delete;
  CompiledStep& operator=(const CompiledStep&) = delete;

  // The parts need not be deregistered.
  void Forget() { forgotten.store(true, std::memory_order_relaxed); }

  Timers* timers = Timers::Real();
  // Runs the own part; null when there is none.
  std::shared_ptr<LocalPart> local_part;
  // Null when there is only this task's part.
  std::shared_ptr<LinkParts> links;
  std::vector<Part> parts;
  int own_part = -1;  // index in parts, or -1 when nothing is fetched and the rest is elsewhere
  RunSignature signature;
  HeldBytes held;  // on all tasks

  // Relaxed: the thread that destroys has synchronised with the other owners.
  std::atomic<bool> forgotten{false};
};

// What of a session a signature is compiled for.
struct CompileTarget {
  std::string own_task;
  std::string session_handle;                         // the master's; for messages
  Timers* timers = Timers::Real();                    // of the calls
  const tensorflow::ConfigProto* config = nullptr;    // outlives the call
  std::vector<tensorflow::DeviceAttributes> devices;  // of all tasks
  std::map<std::string, OpenSession> tasks;           // by name
  // Null: this task has none, and runs steps of its own alone.
  std::shared_ptr<LinkParts> links;
  std::shared_ptr<LocalPart> local_part;  // of this task
  // The session's; outlive the call.
  StatefulPlacements* placements = nullptr;
  bool* warned_of_missing_gpu = nullptr;
  // Ends the calls to tasks early; outlives the call.
  CancellationManager* cancellation = nullptr;
  Clock* clock = Clock::Real();
  // Hears what is done now, for callers that do not wait to the end.
  std::function<void(std::string)> on_phase;
  // Makes the step's error of a task's answer that tells of a restart. Blocks.
  std::function<Status(const std::shared_ptr<WorkerControl>& task, const Status& answer)> explain;
};

StatusOr<std::shared_ptr<CompiledStep>> CompileStep(const Graph& graph,
                                                    const RunSignature& signature,
                                                    const CompileTarget& target);

// The incarnation of a device of the list; 0 when it is not there.
uint64_t IncarnationOf(absl::Span<const tensorflow::DeviceAttributes> devices,
                       absl::string_view device);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_COMPILED_STEP_H_
