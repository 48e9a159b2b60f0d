// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_CONTROL_CONTROL_FLOW_H_
#define MILLRACE_OPS_CONTROL_CONTROL_FLOW_H_

// Branches: Switch sends a tensor down one of two ways, Merge takes what arrives.
//
// What is not taken is dead: nodes that need it do not run. Only nodes that depend on a
// Switch's output are conditional; anything made outside runs always.

#include <vector>

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

// Nothing; runs after its control inputs, dead ones too.
inline Operation ControlTrigger(ScopeAt at) { return BuildOp(at, "ControlTrigger", {}); }

}  // namespace millrace

#endif  // MILLRACE_OPS_CONTROL_CONTROL_FLOW_H_
