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
// loops never more than num_threads() work at once; the destructor waits for scheduled tasks,
// unless a task of the arena's own runs it: then they run without it.
//
// What a loop body may do: compute on what its caller gave it, allocate memory of its own, take a
// lock for a few instructions to hand in a result (one that no caller of a loop holds), Schedule,
// and run a loop of its own, while it holds no lock. What it may not: wait for another thread, a
// file or a queue; take a lock that is held around a loop anywhere, the step's among them; call
// what belongs to one thread (a kernel's body changes nothing of its KernelContext: outputs and
// scratch are allocated before). Parts run in any order; the caller sees what they wrote when the
// loop returns.
//
// Determinism: where ParallelFor cuts depends on the number of threads. So its body must give the
// same bits wherever it is cut: it moves elements, or begins each item anew. What adds up items, or
// computes with vectors across them, takes ParallelBlocks, which cuts by its arguments alone.
//
// Thread-safety: all methods and the destructor may be called from any thread.
// Failure: a scheduled task must not throw. What a loop body throws first (in time), the loop
// throws in its caller, when all parts that had begun have returned; the other parts are then left
// out, so what the loop writes is incomplete.

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

  // Calls body(begin, end) once for each block of `block` >= 1 consecutive items of [0, n), the
  // last of which may be shorter. A thread takes any number of blocks, but the calls are the same
  // on any number of threads: results do not depend on it when `block` does not. `cost_ns` is per
  // item; small work runs in the caller alone.
  void ParallelBlocks(int64_t n, int64_t block, double cost_ns,
                      absl::FunctionRef<void(int64_t begin, int64_t end)> body);

  // An arena of its own. num_threads >= 1.
  static std::unique_ptr<Arena> MakeTbb(int num_threads);
  static std::unique_ptr<Arena> MakeThreads(int num_threads);
  // MakeThreads under ThreadSanitizer, MakeTbb otherwise. 0 = UsableCores() (core/cores.h).
  static std::unique_ptr<Arena> Make(int num_threads);
  // Shared by everything in the process that does not ask for its own; UsableCores(), or
  // MILLRACE_NUM_THREADS of the environment (a wrong value is logged). Never destroyed.
  static Arena* Default();
};

}  // namespace millrace

#endif  // MILLRACE_CORE_ARENA_H_
