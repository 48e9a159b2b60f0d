// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_SEND_GROUPS_H_
#define MILLRACE_DISTRIBUTED_WORKER_SEND_GROUPS_H_

// SendGroups: which tensors of a step leave for another task together.
//
// All that a step sends to one task in one wave (graph/place/waves.h) is a group, known when the
// partition is registered (StepEdges). A small tensor waits in the stream's buffer until the last
// of its group is there; dead ones count. A large tensor, and what makes the buffer large, let the
// buffer leave at once, and so does a tensor that has no wave and is in no group. Each time all of
// the buffer leaves, also what is there of other groups. There is no timer.
//
// Why no tensor waits for ever:
//   * What a member of a group of wave w needs, it needs from its own task or from other tasks by
//     tensors of waves below w. Another tensor of wave w would have come through another task,
//     which makes the wave higher: if a member needed a member through a peer, its wave would be
//     higher by two.
//   * So waves leave one after the other: those of wave 0 need only their own task; when all of
//     the waves below w have left or will, the members of w become ready, the last of them, too.
//   * Nothing that a member needs waits for another step, and nothing of it is in a loop: such
//     nodes and all behind them have no wave. So a tensor that is held here may be what another
//     step waits for, in this session or in another: its group becomes whole all the same.
//   * A _Send in no loop runs once in each step that ends well, also for a value that is dead.
//   * A step that fails, here or by a peer or its caller, ends its streams with the error; one
//     that ends well lets everything leave that is left (StepRendezvous).
// What is slow in a wave delays the small tensors of its group, and nothing else.
//
// Groups belong to a registered partition, not to its plan, which other sessions may share: a step
// that runs another signature has the groups of that one. Tensors of loops travel one by one and
// are in no group.
//
// Thread-safety: all methods, from any thread. Lifetime: the edges outlive it.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "distributed/worker/step_edges.h"

namespace millrace {

class SendGroups {
 public:
  // A tensor of so many bytes leaves at once.
  static constexpr int64_t kLargeBytes = 64 << 10;
  // No more than so many bytes wait, all groups of a stream together.
  static constexpr int64_t kMaxWaitingBytes = 256 << 10;

  // What is to become of the buffer.
  enum class Next {
    kWait,   // until the group is whole
    kLeave,  // now
    kFree,   // the tensor is in no group: now, unless the caller knows that more comes soon
  };

  // Of what one step sends to `peer`.
  explicit SendGroups(const StepEdges::Peer& peer);
  SendGroups(const SendGroups&) = delete;
  SendGroups& operator=(const SendGroups&) = delete;

  // Tensor number `index` of the peer's list, with so many bytes (0 when it is dead), has been put
  // into the buffer. Once for each.
  Next Add(size_t index, int64_t bytes);
  // What is in the buffer is about to leave.
  void Leaving();

 private:
  const StepEdges::Peer& peer_;
  // By group; acq_rel: who finds the last of a group lets the others leave, too.
  const std::unique_ptr<std::atomic<int64_t>[]> missing_;
  // acq_rel: who resets it lets leave what others have added to it.
  std::atomic<int64_t> waiting_bytes_{0};
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_SEND_GROUPS_H_
