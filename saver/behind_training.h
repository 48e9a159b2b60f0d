// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_BEHIND_TRAINING_H_
#define MILLRACE_SAVER_BEHIND_TRAINING_H_

// RunBehindTraining: the writing of a save, which takes what training leaves of the processors.
//
// The work has a thread of its own with a lower priority (nice 5): where both want a core it gets
// about a third of what a training thread gets. It must not take locks that training wants: a
// thread that loses its core while it holds one is late to get it back, and training waits for all
// of that time. What needs them it asks the calling thread to do, which has the priority of
// training, does nothing else meanwhile, and is not left waiting by training threads any more than
// they by each other. (The kernel lets nobody raise a priority again without a privilege, so the
// thread cannot have its own priority back for a moment.) Locks of the allocator and the like
// remain: they are held for some ten nanoseconds, too short to lose the core in more than one of
// 10^5 times.
//
// A step of four MiB (variable_rows.h) changes threads twice, so a GiB 512 times.
//
// Thread-safety: any thread. Failure: that of the work; ResourceExhausted when it is out of memory,
// Internal for another exception of it. Without a thread the caller does it all.

#include "absl/functional/function_ref.h"
#include "core/status.h"

namespace millrace {

// Does a step of the work in front, on the thread that called RunBehindTraining, and returns after
// it; what it throws comes out here.
using InFront = absl::FunctionRef<void(absl::FunctionRef<void()> step)>;

Status RunBehindTraining(absl::FunctionRef<Status(InFront in_front)> work);

}  // namespace millrace

#endif  // MILLRACE_SAVER_BEHIND_TRAINING_H_
