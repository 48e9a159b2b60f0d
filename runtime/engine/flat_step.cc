// SPDX-License-Identifier: Apache-2.0
//
// The hot part of a step: a loop takes a ready node, runs its kernel and hands the outputs on. It
// is all in this file so that it can be inlined: a node with an empty kernel costs some 8 ns
// (executor_benchmark). Exceptions are caught outside of the iteration over nodes.
#include "runtime/engine/flat_step.h"

#include <utility>

#include "core/before_wait.h"
#include "runtime/engine/async_run.h"
#include "runtime/engine/pending_words.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// How far ahead a node is fetched from memory.
constexpr int kPrefetchedNodes = 16;

}  // namespace

// --- Edges ---------------------------------------------------------------------------------------

void FlatStep::PushReady(Lane& lane, uint32_t entry, bool measured) {
  if (runs_.stats != nullptr) scheduled_ns_[NodeOfEntry(entry)] = absl::GetCurrentTimeNanos();
  if (measured && runs_.parallel && (entry & kDeadEntry) == 0) {
    PushMeasured(lane, entry);
  } else {
    lane.Push(block_.links, entry);
  }
}

template <bool kSolo>
void FlatStep::ArriveSpecial(Lane& lane, const Plan::Edge& edge, EdgeValue* value, bool dead) {
  const uint32_t ready = block_.ArriveSpecial<kSolo>(edge, edge.dst, edge.slot,
                                                     nodes_[edge.dst].num_inputs, value, dead);
  if (ready != kNoEntry) PushReady(lane, ready, (edge.flags & Plan::kToMeasured) != 0);
}

template <bool kSolo>
ABSL_ATTRIBUTE_ALWAYS_INLINE inline const Plan::Edge* FlatStep::PropagateAs(
    Lane& lane, const Plan::Edge* edge, const Plan::Edge* end, EdgeValue* outputs, bool dead) {
  for (; edge != end; ++edge) {
    EdgeValue* value = nullptr;
    bool edge_dead = dead;
    if ((edge->flags & Plan::kControl) == 0) {
      value = outputs + edge->output;
      edge_dead |= !value->has_value();
    }
    if (ABSL_PREDICT_FALSE((edge->flags & special_edges_) != 0)) {
      ArriveSpecial<kSolo>(lane, *edge, value, edge_dead);
      // A node that just became ready may have been handed to another thread.
      if (kSolo && ABSL_PREDICT_FALSE(!life_.solo())) return edge + 1;
      continue;
    }
    if (value != nullptr && !edge_dead) PlaceAlong(*edge, block_.slots[edge->slot], value);
    const uint32_t word = block_.pending.Arrive<kSolo>(edge->dst, edge_dead);
    const bool ready = PendingWords::IsReady(word);
    if (kSolo) {
      lane.PushIf(ready, block_.links, edge->dst, word);
    } else if (ready) {
      lane.Push(block_.links, edge->dst | word);
    }
  }
  return end;
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline void FlatStep::Propagate(Lane& lane, const Plan::Node& node,
                                                             EdgeValue* outputs, bool dead) {
  const Plan::Edge* edge = edges_ + node.first_edge;
  const Plan::Edge* const end = edge + node.num_edges;
  if (ABSL_PREDICT_TRUE(life_.solo())) edge = PropagateAs<true>(lane, edge, end, outputs, dead);
  if (edge != end) PropagateShared(lane, edge, end, outputs, dead);
  Reset(outputs, node.num_outputs);
}

void FlatStep::PropagateShared(Lane& lane, const Plan::Edge* edge, const Plan::Edge* end,
                               EdgeValue* outputs, bool dead) {
  PropagateAs<false>(lane, edge, end, outputs, dead);
}

void FlatStep::PropagateAsync(Lane& lane, const AsyncRun& run) {
  Propagate(lane, nodes_[run.node], run.outputs, run.dead);
}

// --- Nodes ---------------------------------------------------------------------------------------

ABSL_ATTRIBUTE_ALWAYS_INLINE inline void FlatStep::RunEntry(Loop& loop, uint32_t entry) {
  ++loop.lane.nodes_run;
  const Plan::Node& node = nodes_[NodeOfEntry(entry)];
  // Nodes are numbered as one thread runs them.
  __builtin_prefetch(&node + kPrefetchedNodes);
  if (ABSL_PREDICT_FALSE((node.flags & other_flags_) != 0 || (entry & kDeadEntry) != 0)) {
    return RunOther(loop, node, (entry & kDeadEntry) != 0);
  }
  EdgeValue* const outputs = loop.runner.outputs();
  if (ABSL_PREDICT_TRUE(loop.runner.Run(node, InputsOf(node), /*dead=*/false))) {
    Propagate(loop.lane, node, outputs, /*dead=*/false);
  } else {
    life_.FailNode(plan_, node, loop.runner.error());
  }
}

void FlatStep::RunOther(Loop& loop, const Plan::Node& node, bool dead) {
  EdgeValue* const inputs = InputsOf(node);
  if (dead && (node.flags & Plan::kRunsWhenDead) == 0) {
    loop.runner.EmptyInputs(node, inputs);
    Propagate(loop.lane, node, loop.runner.outputs(), /*dead=*/true);
    return;
  }
  if (node.async != nullptr) return StartAsync(loop, node, dead);
  const auto index = static_cast<uint32_t>(&node - nodes_);
  const bool busy = !life_.solo() && (node.flags & Plan::kMayBeExpensive) != 0 &&
                    engine_->costs().IsExpensive(index);
  if (busy) crew_.BeginBusy();
  const bool ok = loop.runner.Run(node, inputs, dead);
  if (busy) crew_.EndBusy();
  if (ok) {
    Propagate(loop.lane, node, loop.runner.outputs(), dead);
  } else {
    life_.FailNode(plan_, node, loop.runner.error());
  }
}

// --- Loops ---------------------------------------------------------------------------------------

void FlatStep::RunReady(Loop& loop) {
  Lane& lane = loop.lane;
  uint32_t guess = kNoEntry;  // nodes are numbered as one thread runs them
  for (;;) {
    uint32_t entry;
    if (ABSL_PREDICT_TRUE(lane.head != kNoEntry)) {
      entry = lane.Pop(block_.links, guess);
    } else if (lane.measured != kNoEntry) {
      entry = lane.PopMeasured(block_.links, [this](uint32_t e) { return CyclesOf(e); });
    } else if (lane.expensive != kNoEntry) {
      entry = std::exchange(lane.expensive, kNoEntry);
      BeforeWait::Run();
    } else {
      if (life_.solo()) return;
      entry = TakeShared(lane);
      if (entry == kNoEntry) return;
    }
    guess = entry + 1;
    if (ABSL_PREDICT_TRUE(!life_.Stopped())) RunEntry(loop, entry);
  }
}

template <typename Call>
inline bool FlatStep::Guarded(Loop& loop, Call call) noexcept {
  try {
    call();
    return true;
  } catch (...) {
    const Plan::Node& node = loop.runner.Caught();
    life_.FailNode(plan_, node, loop.runner.error());
    return false;
  }
}

void FlatStep::Work(Loop& loop) noexcept {
  while (!Guarded(loop, [&] { RunReady(loop); })) {
  }
  nodes_run_.fetch_add(loop.lane.nodes_run, std::memory_order_relaxed);
}

bool FlatStep::WorkFromRoots() noexcept {
  Loop loop(*this, host_outputs_.get());
  if (ABSL_PREDICT_FALSE(!IsBoundFilled())) FillBound(loop);
  const absl::Span<const uint32_t> roots = plan_.roots();
  // What comes from elsewhere is asked for before anything else is done.
  for (uint32_t i = 0; i < plan_.num_root_recvs() && !life_.Stopped(); ++i) {
    Guarded(loop, [&] { RunEntry(loop, roots[i]); });
  }
  for (size_t i = roots.size(); i-- > plan_.num_root_recvs();) {
    PushReady(loop.lane, roots[i], (nodes_[roots[i]].flags & Plan::kMayBeExpensive) != 0);
  }
  Work(loop);
  return life_.DropLoop();
}

bool FlatStep::WorkAsHost() noexcept {
  Loop loop(*this, host_outputs_.get());
  Work(loop);
  return life_.DropLoop();
}

}  // namespace millrace
