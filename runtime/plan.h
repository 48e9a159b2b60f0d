// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_PLAN_H_
#define MILLRACE_RUNTIME_PLAN_H_

// Plan: a pruned, placed graph on one device, as flat arrays that an engine runs.
//
// Nodes are numbered densely, in the order in which one thread runs them; those of one frame
// (graph/frames.h) follow each other, and so do their slots. A node's inputs are consecutive slots,
// its outgoing edges are consecutive and sorted so that a stack runs Sends first.
//
// Always true of a plan:
//   * every input slot has exactly one edge that ends in it;
//   * of the edges that leave one output, exactly the last may move the value (kMoves);
//   * without frames the graph has no cycle, so every node becomes ready exactly once in a step;
//   * an edge stays in its frame, except that those of an Enter lead into one, those of an Exit out
//     of one, and those of a NextIteration into the next iteration;
//   * every node has a kernel, built;
//   * nodes of constants and of handles of variables without inputs are bound, in a plan without
//     frames, where their readers allow it: their outputs stay in the readers' slots from step to
//     step, no pending word counts their edges, and an engine runs them (those of bound()) only
//     when what they gave may have changed (FlatStep::FillBound).
//
// Pending words (one per node and step or iteration; `initial_pending` is copied at its start):
//   ordinary node  bits 0-30 edges that have not arrived, bit 31 an arrived edge was dead
//   Merge          bit 0 no live input yet, bits 1-16 control edges missing,
//                  bits 17-29 dead data inputs, bit 30 a dead Enter has arrived,
//                  bit 31 taken by the first live input or the dead Enter
//
// Immutable after Build and shared by all steps and threads. It owns its stateless kernels and
// shares the stateful ones with the session's KernelStore.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/hash_table.h"
#include "core/mutex.h"
#include "core/status.h"
#include "graph/graph.h"
#include "runtime/device.h"
#include "runtime/function_runner.h"
#include "runtime/kernel.h"
#include "runtime/rendezvous.h"

namespace millrace {

// The attr in which a plan tells the kernel of a _Send or _Recv its number (an int).
inline constexpr char kTransferAttr[] = "_transfer";

// The stateful kernels of a session, by device and node name (of a node in a function: its
// identity, graph/function_body.h), so that their state outlives a signature. Thread-safe; `make`
// runs under the lock and must not use the store.
class KernelStore {
 public:
  StatusOr<std::shared_ptr<const Kernel>> FindOrMake(
      absl::string_view device, absl::string_view node,
      absl::FunctionRef<StatusOr<std::unique_ptr<Kernel>>()> make);
  int64_t size() const {
    MutexLock lock(&mu_);
    return static_cast<int64_t>(kernels_.size());
  }

 private:
  mutable Mutex mu_;
  HashMap<std::string, std::shared_ptr<const Kernel>> kernels_ ABSL_GUARDED_BY(mu_);
};

class Plan {
 public:
  static constexpr uint32_t kNoSlot = 0xffffffffu;
  static constexpr uint32_t kDeadBit = 1u << 31;

  static constexpr uint32_t kMergeNoLive = 1u;
  static constexpr uint32_t kMergeOneControl = 1u << 1;
  static constexpr uint32_t kMergeControlMask = 0xffffu << 1;
  static constexpr uint32_t kMergeOneDead = 1u << 17;
  static constexpr uint32_t kMergeDeadShift = 17;
  static constexpr uint32_t kMergeDeadMask = 0x3fffu;  // after the shift; with kMergeDeadEnter
  static constexpr uint32_t kMergeDeadEnter = 1u << 30;
  static constexpr uint32_t kMergeTaken = 1u << 31;

  enum NodeFlags : uint32_t {
    kSwitch = 1u << 0,
    kMerge = 1u << 1,
    kSend = 1u << 2,
    kRecv = 1u << 3,
    kControlTrigger = 1u << 4,
    kRefInputs = 1u << 5,            // an input comes from a reference output
    kAllowsUninitialized = 1u << 6,  // ... and may be uninitialised
    kMayBeExpensive = 1u << 7,
    kMayLeaveOutputsDead = 1u << 8,
    kRunsWhenDead = 1u << 9,
    kAsync = 1u << 10,
    kEveryNode = 1u << 11,  // set
    kEnter = 1u << 12,
    kExit = 1u << 13,
    kNextIteration = 1u << 14,
    kConstant = 1u << 15,     // an Enter whose value every iteration gets
    kBoundInputs = 1u << 16,  // some inputs are outputs of bound nodes
    kLeavesIteration = kEnter | kExit | kNextIteration,
  };
  enum EdgeFlags : uint32_t {
    kControl = 1u << 0,
    kMoves = 1u << 1,  // the last reader of its output
    kToMerge = 1u << 2,
    kToTrigger = 1u << 3,
    kToMeasured = 1u << 4,  // to a node that may be expensive
    kEveryEdge = 1u << 5,   // set
  };

  struct alignas(64) Node {  // one cache line
    const Kernel* kernel;
    const AsyncKernel* async;  // null unless asynchronous
    const std::string* name;
    uint32_t first_input, first_output;  // slots; in output_types()
    uint32_t num_inputs, num_outputs;
    uint32_t first_edge, num_edges;
    uint32_t flags;
    uint32_t async_index;  // among the asynchronous nodes
    // Of an Enter the frame that it leads into; of an Exit or NextIteration its place among those
    // of its frame.
    uint32_t flow;
    union {
      uint32_t constant;      // of a constant Enter, its place among those that lead into the frame
      uint32_t bound_inputs;  // with kBoundInputs: bit i is input i's
    };
  };
  struct Edge {
    uint32_t dst;
    uint32_t slot;  // kNoSlot for a control edge
    uint32_t output : 24;
    uint32_t flags : 8;
  };
  // A loop, or (number 0) what is outside of loops.
  struct Frame {
    std::string name;  // attr frame_name; "" for the root
    uint32_t parent;
    uint32_t place;         // among the children of the parent
    uint32_t num_children;  // frames
    uint32_t first_node, num_nodes;
    uint32_t first_slot, num_slots;
    uint32_t first_async, num_async;
    uint32_t num_enters, num_constants;  // that lead into it; how many of them are constant
    uint32_t num_exits, num_next_iterations;
    uint32_t parallel_iterations;  // at once, at most
    bool has_transfers;            // in it, or in a frame inside of it
  };
  // One end of an edge to another partition: a _Send or _Recv.
  struct TransferEnd {
    uint32_t node;
    uint32_t number;  // of the other end, too
    bool is_send;
    RendezvousKey key;
  };

  // `graph` holds the nodes of one device; it is not needed afterwards. `kernels` (may be null:
  // then the plan owns all) keeps stateful kernels. `device` outlives the plan. `transfers` numbers
  // what the plan sends and receives; it is that of all plans of the step, and the plan's own when
  // null. `functions` runs what nodes call (null: they call nothing) and outlives the plan.
  //   Unimplemented: an op kind or kernel that is not there, with op and node name.
  //   InvalidArgument: a cycle without NextIteration, an input without edge, frames that do not fit
  //   (graph/frames.h), a result inside of a loop, absurd numbers.
  static StatusOr<std::shared_ptr<const Plan>> Build(
      const Graph& graph, Device* device, KernelStore* kernels,
      std::shared_ptr<TransferTable> transfers = nullptr, FunctionRunner* functions = nullptr);

  absl::Span<const Node> nodes() const { return nodes_; }
  absl::Span<const Edge> edges() const { return edges_; }
  absl::Span<const uint32_t> initial_pending() const { return initial_pending_; }
  // Nodes that are ready at the start: the Recvs, then the others.
  absl::Span<const uint32_t> roots() const { return roots_; }
  uint32_t num_root_recvs() const { return num_root_recvs_; }
  // Nodes whose outputs stay where they are read.
  absl::Span<const uint32_t> bound() const { return bound_; }
  absl::Span<const DType> output_types(const Node& node) const {
    return absl::MakeConstSpan(output_types_.data() + node.first_output, node.num_outputs);
  }
  absl::Span<const DType> input_types(const Node& node) const {
    return absl::MakeConstSpan(input_types_.data() + node.first_input, node.num_inputs);
  }
  // Of all nodes: a node's begin at its first_output.
  absl::Span<const DType> all_output_types() const { return output_types_; }
  uint32_t num_slots() const { return static_cast<uint32_t>(input_types_.size()); }
  uint32_t max_outputs() const { return max_outputs_; }
  uint32_t num_async() const { return num_async_; }
  // What the plan sends and receives, in the order of the nodes. When there is something, steps
  // need a rendezvous made for the table; one made without a table finds them by their keys.
  absl::Span<const TransferEnd> transfers() const { return transfers_; }
  const std::shared_ptr<const TransferTable>& transfer_table() const { return transfer_table_; }
  // Whether there are loops: then the frame engine runs it.
  bool has_frames() const { return frames_.size() > 1; }
  // The root first, a parent before its children.
  absl::Span<const Frame> frames() const { return frames_; }
  uint32_t frame_of(uint32_t node) const;
  const std::string& device_name() const { return device_name_; }

  // For messages and traces.
  const std::string& op(const Node& node) const { return ops_[Index(node)]; }
  // "w" or "w:1": where a data input comes from.
  std::string InputName(const Node& node, uint32_t input) const;
  // Attr tensor_name and the other side's device of a Send or Recv, "" for others.
  std::string TransferLabel(const Node& node) const;
  // "<op> '<node>'", and of a Recv which tensor of which device it receives, by the step's
  // rendezvous (may be null) where that knows more than the plan: plans that tasks share have not
  // got their names.
  std::string WaitLabel(const Node& node, const Rendezvous* rendezvous) const;

 private:
  class Builder;
  Plan() = default;
  size_t Index(const Node& node) const { return static_cast<size_t>(&node - nodes_.data()); }
  // Null for a node that is no Send or Recv.
  const TransferEnd* FindTransfer(const Node& node) const;

  std::string device_name_;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<uint32_t> initial_pending_;
  std::vector<uint32_t> roots_;
  uint32_t num_root_recvs_ = 0;
  std::vector<uint32_t> bound_;
  std::vector<DType> input_types_, output_types_;
  uint32_t max_outputs_ = 0;
  uint32_t num_async_ = 0;
  std::vector<TransferEnd> transfers_;
  std::shared_ptr<const TransferTable> transfer_table_;
  std::vector<Frame> frames_;

  std::vector<std::shared_ptr<const Kernel>> kernels_;
  std::vector<std::string> names_, ops_;
  struct Source {
    uint32_t node;
    uint32_t output;
  };
  std::vector<Source> sources_;  // by slot
};

// The form of every error of a node, put on once: "<op> '<node>': <message>", then TensorFlow's
// suffix "\n\t [[{{node <node>}}]]". A message that has such a suffix already gets "\n\t
// [[<node>]]" only, and a derived status (see executor.h) stays as it is.
Status NodeError(const Status& status, absl::string_view op, absl::string_view node);

// "[_Derived_]": put before the message of a status that only passes on another one's error.
inline constexpr absl::string_view kDerivedMark = "[_Derived_]";
bool IsDerived(const Status& status);
Status Derived(const Status& status);
// Without the mark, for people.
Status WithoutDerivedMark(const Status& status);

// DeadlineExceeded "Timed out waiting for notification[; the step waited for <kernels>]": what a
// step whose time is over ends with, here or (as text) on another task.
Status TimedOutWaitingFor(absl::string_view kernels);
bool IsTimedOut(const Status& status);
// The kernels of such a status; empty when it names none.
absl::string_view WaitedFor(const Status& status ABSL_ATTRIBUTE_LIFETIME_BOUND);

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_PLAN_H_
