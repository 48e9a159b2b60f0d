// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_KERNEL_RUNNER_H_
#define MILLRACE_RUNTIME_ENGINE_KERNEL_RUNNER_H_

// KernelRunner: runs kernels for one loop of a step; the one place that knows how. Every engine
// calls it with a node, its inputs and its outputs, wherever it keeps them.
//
//   references are read -> Compute (measured, traced) -> outputs are checked -> inputs are emptied
//
// The context that kernels see is one for the whole loop and is pointed at the next node. What a
// kernel throws passes through: the engine's loop catches it, outside of its iteration over nodes,
// and asks Caught what has happened to which node.
//
// Threads: a runner belongs to one loop. Lifetime: what KernelRuns refers to outlives the runner.
// Failure: an error of the kernel, or one found in its outputs; the outputs are empty then.

#include <x86intrin.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/base/attributes.h"
#include "absl/base/optimization.h"
#include "absl/time/clock.h"
#include "core/status.h"
#include "runtime/engine/async_run.h"
#include "runtime/engine/node_costs.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"
#include "runtime/step_context.h"
#include "runtime/step_stats.h"

namespace millrace {

// Frees what `v` holds. Rebuilding is cheaper than assigning member by member.
inline void Reset(EdgeValue& v) {
  std::destroy_at(&v);
  std::construct_at(&v);
}
inline void Reset(EdgeValue* values, uint32_t n) {
  for (uint32_t i = 0; i < n; ++i) Reset(values[i]);
}
inline bool IsEmpty(const EdgeValue& v) { return !v.has_value() && !v.buffer(); }

// A kernel that throws has failed like one that returns an error. In a handler.
Status StatusOfException();

// Where the nodes are that a runner runs: outside of loops, or in an iteration of one.
struct RunPlace {
  const Plan::Node* first_node = nullptr;
  const int64_t* scheduled_ns = nullptr;  // of first_node and those after it, when traced
  const std::string* loop = nullptr;      // its name; null outside of loops
  uint64_t frame_id = 0;
  int64_t iteration = 0;
};

// What the runs of a step's kernels have in common.
struct KernelRuns {
  const Plan* plan = nullptr;
  const StepContext* context = nullptr;
  NodeCosts* costs = nullptr;
  StepStatsCollector* stats = nullptr;  // null: not traced
  bool parallel = false;                // more than one thread: kernels are measured
  // Set when a kernel has taken an input that is bound; relaxed: read at the next step's start.
  std::atomic<bool>* bound_taken = nullptr;

  Status ReadReferences(const Plan::Node& node, EdgeValue* inputs) const;
  Status CheckOutputs(const Plan::Node& node, const EdgeValue* outputs) const;
  // Of an asynchronous kernel that has answered `status`: the outputs are checked, the inputs
  // emptied. OK: the run's outputs are to be handed on; else they are empty.
  Status CheckAnswer(const Plan::Node& node, const RunPlace& place, EdgeValue* inputs,
                     AsyncRun* run, Status status) const noexcept;
};

class KernelRunner {
 public:
  // `outputs`: room for those of any node of the plan, empty. `tick` shifts which runs are sampled.
  KernelRunner(const KernelRuns& runs, EdgeValue* outputs, uint32_t tick)
      : runs_(runs),
        special_flags_(Plan::kRefInputs | (runs.parallel ? Plan::kMayBeExpensive : 0u) |
                       (runs.stats != nullptr ? Plan::kEveryNode : 0u)),
        output_types_(runs.plan->all_output_types().data()),
        tick_(tick) {
    frame_.step = runs.context;
    frame_.outputs = outputs;
  }
  KernelRunner(const KernelRunner&) = delete;
  KernelRunner& operator=(const KernelRunner&) = delete;

  EdgeValue* outputs() const { return frame_.outputs; }
  // Where the next nodes are.
  void SetPlace(const RunPlace& place) {
    place_ = place;
    frame_.frame_id = place.frame_id;
    frame_.iteration = place.iteration;
  }

  // The next iteration of the same place.
  void SetIteration(int64_t iteration) {
    place_.iteration = iteration;
    frame_.iteration = iteration;
  }

  // Runs a synchronous kernel. True: outputs() are the node's, for the caller to hand on and leave
  // empty. False: error() says why, and outputs() are empty. The inputs, but bound ones, are empty
  // either way, unless the kernel throws. With kLeavesInputs the caller empties them after success;
  // some may be empty already.
  template <bool kLeavesInputs = false>
  ABSL_ATTRIBUTE_ALWAYS_INLINE bool Run(const Plan::Node& node, EdgeValue* inputs, bool dead) {
    current_ = &node;
    frame_.node_name = node.name;
    frame_.inputs = inputs;
    frame_.output_types = output_types_ + node.first_output;
    frame_.num_inputs = node.num_inputs;
    frame_.num_outputs = node.num_outputs;
    if (ABSL_PREDICT_FALSE((node.flags & special_flags_) != 0 || dead)) {
      return RunSpecial(node, inputs, dead);
    }
    const Status status = node.kernel->Compute(&context_);
    if (ABSL_PREDICT_FALSE(!status.ok()) || !OutputsAreOfTheirTypes(node)) {
      return Settle(node, status);
    }
    if (!kLeavesInputs) EmptyInputs(node, inputs);
    return true;
  }
  // After the node's run, or instead of it: all inputs but those that are bound.
  void EmptyInputs(const Plan::Node& node, EdgeValue* inputs) const {
    if ((node.flags & Plan::kBoundInputs) == 0) return Reset(inputs, node.num_inputs);
    for (uint32_t i = 0; i < node.num_inputs; ++i) {
      const bool bound = i < 32 && (node.bound_inputs >> i & 1) != 0;
      if (!bound) {
        Reset(inputs[i]);
      } else if (ABSL_PREDICT_FALSE(!inputs[i].buffer() && inputs[i].num_elements() != 0)) {
        // Moved out of: the elements are gone.
        runs_.bound_taken->store(true, std::memory_order_relaxed);
      }
    }
  }
  const Status& error() const { return error_; }

  // Makes the run of an asynchronous kernel ready for its call. False: error() says why not.
  bool Prepare(const Plan::Node& node, EdgeValue* inputs, bool dead, AsyncRun* run);

  // In a handler around calls of Run: the status of what was thrown, and where. Leaves the outputs
  // empty, not the inputs.
  const Plan::Node& Caught();

 private:
  bool OutputsAreOfTheirTypes(const Plan::Node& node) const {
    for (uint32_t i = 0; i < node.num_outputs; ++i) {
      if (ABSL_PREDICT_FALSE(frame_.outputs[i].dtype() != frame_.output_types[i])) return false;
    }
    return true;
  }
  // Reads references, measures, traces, knows dead inputs: all that most nodes do without.
  bool RunSpecial(const Plan::Node& node, EdgeValue* inputs, bool dead);
  Status Compute(const Plan::Node& node);
  // After a run that is not plainly right: an error, or an output that is dead or of another type.
  bool Settle(const Plan::Node& node, const Status& status);

  const KernelRuns& runs_;
  RunPlace place_;
  const uint32_t special_flags_;
  const DType* const output_types_;
  uint32_t tick_;  // counts measurable nodes, for sampling
  const Plan::Node* current_ = nullptr;
  KernelFrame frame_;
  KernelContext context_{&frame_};
  Status error_;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_KERNEL_RUNNER_H_
