// SPDX-License-Identifier: Apache-2.0
// Element-wise ops of one tensor: the loops are in ops/loops/unary.h; here are definitions and
// gradients. A gradient of a complex function is multiplied by the conjugate of the derivative.
#include "ops/math/cwise_unary.h"

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
  return OpSpec(op).Input("x: T").Output("y: T").Attr(types).Shape(UnchangedShape);
}

OpSpec TestSpec(absl::string_view op) {
  return OpSpec(op)
      .Input("x: T")
      .Output("y: bool")
      .Attr(kFloats)
      .Shape(UnchangedShape)
      .NotDifferentiable();
}

// The two inputs have one shape.
Status SameShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape shape, MergeAll(c, 0, 2));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

OpSpec HelperSpec(absl::string_view op) {
  return OpSpec(op)
      .Input("y: T")
      .Input("dy: T")
      .Output("z: T")
      .Attr(kFloatsAndComplex)
      .Shape(SameShape);
}

// The conjugate of a complex factor; a real one as it is.
Output Conjugate(const Scope& s, Output x) { return IsComplex(x.dtype()) ? Conj(s, x) : x; }

// grad * conj(derivative), the derivative in terms of the input x, or of the result y.
template <Output (*kDerivative)(const Scope&, Output)>
Status FromInput(GradientContext* c) {
  const Scope& s = c->scope();
  const Output derivative = Conjugate(s, kDerivative(s, c->input(0)));
  c->set_input_grad(0, Mul(s, c->dense_grad(), derivative));
  return absl::OkStatus();
}
template <Output (*kDerivative)(const Scope&, Output)>
Status FromResult(GradientContext* c) {
  const Scope& s = c->scope();
  const Output derivative = Conjugate(s, kDerivative(s, c->output(0)));
  c->set_input_grad(0, Mul(s, c->dense_grad(), derivative));
  return absl::OkStatus();
}
// By a helper op of (result, incoming gradient).
template <const BinaryBuilder& kHelper>
Status ByHelper(GradientContext* c) {
  c->set_input_grad(0, kHelper(c->scope(), c->output(0), c->dense_grad()));
  return absl::OkStatus();
}

// --- Signs and roundings -------------------------------------------------------------------------

Output AbsDerivative(const Scope& s, Output x) { return Sign(s, x); }

Status NegGradient(GradientContext* c) {
  c->set_input_grad(0, Neg(c->scope(), c->dense_grad()));
  return absl::OkStatus();
}

// Constant but for one point.
Status ZeroGradient(GradientContext* c) {
  c->set_input_grad(0, ZerosLike(c->scope(), c->input(0)));
  return absl::OkStatus();
}

Status ConjGradient(GradientContext* c) {
  c->set_input_grad(0, Conj(c->scope(), c->dense_grad()));
  return absl::OkStatus();
}

// --- Powers and roots ----------------------------------------------------------------------------

Output SquareDerivative(const Scope& s, Output x) { return Mul(s, x, ScalarLike(s, x, 2)); }

// --- Exponential functions -----------------------------------------------------------------------

// In terms of the result.
Output ExpDerivative(const Scope&, Output y) { return y; }

Output Expm1Derivative(const Scope& s, Output x) { return Exp(s, x); }

Output LogDerivative(const Scope& s, Output x) { return Reciprocal(s, x); }

Output Log1pDerivative(const Scope& s, Output x) {
  return Reciprocal(s, Add(s, ScalarLike(s, x, 1), x));
}

Output SinhDerivative(const Scope& s, Output x) { return Cosh(s, x); }

Output CoshDerivative(const Scope& s, Output x) { return Sinh(s, x); }

// In terms of the result, as those of Acosh.
Output AsinhDerivative(const Scope& s, Output y) { return Reciprocal(s, Cosh(s, y)); }

Output AcoshDerivative(const Scope& s, Output y) { return Reciprocal(s, Sinh(s, y)); }

Output AtanhDerivative(const Scope& s, Output x) {
  return Reciprocal(s, Sub(s, ScalarLike(s, x, 1), Square(s, x)));
}

// --- Angles --------------------------------------------------------------------------------------

Output SinDerivative(const Scope& s, Output x) { return Cos(s, x); }

Output CosDerivative(const Scope& s, Output x) { return Neg(s, Sin(s, x)); }

Output TanDerivative(const Scope& s, Output x) { return Square(s, Reciprocal(s, Cos(s, x))); }

Output AsinDerivative(const Scope& s, Output x) {
  return Rsqrt(s, Sub(s, ScalarLike(s, x, 1), Square(s, x)));
}

Output AcosDerivative(const Scope& s, Output x) { return Neg(s, AsinDerivative(s, x)); }

Output AtanDerivative(const Scope& s, Output x) {
  return Reciprocal(s, Add(s, ScalarLike(s, x, 1), Square(s, x)));
}

// --- Error function ------------------------------------------------------------------------------

// exp(-x^2) * 2 / sqrt(pi)
Output ErfDerivative(const Scope& s, Output x) {
  const Output factor = ScalarLike(s, x, 1.1283791670955125739);
  return Mul(s, factor, Exp(s, Neg(s, Square(s, x))));
}

Output ErfcDerivative(const Scope& s, Output x) { return Neg(s, ErfDerivative(s, x)); }

// --- Gradient helpers ----------------------------------------------------------------------------

// Each is linear in dy: its gradient with respect to dy is the helper itself.
using Helper = const BinaryBuilder&;
using HelperDerivative = Output (*)(const Scope& s, Output y, Output g_dy);

// `kDerivative` is the gradient with respect to y, from conj(y) and grad * dy.
template <Helper kHelper, HelperDerivative kDerivative>
Status HelperGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output grad = c->dense_grad();
  const Output y = Conjugate(s, c->input(0));
  c->set_input_grad(0, kDerivative(s, y, Mul(s, grad, Conjugate(s, c->input(1)))));
  c->set_input_grad(1, kHelper(s, c->input(0), grad));
  return absl::OkStatus();
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
    {UnarySpec("Abs", kReals).Gradient(FromInput<AbsDerivative>), UnaryOp::kAbs},
    {UnarySpec("Neg", kNumbers).Gradient(NegGradient), UnaryOp::kNeg},
    {UnarySpec("Sign", kNumbers).Gradient(ZeroGradient), UnaryOp::kSign},
    {UnarySpec("Floor", kFloats).NotDifferentiable(), UnaryOp::kFloor},
    {UnarySpec("Ceil", kFloats).NotDifferentiable(), UnaryOp::kCeil},
    {UnarySpec("Round", kNumbers).NotDifferentiable(), UnaryOp::kRound},
    {UnarySpec("Rint", kFloats).NotDifferentiable(), UnaryOp::kRound},
    {OpSpec("Conj")
         .Input("input: T")
         .Output("output: T")
         .Attr("T: {complex64, complex128, variant} = DT_COMPLEX64")
         .Shape(UnchangedShape)
         .Gradient(ConjGradient),
     UnaryOp::kConj},
    {UnarySpec("Square", kNumbers).Gradient(FromInput<SquareDerivative>), UnaryOp::kSquare},
    {UnarySpec("Reciprocal", kNumbers).Gradient(ByHelper<ReciprocalGrad>), UnaryOp::kReciprocal},
    {UnarySpec("Inv", kNumbers).Gradient(ByHelper<InvGrad>), UnaryOp::kReciprocal},
    {UnarySpec("Sqrt", kFloatsAndComplex).Gradient(ByHelper<SqrtGrad>), UnaryOp::kSqrt},
    {UnarySpec("Rsqrt", kFloatsAndComplex).Gradient(ByHelper<RsqrtGrad>), UnaryOp::kRsqrt},
    {UnarySpec("Exp", kFloatsAndComplex).Gradient(FromResult<ExpDerivative>), UnaryOp::kExp},
    {UnarySpec("Expm1", kFloatsAndComplex).Gradient(FromInput<Expm1Derivative>), UnaryOp::kExpm1},
    {UnarySpec("Log", kFloatsAndComplex).Gradient(FromInput<LogDerivative>), UnaryOp::kLog},
    {UnarySpec("Log1p", kFloatsAndComplex).Gradient(FromInput<Log1pDerivative>), UnaryOp::kLog1p},
    {UnarySpec("Sigmoid", kFloatsAndComplex).Gradient(ByHelper<SigmoidGrad>), UnaryOp::kSigmoid},
    {UnarySpec("Tanh", kFloatsAndComplex).Gradient(ByHelper<TanhGrad>), UnaryOp::kTanh},
    {UnarySpec("Sinh", kFloatsAndComplex).Gradient(FromInput<SinhDerivative>), UnaryOp::kSinh},
    {UnarySpec("Cosh", kFloatsAndComplex).Gradient(FromInput<CoshDerivative>), UnaryOp::kCosh},
    {UnarySpec("Asinh", kFloatsAndComplex).Gradient(FromResult<AsinhDerivative>), UnaryOp::kAsinh},
    {UnarySpec("Acosh", kFloatsAndComplex).Gradient(FromResult<AcoshDerivative>), UnaryOp::kAcosh},
    {UnarySpec("Atanh", kFloatsAndComplex).Gradient(FromInput<AtanhDerivative>), UnaryOp::kAtanh},
    {UnarySpec("Sin", kFloatsAndComplex).Gradient(FromInput<SinDerivative>), UnaryOp::kSin},
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
    {OpSpec("LogicalNot")
         .Input("x: bool")
         .Output("y: bool")
         .Shape(UnchangedShape)
         .NotDifferentiable(),
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
