// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_STATE_BLOCK_H_
#define MILLRACE_RUNTIME_ENGINE_STATE_BLOCK_H_

// StateBlock: all that changes while the nodes of a frame run once: their input slots, what they
// wait for, the links of ready lists, and the runs of asynchronous kernels. A step of a plan
// without frames is one block, an iteration of a loop has one. Nodes and slots have the numbers of
// the plan less those of the frame's first.
//
// Invariant: between uses all slots and outputs are empty, but for inputs that the plan has bound,
// and no kernel is under way.
//
// Threads: a slot belongs to the edge that ends in it, then to its node's run; an AsyncRun to its
// node's run. Lifetime: the plan outlives it.
// Failure: only the constructor takes memory (std::bad_alloc).

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "runtime/engine/async_run.h"
#include "runtime/engine/kernel_runner.h"
#include "runtime/engine/pending_words.h"
#include "runtime/engine/ready_list.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"

namespace millrace {

// Puts a value into an empty slot. (What is empty owns nothing: it needs no destruction.)
template <typename Value>
inline void Place(EdgeValue& slot, Value&& value) {
  std::construct_at(&slot, std::forward<Value>(value));
}

// Along an edge: moved when the edge is the last reader's.
inline void PlaceAlong(const Plan::Edge& edge, EdgeValue& slot, EdgeValue* value) {
  if ((edge.flags & Plan::kMoves) != 0) {
    Place(slot, std::move(*value));
  } else {
    Place(slot, static_cast<const EdgeValue&>(*value));
  }
}

struct StateBlock {
  StateBlock(const Plan& plan, const Plan::Frame& frame)
      : first_slot(frame.first_slot),
        pending(frame.num_nodes),
        links(frame.num_nodes),
        slots(frame.num_slots),
        async(frame.num_async) {
    const absl::Span<const Plan::Node> nodes =
        plan.nodes().subspan(frame.first_node, frame.num_nodes);
    size_t num_outputs = 0;
    for (const Plan::Node& node : nodes) {
      if (node.async != nullptr) num_outputs += node.num_outputs;
    }
    async_outputs = std::vector<EdgeValue>(num_outputs);
    EdgeValue* outputs = async_outputs.data();
    for (uint32_t i = 0; i < frame.num_nodes; ++i) {
      if (nodes[i].async == nullptr) continue;
      AsyncRun& run = async[nodes[i].async_index - frame.first_async];
      run.node = i;
      run.outputs = outputs;
      outputs += nodes[i].num_outputs;
    }
  }
  StateBlock(const StateBlock&) = delete;
  StateBlock& operator=(const StateBlock&) = delete;

  EdgeValue* inputs(const Plan::Node& node) {
    return slots.data() + (node.first_input - first_slot);
  }

  // What was on its way to nodes that did not run, or came from kernels that failed.
  void Empty() {
    for (EdgeValue& slot : slots) {
      if (!millrace::IsEmpty(slot)) Reset(slot);
    }
    for (EdgeValue& output : async_outputs) {
      if (!millrace::IsEmpty(output)) Reset(output);
    }
  }

  // An edge to a Merge or trigger: the entry (ready_list.h) of the node if it became ready. `dst`
  // and `slot` are the edge's here, `value` is null for a control edge.
  template <bool kSolo>
  uint32_t ArriveSpecial(const Plan::Edge& edge, uint32_t dst, uint32_t slot, uint32_t num_inputs,
                         EdgeValue* value, bool dead) {
    if ((edge.flags & Plan::kToMerge) != 0) {
      if (value == nullptr) return pending.ArriveControlAtMerge<kSolo>(dst, num_inputs);
      if (dead) return pending.ArriveDeadAtMerge<kSolo>(dst, num_inputs);
      if (!pending.TakeMerge<kSolo>(dst)) return kNoEntry;
      PlaceAlong(edge, slots[slot], value);
      return pending.ArriveLiveAtMerge<kSolo>(dst);
    }
    if (value != nullptr && !dead) PlaceAlong(edge, slots[slot], value);
    const bool passes = dead && (edge.flags & Plan::kToTrigger) == 0;
    const uint32_t word = pending.Arrive<kSolo>(dst, passes);
    return PendingWords::IsReady(word) ? dst | word : kNoEntry;
  }

  const uint32_t first_slot;
  PendingWords pending;
  ReadyLinks links;
  std::vector<EdgeValue> slots;
  std::vector<AsyncRun> async;
  std::vector<EdgeValue> async_outputs;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_STATE_BLOCK_H_
