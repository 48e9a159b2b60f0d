// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_WORK_QUEUE_SAVEABLE_H_
#define MILLRACE_SAVER_WORK_QUEUE_SAVEABLE_H_

// Work queues (ops/training/work_queue.h) in checkpoints: one string under the name of the queue's
// node, the state of the queue.
//
// A Saver that is not told what to save takes the queues of the graph's collection "work_queues",
// besides the variables. It reads their states before any variable: what a checkpoint calls done
// has its updates in the checkpoint's variables. (The other way round examples would be lost: a
// shard that was done between the two reads.) What is in tables is read at any time, before it or
// after: a Saver orders variables only.
//
// A Saver does not restore them: whoever fills a queue does (train/hooks/share_out_hook.h), after
// any restore, also of some variables alone, and when the checkpoint has no such queue.
//
// Thread-safety: as Scope. Failure: InvalidArgument by the queue's name.

#include <memory>
#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "graph/scope.h"
#include "saver/saver.h"

namespace millrace {

// The collection of the names of queues' nodes.
inline constexpr char kWorkQueues[] = "work_queues";

// `queue`: the handle of a queue of the scope's graph. The node that reads the state is made once.
StatusOr<std::shared_ptr<const Saveable>> MakeWorkQueueSaveable(ScopeAt at, const Output& queue);

// Of all queues in the graph's collection.
StatusOr<std::vector<std::shared_ptr<const Saveable>>> WorkQueueSaveablesOf(ScopeAt at);

// Is it what a queue's saveable saves?
bool IsWorkQueueState(const Output& tensor);

// What a checkpoint says of the queue whose node has this name: "" when it has no such queue.
// Errors of the file.
StatusOr<std::string> WorkQueueStateIn(FileSystem* fs, const std::string& checkpoint,
                                       const std::string& name);

}  // namespace millrace

#endif  // MILLRACE_SAVER_WORK_QUEUE_SAVEABLE_H_
