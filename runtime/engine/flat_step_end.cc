// SPDX-License-Identifier: Apache-2.0
//
// Beginning and end of a step: a recycled state is made ready, and the end leaves it empty for the
// next step, or leaves it to kernels that never answered.
#include <utility>

#include "absl/time/clock.h"
#include "core/status.h"
#include "runtime/engine/async_run.h"
#include "runtime/engine/flat_engine.h"
#include "runtime/engine/flat_step.h"
#include "runtime/engine/state_block.h"
#include "runtime/engine/step.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"

namespace millrace {

FlatStep::FlatStep(FlatEngine* engine)
    : engine_(engine),
      plan_(engine->plan()),
      nodes_(plan_.nodes().data()),
      edges_(plan_.edges().data()),
      block_(plan_, plan_.frames()[0]),
      host_outputs_(std::make_unique<EdgeValue[]>(plan_.max_outputs())),
      crew_(engine, &life_, this, this, plan_.max_outputs()) {
  for (AsyncRun& run : block_.async) run.step = this;
}

FlatStep::~FlatStep() = default;

void FlatStep::Begin(const StepStart& start) {
  if (start.stats != nullptr) {
    scheduled_ns_.assign(plan_.nodes().size(), absl::GetCurrentTimeNanos());
  }
  block_.pending.Reset(plan_.initial_pending());
  ++uses_;
  crew_.Begin(start.context->arena);
  runs_ = {.plan = &plan_,
           .context = start.context,
           .costs = &engine_->costs(),
           .stats = start.stats,
           .parallel = crew_.num_threads() > 1};
  place_ = {.first_node = nodes_, .scheduled_ns = scheduled_ns_.data()};
  other_flags_ = Plan::kAsync | (runs_.parallel ? Plan::kMayBeExpensive : 0u);
  special_edges_ = Plan::kToMerge | Plan::kToTrigger | (runs_.parallel ? Plan::kToMeasured : 0u) |
                   (runs_.stats != nullptr ? Plan::kEveryEdge : 0u);
  shared_.Clear();
  nodes_run_.store(0, std::memory_order_relaxed);
  life_.Begin(start);
}

Status FlatStep::TakeResult() {
  const bool failed = life_.failed();
  if (failed) block_.Empty();
  Status status = life_.End();
  const uint64_t run = nodes_run_.load(std::memory_order_relaxed);
  if (ABSL_PREDICT_FALSE(!failed && run != plan_.nodes().size())) {
    status = Internal("Executor: a step must run each of its ", plan_.nodes().size(),
                      " nodes once, got ", run, " runs");
  }
  engine_->Release(this);
  return status;
}

void FlatStep::AppendSilentKernels(std::vector<std::string>* names) const {
  for (const AsyncRun& run : block_.async) {
    if (!run.IsSilent()) continue;
    names->push_back(plan_.WaitLabel(plan_.nodes()[run.node], life_.context()->rendezvous.get()));
  }
}

bool FlatStep::Abandon(std::shared_ptr<const void> keep, Status* status) {
  *status = life_.status();
  kept_ = std::move(keep);
  kept_plan_ = engine_->shared_plan();
  // From here on the kernels may free the step at any time.
  if (life_.TryOrphan()) return true;
  kept_ = nullptr;
  kept_plan_ = nullptr;
  return false;
}

}  // namespace millrace
