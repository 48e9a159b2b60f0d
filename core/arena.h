// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_ARENA_H_
#define MILLRACE_CORE_ARENA_H_

// Arena: the threads that compute. One number sets how many run at once.
//
// oneTBB in ordinary builds; a pool of std::threads under ThreadSanitizer, because
// the system's TBB is not instrumented. Work never blocks: files and user code run in
// the IoPool, waiting is done by callbacks. The thread that calls ParallelFor takes part
// in it, so ParallelFor may be called from inside a task, also with one thread.
//
// Helpers are optional: a loop ends also when every other thread is busy. Of the threads inside
// loops never more than num_threads() work at once; the destructor waits for scheduled tasks.
//
// Thread-safety: all methods may be called from any thread; the destructor not from a task.
// Failure: a scheduled task must not throw. What a loop body throws first, ParallelFor throws in
// its caller, when all parts that had begun have returned; the other parts are then left out.

#include <cstdint>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"

namespace millrace {

class Arena {
 public:
  virtual ~Arena() = default;

  // Threads that compute at once, the caller of ParallelFor included. >= 1.
  virtual int num_threads() const = 0;

  // Runs `task` soon on a thread of the arena; never in the calling thread before Schedule returns.
  // Progress is guaranteed also with one thread when the caller blocks outside the arena.
  virtual void Schedule(absl::AnyInvocable<void()> task) = 0;

  // Calls body(begin, end) on disjoint parts of [0, n) until all is done. Parts are so large that
  // each costs at least about 10 us by `cost_ns` per item; small work runs in the caller alone.
  // While it waits, the caller runs only parts of this loop (isolation): no other task nests in.
  virtual void ParallelFor(int64_t n, double cost_ns,
                           absl::FunctionRef<void(int64_t begin, int64_t end)> body) = 0;

  // An arena of its own. num_threads >= 1.
  static std::unique_ptr<Arena> MakeTbb(int num_threads);
  static std::unique_ptr<Arena> MakeThreads(int num_threads);
  // MakeThreads under ThreadSanitizer, MakeTbb otherwise. 0 = number of cores.
  static std::unique_ptr<Arena> Make(int num_threads);
  // Shared by everything in the process that does not ask for its own; number of cores, or
  // MILLRACE_NUM_THREADS of the environment. Never destroyed.
  static Arena* Default();
};

}  // namespace millrace

#endif  // MILLRACE_CORE_ARENA_H_
