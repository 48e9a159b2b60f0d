// SPDX-License-Identifier: Apache-2.0
#include "runtime/executor.h"

#include <atomic>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "runtime/flat_engine.h"
#include "runtime/flat_step.h"
#include "runtime/step_host.h"

namespace millrace {

Executor::Executor(std::unique_ptr<FlatEngine> engine) : engine_(std::move(engine)) {}
Executor::~Executor() = default;

StatusOr<std::unique_ptr<Executor>> Executor::Make(std::shared_ptr<const Plan> plan) {
  if (plan->has_frames()) {
    return absl::UnimplementedError(absl::StrCat("Executor: '", plan->frame_node(),
                                                 "' is part of a while loop; loops are not "
                                                 "implemented"));
  }
  return std::unique_ptr<Executor>(new Executor(std::make_unique<FlatEngine>(std::move(plan))));
}

const Plan &Executor::plan() const { return engine_->plan(); }

ExecutorCounters Executor::counters() const {
  return {engine_->wakeups.load(std::memory_order_relaxed),
          engine_->blocking_waits.load(std::memory_order_relaxed)};
}

void Executor::RunAsync(const StepContext &context, const ExecutorOptions &options,
                        DoneCallback done) {
  FlatStep *const step = engine_->Acquire();
  step->Begin(context, options.stats, options.deadline, nullptr, std::move(done));
  step->WorkFromRoots();
  if (step->DropRef()) step->Finish();
}

Status Executor::Run(const StepContext &context, const ExecutorOptions &options) {
  const PartitionRun run = {this, &context};
  return RunPartitions(absl::MakeConstSpan(&run, 1), options);
}

Status RunPartitions(absl::Span<const PartitionRun> partitions, const ExecutorOptions &options) {
  if (partitions.empty()) return absl::OkStatus();
  StepHost host(static_cast<int>(partitions.size()));
  absl::InlinedVector<FlatStep *, 4> steps;
  for (const PartitionRun &partition : partitions) {
    steps.push_back(partition.executor->engine_->Acquire());
    steps.back()->Begin(*partition.step, options.stats, options.deadline, &host, nullptr);
  }
  for (FlatStep *step : steps) {
    step->WorkFromRoots();
    if (!step->DropRef()) continue;
    if (steps.size() == 1) return step->TakeResult();
    step->Finish();
  }
  absl::Time deadline = options.deadline;
  std::atomic<int64_t> *const waits = &partitions[0].executor->engine_->blocking_waits;
  bool timed_out = false;
  for (;;) {
    bool time_is_over = false;
    FlatStep *const step = host.Next(deadline, waits, &time_is_over);
    if (step != nullptr) {
      step->WorkAsHost();
      if (step->DropRef()) step->Finish();
    } else if (time_is_over) {
      timed_out = true;
      deadline = absl::InfiniteFuture();
      // The steps end by themselves now; one that is over already is not
      // touched.
      const StepContext &context = *partitions[0].step;
      if (context.rendezvous != nullptr) context.rendezvous->StartAbort(Derived(StepTimedOut()));
      if (context.cancellation != nullptr) context.cancellation->StartCancel();
    } else {
      break;
    }
  }
  Status status = host.TakeStatus();
  if (timed_out && !status.ok()) return StepTimedOut();
  return status;
}

}  // namespace millrace
