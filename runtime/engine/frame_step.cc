// SPDX-License-Identifier: Apache-2.0
//
// The hot part of a step with frames: a loop takes a ready node of the iteration that it works on,
// runs its kernel and hands the outputs on. As in flat_step.cc all of it is in this file, so that
// it can be inlined, and exceptions are caught outside of the iteration over nodes.
#include "runtime/engine/frame_step.h"

#include <utility>

#include "absl/base/optimization.h"
#include "absl/time/clock.h"
#include "core/before_wait.h"
#include "core/dcheck.h"
#include "runtime/engine/pending_words.h"
#include "runtime/engine/state_block.h"
#include "runtime/engine/straight_loop.h"
#include "runtime/kernel.h"

namespace millrace {

// --- Edges ---------------------------------------------------------------------------------------

void FrameStep::NoteScheduled(Iteration& at, uint32_t entry) const {
  if (runs_.stats != nullptr) at.scheduled_ns[NodeOfEntry(entry)] = absl::GetCurrentTimeNanos();
}

void FrameStep::PushReady(FrameLane& lane, Iteration& at, uint32_t entry, bool measured) {
  NoteScheduled(at, entry);
  if (measured && runs_.parallel && (entry & kDeadEntry) == 0) {
    PushMeasured(lane, at, entry);
  } else {
    lane.nodes.Push(at.block.links, entry);
  }
}

template <bool kSolo>
void FrameStep::ArriveSpecial(FrameLane& lane, Iteration& at, const Plan::Edge& edge,
                              EdgeValue* value, bool dead) {
  const uint32_t dst = edge.dst - at.of->first_node, slot = edge.slot - at.of->first_slot;
  const uint32_t ready =
      at.block.ArriveSpecial<kSolo>(edge, dst, slot, at.nodes[dst].num_inputs, value, dead);
  if (ready != kNoEntry) PushReady(lane, at, ready, (edge.flags & Plan::kToMeasured) != 0);
}

template <bool kSolo>
ABSL_ATTRIBUTE_ALWAYS_INLINE inline const Plan::Edge* FrameStep::PropagateAs(
    FrameLane& lane, Iteration& at, const Plan::Edge* edge, const Plan::Edge* end,
    EdgeValue* outputs, bool dead) {
  const uint32_t first_node = at.of->first_node, first_slot = at.of->first_slot;
  StateBlock& block = at.block;
  for (; edge != end; ++edge) {
    EdgeValue* value = nullptr;
    bool edge_dead = dead;
    if ((edge->flags & Plan::kControl) == 0) {
      value = outputs + edge->output;
      edge_dead |= !value->has_value();
    }
    if (ABSL_PREDICT_FALSE((edge->flags & special_edges_) != 0)) {
      ArriveSpecial<kSolo>(lane, at, *edge, value, edge_dead);
      // A node that just became ready may have been handed to another thread.
      if (kSolo && ABSL_PREDICT_FALSE(!life_.solo())) return edge + 1;
      continue;
    }
    if (value != nullptr && !edge_dead) {
      PlaceAlong(*edge, block.slots[edge->slot - first_slot], value);
    }
    const uint32_t dst = edge->dst - first_node;
    const uint32_t word = block.pending.Arrive<kSolo>(dst, edge_dead);
    const bool ready = PendingWords::IsReady(word);
    if (kSolo) {
      lane.nodes.PushIf(ready, block.links, dst, word);
    } else if (ready) {
      lane.nodes.Push(block.links, dst | word);
    }
  }
  return end;
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline void FrameStep::Propagate(FrameLane& lane, Iteration& at,
                                                              const Plan::Node& node,
                                                              EdgeValue* outputs, bool dead) {
  const Plan::Edge* edge = edges_ + node.first_edge;
  const Plan::Edge* const end = edge + node.num_edges;
  if (ABSL_PREDICT_TRUE(life_.solo())) edge = PropagateAs<true>(lane, at, edge, end, outputs, dead);
  if (edge != end) PropagateShared(lane, at, edge, end, outputs, dead);
  Reset(outputs, node.num_outputs);
}

void FrameStep::PropagateShared(FrameLane& lane, Iteration& at, const Plan::Edge* edge,
                                const Plan::Edge* end, EdgeValue* outputs, bool dead) {
  PropagateAs<false>(lane, at, edge, end, outputs, dead);
}

void FrameStep::PropagateAsync(FrameLane& lane, const AsyncRun& run) {
  Propagate(lane, *run.iteration, run.iteration->nodes[run.node], run.outputs, run.dead);
}

// --- Nodes ---------------------------------------------------------------------------------------

ABSL_ATTRIBUTE_ALWAYS_INLINE inline void FrameStep::RunEntry(Loop& loop, Iteration& at,
                                                             uint32_t entry) {
  ++loop.lane.nodes.nodes_run;
  const Plan::Node& node = at.nodes[NodeOfEntry(entry)];
  if (ABSL_PREDICT_FALSE((node.flags & other_flags_) != 0 || (entry & kDeadEntry) != 0)) {
    return RunOther(loop, at, node, (entry & kDeadEntry) != 0);
  }
  EdgeValue* const outputs = loop.runner.outputs();
  if (ABSL_PREDICT_TRUE(loop.runner.Run(node, at.block.inputs(node), /*dead=*/false))) {
    Propagate(loop.lane, at, node, outputs, /*dead=*/false);
  } else {
    life_.FailNode(plan_, node, loop.runner.error());
  }
}

void FrameStep::RunOther(Loop& loop, Iteration& at, const Plan::Node& node, bool dead) {
  EdgeValue* const inputs = at.block.inputs(node);
  EdgeValue* const outputs = loop.runner.outputs();
  const bool leaves = (node.flags & Plan::kLeavesIteration) != 0;
  if (dead && (node.flags & Plan::kRunsWhenDead) == 0) {
    Reset(inputs, node.num_inputs);
    if (leaves) return LeaveIteration(loop, at, node, outputs, /*dead=*/true);
    return Propagate(loop.lane, at, node, outputs, /*dead=*/true);
  }
  if (node.async != nullptr) return StartAsync(loop, at, node, dead);
  const bool busy =
      !life_.solo() && (node.flags & Plan::kMayBeExpensive) != 0 &&
      engine_->costs().IsExpensive(static_cast<uint32_t>(&node - plan_.nodes().data()));
  if (busy) crew_.BeginBusy();
  const bool ok = loop.runner.Run(node, inputs, dead);
  if (busy) crew_.EndBusy();
  if (!ok) return life_.FailNode(plan_, node, loop.runner.error());
  if (leaves) return LeaveIteration(loop, at, node, outputs, dead);
  Propagate(loop.lane, at, node, outputs, dead);
}

// --- Loops ---------------------------------------------------------------------------------------

void FrameStep::RunCurrent(Loop& loop) {
  Iteration& at = *loop.lane.current;
  if (const StraightLoop* const straight = StraightFrom(at)) {
    return RunStraight(loop, at, *straight);
  }
  Lane& lane = loop.lane.nodes;
  const ReadyLinks& links = at.block.links;
  uint32_t guess = kNoEntry;  // nodes are numbered as one thread runs them
  for (;;) {
    uint32_t entry;
    if (ABSL_PREDICT_TRUE(lane.head != kNoEntry)) {
      entry = lane.Pop(links, guess);
    } else if (lane.measured != kNoEntry) {
      entry = lane.PopMeasured(links, [&](uint32_t e) { return CyclesOf(at, e); });
    } else {
      return;
    }
    guess = entry + 1;
    if (ABSL_PREDICT_TRUE(!life_.Stopped())) RunEntry(loop, at, entry);
  }
}

RunPlace FrameStep::PlaceOf(const Iteration& at) const {
  RunPlace place = {.first_node = at.nodes, .scheduled_ns = at.scheduled_ns.data()};
  if (at.loop != nullptr) {
    place.loop = &at.of->name;
    place.frame_id = at.loop->id;
    place.iteration = at.number.load(std::memory_order_relaxed);
  }
  return place;
}

void FrameStep::TurnTo(Loop& loop, Iteration* iteration) {
  loop.lane.current = iteration;
  loop.runner.SetPlace(PlaceOf(*iteration));
}

bool FrameStep::TurnToNext(Loop& loop) {
  FrameLane& lane = loop.lane;
  // A long loop does not go on with locks because something was shared at its beginning.
  if (!life_.solo() && life_.IsOnlyPart() && !IsShared()) life_.EnterSolo();
  Iteration** const list = lane.inward != nullptr ? &lane.inward : &lane.onward;
  if (Iteration* const next = *list) {
    *list = next->below_passed_on;
    TurnTo(loop, next);
    const uint32_t all = next->passed_on.TakeAll();
    MR_DCHECK(all != kNoEntry, "a pile is in a lane's list only while it is not empty");
    if (!runs_.parallel) {
      lane.nodes.head = all;
      return true;
    }
    // Expensive nodes among them are kept for the end, or shared.
    for (uint32_t entry = all; entry != kNoEntry;) {
      const uint32_t below = next->block.links.Below(entry);
      const bool measured = (next->nodes[NodeOfEntry(entry)].flags & Plan::kMayBeExpensive) != 0;
      if (measured && (entry & kDeadEntry) == 0) {
        PushMeasured(lane, *next, entry);
      } else {
        lane.nodes.Push(next->block.links, entry);
      }
      entry = below;
    }
    return true;
  }
  if (lane.nodes.expensive != kNoEntry) {
    BeforeWait::Run();
    TurnTo(loop, std::exchange(lane.expensive_of, nullptr));
    lane.nodes.Push(lane.current->block.links, std::exchange(lane.nodes.expensive, kNoEntry));
    return true;
  }
  return !life_.solo() && TakeShared(loop);
}

void FrameStep::RunReady(Loop& loop) {
  FrameLane& lane = loop.lane;
  for (;;) {
    if (lane.current != nullptr) {
      RunCurrent(loop);
      Iteration* const done = std::exchange(lane.current, nullptr);
      const auto run = static_cast<uint32_t>(std::exchange(lane.nodes.nodes_run, 0));
      lane.nodes.measured_cycles = 0;
      if (life_.solo()) {
        done->nodes_run.store(done->nodes_run.load(std::memory_order_relaxed) + run,
                              std::memory_order_relaxed);
      } else {
        done->nodes_run.fetch_add(run, std::memory_order_relaxed);
      }
      LetGo(lane, done);
    }
    if (!TurnToNext(loop)) return;
  }
}

template <typename Call>
inline bool FrameStep::Guarded(Loop& loop, Call call) noexcept {
  try {
    call();
    return true;
  } catch (...) {
    const Plan::Node& node = loop.runner.Caught();
    life_.FailNode(plan_, node, loop.runner.error());
    return false;
  }
}

void FrameStep::Work(Loop& loop) noexcept {
  while (!Guarded(loop, [&] { RunReady(loop); })) {
  }
}

bool FrameStep::WorkFromRoots() noexcept {
  Loop loop(*this, host_outputs_.get());
  TurnTo(loop, root_);
  const absl::Span<const uint32_t> roots = plan_.roots();
  // What comes from elsewhere is asked for before anything else is done.
  for (uint32_t i = 0; i < plan_.num_root_recvs() && !life_.Stopped(); ++i) {
    Guarded(loop, [&] { RunEntry(loop, *root_, roots[i]); });
  }
  for (size_t i = roots.size(); i-- > plan_.num_root_recvs();) {
    PushReady(loop.lane, *root_, roots[i],
              (plan_.nodes()[roots[i]].flags & Plan::kMayBeExpensive) != 0);
  }
  Work(loop);
  return life_.DropLoop();
}

bool FrameStep::WorkAsHost() noexcept {
  Loop loop(*this, host_outputs_.get());
  Work(loop);
  return life_.DropLoop();
}

}  // namespace millrace
