// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_CONTROL_CONTROL_FLOW_H_
#define MILLRACE_OPS_CONTROL_CONTROL_FLOW_H_

// Branches: Switch sends a tensor down one of two ways, Merge takes what arrives. Loops: Enter
// leads into one, NextIteration to its next iteration, Exit out of it.
//
// What is not taken is dead: nodes that need it do not run. Only nodes that depend on a
// Switch's output are conditional; anything made outside runs always.
//
// A loop is a cycle through NextIteration and Merge, which is closed by Graph::UpdateInput:
//
//   enter = Enter(x, "loop"); merge = Merge(enter, enter); go_on = LoopCond(...merge...)
//   ways = Switch(merge, go_on); next = NextIteration(...ways.output_true...)
//   graph->UpdateInput(merge, 1, next, 0); result = Exit(ways.output_false)
//
// docs/control_flow.md says what runs when. graph/frames.h says which graphs are loops.

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "graph/node_builder.h"

namespace millrace {

struct SwitchOutputs {
  Output output_false;  // has the value when pred is false
  Output output_true;   // has the value when pred is true
};

// `data` (any dtype and shape) to one of two outputs. `pred`: bool scalar.
inline SwitchOutputs Switch(ScopeAt at, Output data, Output pred) {
  const BuiltNode node = BuildOp(at, "Switch", {data, pred});
  return {node.output(0), node.output(1)};
}
// The same for a reference to a variable.
inline SwitchOutputs RefSwitch(ScopeAt at, Output data, Output pred) {
  const BuiltNode node = BuildOp(at, "RefSwitch", {data, pred});
  return {node.output(0), node.output(1)};
}

struct MergeOutputs {
  Output output;       // the first input that has a value
  Output value_index;  // int32 scalar: which one it is
};

// One of several tensors of one dtype: whichever is not dead.
inline MergeOutputs Merge(ScopeAt at, absl::Span<const Output> inputs) {
  const BuiltNode node = BuildOp(at, "Merge", {inputs});
  return {node.output(0), node.output(1)};
}
inline MergeOutputs RefMerge(ScopeAt at, absl::Span<const Output> inputs) {
  const BuiltNode node = BuildOp(at, "RefMerge", {inputs});
  return {node.output(0), node.output(1)};
}

struct EnterAttrs {
  bool is_constant = false;  // every iteration gets `data`, not only the first
  // Iterations that may be under way at once; the same for all that lead into one loop.
  int64_t parallel_iterations = 10;
};

// `data` (any dtype and shape) into the loop of this name. The Enters of one name lead into one
// loop, and must all be in the same loop themselves, or in none.
inline Output Enter(ScopeAt at, Output data, absl::string_view frame_name,
                    const EnterAttrs& attrs = {}) {
  return BuildOp(at, "Enter", {data}, "frame_name", frame_name, "is_constant", attrs.is_constant,
                 "parallel_iterations", attrs.parallel_iterations);
}
inline Output RefEnter(ScopeAt at, Output data, absl::string_view frame_name,
                       const EnterAttrs& attrs = {}) {
  return BuildOp(at, "RefEnter", {data}, "frame_name", frame_name, "is_constant", attrs.is_constant,
                 "parallel_iterations", attrs.parallel_iterations);
}

// `data` out of the loop that it is in. It must have a value in one iteration only, the last.
inline Output Exit(ScopeAt at, Output data) { return BuildOp(at, "Exit", {data}); }
inline Output RefExit(ScopeAt at, Output data) { return BuildOp(at, "RefExit", {data}); }

// `data` in the next iteration; a dead one ends there.
inline Output NextIteration(ScopeAt at, Output data) {
  return BuildOp(at, "NextIteration", {data});
}
inline Output RefNextIteration(ScopeAt at, Output data) {
  return BuildOp(at, "RefNextIteration", {data});
}

// `input` (a bool), marked as what decides whether its loop goes on; at most one in a loop, and
// one in a loop that spans devices.
inline Output LoopCond(ScopeAt at, Output input) { return BuildOp(at, "LoopCond", {input}); }

// Nothing; runs after its control inputs, dead ones too.
inline Operation ControlTrigger(ScopeAt at) { return BuildOp(at, "ControlTrigger", {}); }

}  // namespace millrace

#endif  // MILLRACE_OPS_CONTROL_CONTROL_FLOW_H_
