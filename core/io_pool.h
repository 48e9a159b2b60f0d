// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_IO_POOL_H_
#define MILLRACE_CORE_IO_POOL_H_

// IoPool: a bounded set of threads for work that blocks (files, user code).
//
// Threads start when needed, up to the bound, and are joined by the destructor
// after the queue has been emptied. Tasks run in the order of Schedule, several at a time.
//
// Thread-safety: Schedule may be called from any thread, also from a task.
// Failure: a task must not throw. When the system gives no first thread, Schedule runs the task.

#include <memory>

#include "absl/functional/any_invocable.h"

namespace millrace {

class IoPool {
 public:
  // 0 threads: tasks run in Schedule.
  explicit IoPool(int max_threads);
  ~IoPool();
  IoPool(const IoPool&) = delete;
  IoPool& operator=(const IoPool&) = delete;

  void Schedule(absl::AnyInvocable<void()> task);

  // 16 threads, shared by the process; never destroyed.
  static IoPool* Default();
  // Without threads: for tasks that may block and must not wait for others.
  static IoPool* InCaller();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millrace

#endif  // MILLRACE_CORE_IO_POOL_H_
