// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_CLUSTER_SERVER_LIMITS_H_
#define MILLRACE_DISTRIBUTED_CLUSTER_SERVER_LIMITS_H_

// ServerLimits: how much callers may take of a server of a cluster: the limits of its calls, and
// those of its sessions.
//
// What is beyond a limit is refused as net/call_limits.h says. A graph that a member runs may take
// memory without a limit: its ops do.
//
// What a task remembers for callers that come late (why a step failed, why a session ended) has
// bounds of its own: there the oldest goes, and nobody is refused.
//
// Plain data. Sizes in bytes.

#include <cstdint>

#include "absl/time/time.h"
#include "net/call_limits.h"

namespace millrace {

struct ServerLimits : CallLimits {
  // Sessions of clients at the master, and of masters at the worker: each so many.
  int64_t max_sessions = 10'000;
  // In one session of a master: signatures that a client refers to by number. Each keeps its
  // partitions registered.
  int64_t max_callables = 10'000;
  // In one session of a worker. Bytes: of the registered messages; in one of a master: of its
  // config, and of the messages that made its graph and its callables.
  int64_t max_graphs = 10'000;
  int64_t max_graph_bytes = int64_t{8} << 30;
  // In one session of a worker: stateful kernels, and functions that its graphs call. They stay, as
  // their state must, when a graph is dropped; with so many, no other graph is registered.
  int64_t max_session_kernels = 1'000'000;
  // A session of a client, or of a master, in another process that asked for no lease is idle when
  // it has had no call for so long and runs no step. So many idle ones stay, at the master and at
  // the worker each; beyond it the one that is idle for longest ends.
  absl::Duration idle_session_time = absl::Minutes(10);
  int64_t max_idle_sessions = 100;
  // In one session of a worker: steps that have ended well there and whose tensors other tasks have
  // still to take. The oldest are dropped: a step that runs on elsewhere takes them within its own
  // time, so an honest session has as many as it runs steps at once. The last one stays, however
  // many bytes it has.
  int64_t max_untaken_steps = 1000;
  int64_t max_untaken_bytes = int64_t{8} << 30;
  // Tensors that other tasks have pushed for steps that have not begun here, or for iterations of
  // loops that have not asked for them, each with 1 KiB more than its own. Tasks that send more
  // than that have to stop, each after 64 MiB and a large tensor, until these steps begin, or
  // iterations take them. What is beyond three times 64 MiB of each open link all the same, where a
  // larger message counts as 64 MiB, fails the step that it is for with Unavailable, or with
  // ResourceExhausted a loop that has most of the room itself; one message has room when nothing
  // else is kept, whatever its size.
  int64_t max_parked_bytes = int64_t{2} << 30;
  // Of one link to another task. A tensor that is larger than a frame and than max_tensor_bytes, or
  // beyond max_transfers that arrive at a time, fails its step. Tensors that arrive on all links
  // together have max_pending_bytes, next to that of requests, and what they do not list
  // max_splat_bytes of each frame. max_queued_bytes: of tensors that wait to be sent and are no
  // edges of steps.
  int64_t max_tensor_bytes = int64_t{16} << 30;
  int64_t max_transfers = 10'000;
  int64_t max_queued_bytes = int64_t{4} << 30;
  // Memory that this task shares with tasks of its host, for tensors of 64 KiB and more that it
  // sends them over Unix sockets: of all links together. Of what another task shares with this one,
  // as much is mapped for each link. 0: none; such tensors go through the socket. A link has half
  // of what others leave at most. MILLRACE_LINK_SHARED_BYTES in the environment takes its place.
  int64_t max_link_shared_bytes = int64_t{512} << 20;
  // Tensors that this task keeps for others because they have not changed since they came, so that
  // they need not travel again, and as much that others keep for it, to which it refers: of all
  // links together, each. A link may have a quarter of what others leave. Beyond it tensors travel
  // in each step. 0: none are kept.
  int64_t max_kept_bytes = int64_t{1} << 30;
  // Why steps have failed, for tasks that ask for their tensors later; for ten minutes at most.
  // Without it those hear of the failure from their own master only.
  int64_t max_failed_step_bytes = int64_t{4} << 20;
  // Names that training runs have only seen: chiefs that were fenced, tasks that have trained.
  // Beyond it each run has 8 KiB of its own (run/run_registry.h), of at most 1000 runs.
  int64_t max_run_note_bytes = int64_t{8} << 20;
  // Why sessions have ended, and as much again for sessions that were closed before they were
  // opened. Without it their masters hear no reason.
  int64_t max_ended_session_bytes = int64_t{1} << 20;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_CLUSTER_SERVER_LIMITS_H_
