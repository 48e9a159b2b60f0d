// SPDX-License-Identifier: Apache-2.0
//
// Beginning, errors and end of a step: a recycled state is made ready, the first error stops it and
// takes everything that waits along, and the end leaves the state empty for the next step.
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/flat_step.h"

namespace millrace {
namespace {

bool IsEmpty(const EdgeValue& v) { return !v.buffer() && !v.has_value(); }

}  // namespace

FlatStep::FlatStep(FlatEngine* engine)
    : engine_(engine),
      plan_(engine->plan()),
      pending_(plan_.nodes().size()),
      links_(plan_.nodes().size()),
      slots_(plan_.num_slots()),
      outputs_(plan_.max_outputs()),
      async_(plan_.num_async()) {}

void FlatStep::Begin(const StepContext& context, StepStatsCollector* stats, absl::Time deadline,
                     StepHost* host, StepDone done) {
  pending_.Reset(plan_.initial_pending());
  ++uses_;
  context_ = &context;
  cancellation_ = context.cancellation;
  stats_ = stats;
  deadline_ = deadline;
  has_deadline_ = deadline != absl::InfiniteFuture();
  host_ = host;
  done_ = std::move(done);
  num_threads_ = context.arena->num_threads();
  parallel_ = num_threads_ > 1;
  solo_ = true;
  shared_.Clear();
  refs_.store(1, std::memory_order_relaxed);
  loops_.store(1, std::memory_order_relaxed);
  busy_.store(0, std::memory_order_relaxed);
  nodes_run_.store(0, std::memory_order_relaxed);
  failed_.store(false, std::memory_order_relaxed);
  if (stats_ != nullptr) scheduled_.assign(plan_.nodes().size(), absl::GetCurrentTimeNanos());
}

Status FlatStep::TakeResult() {
  Status status;
  if (failed_.load(std::memory_order_relaxed)) {
    // What was on its way to nodes that did not run.
    for (EdgeValue& slot : slots_) {
      if (!IsEmpty(slot)) Reset(slot);
    }
    MutexLock lock(&mu_);
    status = std::exchange(status_, absl::OkStatus());
  } else if (const uint64_t run = nodes_run_.load(std::memory_order_relaxed);
             ABSL_PREDICT_FALSE(run != plan_.nodes().size())) {
    status =
        absl::InternalError(absl::StrCat("Executor: a step must run each of its ",
                                         plan_.nodes().size(), " nodes once, got ", run, " runs"));
  }
  context_ = nullptr;
  cancellation_ = nullptr;
  engine_->Release(this);
  return status;
}

void FlatStep::Finish() {
  StepHost* const host = host_;
  StepDone done = std::move(done_);
  Status status = TakeResult();
  if (host != nullptr) {
    host->StepFinished(status);
  } else {
    done(std::move(status));
  }
}

Status StepTimedOut() { return absl::DeadlineExceededError("Timed out waiting for notification"); }

void FlatStep::Fail(Status status) {
  // An effect of the cancellation, not a cause of its own.
  if (absl::IsCancelled(status) && cancellation_ != nullptr && cancellation_->IsCancelled()) {
    status = Derived(status);
  }
  {
    MutexLock lock(&mu_);
    if (failed_.exchange(true, std::memory_order_relaxed)) return;
    status_ = status;
  }
  if (context_->rendezvous != nullptr) context_->rendezvous->StartAbort(Derived(status));
  if (cancellation_ != nullptr) cancellation_->StartCancel();
}

void FlatStep::FailNode(const Plan::Node& node, const Status& status) {
  Fail(NodeError(status, plan_.op(node), *node.name));
}

void FlatStep::FailCancelled() { Fail(Derived(absl::CancelledError("Step was cancelled."))); }

void FlatStep::FailTimedOut() { Fail(StepTimedOut()); }

}  // namespace millrace
