// SPDX-License-Identifier: Apache-2.0
//
// A step with several threads: what one loop has too much of goes onto the shared stack, and
// another loop is asked for: of the host thread when it waits, else of an arena thread. Too much is
// a second expensive node, or cheap ones that cost as much together.
#include <memory>
#include <new>
#include <utility>

#include "runtime/engine/flat_step.h"
#include "runtime/engine/node_costs.h"
#include "runtime/engine/ready_list.h"
#include "runtime/engine/step_life.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// Kept by a lane, and taken from the shared stack at once: what is about worth a wake-up.
constexpr uint64_t kBatchCycles = NodeCosts::kExpensiveCycles;
// A node below that is never moved by itself: fetching its inputs from another core costs as much.
constexpr uint64_t kMovableCycles = 2'000;

}  // namespace

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
  if (cycles < kMovableCycles) return lane.Push(block_.links, entry);
  lane.PushMeasured(block_.links, entry, cycles);
  if (lane.measured_cycles < 2 * kBatchCycles) return;
  const ReadyChain old =
      lane.TakeOldMeasured(block_.links, kBatchCycles, [this](uint32_t e) { return CyclesOf(e); });
  if (old.first != kNoEntry) Publish(old);
}

void FlatStep::Publish(const ReadyChain& chain) {
  life_.LeaveSolo();
  shared_.Push(block_.links, chain);
  if (loops_.load(std::memory_order_relaxed) < num_threads_) RequestLoop(/*expensive=*/true);
}

// A loop that leaves first counts itself out and then looks at the shared stack; who pushes first
// pushes and then looks at the count; all four are seq_cst, so one of them sees the other.
void FlatStep::RequestLoop(bool expensive) {
  life_.AddLoop();
  loops_.fetch_add(1, std::memory_order_seq_cst);
  if (life_.host() != nullptr && life_.host()->Offer(this, expensive)) return;
  engine_->wakeups.fetch_add(1, std::memory_order_relaxed);
  try {
    runs_.context->arena->Schedule([this] { ArenaTask(); });
  } catch (...) {
    // Others see to what is on the stack, unless there are none. The caller has an active part: the
    // step does not end here.
    if (loops_.fetch_sub(1, std::memory_order_seq_cst) == 1 && !shared_.IsEmpty()) {
      life_.Fail(StatusOfException());
    }
    static_cast<void>(life_.DropLoop());
  }
}

uint32_t FlatStep::TakeShared(Lane& lane) {
  for (;;) {
    const ReadyChain chain =
        shared_.Pop(block_.links, kBatchCycles, [this](uint32_t e) { return CyclesOf(e); });
    if (chain.first != kNoEntry) {
      if (chain.first != chain.last) {
        block_.links.SetBelow(chain.last, kNoEntry);
        lane.measured = block_.links.Below(chain.first);
      }
      return chain.first;
    }
    loops_.fetch_sub(1, std::memory_order_seq_cst);
    // Who pushed before this saw a loop and relied on it.
    if (shared_.IsEmpty()) return kNoEntry;
    loops_.fetch_add(1, std::memory_order_seq_cst);
  }
}

EdgeValue* FlatStep::TakeOutputs() {
  for (std::atomic<EdgeValue*>& place : outputs_) {
    if (place.load(std::memory_order_relaxed) == nullptr) continue;
    if (EdgeValue* outputs = place.exchange(nullptr, std::memory_order_acquire)) return outputs;
  }
  return new EdgeValue[plan_.max_outputs()];
}

void FlatStep::GiveOutputsBack(EdgeValue* outputs) {
  for (std::atomic<EdgeValue*>& place : outputs_) {
    EdgeValue* expected = nullptr;
    if (place.load(std::memory_order_relaxed) == nullptr &&
        place.compare_exchange_strong(expected, outputs, std::memory_order_release,
                                      std::memory_order_relaxed)) {
      return;
    }
  }
  delete[] outputs;
}

void FlatStep::ArenaTask() {
  try {
    EdgeValue* const outputs = TakeOutputs();
    Loop loop(runs_, outputs, uses_);
    Work(loop);
    GiveOutputsBack(outputs);
  } catch (const std::bad_alloc&) {
    // Without a loop here, what is on the stack may have nobody.
    life_.Fail(NoMemory());
    loops_.fetch_sub(1, std::memory_order_seq_cst);
  }
  if (life_.DropLoop()) Finish();
}

}  // namespace millrace
