// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/executor.h"

#include <new>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/time/clock.h"
#include "core/before_wait.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/flat_engine.h"
#include "runtime/engine/frame_engine.h"
#include "runtime/engine/step.h"
#include "runtime/engine/step_host.h"
#include "runtime/engine/step_life.h"

namespace millrace {
namespace {

// The steps of one RunPartitions, on the thread that waits for them.
class HostedSteps {
 public:
  HostedSteps(const ExecutorOptions& options, int num_steps)
      : options_(options), host_(num_steps) {}

  // bad_alloc; Cancel follows then.
  void Begin(Engine* engine, const StepContext& context) {
    steps_.reserve(steps_.size() + 1);
    steps_.push_back(engine->Begin({.context = &context,
                                    .stats = options_.stats,
                                    .deadline = options_.deadline,
                                    .host = &host_}));
  }
  // Ends what was begun and not run.
  void Cancel(const Status& status) {
    for (Step* const step : steps_) {
      step->Fail(status);
      static_cast<void>(step->TakeResult());
    }
  }

  Status Run(std::atomic<int64_t>* waits) {
    for (Step* const step : steps_) {
      if (!step->WorkFromRoots()) continue;
      if (steps_.size() == 1) return step->TakeResult();
      host_.StepEnded();
    }
    BeforeWait::Run();
    absl::Time limit = options_.deadline;
    for (bool overdue = false;;) {
      Step* step = nullptr;
      const StepHost::Turn turn = host_.Next(limit, waits, &step);
      if (turn == StepHost::Turn::kAllEnded) break;
      if (turn == StepHost::Turn::kWork) {
        if (step->WorkAsHost()) host_.StepEnded();
      } else if (!overdue) {
        overdue = true;
        EndOverdue();
        limit = options_.keep == nullptr ? absl::InfiniteFuture() : absl::Now() + kAnswerTime;
      } else {
        AbandonSilent();
        limit = absl::Now() + kLookAgain;
      }
    }
    for (Step* const step : steps_) {
      if (step != nullptr) Note(step->TakeResult());
    }
    return std::move(status_);
  }

 private:
  // The time is over: every step ends with that, unless it has a better reason.
  void EndOverdue() {
    const Status status = TimedOutOf(steps_);
    for (Step* const step : steps_) step->FailOverdue(status);
  }

  // Kernels had their time to answer.
  void AbandonSilent() {
    for (Step*& step : steps_) {
      Status status;
      if (step == nullptr || !step->Abandon(options_.keep, &status)) continue;
      step = nullptr;
      Note(status);
      host_.StepEnded();
    }
  }

  void Note(const Status& status) {
    if (!status.ok() && (status_.ok() || (IsDerived(status_) && !IsDerived(status)))) {
      status_ = status;
    }
  }

  const ExecutorOptions& options_;
  StepHost host_;
  absl::InlinedVector<Step*, 4> steps_;  // null: abandoned
  Status status_;
};

}  // namespace

Executor::Executor(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
Executor::~Executor() = default;

StatusOr<std::unique_ptr<Executor>> Executor::Make(std::shared_ptr<const Plan> plan) {
  std::unique_ptr<Engine> engine;
  if (plan->has_frames()) {
    engine = std::make_unique<FrameEngine>(std::move(plan));
  } else {
    engine = std::make_unique<FlatEngine>(std::move(plan));
  }
  return std::unique_ptr<Executor>(new Executor(std::move(engine)));
}

const Plan& Executor::plan() const { return engine_->plan(); }

ExecutorCounters Executor::counters() const {
  return {engine_->wakeups.load(std::memory_order_relaxed),
          engine_->blocking_waits.load(std::memory_order_relaxed)};
}

Status Executor::Run(const StepContext& context, const ExecutorOptions& options) {
  const PartitionRun run = {this, &context};
  return RunPartitions(absl::MakeConstSpan(&run, 1), options);
}

Status RunPartitions(absl::Span<const PartitionRun> partitions, const ExecutorOptions& options) {
  if (partitions.empty()) return absl::OkStatus();
  HostedSteps steps(options, static_cast<int>(partitions.size()));
  try {
    for (const PartitionRun& partition : partitions) {
      steps.Begin(partition.executor->engine(), *partition.step);
    }
  } catch (const std::bad_alloc&) {
    steps.Cancel(NoMemory());
    return NoMemory();
  }
  return steps.Run(&partitions[0].executor->engine()->blocking_waits);
}

}  // namespace millrace
