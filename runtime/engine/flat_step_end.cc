// SPDX-License-Identifier: Apache-2.0
//
// Beginning and end of a step: a recycled state is made ready, and the end leaves it empty for the
// next step (but for what is bound), or leaves it to kernels that never answered.
#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "core/dcheck.h"
#include "core/dtype.h"
#include "core/resource_handle.h"
#include "core/status.h"
#include "runtime/engine/async_run.h"
#include "runtime/engine/flat_engine.h"
#include "runtime/engine/flat_step.h"
#include "runtime/engine/kernel_runner.h"
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
  MR_DCHECK(kept_ == nullptr, "a step that was left to its kernels is never used again");
  block_.pending.Reset(plan_.initial_pending());
  ++uses_;
  crew_.Begin(start.context->arena);
  runs_ = {.plan = &plan_,
           .context = start.context,
           .costs = &engine_->costs(),
           .stats = start.stats,
           .parallel = crew_.num_threads() > 1,
           .bound_taken = &bound_taken_};
  place_ = {.first_node = nodes_, .scheduled_ns = scheduled_ns_.data()};
  other_flags_ = Plan::kAsync | (runs_.parallel ? Plan::kMayBeExpensive : 0u);
  special_edges_ = Plan::kToMerge | Plan::kToTrigger | (runs_.parallel ? Plan::kToMeasured : 0u) |
                   (runs_.stats != nullptr ? Plan::kEveryEdge : 0u);
  shared_.Clear();
  nodes_run_.store(0, std::memory_order_relaxed);
  life_.Begin(start);
}

bool FlatStep::IsBoundFilled() const {
  if (plan_.bound().empty()) return true;
  if (!bound_filled_ || bound_device_ != life_.context()->device || runs_.stats != nullptr ||
      bound_taken_.load(std::memory_order_relaxed)) {
    return false;
  }
  // After a Reset a handle is another one.
  return std::none_of(bound_resources_.begin(), bound_resources_.end(),
                      [](const auto& resource) { return resource->abandoned(); });
}

void FlatStep::FillBound(Loop& loop) noexcept {
  bound_filled_ = false;
  bound_device_ = life_.context()->device;
  bound_resources_.clear();
  bound_taken_.store(false, std::memory_order_relaxed);
  try {
    for (const uint32_t index : plan_.bound()) {
      if (life_.Stopped()) return;
      const Plan::Node& node = nodes_[index];
      EdgeValue* const outputs = loop.runner.outputs();
      if (!loop.runner.Run(node, InputsOf(node), /*dead=*/false)) {
        return life_.FailNode(plan_, node, loop.runner.error());
      }
      for (uint32_t i = 0; i < node.num_edges; ++i) {
        const Plan::Edge& edge = edges_[node.first_edge + i];
        if (edge.slot != Plan::kNoSlot) block_.slots[edge.slot] = outputs[edge.output];
      }
      if (outputs[0].dtype() == DT_RESOURCE && outputs[0].num_elements() == 1) {
        auto resource = outputs[0].raw_scalar<ResourceHandle>().resource;
        if (resource != nullptr) bound_resources_.push_back(std::move(resource));
      }
      Reset(outputs, node.num_outputs);
    }
    bound_filled_ = true;
  } catch (...) {
    const Plan::Node& node = loop.runner.Caught();
    life_.FailNode(plan_, node, loop.runner.error());
  }
}

Status FlatStep::TakeResult() {
  const bool failed = life_.failed();
  if (failed) {
    block_.Empty();
    bound_filled_ = false;
  }
  Status status = life_.End();
  const uint64_t run = nodes_run_.load(std::memory_order_relaxed);
  const uint64_t expected = plan_.nodes().size() - plan_.bound().size();
  if (ABSL_PREDICT_FALSE(!failed && run != expected)) {
    status = Internal("Executor: a step must run each of its ", expected, " nodes once, got ", run,
                      " runs");
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
  if (life_.TryOrphan()) {
    MR_DCHECK(!status->ok(), "only a step that has failed is left to its kernels");
    return true;
  }
  kept_ = nullptr;
  kept_plan_ = nullptr;
  return false;
}

}  // namespace millrace
