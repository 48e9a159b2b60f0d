// SPDX-License-Identifier: Apache-2.0
//
// A step with several threads: what one loop has too much of goes onto the shared stack, and
// another loop is asked for (loop_crew.h). Too much is a second expensive node, or cheap ones that
// cost as much together.
#include <utility>

#include "core/dcheck.h"
#include "runtime/engine/flat_step.h"
#include "runtime/engine/node_costs.h"
#include "runtime/engine/ready_list.h"
#include "runtime/kernel.h"

namespace millrace {

void FlatStep::PushMeasured(Lane& lane, uint32_t entry) {
  const uint64_t cycles = CyclesOf(entry);
  if (lane.collects) {
    lane.Push(block_.links, entry);
    lane.collected_cycles += cycles;
    return;
  }
  if (cycles > NodeCosts::kExpensiveCycles) {
    // The newest stays here, its inputs are in this core's cache.
    const uint32_t older = std::exchange(lane.expensive, entry);
    if (older != kNoEntry) Publish({older, older});
    return;
  }
  if (cycles < NodeCosts::kMovableCycles) return lane.Push(block_.links, entry);
  lane.PushMeasured(block_.links, entry, cycles);
  if (lane.measured_cycles < 2 * NodeCosts::kBatchCycles) return;
  const ReadyChain old = lane.TakeOldMeasured(block_.links, NodeCosts::kBatchCycles,
                                              [this](uint32_t e) { return CyclesOf(e); });
  if (old.first != kNoEntry) Publish(old);
}

void FlatStep::Publish(const ReadyChain& chain) {
  life_.LeaveSolo();
  shared_.Push(block_.links, chain);
  crew_.AskForLoop();
}

uint32_t FlatStep::TakeShared(Lane& lane) {
  MR_DCHECK(lane.head == kNoEntry && lane.measured == kNoEntry && lane.expensive == kNoEntry,
            "a loop that has nodes of its own neither takes others nor leaves");
  do {
    const ReadyChain chain = shared_.Pop(block_.links, NodeCosts::kBatchCycles,
                                         [this](uint32_t e) { return CyclesOf(e); });
    if (chain.first == kNoEntry) continue;
    if (chain.first != chain.last) {
      block_.links.SetBelow(chain.last, kNoEntry);
      lane.measured = block_.links.Below(chain.first);
    }
    // A step whose last tensor has come is one thread's again: it goes on without locks.
    if (life_.IsOnlyPart() && shared_.IsEmpty()) life_.EnterSolo();
    return chain.first;
  } while (!crew_.Leave());
  return kNoEntry;
}

void FlatStep::WorkWith(EdgeValue* outputs) noexcept {
  Loop loop(*this, outputs);
  Work(loop);
}

}  // namespace millrace
