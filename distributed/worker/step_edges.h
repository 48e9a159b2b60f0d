// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_STEP_EDGES_H_
#define MILLRACE_DISTRIBUTED_WORKER_STEP_EDGES_H_

// StepEdges: what one partition exchanges with other tasks, known when it is registered.
//
// Both tasks of an edge know it by its wire key and sort the keys, so that a tensor that is pushed
// is named by its place in the list. For each key the plan has a number, by which a step finds the
// tensor. The fingerprint of the keys tells whether both tasks have parts of one graph. What is
// sent in one wave (graph/place/waves.h) is a group.
//
// Immutable once made: shared by all steps of the partition, from any thread.
// Failure: InvalidArgument for malformed attrs, Internal for a node that the plan does not have.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/hash_table.h"
#include "core/status.h"
#include "graph/graph.h"
#include "proto/node_def.pb.h"
#include "runtime/rendezvous.h"

namespace millrace {

// How tensors come from one task to another one in a step.
enum class EdgesBy {
  kLinks,       // each task pushes what it sends: steps of our own masters
  kRecvTensor,  // each is asked for by its key: steps that a foreign master starts by RunGraph
};

struct StepEdges {
  static constexpr int kNoGroup = -1;

  struct Peer {
    std::string task;
    // Sorted; as other tasks know them.
    std::vector<std::string> wire_keys;
    // In the same order; those of the plan's _Send and _Recv nodes.
    std::vector<uint32_t> numbers;
    // Sends only: in no group, and needs nothing from other tasks, so it is ready soon after the
    // start.
    std::vector<bool> immediate;
    int64_t num_immediate = 0;
    // Sends only: the group of each, or kNoGroup, and how many each group has.
    std::vector<int> groups;
    std::vector<int64_t> group_sizes;
    uint64_t fingerprint = 0;  // of wire_keys
    // Inside of loops, sorted by their keys, which are those of the root frame: indices of their
    // own.
    std::vector<std::string> loop_keys;
    std::vector<uint32_t> loop_numbers;
    uint64_t loop_fingerprint = 0;  // of wire_keys and loop_keys
  };
  std::vector<Peer> sends, recvs;
  int64_t num_sends = 0;  // outside of loops
  // Inside of loops. Keys are those of the root frame, as other tasks know them.
  struct LoopRecv {
    std::string task;
    std::string wire_key;
  };
  struct LoopSend {
    size_t peer;     // in sends
    uint32_t index;  // in its loop_numbers
  };
  HashMap<uint32_t, LoopRecv> loop_recvs;     // by number
  HashMap<std::string, uint32_t> loop_sends;  // numbers, by key
  HashMap<uint32_t, LoopSend> loop_sends_by_number;
  // By number: whether another task receives it, in a loop or not.
  std::vector<bool> is_sent;
  std::shared_ptr<const TransferTable> transfers;  // may be null: there are none

  // `graph` is the partition of a plan whose transfers are `plan`; `wire` are its nodes that send
  // and receive as the master sent them: they have the same names, other tasks' devices perhaps
  // not. InvalidArgument for malformed attrs, Internal for a node that the plan does not have.
  static StatusOr<StepEdges> Of(const Graph& graph, absl::Span<const tensorflow::NodeDef> wire,
                                std::shared_ptr<const TransferTable> plan,
                                absl::string_view own_task);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_STEP_EDGES_H_
