// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_STRAIGHT_LOOP_H_
#define MILLRACE_RUNTIME_ENGINE_STRAIGHT_LOOP_H_

// StraightLoop: the nodes of a loop in an order in which one thread may run them one behind the
// other, iteration after iteration, without asking which one is ready: inputs come first in it.
//
// A loop is straight when nothing in it waits or is another loop, and its values go round as in
// TensorFlow's while loops:
//   * no asynchronous kernels, transfers or loops inside;
//   * an Enter that is not constant, and a NextIteration, gives one Merge its value and nothing
//     else; such a Merge has one input of each kind, and waits for nothing in the loop;
//   * a constant Enter leads to no Merge's data input;
//   * no reference to a variable goes round or out.
// Branches inside of the body are no obstacle: whether a value is dead is found out in each
// iteration.
//
// What only passes a value on (PassInputKernel, Switch, Merge without a reader of value_index) is
// moved by the engine itself.
//
// Immutable. Lifetime: the plan outlives it. Failure: std::bad_alloc.

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/plan.h"

namespace millrace {

class StraightLoop {
 public:
  static constexpr uint32_t kNone = 0xffffffffu;

  // Null: the loop is not straight. Not for what is outside of loops.
  static std::unique_ptr<const StraightLoop> Of(const Plan& plan, const Plan::Frame& frame);

  enum class Way : uint8_t { kKernel, kPass, kSwitch, kMerge, kNextIteration, kExit };

  // Nodes and slots have the numbers of the plan less those of the frame's first.
  struct Node {
    const Plan::Node* node;
    uint32_t index;
    uint32_t first_input;
    uint32_t first_edge, num_edges;      // data edges, in the order of the plan's
    uint32_t first_reader, num_readers;  // nodes that are dead when this one is
    Way way;
    bool has_constants;  // among its inputs
  };
  struct Edge {
    uint32_t dst;
    uint32_t slot;
    uint32_t output;
    bool moves;      // the last reader of its output
    bool to_merge;   // the first live value counts
    bool kills;      // without a value, its node is dead: not of a Merge, not of a trigger
    bool to_switch;  // as the pred of a Switch that the engine sees to
  };
  // An input that each iteration gets from the same constant Enter.
  struct Constant {
    uint32_t slot;
    uint32_t constant;  // Plan::Node::constant of the Enter
    uint32_t pred_of;   // the Switch that the engine sees to, or kNone
  };

  // The Merges at which values come round are the first ones.
  std::vector<Node> nodes;
  std::vector<Edge> edges;
  std::vector<uint32_t> readers;
  std::vector<Constant> constants;
  // By slot: the constant (Plan::Node::constant) that is in it, or kNone.
  std::vector<uint32_t> constant_of_slot;
  uint32_t num_loop_merges = 0;
  uint32_t num_next_iterations = 0;
  // By node, at the beginning of an iteration: 1 for a Merge of branches, which is dead until
  // something comes.
  std::vector<uint8_t> initially_dead;
  // Of nodes whose cost is measured.
  std::vector<uint32_t> measured;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_STRAIGHT_LOOP_H_
