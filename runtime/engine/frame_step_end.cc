// SPDX-License-Identifier: Apache-2.0
//
// Beginning and end of a step with frames: a recycled state is made ready, and the end leaves it
// empty for the next step, or leaves it to kernels that never answered.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/dcheck.h"
#include "core/mutex.h"
#include "core/status.h"
#include "runtime/engine/async_run.h"
#include "runtime/engine/frame_engine.h"
#include "runtime/engine/frame_step.h"
#include "runtime/engine/iteration.h"
#include "runtime/engine/state_block.h"
#include "runtime/engine/step.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"
#include "runtime/rendezvous.h"

namespace millrace {

FrameStep::FrameStep(FrameEngine* engine)
    : engine_(engine),
      plan_(engine->plan()),
      edges_(plan_.edges().data()),
      host_outputs_(std::make_unique<EdgeValue[]>(plan_.max_outputs())),
      root_(NewIteration(plan_.frames()[0])),
      free_iterations_(plan_.frames().size(), nullptr),
      free_loops_(plan_.frames().size(), nullptr),
      crew_(engine, &life_, this, this, plan_.max_outputs()) {}

FrameStep::~FrameStep() = default;

Iteration* FrameStep::NewIteration(const Plan::Frame& frame) {
  auto made = std::make_unique<Iteration>(plan_, frame);
  for (AsyncRun& run : made->block.async) run.step = this;
  if (engine_->straight(frame) != nullptr) made->marks.resize(size_t{2} * frame.num_nodes);
  MutexLock lock(&iterations_mu_);
  iterations_.push_back(std::move(made));
  return iterations_.back().get();
}

void FrameStep::Begin(const StepStart& start) {
  MR_DCHECK(kept_ == nullptr, "a step that was left to its kernels is never used again");
  MR_DCHECK(std::all_of(loops_.begin(), loops_.end(),
                        [](const auto& loop) { return loop->parent == nullptr; }),
            "a step that ended well has ended its loops, one that failed was emptied");
  const Plan::Frame& outside = plan_.frames()[0];
  if (start.stats != nullptr) {
    root_->scheduled_ns.assign(outside.num_nodes, absl::GetCurrentTimeNanos());
  }
  root_->block.pending.Reset(plan_.initial_pending().subspan(0, outside.num_nodes));
  root_->holds.store(1, std::memory_order_relaxed);
  root_->nodes_run.store(0, std::memory_order_relaxed);
  ++uses_;
  crew_.Begin(start.context->arena);
  runs_ = {.plan = &plan_,
           .context = start.context,
           .costs = &engine_->costs(),
           .stats = start.stats,
           .parallel = crew_.num_threads() > 1};
  other_flags_ =
      Plan::kAsync | Plan::kLeavesIteration | (runs_.parallel ? Plan::kMayBeExpensive : 0u);
  special_edges_ = Plan::kToMerge | Plan::kToTrigger | (runs_.parallel ? Plan::kToMeasured : 0u) |
                   (runs_.stats != nullptr ? Plan::kEveryEdge : 0u);
  life_.Begin(start);
}

Status FrameStep::CheckAllHasRun() const {
  // The first one, by the iterations that they are in.
  const LoopFrame* begun = nullptr;
  for (const std::unique_ptr<LoopFrame>& loop : loops_) {
    if (loop->parent == nullptr || loop->num_enters_left == 0) continue;
    if (begun == nullptr || loop->parent->number.load(std::memory_order_relaxed) <
                                begun->parent->number.load(std::memory_order_relaxed)) {
      begun = loop.get();
    }
  }
  if (begun != nullptr) {
    const Iteration& parent = *begun->parent;
    const std::string where =
        parent.loop == nullptr
            ? std::string("outside of loops")
            : absl::StrCat("in iteration ", parent.number.load(std::memory_order_relaxed),
                           " of loop '", parent.of->name, "'");
    return InvalidArgument("Executor: loop '", begun->of->name,
                           "' must get something from each of its ", begun->of->num_enters,
                           " Enters when it gets it from one, got nothing from ",
                           begun->num_enters_left, " of them ", where);
  }
  const uint32_t num_nodes = plan_.frames()[0].num_nodes;
  const uint32_t run = root_->nodes_run.load(std::memory_order_relaxed);
  if (run == num_nodes) return absl::OkStatus();
  return Internal("Executor: a step must run each of its ", num_nodes,
                  " nodes outside of loops once, got ", run, " runs");
}

void FrameStep::EmptyAll() {
  MutexLock lock(&iterations_mu_);
  std::fill(free_iterations_.begin(), free_iterations_.end(), nullptr);
  std::fill(free_loops_.begin(), free_loops_.end(), nullptr);
  for (const std::unique_ptr<Iteration>& iteration : iterations_) {
    iteration->block.Empty();
    iteration->passed_on.Clear();
    iteration->shared.Clear();
    std::fill(iteration->children.begin(), iteration->children.end(), nullptr);
    iteration->nodes_run.store(iteration->of->num_nodes, std::memory_order_relaxed);
    if (iteration.get() != root_) Recycle(iteration.get());
  }
  for (const std::unique_ptr<LoopFrame>& loop : loops_) Recycle(loop.get());
  MutexLock shared_lock(&shared_mu_);
  first_shared_ = nullptr;
  num_shared_.store(0, std::memory_order_relaxed);
}

Status FrameStep::TakeResult() {
  const bool failed = life_.failed();
  Status status = life_.End();
  if (!failed) status = CheckAllHasRun();
  if (!status.ok()) EmptyAll();
  engine_->Release(this);
  return status;
}

void FrameStep::AppendSilentKernels(std::vector<std::string>* names) const {
  const Rendezvous* const rendezvous = life_.context()->rendezvous.get();
  MutexLock lock(&iterations_mu_);
  for (const std::unique_ptr<Iteration>& iteration : iterations_) {
    for (const AsyncRun& run : iteration->block.async) {
      if (!run.IsSilent()) continue;
      std::string label = plan_.WaitLabel(iteration->nodes[run.node], rendezvous);
      if (iteration.get() != root_) {
        absl::StrAppend(&label, " in iteration ", iteration->number.load(std::memory_order_relaxed),
                        " of '", iteration->of->name, "'");
      }
      names->push_back(std::move(label));
    }
  }
}

bool FrameStep::Abandon(std::shared_ptr<const void> keep, Status* status) {
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
