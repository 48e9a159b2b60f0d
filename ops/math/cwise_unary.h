// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_MATH_CWISE_UNARY_H_
#define MILLRACE_OPS_MATH_CWISE_UNARY_H_

// Element-wise ops of one tensor: the result has the input's shape, and its dtype
// unless another is named. "Floats" are bfloat16, half, float and double; "complex"
// are complex64 and complex128.
//
// The gradient helpers at the end take the result y of the function and the gradient dy that
// comes in, of one shape and dtype: InvalidArgument otherwise.

#include "graph/node_builder.h"

namespace millrace {

// |x|. Floats, int32, int64 (the lowest integer stays as it is).
inline Output Abs(ScopeAt at, Output x) {
  return NodeBuilder(at, "Abs").Input(x).Finish().output(0);
}

// -x. Floats, int32, int64, complex.
inline Output Neg(ScopeAt at, Output x) {
  return NodeBuilder(at, "Neg").Input(x).Finish().output(0);
}

// -1, 0 or 1; x / |x| for complex numbers. Floats, int32, int64, complex.
inline Output Sign(ScopeAt at, Output x) {
  return NodeBuilder(at, "Sign").Input(x).Finish().output(0);
}

// x * x. Floats, int32, int64, complex.
inline Output Square(ScopeAt at, Output x) {
  return NodeBuilder(at, "Square").Input(x).Finish().output(0);
}

// 1 / x. Floats, complex.
inline Output Reciprocal(ScopeAt at, Output x) {
  return NodeBuilder(at, "Reciprocal").Input(x).Finish().output(0);
}

// 1 / x: the old name of Reciprocal.
inline Output Inv(ScopeAt at, Output x) {
  return NodeBuilder(at, "Inv").Input(x).Finish().output(0);
}

// The square root. Floats, complex.
inline Output Sqrt(ScopeAt at, Output x) {
  return NodeBuilder(at, "Sqrt").Input(x).Finish().output(0);
}

// 1 / sqrt(x). Floats, complex.
inline Output Rsqrt(ScopeAt at, Output x) {
  return NodeBuilder(at, "Rsqrt").Input(x).Finish().output(0);
}

// e to the power x. Floats, complex.
inline Output Exp(ScopeAt at, Output x) {
  return NodeBuilder(at, "Exp").Input(x).Finish().output(0);
}

// exp(x) - 1, exact near 0. Floats, complex.
inline Output Expm1(ScopeAt at, Output x) {
  return NodeBuilder(at, "Expm1").Input(x).Finish().output(0);
}

// The natural logarithm. Floats, complex.
inline Output Log(ScopeAt at, Output x) {
  return NodeBuilder(at, "Log").Input(x).Finish().output(0);
}

// log(1 + x), exact near 0. Floats, complex.
inline Output Log1p(ScopeAt at, Output x) {
  return NodeBuilder(at, "Log1p").Input(x).Finish().output(0);
}

// 1 / (1 + exp(-x)). Floats, complex.
inline Output Sigmoid(ScopeAt at, Output x) {
  return NodeBuilder(at, "Sigmoid").Input(x).Finish().output(0);
}

// The hyperbolic tangent. Floats, complex.
inline Output Tanh(ScopeAt at, Output x) {
  return NodeBuilder(at, "Tanh").Input(x).Finish().output(0);
}

// The sine. Floats, complex.
inline Output Sin(ScopeAt at, Output x) {
  return NodeBuilder(at, "Sin").Input(x).Finish().output(0);
}

// The cosine. Floats, complex.
inline Output Cos(ScopeAt at, Output x) {
  return NodeBuilder(at, "Cos").Input(x).Finish().output(0);
}

// The tangent. Floats, complex.
inline Output Tan(ScopeAt at, Output x) {
  return NodeBuilder(at, "Tan").Input(x).Finish().output(0);
}

// The arc sine. Floats.
inline Output Asin(ScopeAt at, Output x) {
  return NodeBuilder(at, "Asin").Input(x).Finish().output(0);
}

// The arc cosine. Floats.
inline Output Acos(ScopeAt at, Output x) {
  return NodeBuilder(at, "Acos").Input(x).Finish().output(0);
}

// The arc tangent. Floats.
inline Output Atan(ScopeAt at, Output x) {
  return NodeBuilder(at, "Atan").Input(x).Finish().output(0);
}

// The hyperbolic sine. Floats.
inline Output Sinh(ScopeAt at, Output x) {
  return NodeBuilder(at, "Sinh").Input(x).Finish().output(0);
}

// The hyperbolic cosine. Floats.
inline Output Cosh(ScopeAt at, Output x) {
  return NodeBuilder(at, "Cosh").Input(x).Finish().output(0);
}

// The inverse hyperbolic sine. Floats.
inline Output Asinh(ScopeAt at, Output x) {
  return NodeBuilder(at, "Asinh").Input(x).Finish().output(0);
}

// The inverse hyperbolic cosine. Floats.
inline Output Acosh(ScopeAt at, Output x) {
  return NodeBuilder(at, "Acosh").Input(x).Finish().output(0);
}

// The inverse hyperbolic tangent. Floats.
inline Output Atanh(ScopeAt at, Output x) {
  return NodeBuilder(at, "Atanh").Input(x).Finish().output(0);
}

// The error function. Floats.
inline Output Erf(ScopeAt at, Output x) {
  return NodeBuilder(at, "Erf").Input(x).Finish().output(0);
}

// 1 - erf(x), exact for large x. Floats.
inline Output Erfc(ScopeAt at, Output x) {
  return NodeBuilder(at, "Erfc").Input(x).Finish().output(0);
}

// The largest integer not above x. Floats.
inline Output Floor(ScopeAt at, Output x) {
  return NodeBuilder(at, "Floor").Input(x).Finish().output(0);
}

// The smallest integer not below x. Floats.
inline Output Ceil(ScopeAt at, Output x) {
  return NodeBuilder(at, "Ceil").Input(x).Finish().output(0);
}

// The nearest integer, halves to even. Floats, int32, int64, complex.
inline Output Round(ScopeAt at, Output x) {
  return NodeBuilder(at, "Round").Input(x).Finish().output(0);
}

// The nearest integer, halves to even. Floats.
inline Output Rint(ScopeAt at, Output x) {
  return NodeBuilder(at, "Rint").Input(x).Finish().output(0);
}

// The complex conjugate. complex64, complex128.
inline Output Conj(ScopeAt at, Output input) {
  return NodeBuilder(at, "Conj").Input(input).Finish().output(0);
}

// --- Tests: the result is bool -------------------------------------------------------------------

// Is x NaN? Floats.
inline Output IsNan(ScopeAt at, Output x) {
  return NodeBuilder(at, "IsNan").Input(x).Finish().output(0);
}

// Is x infinite? Floats.
inline Output IsInf(ScopeAt at, Output x) {
  return NodeBuilder(at, "IsInf").Input(x).Finish().output(0);
}

// Is x neither infinite nor NaN? Floats.
inline Output IsFinite(ScopeAt at, Output x) {
  return NodeBuilder(at, "IsFinite").Input(x).Finish().output(0);
}

// Not x. bool.
inline Output LogicalNot(ScopeAt at, Output x) {
  return NodeBuilder(at, "LogicalNot").Input(x).Finish().output(0);
}

// --- Gradient helpers ----------------------------------------------------------------------------

// dy * y * (1 - y) for y = Sigmoid(x).
inline Output SigmoidGrad(ScopeAt at, Output y, Output dy) {
  return NodeBuilder(at, "SigmoidGrad").Input(y).Input(dy).Finish().output(0);
}

// dy * (1 - y * y) for y = Tanh(x).
inline Output TanhGrad(ScopeAt at, Output y, Output dy) {
  return NodeBuilder(at, "TanhGrad").Input(y).Input(dy).Finish().output(0);
}

// dy * 0.5 / y for y = Sqrt(x).
inline Output SqrtGrad(ScopeAt at, Output y, Output dy) {
  return NodeBuilder(at, "SqrtGrad").Input(y).Input(dy).Finish().output(0);
}

// dy * -0.5 * y^3 for y = Rsqrt(x).
inline Output RsqrtGrad(ScopeAt at, Output y, Output dy) {
  return NodeBuilder(at, "RsqrtGrad").Input(y).Input(dy).Finish().output(0);
}

// -dy * y * y for y = Reciprocal(x).
inline Output ReciprocalGrad(ScopeAt at, Output y, Output dy) {
  return NodeBuilder(at, "ReciprocalGrad").Input(y).Input(dy).Finish().output(0);
}

// As ReciprocalGrad.
inline Output InvGrad(ScopeAt at, Output y, Output dy) {
  return NodeBuilder(at, "InvGrad").Input(y).Input(dy).Finish().output(0);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_MATH_CWISE_UNARY_H_
