// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_TRAINING_WORK_QUEUE_H_
#define MILLRACE_OPS_TRAINING_WORK_QUEUE_H_

// Work queues: shards of training data, handed out to the trainers of a run by one task, each shard
// once an epoch (ops/kernels/work_queue.h says in which order, and what a death changes; programs
// use data/share_out.h and train/hooks/share_out_hook.h).
//
// A queue outlives steps and sessions; those of one name on one device are one. Whoever takes a
// shard is the session of the step: what it holds goes to others when it ends.
//
//   Fill      the list and the epochs; the first one counts
//   Take      the next shard; waits, without a thread, while other sessions hold the last ones and
//             when the queue is not filled; OutOfRange when all are done. A shard goes back when
//             the step that took it is given up (runtime/step_loans.h); one of a step that fails by
//             itself is its session's until that ends
//   Done      by ids that Take gave: how many of them this session held
//   Leave     this session takes nothing more, and does not wait; what it holds stays its own
//   Save      the state as a text, in which what is held is not done
//   Restore   such a text; "": nothing is done
//   Ledger    what has happened since the queue was made
//
// Errors: InvalidArgument for a list that cannot be, DataLoss for a text that is no state,
// Cancelled for a take whose step has ended. TensorFlow has no such ops.

#include <string>

#include "graph/node_builder.h"

namespace millrace {

struct WorkQueueAttrs {
  std::string container = "";
  std::string shared_name = "";  // the node's name when empty
};

// A handle.
inline Output WorkQueueHandle(ScopeAt at, const WorkQueueAttrs& attrs = {}) {
  return BuildOp(at, "WorkQueue", {}, "container", attrs.container, "shared_name",
                 attrs.shared_name);
}

// files string [n], begins and ends int64 [n] (ends -1: to the end of the file), num_epochs int64
// [] (-1: without end), shuffle_seed int64 [] (0: in the order of the list).
inline Operation WorkQueueFill(ScopeAt at, Output handle, Output files, Output begins, Output ends,
                               Output num_epochs, Output shuffle_seed) {
  return BuildOp(at, "WorkQueueFill", {handle, files, begins, ends, num_epochs, shuffle_seed});
}

// All scalars; id -1, and nothing else: there was no shard to take without waiting.
struct TakenShard {
  Output file, begin, end, epoch, id;
};
// may_wait bool [].
inline TakenShard WorkQueueTake(ScopeAt at, Output handle, Output may_wait) {
  const BuiltNode node = BuildOp(at, "WorkQueueTake", {handle, may_wait});
  return {node.output(0), node.output(1), node.output(2), node.output(3), node.output(4)};
}

// ids int64, any shape. int64 []: how many counted.
inline Output WorkQueueDone(ScopeAt at, Output handle, Output ids) {
  return BuildOp(at, "WorkQueueDone", {handle, ids});
}

inline Operation WorkQueueLeave(ScopeAt at, Output handle) {
  return BuildOp(at, "WorkQueueLeave", {handle});
}

// string [].
inline Output WorkQueueSave(ScopeAt at, Output handle) {
  return BuildOp(at, "WorkQueueSave", {handle});
}
inline Operation WorkQueueRestore(ScopeAt at, Output handle, Output state) {
  return BuildOp(at, "WorkQueueRestore", {handle, state});
}

// All int64 [].
struct WorkQueueCounts {
  Output handed_out, done, given_back, late, held;
};
inline WorkQueueCounts WorkQueueLedger(ScopeAt at, Output handle) {
  const BuiltNode node = BuildOp(at, "WorkQueueLedger", {handle});
  return {node.output(0), node.output(1), node.output(2), node.output(3), node.output(4)};
}

}  // namespace millrace

#endif  // MILLRACE_OPS_TRAINING_WORK_QUEUE_H_
