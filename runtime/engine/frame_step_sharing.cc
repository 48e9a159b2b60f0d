// SPDX-License-Identifier: Apache-2.0
//
// A step with frames and several threads: what one loop has too much of goes onto the pile of its
// iteration, which is listed for all loops, and another loop is asked for (loop_crew.h). Too much
// is a second expensive node, of whichever iteration, or cheap ones of one iteration that cost as
// much together.
#include <utility>

#include "core/dcheck.h"
#include "core/mutex.h"
#include "runtime/engine/frame_step.h"
#include "runtime/engine/iteration.h"
#include "runtime/engine/node_costs.h"
#include "runtime/engine/ready_list.h"
#include "runtime/kernel.h"

namespace millrace {

void FrameStep::PushMeasured(FrameLane& lane, Iteration& at, uint32_t entry) {
  const uint64_t cycles = CyclesOf(at, entry);
  Lane& nodes = lane.nodes;
  ReadyLinks& links = at.block.links;
  if (nodes.collects) {
    nodes.Push(links, entry);
    nodes.collected_cycles += cycles;
    return;
  }
  if (cycles > NodeCosts::kExpensiveCycles) {
    // The newest stays here, its inputs are in this core's cache.
    Hold(at);
    const uint32_t older = std::exchange(nodes.expensive, entry);
    Iteration* const of = std::exchange(lane.expensive_of, &at);
    if (older == kNoEntry) return;
    Publish(*of, {older, older});
    return LetGo(lane, of);
  }
  if (cycles < NodeCosts::kMovableCycles) return nodes.Push(links, entry);
  nodes.PushMeasured(links, entry, cycles);
  if (nodes.measured_cycles < 2 * NodeCosts::kBatchCycles) return;
  const ReadyChain old = nodes.TakeOldMeasured(links, NodeCosts::kBatchCycles,
                                               [&](uint32_t e) { return CyclesOf(at, e); });
  if (old.first != kNoEntry) Publish(at, old);
}

void FrameStep::Share(Iteration& at, const ReadyChain& chain) {
  if (!at.shared.Push<false>(at.block.links, chain)) return;
  Hold(at);
  at.below_shared = nullptr;
  MutexLock lock(&shared_mu_);
  (first_shared_ == nullptr ? first_shared_ : last_shared_->below_shared) = &at;
  last_shared_ = &at;
  num_shared_.fetch_add(1, std::memory_order_seq_cst);
}

void FrameStep::Publish(Iteration& at, const ReadyChain& chain) {
  life_.LeaveSolo();
  Share(at, chain);
  crew_.AskForLoop();
}

Iteration* FrameStep::TakeListed() {
  if (!IsShared()) return nullptr;
  MutexLock lock(&shared_mu_);
  Iteration* const first = first_shared_;
  if (first == nullptr) return nullptr;
  first_shared_ = first->below_shared;
  num_shared_.fetch_sub(1, std::memory_order_seq_cst);
  return first;
}

bool FrameStep::TakeShared(Loop& loop) {
  do {
    Iteration* const at = TakeListed();
    if (at == nullptr) continue;
    TurnTo(loop, at);
    ReadyLinks& links = at->block.links;
    // About what is worth a wake-up; the rest is for others.
    const uint32_t all = at->shared.TakeAll();
    MR_DCHECK(all != kNoEntry, "a pile is in the list only while it is not empty");
    uint32_t last = all;
    uint64_t cycles = CyclesOf(*at, all);
    while (cycles < NodeCosts::kBatchCycles && links.Below(last) != kNoEntry) {
      last = links.Below(last);
      cycles += CyclesOf(*at, last);
    }
    const uint32_t rest = links.Below(last);
    links.SetBelow(last, kNoEntry);
    loop.lane.nodes.head = all;
    if (rest != kNoEntry) {
      ReadyChain chain = {rest, rest};
      while (links.Below(chain.last) != kNoEntry) chain.last = links.Below(chain.last);
      Share(*at, chain);
      crew_.AskForLoop();
    }
    return true;
  } while (!crew_.Leave());
  return false;
}

void FrameStep::WorkWith(EdgeValue* outputs) noexcept {
  Loop loop(*this, outputs);
  Work(loop);
}

}  // namespace millrace
