// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_EXECUTOR_H_
#define MILLRACE_RUNTIME_ENGINE_EXECUTOR_H_

// Executor: runs the steps of one plan.
//
// The thread that calls Run works: it takes ready nodes from its own stack until none is left.
// Arena threads are woken only while two or more expensive nodes are ready, or cheap ones that cost
// as much together (what a node costs is measured and keeps being measured). The only wait is that
// of a caller whose own work is used up while asynchronous kernels or arena threads are still busy;
// work that turns up then is handed to it.
//
// Invariants of a step:
//   * a node runs at most once (inside of a loop once in an iteration); a dead one does not run
//     (but _Send and _Recv do);
//   * after the first error no further kernel is started;
//   * Run returns (DetachedParts calls `done`, once) after the last running kernel returned;
//   * an asynchronous kernel that drops its `done` has failed (Internal), one that throws, too;
//   * an input that a kernel is the last to use is its own (BufferIsUnique).
// In the steady state a step of cheap nodes takes no mutex, allocates nothing but tensors and wakes
// nobody.
//
// Thread-safety: Run and RunPartitions may be called from many threads at once.
// Lifetime: destroy an Executor only after all its steps have ended. A kernel that does not
// answer when the time of its step is over may live longer: see ExecutorOptions::keep.
// Failure: the first error of the step, in the form of NodeError (plan.h). It aborts the
// rendezvous and starts the cancellation of the step. A status that only passes on another one's
// error is Derived. No memory is ResourceExhausted, wherever it was wanted; the next step runs.

#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"
#include "runtime/step_context.h"
#include "runtime/step_stats.h"

namespace millrace {

class Engine;

struct ExecutorOptions {
  // Null: the step is not traced. Outlives the step.
  StepStatsCollector* stats = nullptr;
  // Once it has passed the step ends with DeadlineExceeded "Timed out waiting for notification; the
  // step waited for <op> '<node>', ...", unless it has failed or was cancelled before: then with
  // that. Kernels are told by the cancellation; the step ends when they have returned and answered.
  absl::Time deadline = absl::InfiniteFuture();
  // Owns the steps' contexts and all that these point to (devices, cancellation, resources; not
  // arguments and results, which only synchronous kernels use). When it is set, Run waits for
  // asynchronous kernels that do not answer the cancellation for kAnswerTime only. Then it returns;
  // what such a kernel holds (its context, inputs and outputs, the plan and `keep`) is freed when
  // the kernel calls or drops its `done`. Null: Run waits until every kernel has answered.
  std::shared_ptr<const void> keep = nullptr;
};

// For kernels to answer the cancellation of a step whose time is over.
inline constexpr absl::Duration kAnswerTime = absl::Seconds(1);
// How often such a step is looked at after that, while arena threads still work for it.
inline constexpr absl::Duration kLookAgain = absl::Milliseconds(10);

// What an executor did since it was made; for tests.
struct ExecutorCounters {
  int64_t wakeups = 0;         // tasks given to the arena
  int64_t blocking_waits = 0;  // times a caller of Run waited
};

class Executor {
 public:
  // With the engine that the plan needs: for loops, or for graphs without.
  static StatusOr<std::unique_ptr<Executor>> Make(std::shared_ptr<const Plan> plan);
  ~Executor();

  // Runs a step in the calling thread, returns when it is over. `step` has arena and device set,
  // and rendezvous if the plan has transfers; with a deadline also cancellation.
  Status Run(const StepContext& step, const ExecutorOptions& options = {});

  const Plan& plan() const;
  ExecutorCounters counters() const;
  // For callers that begin steps themselves and see to their end (step.h). Lives as long as this.
  Engine* engine() const { return engine_.get(); }

 private:
  explicit Executor(std::unique_ptr<Engine> engine);
  const std::unique_ptr<Engine> engine_;
};

// One device's part of a step.
struct PartitionRun {
  Executor* executor = nullptr;
  const StepContext* step = nullptr;  // the rendezvous and the cancellation are those of all parts
};

// Runs the parts of one step together, all in the calling thread unless there is expensive work for
// others too. The error is that of the part that failed by itself, not of those that it took along.
Status RunPartitions(absl::Span<const PartitionRun> partitions,
                     const ExecutorOptions& options = {});

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_EXECUTOR_H_
