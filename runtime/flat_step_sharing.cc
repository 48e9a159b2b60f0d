// SPDX-License-Identifier: Apache-2.0
//
// A step with several threads: an expensive node that one loop has too many of goes onto the shared
// stack, and another loop is asked for: of the host thread when it waits, else of an arena thread.
#include "absl/container/inlined_vector.h"
#include "runtime/flat_step.h"

namespace millrace {

void FlatStep::Publish(uint32_t entry) {
  LeaveSolo();
  shared_.Push(links_, entry);
  if (loops_.load(std::memory_order_relaxed) < num_threads_) RequestLoop(/*expensive=*/true);
}

// A loop that leaves first counts itself out and then looks at the shared stack; who pushes first
// pushes and then looks at the count; all four are seq_cst, so one of them sees the other.
void FlatStep::RequestLoop(bool expensive) {
  refs_.fetch_add(1, std::memory_order_relaxed);
  loops_.fetch_add(1, std::memory_order_seq_cst);
  if (host_ != nullptr && host_->Offer(this, expensive)) return;
  engine_->wakeups.fetch_add(1, std::memory_order_relaxed);
  context_->arena->Schedule([this] { ArenaTask(); });
}

void FlatStep::WorkAsHost() {
  Lane lane;
  lane.outputs = outputs_.data();
  lane.tick = uses_;
  Loop(lane);
  CountNodes(lane);
}

void FlatStep::ArenaTask() {
  absl::InlinedVector<EdgeValue, 4> outputs(plan_.max_outputs());
  Lane lane;
  lane.outputs = outputs.data();
  lane.tick = uses_;
  Loop(lane);
  CountNodes(lane);
  if (DropRef()) Finish();
}

}  // namespace millrace
