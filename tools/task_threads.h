// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_TASK_THREADS_H_
#define MILLRACE_TOOLS_TASK_THREADS_H_

// TaskThreads: with how many threads each task of a job computes, on a host that all share.
//
//   the flag's number, if the user gave one                      (0: as the environment says)
//   else MILLRACE_NUM_THREADS of the environment, if it is set   (0: as many as cores)
//   else max(1, cores / trainers), the remainder left out
//
// The trainers (master, chief, workers) are those that compute at the same time. The others get as
// many threads as a trainer but do not count. A ps works while a trainer waits for it; an evaluator
// works now and then. If they counted, cores would be idle for most of the time: a chief with one
// ps would have half a machine. What a division leaves over is for them, and for the threads of
// input and network. All trainers get the same: one with more threads would be ahead of the others,
// or wait for them.
//
// Thread-safety: a pure function.

#include <optional>
#include <string>

#include "core/status.h"

namespace millrace {

struct TaskThreads {
  // MILLRACE_NUM_THREADS of each task; none: the environment stays as it is.
  std::optional<int> per_task;
  // For a person: how many and why.
  std::string text;
};

// `cores` >= 1 and `trainers` >= 1 of the host. `flag`: none when the user did not give it.
// `variable`: MILLRACE_NUM_THREADS, null when it is not set. InvalidArgument for a flag or, where
// it counts, a variable that is no number in [0, kMaxComputingThreads].
StatusOr<TaskThreads> ThreadsOfTasks(int cores, int trainers, std::optional<int> flag,
                                     const char* variable);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_TASK_THREADS_H_
