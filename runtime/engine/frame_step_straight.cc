// SPDX-License-Identifier: Apache-2.0
//
// Straight loops (straight_loop.h): the nodes of an iteration run in a fixed order, and values that
// go round are put where the next iteration looks for them, in the same state. What a loop pays for
// its frame so is no more than moving values: nothing is counted, listed or begun anew.
//
// An iteration is taken over before any of its nodes has run, while the caller's lane is the only
// holder: all Enters have arrived, the iteration before has ended, and nobody else is to bring
// anything. It is handed back between two iterations.
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/base/optimization.h"
#include "core/dcheck.h"
#include "runtime/engine/frame_engine.h"
#include "runtime/engine/frame_step.h"
#include "runtime/engine/iteration.h"
#include "runtime/engine/kernel_runner.h"
#include "runtime/engine/node_costs.h"
#include "runtime/engine/ready_list.h"
#include "runtime/engine/state_block.h"
#include "runtime/engine/straight_loop.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"

namespace millrace {
namespace {

// How often a straight loop looks whether it should be one: powers of two.
constexpr int64_t kCostsEvery = 16, kOthersEvery = 256;
// The pred of a Switch that its kernel has to refuse.
constexpr uint8_t kNoPred = 2;

// Moves values about in the state of an iteration.
class Mover {
 public:
  Mover(Iteration& at, const StraightLoop& straight)
      : straight_(straight),
        slots_(at.block.slots.data()),
        constants_(at.loop->constants.data()),
        dead_(at.marks.data()),
        preds_(at.marks.data() + straight.initially_dead.size()) {
    for (const StraightLoop::Constant& constant : straight.constants) {
      if (constant.pred_of != StraightLoop::kNone) SetPred(constant.pred_of, slots_[constant.slot]);
    }
  }

  EdgeValue* inputs(const StraightLoop::Node& item) const { return slots_ + item.first_input; }
  bool IsDead(const StraightLoop::Node& item) const { return dead_[item.index] != 0; }
  uint8_t pred(const StraightLoop::Node& item) const { return preds_[item.index]; }

  void BeginIteration() {
    std::memcpy(dead_, straight_.initially_dead.data(), straight_.initially_dead.size());
  }

  // Along an edge; `moves`: the value is not needed behind it.
  ABSL_ATTRIBUTE_ALWAYS_INLINE void Put(const StraightLoop::Edge& edge, EdgeValue* value,
                                        bool moves) {
    if (edge.to_switch && ABSL_PREDICT_TRUE(SetPred(edge.dst, *value))) return;
    if (edge.to_merge) {
      if (dead_[edge.dst] == 0) return;
      dead_[edge.dst] = 0;
    }
    if (moves) {
      Place(slots_[edge.slot], std::move(*value));
    } else {
      Place(slots_[edge.slot], static_cast<const EdgeValue&>(*value));
    }
  }
  // The only input of a node, to an empty place.
  ABSL_ATTRIBUTE_ALWAYS_INLINE void PassTo(const StraightLoop::Node& item, EdgeValue* to) {
    EdgeValue* const in = inputs(item);
    if (ABSL_PREDICT_TRUE(!item.has_constants)) {
      Place(*to, std::move(*in));
      Reset(*in);
    } else {
      Place(*to, static_cast<const EdgeValue&>(*in));
    }
  }
  // `value` as output `output` of the node, the only one that is alive.
  ABSL_ATTRIBUTE_ALWAYS_INLINE void PutOnly(const StraightLoop::Node& item, uint32_t output,
                                            EdgeValue* value) {
    const StraightLoop::Edge* edge = straight_.edges.data() + item.first_edge;
    const StraightLoop::Edge* const end = edge + item.num_edges;
    for (; edge != end; ++edge) {
      if (edge->output == output) {
        Put(*edge, value, edge->moves && !item.has_constants);
      } else if (edge->kills) {
        dead_[edge->dst] = 1;
      }
    }
  }
  // What a kernel gave; leaves it empty.
  ABSL_ATTRIBUTE_ALWAYS_INLINE void PutOutputs(const StraightLoop::Node& item, EdgeValue* outputs) {
    const StraightLoop::Edge* edge = straight_.edges.data() + item.first_edge;
    const StraightLoop::Edge* const end = edge + item.num_edges;
    for (; edge != end; ++edge) {
      EdgeValue* const value = outputs + edge->output;
      if (ABSL_PREDICT_TRUE(value->has_value())) {
        Put(*edge, value, edge->moves);
      } else if (edge->kills) {
        dead_[edge->dst] = 1;
      }
    }
    Reset(outputs, item.node->num_outputs);
  }
  void KillReaders(const StraightLoop::Node& item) {
    for (uint32_t i = 0; i < item.num_readers; ++i) {
      dead_[straight_.readers[item.first_reader + i]] = 1;
    }
  }
  // Constants stay for the next iteration, or come again where a kernel has taken one.
  ABSL_ATTRIBUTE_ALWAYS_INLINE void EmptyInputs(const StraightLoop::Node& item) {
    EdgeValue* const in = inputs(item);
    const uint32_t n = item.node->num_inputs;
    if (ABSL_PREDICT_TRUE(!item.has_constants)) return Reset(in, n);
    for (uint32_t i = 0; i < n; ++i) {
      const uint32_t constant = straight_.constant_of_slot[item.first_input + i];
      if (constant == StraightLoop::kNone) {
        Reset(in[i]);
      } else if (!in[i].buffer()) {
        Reset(in[i]);
        Place(in[i], static_cast<const EdgeValue&>(constants_[constant].value));
      }
    }
  }
  void EmptyConstants() {
    for (const StraightLoop::Constant& constant : straight_.constants) {
      Reset(slots_[constant.slot]);
    }
  }
  // Where the value is that a NextIteration has sent round.
  EdgeValue* SentRound(const StraightLoop::Node& next_iteration) const {
    return slots_ + straight_.edges[next_iteration.first_edge].slot;
  }

 private:
  // False: what the Switch gets as pred is for its kernel to refuse.
  bool SetPred(uint32_t index, const EdgeValue& value) {
    const bool is_scalar = value.shape().is_scalar();
    preds_[index] = !is_scalar ? kNoPred : value.raw_scalar<bool>() ? 1 : 0;
    return is_scalar;
  }

  const StraightLoop& straight_;
  EdgeValue* const slots_;
  const LoopFrame::Constant* const constants_;
  uint8_t* const dead_;
  uint8_t* const preds_;
};

}  // namespace

bool FrameStep::IsCheap(const Iteration& at, const StraightLoop& straight) const {
  uint64_t cycles = 0;
  for (const uint32_t index : straight.measured) {
    cycles += engine_->costs().Cycles(at.of->first_node + index);
  }
  return cycles <= NodeCosts::kExpensiveCycles;
}

const StraightLoop* FrameStep::StraightFrom(const Iteration& at) const {
  const StraightLoop* const straight = engine_->straight(*at.of);
  if (straight == nullptr || runs_.stats != nullptr) return nullptr;
  if (at.holds.load(std::memory_order_acquire) != 1) return nullptr;
  if (at.nodes_run.load(std::memory_order_relaxed) != 0 || at.loop->has_dead_enter) return nullptr;
  // With several threads, what an iteration does must be too little to be shared.
  if (runs_.parallel && !IsCheap(at, *straight)) return nullptr;
  for (uint32_t i = 0; i < straight->num_loop_merges; ++i) {
    const EdgeValue* const in = at.block.slots.data() + straight->nodes[i].first_input;
    if (!in[0].has_value() && !in[1].has_value()) return nullptr;
  }
  return life_.failed() ? nullptr : straight;
}

void FrameStep::RunStraight(Loop& loop, Iteration& at, const StraightLoop& straight) {
  using Way = StraightLoop::Way;
  Lane& lane = loop.lane.nodes;
  lane.head = kNoEntry;
  lane.measured = kNoEntry;
  EdgeValue* const outputs = loop.runner.outputs();
  Mover mover(at, straight);
  int64_t number = at.number.load(std::memory_order_relaxed);
  uint32_t gone_on;
  for (;;) {
    // Of a loop without kernels.
    if (ABSL_PREDICT_FALSE(life_.Stopped())) return;
    mover.BeginIteration();
    gone_on = 0;
    for (const StraightLoop::Node& item : straight.nodes) {
      EdgeValue* const in = mover.inputs(item);
      if (ABSL_PREDICT_FALSE(mover.IsDead(item))) {
        mover.KillReaders(item);
        mover.EmptyInputs(item);
        continue;
      }
      switch (item.way) {
        case Way::kPass:
          mover.PutOnly(item, 0, in);
          mover.EmptyInputs(item);
          break;
        case Way::kSwitch:
          if (ABSL_PREDICT_TRUE(mover.pred(item) != kNoPred)) {
            mover.PutOnly(item, mover.pred(item), in);
            mover.EmptyInputs(item);
            break;
          }
          [[fallthrough]];
        case Way::kKernel:
          if (ABSL_PREDICT_FALSE(life_.Stopped())) return;
          if (ABSL_PREDICT_FALSE(
                  !loop.runner.Run</*kLeavesInputs=*/true>(*item.node, in, /*dead=*/false))) {
            return life_.FailNode(plan_, *item.node, loop.runner.error());
          }
          mover.EmptyInputs(item);
          mover.PutOutputs(item, outputs);
          break;
        case Way::kMerge: {
          uint32_t live = 0;
          while (!in[live].has_value()) ++live;
          mover.PutOnly(item, 0, in + live);
          Reset(in[live]);
          break;
        }
        case Way::kNextIteration:
          ++gone_on;
          mover.PassTo(item, mover.SentRound(item));
          break;
        case Way::kExit:
          mover.PassTo(item, outputs);
          this->ExitLoop(loop, at, *item.node, outputs);
          Reset(outputs[0]);
          if (ABSL_PREDICT_FALSE(life_.failed())) return;
          break;
      }
    }
    if (gone_on != straight.num_next_iterations) break;
    ++number;
    const bool looks_at_costs = runs_.parallel && number % kCostsEvery == 0;
    if (ABSL_PREDICT_FALSE(looks_at_costs && !IsCheap(at, straight))) break;
    // Values that came into other loops meanwhile: see TurnToNext.
    if (number % kOthersEvery == 0 && loop.lane.inward != nullptr) break;
    at.number.store(number, std::memory_order_relaxed);
    loop.runner.SetIteration(number);
  }
  lane.nodes_run += straight.nodes.size();
  mover.EmptyConstants();
  if (gone_on == 0) return;
  MR_DCHECK(at.holds.load(std::memory_order_relaxed) == 1 && at.next == nullptr,
            "until it is handed back, an iteration that runs straight is this lane's alone");
  for (const StraightLoop::Node& item : straight.nodes) {
    if (item.way != Way::kNextIteration) continue;
    EdgeValue* const value = mover.SentRound(item);
    if (!value->has_value()) continue;
    GoOn(loop.lane, at, *item.node, value);
    Reset(*value);
  }
}

}  // namespace millrace
