// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_MATH_CWISE_UNARY_H_
#define MILLRACE_OPS_MATH_CWISE_UNARY_H_

// Element-wise ops of one tensor: the result has the input's shape, and its dtype
// unless another is named. "Floats" are bfloat16, half, float and double; "complex"
// are complex64 and complex128.
//
// The gradient helpers at the end take the result y of the function and the gradient dy that
// comes in, of one shape and dtype: InvalidArgument otherwise.

#include "core/dtype.h"
#include "graph/node_builder.h"

namespace millrace {

// |x|. Floats, int32, int64 (the lowest integer stays as it is).
inline constexpr UnaryBuilder Abs{"Abs"};
inline constexpr UnaryBuilder Neg{"Neg"};  // -x. Floats, int32, int64, complex.
// -1, 0 or 1; x / |x| for complex numbers. Floats, int32, int64, complex.
inline constexpr UnaryBuilder Sign{"Sign"};
inline constexpr UnaryBuilder Square{"Square"};          // x * x. Floats, int32, int64, complex.
inline constexpr UnaryBuilder Reciprocal{"Reciprocal"};  // 1 / x. Floats, complex.
inline constexpr UnaryBuilder Inv{"Inv"};                // 1 / x: the old name of Reciprocal.
inline constexpr UnaryBuilder Sqrt{"Sqrt"};              // The square root. Floats, complex.
inline constexpr UnaryBuilder Rsqrt{"Rsqrt"};            // 1 / sqrt(x). Floats, complex.
inline constexpr UnaryBuilder Exp{"Exp"};                // e to the power x. Floats, complex.
inline constexpr UnaryBuilder Expm1{"Expm1"};      // exp(x) - 1, exact near 0. Floats, complex.
inline constexpr UnaryBuilder Log{"Log"};          // The natural logarithm. Floats, complex.
inline constexpr UnaryBuilder Log1p{"Log1p"};      // log(1 + x), exact near 0. Floats, complex.
inline constexpr UnaryBuilder Sigmoid{"Sigmoid"};  // 1 / (1 + exp(-x)). Floats, complex.
inline constexpr UnaryBuilder Tanh{"Tanh"};        // The hyperbolic tangent. Floats, complex.
inline constexpr UnaryBuilder Sin{"Sin"};          // The sine. Floats, complex.
inline constexpr UnaryBuilder Cos{"Cos"};          // The cosine. Floats, complex.
inline constexpr UnaryBuilder Tan{"Tan"};          // The tangent. Floats, complex.
inline constexpr UnaryBuilder Asin{"Asin"};        // The arc sine. Floats.
inline constexpr UnaryBuilder Acos{"Acos"};        // The arc cosine. Floats.
inline constexpr UnaryBuilder Atan{"Atan"};        // The arc tangent. Floats.
inline constexpr UnaryBuilder Sinh{"Sinh"};        // The hyperbolic sine. Floats.
inline constexpr UnaryBuilder Cosh{"Cosh"};        // The hyperbolic cosine. Floats.
inline constexpr UnaryBuilder Asinh{"Asinh"};      // The inverse hyperbolic sine. Floats.
inline constexpr UnaryBuilder Acosh{"Acosh"};      // The inverse hyperbolic cosine. Floats.
inline constexpr UnaryBuilder Atanh{"Atanh"};      // The inverse hyperbolic tangent. Floats.
inline constexpr UnaryBuilder Erf{"Erf"};          // The error function. Floats.
inline constexpr UnaryBuilder Erfc{"Erfc"};        // 1 - erf(x), exact for large x. Floats.
inline constexpr UnaryBuilder Floor{"Floor"};      // The largest integer not above x. Floats.
inline constexpr UnaryBuilder Ceil{"Ceil"};        // The smallest integer not below x. Floats.
// The nearest integer, halves to even. Floats, int32, int64, complex.
inline constexpr UnaryBuilder Round{"Round"};
inline constexpr UnaryBuilder Rint{"Rint"};  // The nearest integer, halves to even. Floats.
inline constexpr UnaryBuilder Conj{"Conj"};  // The complex conjugate. complex64, complex128.
// The conjugate of a complex factor, a real one as it is: for gradients.
inline Output Conjugate(ScopeAt at, Output x) { return IsComplex(x.dtype()) ? Conj(at, x) : x; }

// --- Tests: the result is bool -------------------------------------------------------------------

inline constexpr UnaryBuilder IsNan{"IsNan"};            // Is x NaN? Floats.
inline constexpr UnaryBuilder IsInf{"IsInf"};            // Is x infinite? Floats.
inline constexpr UnaryBuilder IsFinite{"IsFinite"};      // Is x neither infinite nor NaN? Floats.
inline constexpr UnaryBuilder LogicalNot{"LogicalNot"};  // Not x. bool.

// --- Gradient helpers ----------------------------------------------------------------------------

inline constexpr BinaryBuilder SigmoidGrad{"SigmoidGrad"};  // dy * y * (1 - y) for y = Sigmoid(x).
inline constexpr BinaryBuilder TanhGrad{"TanhGrad"};        // dy * (1 - y * y) for y = Tanh(x).
inline constexpr BinaryBuilder SqrtGrad{"SqrtGrad"};        // dy * 0.5 / y for y = Sqrt(x).
inline constexpr BinaryBuilder RsqrtGrad{"RsqrtGrad"};      // dy * -0.5 * y^3 for y = Rsqrt(x).
// -dy * y * y for y = Reciprocal(x).
inline constexpr BinaryBuilder ReciprocalGrad{"ReciprocalGrad"};
inline constexpr BinaryBuilder InvGrad{"InvGrad"};  // As ReciprocalGrad.

}  // namespace millrace

#endif  // MILLRACE_OPS_MATH_CWISE_UNARY_H_
