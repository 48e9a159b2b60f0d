// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_MATH_CWISE_BINARY_H_
#define MILLRACE_OPS_MATH_CWISE_BINARY_H_

// Element-wise ops of two tensors, with NumPy's broadcasting.
//
// Shapes are aligned at the right; a dimension of size 1 is repeated, a missing one
// counts as 1. Both inputs have one dtype. Integers wrap around on overflow.
//
// "Numbers" are bfloat16, half, float, double, uint8, int8, uint16, int16, int32, int64, complex64
// and complex128; "floats" the first four.
//
// Errors, for all of them: InvalidArgument "Incompatible shapes: ..." when the shapes cannot be
// broadcast together, at build time when they are known then, otherwise in the step. In the step
// also for an integer divided by zero or raised to a negative power.

#include "graph/node_builder.h"

namespace millrace {

// --- Arithmetic: the result has the inputs' dtype ------------------------------------------------

inline constexpr BinaryBuilder Add{"Add"};      // x + y; joins strings. Numbers but uint16, string.
inline constexpr BinaryBuilder AddV2{"AddV2"};  // Add without strings: rewrites may reorder it.
inline constexpr BinaryBuilder Sub{"Sub"};      // x - y. Numbers.
inline constexpr BinaryBuilder Mul{"Mul"};      // x * y. Numbers.
inline constexpr BinaryBuilder Div{"Div"};      // x / y; integers round towards zero. Numbers.
inline constexpr BinaryBuilder RealDiv{"RealDiv"};    // x / y of floating and complex numbers.
inline constexpr BinaryBuilder FloorDiv{"FloorDiv"};  // x / y rounded down. Integers and floats.
inline constexpr BinaryBuilder TruncateDiv{"TruncateDiv"};  // x / y of integers, towards zero.
// x - y * floor(x / y): the sign follows y. int32, int64 and floats.
inline constexpr BinaryBuilder FloorMod{"FloorMod"};
// The remainder of division towards zero: the sign follows x. int32, int64, float, double.
inline constexpr BinaryBuilder Mod{"Mod"};
inline constexpr BinaryBuilder TruncateMod{"TruncateMod"};  // As Mod.
inline constexpr BinaryBuilder Pow{"Pow"};                  // x raised to y.
inline constexpr BinaryBuilder Maximum{"Maximum"};  // The larger of x and y. Floats, int32, int64.
inline constexpr BinaryBuilder Minimum{"Minimum"};  // The smaller of x and y. Floats, int32, int64.
inline constexpr BinaryBuilder SquaredDifference{"SquaredDifference"};  // |x - y|^2.
// x / y, and 0 where y is 0. half, float, double, complex64, complex128.
inline constexpr BinaryBuilder DivNoNan{"DivNoNan"};
// x * y, and 0 where y is 0, even if x is infinite or NaN. Types of DivNoNan.
inline constexpr BinaryBuilder MulNoNan{"MulNoNan"};
// The angle of the point (x, y), in (-pi, pi]. Floats.
inline constexpr BinaryBuilder Atan2{"Atan2"};

// --- Comparisons: the result is bool -------------------------------------------------------------

// x == y. All numbers, bool, string, quantized. NaN equals nothing. A node of TensorFlow 2 whose
// attr incompatible_shape_error is false compares any shapes: those that do not fit give a scalar,
// false of Equal and true of NotEqual.
inline constexpr BinaryBuilder Equal{"Equal"};
inline constexpr BinaryBuilder NotEqual{"NotEqual"};          // x != y. Types of Equal.
inline constexpr BinaryBuilder Less{"Less"};                  // x < y. Real numbers.
inline constexpr BinaryBuilder LessEqual{"LessEqual"};        // x <= y. Real numbers.
inline constexpr BinaryBuilder Greater{"Greater"};            // x > y. Real numbers.
inline constexpr BinaryBuilder GreaterEqual{"GreaterEqual"};  // x >= y. Real numbers.
inline constexpr BinaryBuilder LogicalAnd{"LogicalAnd"};      // x and y, both bool.
inline constexpr BinaryBuilder LogicalOr{"LogicalOr"};        // x or y, both bool.

// --- Broadcasting itself -------------------------------------------------------------------------

// `input` repeated to `shape` (int32 or int64 vector). Every dtype. InvalidArgument when `input`
// cannot be broadcast to exactly that shape.
inline constexpr BinaryBuilder BroadcastTo{"BroadcastTo"};
// The shape of x broadcast with y, from their shapes (int32 or int64 vectors).
inline constexpr BinaryBuilder BroadcastArgs{"BroadcastArgs"};

struct BroadcastGradientArgsOutputs {
  Output r0;
  Output r1;
};

// From the shapes s0 and s1 of two tensors: the axes over which the gradient of their broadcast
// must be summed to get the gradient of each. int32 or int64 vectors.
inline BroadcastGradientArgsOutputs BroadcastGradientArgs(ScopeAt at, Output s0, Output s1) {
  const BuiltNode node = BuildOp(at, "BroadcastGradientArgs", {s0, s1});
  return {node.output(0), node.output(1)};
}

}  // namespace millrace

#endif  // MILLRACE_OPS_MATH_CWISE_BINARY_H_
