// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_ARENA_THREADS_H_
#define MILLRACE_CORE_ARENA_THREADS_H_

// StartArenaThreads: makes the threads of an arena begin now. By themselves they begin when there
// is work, as children of the thread that has it, and a child has its parent's priority for good:
// the first loop of a thread of low priority would leave the whole process with slow workers.
//
// It returns when as many tasks as the arena has threads have run at once, or after `patience`, as
// where other work keeps the threads: then some may not have begun.
//
// Thread-safety: from any thread that is not one of the arena's.
// Failure: none; threads that the system does not give are missing.

#include "absl/time/time.h"
#include "core/arena.h"

namespace millrace {

void StartArenaThreads(Arena* arena, absl::Duration patience = absl::Seconds(1));

}  // namespace millrace

#endif  // MILLRACE_CORE_ARENA_THREADS_H_
