// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_STATE_BLOCK_H_
#define MILLRACE_RUNTIME_ENGINE_STATE_BLOCK_H_

// StateBlock: all that changes while the nodes of a plan run once: their input slots, what they
// wait for, the links of ready lists, and the runs of asynchronous kernels. A step of a plan
// without frames is one block.
//
// Invariant: between uses all slots and outputs are empty and no kernel is under way.
//
// Threads: a slot belongs to the edge that ends in it, then to its node's run; an AsyncRun to its
// node's run. Lifetime: the plan outlives it.
// Failure: only the constructor takes memory (std::bad_alloc).

#include <atomic>
#include <cstdint>
#include <vector>

#include "core/status.h"
#include "runtime/engine/kernel_runner.h"
#include "runtime/engine/pending_words.h"
#include "runtime/engine/ready_list.h"
#include "runtime/engine/step.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"
#include "runtime/step_stats.h"

namespace millrace {

// The run of an asynchronous kernel.
//
//   kIdle ─> kStarted ─> kReturned ─> kIdle   the kernel answers after ComputeAsync has returned
//                └─────> kAnswered ─> kIdle   ... before that
// From kStarted on by the loop that called and the thread that answers, whichever comes first; who
// comes second goes on with what the kernel has made.
struct AsyncRun {
  enum Phase : int { kIdle, kStarted, kReturned, kAnswered };

  Step* step = nullptr;
  uint32_t node = 0;
  bool dead = false;
  EdgeValue* outputs = nullptr;
  KernelFrame frame;
  KernelContext context{&frame};
  Status status;  // what the kernel answered
  Status thrown;  // what ComputeAsync threw
  NodeTimes times;
  // acq_rel where both may meet.
  std::atomic<int> phase{kIdle};
};

struct StateBlock {
  explicit StateBlock(const Plan& plan)
      : pending(plan.nodes().size()),
        links(plan.nodes().size()),
        slots(plan.num_slots()),
        async(plan.num_async()) {
    size_t num_outputs = 0;
    for (const Plan::Node& node : plan.nodes()) {
      if (node.async != nullptr) num_outputs += node.num_outputs;
    }
    async_outputs = std::vector<EdgeValue>(num_outputs);
    EdgeValue* outputs = async_outputs.data();
    for (uint32_t i = 0; i < plan.nodes().size(); ++i) {
      const Plan::Node& node = plan.nodes()[i];
      if (node.async == nullptr) continue;
      AsyncRun& run = async[node.async_index];
      run.node = i;
      run.outputs = outputs;
      outputs += node.num_outputs;
    }
  }
  StateBlock(const StateBlock&) = delete;
  StateBlock& operator=(const StateBlock&) = delete;

  EdgeValue* inputs(const Plan::Node& node) { return slots.data() + node.first_input; }

  // What was on its way to nodes that did not run, or came from kernels that failed.
  void Empty() {
    for (EdgeValue& slot : slots) {
      if (!millrace::IsEmpty(slot)) Reset(slot);
    }
    for (EdgeValue& output : async_outputs) {
      if (!millrace::IsEmpty(output)) Reset(output);
    }
  }

  PendingWords pending;
  ReadyLinks links;
  std::vector<EdgeValue> slots;
  std::vector<AsyncRun> async;
  std::vector<EdgeValue> async_outputs;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_STATE_BLOCK_H_
