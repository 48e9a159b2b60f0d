// SPDX-License-Identifier: Apache-2.0
//
// How values get into loops, from one iteration to the next and out again, and how iterations and
// loops begin and end (iteration.h says when). TensorFlow's rules:
//   * a dead value does not go on to the next iteration: that ends the loop;
//   * a dead value does not leave the loop, because another iteration may have a live one: an Exit
//     that has had no value is dead when the loop has ended;
//   * a loop is under way as soon as one of its Enters has run, dead or not;
//   * what a constant Enter gives, each iteration gets.
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "core/dcheck.h"
#include "core/hash64.h"
#include "core/mutex.h"
#include "core/status.h"
#include "runtime/engine/frame_step.h"
#include "runtime/engine/iteration.h"
#include "runtime/engine/kernel_runner.h"
#include "runtime/engine/ready_list.h"
#include "runtime/engine/state_block.h"
#include "runtime/kernel.h"

namespace millrace {

class FrameStep::FlowLock {
 public:
  // Whether a step is solo does not change while it is held.
  explicit FlowLock(FrameStep* step) ABSL_NO_THREAD_SAFETY_ANALYSIS
      : mu_(step->life_.solo() ? nullptr : &step->flow_mu_) {
    if (mu_ != nullptr) mu_->Lock();
  }
  ~FlowLock() ABSL_NO_THREAD_SAFETY_ANALYSIS {
    if (mu_ != nullptr) mu_->Unlock();
  }
  FlowLock(const FlowLock&) = delete;
  FlowLock& operator=(const FlowLock&) = delete;

 private:
  Mutex* const mu_;
};

// --- Holding -------------------------------------------------------------------------------------

void FrameStep::Hold(Iteration& iteration) {
  std::atomic<uint32_t>& holds = iteration.holds;
  if (life_.solo()) {
    holds.store(holds.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  } else {
    holds.fetch_add(1, std::memory_order_relaxed);
  }
}

bool FrameStep::Drop(Iteration& iteration) {
  std::atomic<uint32_t>& holds = iteration.holds;
  uint32_t before;
  if (life_.solo()) {
    before = holds.load(std::memory_order_relaxed);
    holds.store(before - 1, std::memory_order_relaxed);
  } else {
    before = holds.fetch_sub(1, std::memory_order_acq_rel);
  }
  MR_DCHECK(before > 0, "a hold is let go of once");
  return before == 1;
}

void FrameStep::LetGo(FrameLane& lane, Iteration* iteration) {
  // A step that has failed has nodes that did not run: nothing ends any more.
  if (ABSL_PREDICT_FALSE(life_.failed())) return;
  if (Drop(*iteration)) End(lane, iteration);
}

void FrameStep::End(FrameLane& lane, Iteration* iteration) {
  // Each turn ends one iteration; the next one is that which was held by nothing else.
  while (iteration->loop != nullptr) {
    LoopFrame* const loop = iteration->loop;
    Iteration* held = nullptr;
    {
      FlowLock lock(this);
      if (!loop->deferred.empty()) {
        Iteration* const next = BeginIteration(loop, /*holds=*/1);
        for (LoopFrame::Deferred& deferred : loop->deferred) {
          PassInto(lane, *next, Way::kOnward, *deferred.next_iteration, &deferred.value,
                   /*dead=*/false, /*moves=*/true);
          Reset(deferred.value);
        }
        loop->deferred.clear();
        PassConstants(lane, *next);
      }
      held = iteration->next;
      --loop->num_iterations;
      MR_DCHECK((held == nullptr) == (loop->num_iterations == 0),
                "iterations end in order: with the newest all have ended");
      Recycle(iteration);
      if (held == nullptr) {
        MR_DCHECK(loop->num_enters_left == 0,
                  "an Enter that has not arrived holds the first iteration");
        // It was the last one: the loop has ended.
        held = loop->parent;
        for (const Plan::Node* const exit : engine_->exits(*loop->of)) {
          if (loop->has_exited[exit->flow]) continue;
          PassInto(lane, *held, Way::kInward, *exit, nullptr, /*dead=*/true, /*moves=*/false);
        }
        held->children[loop->of->place] = nullptr;
        Recycle(loop);
      }
    }
    if (!Drop(*held)) return;
    iteration = held;
  }
}

// --- Passing on ----------------------------------------------------------------------------------

void FrameStep::LeaveIteration(Loop& loop, Iteration& at, const Plan::Node& node,
                               EdgeValue* outputs, bool dead) {
  if ((node.flags & Plan::kEnter) != 0) {
    EnterLoop(loop.lane, at, node, outputs, dead);
  } else if (dead) {
    return;
  } else if ((node.flags & Plan::kNextIteration) != 0) {
    GoOn(loop.lane, at, node, outputs);
  } else {
    ExitLoop(loop, at, node, outputs);
  }
  Reset(outputs, node.num_outputs);
}

void FrameStep::EnterLoop(FrameLane& lane, Iteration& at, const Plan::Node& enter,
                          EdgeValue* outputs, bool dead) {
  const Plan::Frame& frame = plan_.frames()[enter.flow];
  Iteration* first;
  {
    FlowLock lock(this);
    LoopFrame* loop = at.children[frame.place];
    if (loop == nullptr) loop = BeginLoop(at, frame);
    first = loop->first;
    --loop->num_enters_left;
    loop->has_dead_enter = loop->has_dead_enter || dead;
    if ((enter.flags & Plan::kConstant) != 0) {
      LoopFrame::Constant& constant = loop->constants[enter.constant];
      constant.enter = &enter;
      constant.dead = dead;
      if (!dead) constant.value = std::move(outputs[0]);
      // Iterations that begin from now on get it when they begin.
      for (Iteration* to = first; to != nullptr; to = to->next) {
        PassInto(lane, *to, Way::kInward, enter, &constant.value, dead, /*moves=*/false);
      }
    }
  }
  if ((enter.flags & Plan::kConstant) == 0) {
    PassInto(lane, *first, Way::kInward, enter, outputs, dead, /*moves=*/true);
  }
  LetGo(lane, first);  // held for this Enter
}

void FrameStep::GoOn(FrameLane& lane, Iteration& at, const Plan::Node& next_iteration,
                     EdgeValue* outputs) {
  Iteration* next;
  {
    FlowLock lock(this);
    next = at.next;
    if (next == nullptr) {
      LoopFrame* const loop = at.loop;
      if (loop->num_iterations >= loop->of->parallel_iterations) {
        loop->deferred.push_back({&next_iteration, std::move(outputs[0])});
        return;
      }
      MR_DCHECK(loop->deferred.empty(), "an end that makes room passes on what waited for it");
      next = BeginIteration(loop, /*holds=*/1);
      PassConstants(lane, *next);
    }
  }
  PassInto(lane, *next, Way::kOnward, next_iteration, outputs, /*dead=*/false, /*moves=*/true);
}

void FrameStep::ExitLoop(Loop& loop, Iteration& at, const Plan::Node& exit, EdgeValue* outputs) {
  bool again;
  {
    FlowLock lock(this);
    again = at.loop->has_exited[exit.flow];
    at.loop->has_exited[exit.flow] = true;
  }
  if (again) {
    return life_.FailNode(
        plan_, exit,
        InvalidArgument("must have a value in one iteration of its loop, got a second one in "
                        "iteration ",
                        at.number.load(std::memory_order_relaxed), " of '", at.of->name, "'"));
  }
  PassInto(loop.lane, *at.loop->parent, Way::kInward, exit, outputs, /*dead=*/false,
           /*moves=*/true);
}

template <bool kSolo>
void FrameStep::PassIntoAs(FrameLane& lane, Iteration& to, Way way, const Plan::Node& node,
                           EdgeValue* outputs, bool dead, bool moves) {
  const Plan::Edge* edge = edges_ + node.first_edge;
  const Plan::Edge* const end = edge + node.num_edges;
  const uint32_t first_node = to.of->first_node, first_slot = to.of->first_slot;
  const bool dead_enter = dead && (node.flags & Plan::kEnter) != 0;
  StateBlock& block = to.block;
  ReadyChain ready;
  for (; edge != end; ++edge) {
    const uint32_t dst = edge->dst - first_node;
    EdgeValue* const value = (edge->flags & Plan::kControl) != 0 ? nullptr : outputs;
    const bool is_data = (edge->flags & Plan::kControl) == 0;
    uint32_t entry;
    if (dead_enter && is_data && (edge->flags & Plan::kToMerge) != 0) {
      entry = block.pending.ArriveDeadEnterAtMerge<kSolo>(dst);
    } else if (is_data && dead && (edge->flags & Plan::kToMerge) != 0) {
      entry = block.pending.ArriveDeadAtMerge<kSolo>(dst, to.nodes[dst].num_inputs);
    } else {
      Plan::Edge along = *edge;
      if (!moves) along.flags = along.flags & (0xffu & ~Plan::kMoves);
      entry = block.ArriveSpecial<kSolo>(along, dst, edge->slot - first_slot,
                                         to.nodes[dst].num_inputs, dead ? nullptr : value, dead);
    }
    if (entry == kNoEntry) continue;
    NoteScheduled(to, entry);
    block.links.SetBelow(entry, ready.first);
    ready.first = entry;
    if (ready.last == kNoEntry) ready.last = entry;
  }
  if (ready.first == kNoEntry || !to.passed_on.Push<kSolo>(block.links, ready)) return;
  Iteration*& list = way == Way::kInward ? lane.inward : lane.onward;
  to.below_passed_on = list;
  list = &to;
  Hold(to);
}

void FrameStep::PassInto(FrameLane& lane, Iteration& to, Way way, const Plan::Node& node,
                         EdgeValue* outputs, bool dead, bool moves) {
  if (life_.solo()) {
    PassIntoAs<true>(lane, to, way, node, outputs, dead, moves);
  } else {
    PassIntoAs<false>(lane, to, way, node, outputs, dead, moves);
  }
}

// --- Loops and iterations ------------------------------------------------------------------------

LoopFrame* FrameStep::BeginLoop(Iteration& parent, const Plan::Frame& frame) {
  LoopFrame*& free = free_loops_[IndexOf(frame)];
  if (free == nullptr) {
    loops_.push_back(std::make_unique<LoopFrame>(frame));
    free = loops_.back().get();
  }
  LoopFrame* const loop = free;
  if (frame.has_transfers) {
    loop->id_text.clear();
    if (parent.loop != nullptr) loop->id_text = parent.loop->id_text;
    absl::StrAppend(&loop->id_text, ";", parent.number.load(std::memory_order_relaxed), ";",
                    frame.name);
    loop->id = Hash64(loop->id_text);
  }
  loop->first = nullptr;
  loop->last = nullptr;
  loop->num_iterations = 0;
  loop->num_enters_left = frame.num_enters;
  loop->has_dead_enter = false;
  loop->first = BeginIteration(loop, frame.num_enters);
  // Nothing fails from here on.
  free = std::exchange(loop->below_free, nullptr);
  loop->parent = &parent;
  parent.children[frame.place] = loop;
  Hold(parent);
  return loop;
}

Iteration* FrameStep::BeginIteration(LoopFrame* loop, uint32_t holds) {
  const Plan::Frame& frame = *loop->of;
  Iteration*& free = free_iterations_[IndexOf(frame)];
  Iteration* const made = free != nullptr ? free : NewIteration(frame);
  if (runs_.stats != nullptr) made->scheduled_ns.resize(frame.num_nodes);
  if (free != nullptr) free = std::exchange(made->below_free, nullptr);
  MR_DCHECK(made->loop == nullptr, "an iteration in the free list has ended");
  made->block.pending.Reset(plan_.initial_pending().subspan(frame.first_node, frame.num_nodes));
  made->loop = loop;
  made->next = nullptr;
  const Iteration* const before = loop->last;
  made->number.store(before == nullptr ? 0 : before->number.load(std::memory_order_relaxed) + 1,
                     std::memory_order_relaxed);
  made->holds.store(holds, std::memory_order_relaxed);
  made->nodes_run.store(0, std::memory_order_relaxed);
  if (loop->last != nullptr) loop->last->next = made;
  loop->last = made;
  ++loop->num_iterations;
  return made;
}

void FrameStep::PassConstants(FrameLane& lane, Iteration& to) {
  for (LoopFrame::Constant& constant : to.loop->constants) {
    if (constant.enter == nullptr) continue;
    PassInto(lane, to, Way::kOnward, *constant.enter, &constant.value, constant.dead,
             /*moves=*/false);
  }
}

void FrameStep::Recycle(Iteration* iteration) {
  // Nodes that no value has reached in this iteration may have got others.
  const Plan::Frame& frame = *iteration->of;
  if (ABSL_PREDICT_FALSE(iteration->nodes_run.load(std::memory_order_relaxed) != frame.num_nodes)) {
    iteration->block.Empty();
  }
  Iteration*& free = free_iterations_[IndexOf(frame)];
  iteration->loop = nullptr;
  iteration->below_free = free;
  free = iteration;
}

void FrameStep::Recycle(LoopFrame* loop) {
  for (LoopFrame::Constant& constant : loop->constants) {
    constant.enter = nullptr;
    Reset(constant.value);
  }
  loop->deferred.clear();
  loop->has_exited.assign(loop->has_exited.size(), false);
  loop->parent = nullptr;
  LoopFrame*& free = free_loops_[IndexOf(*loop->of)];
  loop->below_free = free;
  free = loop;
}

}  // namespace millrace
