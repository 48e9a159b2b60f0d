// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_BACKGROUND_THREAD_H_
#define MILLRACE_CORE_BACKGROUND_THREAD_H_

// Threads whose work must not disturb others: what loads a model while others are served.
//
// IoPool::Default() is another pool for them, of few threads, which are paced
// (core/paced_thread.h). For one whose priority is below the process's it is a third one: each task
// runs there with the priority ("nice") that its scheduler has at that time, or a lower one. So a
// step that such a thread runs reads its files as the thread itself would. Priorities only go down:
// to raise one takes a right that programs do not have.
//
// Thread-safety: from any thread. Failure: none.

namespace millrace {

// The calling thread is one from now on. Does not change its priority.
void BecomeBackgroundThread();
bool IsBackgroundThread();

}  // namespace millrace

#endif  // MILLRACE_CORE_BACKGROUND_THREAD_H_
