// SPDX-License-Identifier: Apache-2.0
// Element-wise ops of one tensor: the loops are in ops/loops/unary.h; here are definitions and
// gradients. A gradient of a complex function is multiplied by the conjugate of the derivative.
#include "ops/math/cwise_unary.h"

#include <vector>

#include "graph/gradient.h"
#include "graph/shape_inference.h"
#include "ops/array/constant.h"
#include "ops/array/scalar_like.h"
#include "ops/kernels/cwise.h"
#include "ops/math/cwise_binary.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using math::BinaryOp;
using math::UnaryOp;

constexpr char kFloats[] = "T: {bfloat16, half, float, double}";
constexpr char kReals[] = "T: {bfloat16, half, float, double, int32, int64}";
constexpr char kFloatsAndComplex[] = "T: {bfloat16, half, float, double, complex64, complex128}";
constexpr char kNumbers[] =
    "T: {bfloat16, half, float, double, int32, int64, complex64, complex128}";

OpSpec UnarySpec(absl::string_view op, absl::string_view types) {
  return OpSpec(op, "x: T -> y: T", types).Shape(UnchangedShape);
}
OpSpec TestSpec(absl::string_view op) {
  return OpSpec(op, "x: T -> y: bool", kFloats).Shape(UnchangedShape).NotDifferentiable();
}
OpSpec HelperSpec(absl::string_view op) {
  return OpSpec(op, "y: T, dy: T -> z: T", kFloatsAndComplex).Rule<SameShapeRule>();
}

// --- Gradients -----------------------------------------------------------------------------------

// grad * conj(derivative), the derivative (a function or a builder) in terms of the input x, or of
// the result y.
template <const auto& kDerivative>
Output FromInput(GradientContext* c) {
  const Scope& s = c->scope();
  const Output derivative = Conjugate(s, kDerivative(s, c->input(0)));
  return Mul(s, c->dense_grad(), derivative);
}
template <const auto& kDerivative>
Output FromResult(GradientContext* c) {
  const Scope& s = c->scope();
  const Output derivative = Conjugate(s, kDerivative(s, c->output(0)));
  return Mul(s, c->dense_grad(), derivative);
}
// By a helper op of (result, incoming gradient).
template <const BinaryBuilder& kHelper>
Output ByHelper(GradientContext* c) {
  return kHelper(c->scope(), c->output(0), c->dense_grad());
}
// By the op itself.
template <const UnaryBuilder& kOp>
Output BySelf(GradientContext* c) {
  return kOp(c->scope(), c->dense_grad());
}
// Constant but for one point.
Output ZeroGradient(GradientContext* c) { return ZerosLike(c->scope(), c->input(0)); }

// --- Derivatives that are no op ------------------------------------------------------------------

Output OnePlus(const Scope& s, Output x) { return Add(s, ScalarLike(s, x, 1), x); }
Output OneMinus(const Scope& s, Output x) { return Sub(s, ScalarLike(s, x, 1), x); }

Output SquareDerivative(const Scope& s, Output x) { return Mul(s, x, ScalarLike(s, x, 2)); }
// In terms of the result, as those of Asinh and Acosh.
Output ExpDerivative(const Scope&, Output y) { return y; }
Output AsinhDerivative(const Scope& s, Output y) { return Reciprocal(s, Cosh(s, y)); }
Output AcoshDerivative(const Scope& s, Output y) { return Reciprocal(s, Sinh(s, y)); }
Output Log1pDerivative(const Scope& s, Output x) { return Reciprocal(s, OnePlus(s, x)); }
Output AtanhDerivative(const Scope& s, Output x) {
  return Reciprocal(s, OneMinus(s, Square(s, x)));
}
Output CosDerivative(const Scope& s, Output x) { return Neg(s, Sin(s, x)); }
Output TanDerivative(const Scope& s, Output x) { return Square(s, Reciprocal(s, Cos(s, x))); }
Output AsinDerivative(const Scope& s, Output x) { return Rsqrt(s, OneMinus(s, Square(s, x))); }
Output AcosDerivative(const Scope& s, Output x) { return Neg(s, AsinDerivative(s, x)); }
Output AtanDerivative(const Scope& s, Output x) { return Reciprocal(s, OnePlus(s, Square(s, x))); }

// exp(-x^2) * 2 / sqrt(pi)
Output ErfDerivative(const Scope& s, Output x) {
  const Output factor = ScalarLike(s, x, 1.1283791670955125739);
  return Mul(s, factor, Exp(s, Neg(s, Square(s, x))));
}
Output ErfcDerivative(const Scope& s, Output x) { return Neg(s, ErfDerivative(s, x)); }

// --- Gradient helpers ----------------------------------------------------------------------------

// Each is linear in dy: its gradient with respect to dy is the helper itself. `kDerivative` is the
// gradient with respect to y, from conj(y) and grad * dy.
template <const BinaryBuilder& kHelper,
          Output (*kDerivative)(const Scope& s, Output y, Output g_dy)>
std::vector<Output> HelperGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output grad = c->dense_grad();
  const Output y = Conjugate(s, c->input(0));
  return {kDerivative(s, y, Mul(s, grad, Conjugate(s, c->input(1)))),
          kHelper(s, c->input(0), grad)};
}

// dy * y * (1 - y)
Output SigmoidGradDerivative(const Scope& s, Output y, Output g_dy) {
  return Mul(s, g_dy, Sub(s, ScalarLike(s, y, 1), Mul(s, ScalarLike(s, y, 2), y)));
}
// dy * (1 - y^2), and -dy * y^2
Output MinusTwoY(const Scope& s, Output y, Output g_dy) {
  return Mul(s, g_dy, Mul(s, ScalarLike(s, y, -2), y));
}
// dy / (2 y)
Output SqrtGradDerivative(const Scope& s, Output y, Output g_dy) {
  return RealDiv(s, Mul(s, ScalarLike(s, y, -0.5), g_dy), Square(s, y));
}
// -dy * y^3 / 2
Output RsqrtGradDerivative(const Scope& s, Output y, Output g_dy) {
  return Mul(s, g_dy, Mul(s, ScalarLike(s, y, -1.5), Square(s, y)));
}

// --- Tables --------------------------------------------------------------------------------------

const UnaryOps kUnaryOps = {
    {UnarySpec("Abs", kReals).Gradient(FromInput<Sign>), UnaryOp::kAbs},
    {UnarySpec("Neg", kNumbers).Gradient(BySelf<Neg>), UnaryOp::kNeg},
    {UnarySpec("Sign", kNumbers).Gradient(ZeroGradient), UnaryOp::kSign},
    {UnarySpec("Floor", kFloats).NotDifferentiable(), UnaryOp::kFloor},
    {UnarySpec("Ceil", kFloats).NotDifferentiable(), UnaryOp::kCeil},
    {UnarySpec("Round", kNumbers).NotDifferentiable(), UnaryOp::kRound},
    {UnarySpec("Rint", kFloats).NotDifferentiable(), UnaryOp::kRound},
    {OpSpec("Conj", "input: T -> output: T", "T: {complex64, complex128, variant} = DT_COMPLEX64")
         .Shape(UnchangedShape)
         .Gradient(BySelf<Conj>),
     UnaryOp::kConj},
    {UnarySpec("Square", kNumbers).Gradient(FromInput<SquareDerivative>), UnaryOp::kSquare},
    {UnarySpec("Reciprocal", kNumbers).Gradient(ByHelper<ReciprocalGrad>), UnaryOp::kReciprocal},
    {UnarySpec("Inv", kNumbers).Gradient(ByHelper<InvGrad>), UnaryOp::kReciprocal},
    {UnarySpec("Sqrt", kFloatsAndComplex).Gradient(ByHelper<SqrtGrad>), UnaryOp::kSqrt},
    {UnarySpec("Rsqrt", kFloatsAndComplex).Gradient(ByHelper<RsqrtGrad>), UnaryOp::kRsqrt},
    {UnarySpec("Exp", kFloatsAndComplex).Gradient(FromResult<ExpDerivative>), UnaryOp::kExp},
    {UnarySpec("Expm1", kFloatsAndComplex).Gradient(FromInput<Exp>), UnaryOp::kExpm1},
    {UnarySpec("Log", kFloatsAndComplex).Gradient(FromInput<Reciprocal>), UnaryOp::kLog},
    {UnarySpec("Log1p", kFloatsAndComplex).Gradient(FromInput<Log1pDerivative>), UnaryOp::kLog1p},
    {UnarySpec("Sigmoid", kFloatsAndComplex).Gradient(ByHelper<SigmoidGrad>), UnaryOp::kSigmoid},
    {UnarySpec("Tanh", kFloatsAndComplex).Gradient(ByHelper<TanhGrad>), UnaryOp::kTanh},
    {UnarySpec("Sinh", kFloatsAndComplex).Gradient(FromInput<Cosh>), UnaryOp::kSinh},
    {UnarySpec("Cosh", kFloatsAndComplex).Gradient(FromInput<Sinh>), UnaryOp::kCosh},
    {UnarySpec("Asinh", kFloatsAndComplex).Gradient(FromResult<AsinhDerivative>), UnaryOp::kAsinh},
    {UnarySpec("Acosh", kFloatsAndComplex).Gradient(FromResult<AcoshDerivative>), UnaryOp::kAcosh},
    {UnarySpec("Atanh", kFloatsAndComplex).Gradient(FromInput<AtanhDerivative>), UnaryOp::kAtanh},
    {UnarySpec("Sin", kFloatsAndComplex).Gradient(FromInput<Cos>), UnaryOp::kSin},
    {UnarySpec("Cos", kFloatsAndComplex).Gradient(FromInput<CosDerivative>), UnaryOp::kCos},
    {UnarySpec("Tan", kNumbers).Gradient(FromInput<TanDerivative>), UnaryOp::kTan},
    {UnarySpec("Asin", kNumbers).Gradient(FromInput<AsinDerivative>), UnaryOp::kAsin},
    {UnarySpec("Acos", kNumbers).Gradient(FromInput<AcosDerivative>), UnaryOp::kAcos},
    {UnarySpec("Atan", kNumbers).Gradient(FromInput<AtanDerivative>), UnaryOp::kAtan},
    {UnarySpec("Erf", kFloats).Gradient(FromInput<ErfDerivative>), UnaryOp::kErf},
    {UnarySpec("Erfc", kFloats).Gradient(FromInput<ErfcDerivative>), UnaryOp::kErfc},
    {TestSpec("IsNan"), UnaryOp::kIsNan},
    {TestSpec("IsInf"), UnaryOp::kIsInf},
    {TestSpec("IsFinite"), UnaryOp::kIsFinite},
    {OpSpec("LogicalNot", "x: bool -> y: bool").Shape(UnchangedShape).NotDifferentiable(),
     UnaryOp::kLogicalNot},
};

const SameShapeOps kGradientHelpers = {
    {HelperSpec("SigmoidGrad").Gradient(HelperGradient<SigmoidGrad, SigmoidGradDerivative>),
     BinaryOp::kSigmoidGrad},
    {HelperSpec("TanhGrad").Gradient(HelperGradient<TanhGrad, MinusTwoY>), BinaryOp::kTanhGrad},
    {HelperSpec("SqrtGrad").Gradient(HelperGradient<SqrtGrad, SqrtGradDerivative>),
     BinaryOp::kSqrtGrad},
    {HelperSpec("RsqrtGrad").Gradient(HelperGradient<RsqrtGrad, RsqrtGradDerivative>),
     BinaryOp::kRsqrtGrad},
    {HelperSpec("ReciprocalGrad").Gradient(HelperGradient<ReciprocalGrad, MinusTwoY>),
     BinaryOp::kReciprocalGrad},
    {HelperSpec("InvGrad").Gradient(HelperGradient<InvGrad, MinusTwoY>), BinaryOp::kReciprocalGrad},
};

}  // namespace
}  // namespace millrace
