// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_MATH_CWISE_BINARY_H_
#define MILLRACE_OPS_MATH_CWISE_BINARY_H_

// Element-wise ops of two tensors, with NumPy's broadcasting.
//
// Shapes are aligned at the right; a dimension of size 1 is repeated, a missing one
// counts as 1. Both inputs have one dtype. Integers wrap around on overflow.
//
// Errors, for all of them: InvalidArgument "Incompatible shapes: ..." when the shapes cannot be
// broadcast together, at build time when they are known then, otherwise in the step.

#include "graph/node_builder.h"

namespace millrace {

// --- Arithmetic: the result has the inputs' dtype ------------------------------------------------

// x + y; strings are concatenated. bfloat16, half, float, double, uint8, int8, int16, int32, int64,
// complex64, complex128, string.
inline Output Add(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "Add").Input(x).Input(y).Finish().output(0);
}

// x + y, as Add but without strings: commutative, so graph rewrites may reorder it.
inline Output AddV2(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "AddV2").Input(x).Input(y).Finish().output(0);
}

// x - y. Types of Mul.
inline Output Sub(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "Sub").Input(x).Input(y).Finish().output(0);
}

// x * y. bfloat16, half, float, double, uint8, int8, uint16, int16, int32, int64, complex64,
// complex128.
inline Output Mul(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "Mul").Input(x).Input(y).Finish().output(0);
}

// x / y; integers round towards zero. Types of Mul. InvalidArgument in the step for an integer
// divided by zero.
inline Output Div(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "Div").Input(x).Input(y).Finish().output(0);
}

// x / y of floating and complex numbers.
inline Output RealDiv(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "RealDiv").Input(x).Input(y).Finish().output(0);
}

// x / y rounded towards minus infinity; integers and floats. InvalidArgument for an integer divided
// by zero.
inline Output FloorDiv(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "FloorDiv").Input(x).Input(y).Finish().output(0);
}

// x / y of integers, rounded towards zero. InvalidArgument for division by zero.
inline Output TruncateDiv(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "TruncateDiv").Input(x).Input(y).Finish().output(0);
}

// x - y * floor(x / y): the sign follows y. int32, int64 and floats. InvalidArgument for an integer
// modulo zero.
inline Output FloorMod(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "FloorMod").Input(x).Input(y).Finish().output(0);
}

// The remainder of division towards zero: the sign follows x. int32, int64, float, double.
inline Output Mod(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "Mod").Input(x).Input(y).Finish().output(0);
}

// As Mod.
inline Output TruncateMod(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "TruncateMod").Input(x).Input(y).Finish().output(0);
}

// x raised to y. InvalidArgument for an integer raised to a negative power.
inline Output Pow(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "Pow").Input(x).Input(y).Finish().output(0);
}

// The larger of x and y. Floats, int32, int64.
inline Output Maximum(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "Maximum").Input(x).Input(y).Finish().output(0);
}

// The smaller of x and y. Floats, int32, int64.
inline Output Minimum(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "Minimum").Input(x).Input(y).Finish().output(0);
}

// (x - y) * (x - y).
inline Output SquaredDifference(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "SquaredDifference").Input(x).Input(y).Finish().output(0);
}

// x / y, and 0 where y is 0. half, float, double, complex64, complex128.
inline Output DivNoNan(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "DivNoNan").Input(x).Input(y).Finish().output(0);
}

// x * y, and 0 where y is 0, even if x is infinite or NaN. half, float, double, complex64,
// complex128.
inline Output MulNoNan(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "MulNoNan").Input(x).Input(y).Finish().output(0);
}

// The angle of the point (x, y), in (-pi, pi]. Floats.
inline Output Atan2(ScopeAt at, Output y, Output x) {
  return NodeBuilder(at, "Atan2").Input(y).Input(x).Finish().output(0);
}

// --- Comparisons: the result is bool -------------------------------------------------------------

// x == y. All numbers, bool, string, quantized. NaN equals nothing.
inline Output Equal(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "Equal").Input(x).Input(y).Finish().output(0);
}

// x != y. Types of Equal.
inline Output NotEqual(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "NotEqual").Input(x).Input(y).Finish().output(0);
}

// x < y. Real numbers.
inline Output Less(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "Less").Input(x).Input(y).Finish().output(0);
}

// x <= y. Real numbers.
inline Output LessEqual(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "LessEqual").Input(x).Input(y).Finish().output(0);
}

// x > y. Real numbers.
inline Output Greater(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "Greater").Input(x).Input(y).Finish().output(0);
}

// x >= y. Real numbers.
inline Output GreaterEqual(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "GreaterEqual").Input(x).Input(y).Finish().output(0);
}

// x and y, both bool.
inline Output LogicalAnd(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "LogicalAnd").Input(x).Input(y).Finish().output(0);
}

// x or y, both bool.
inline Output LogicalOr(ScopeAt at, Output x, Output y) {
  return NodeBuilder(at, "LogicalOr").Input(x).Input(y).Finish().output(0);
}

// --- Broadcasting itself -------------------------------------------------------------------------

// `input` repeated to `shape` (int32 or int64 vector). Every dtype. InvalidArgument when `input`
// cannot be broadcast to exactly that shape.
inline Output BroadcastTo(ScopeAt at, Output input, Output shape) {
  return NodeBuilder(at, "BroadcastTo").Input(input).Input(shape).Finish().output(0);
}

// The shape of x broadcast with y, from their shapes (int32 or int64 vectors).
inline Output BroadcastArgs(ScopeAt at, Output s0, Output s1) {
  return NodeBuilder(at, "BroadcastArgs").Input(s0).Input(s1).Finish().output(0);
}

struct BroadcastGradientArgsOutputs {
  Output r0;
  Output r1;
};

// From the shapes s0 and s1 of two tensors: the axes over which the gradient of their broadcast
// must be summed to get the gradient of each. int32 or int64 vectors.
inline BroadcastGradientArgsOutputs BroadcastGradientArgs(ScopeAt at, Output s0, Output s1) {
  const BuiltNode node = NodeBuilder(at, "BroadcastGradientArgs").Input(s0).Input(s1).Finish();
  return {node.output(0), node.output(1)};
}

}  // namespace millrace

#endif  // MILLRACE_OPS_MATH_CWISE_BINARY_H_
