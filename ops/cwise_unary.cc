// SPDX-License-Identifier: Apache-2.0
// Element-wise ops of one tensor: the loops are in ops/math/unary.h; here are definitions and
// gradients. A gradient of a complex function is multiplied by the conjugate of the derivative.
#include "ops/cwise_unary.h"

#include "graph/gradient.h"
#include "ops/constant.h"
#include "ops/cwise_binary.h"
#include "ops/kernels/cwise.h"
#include "ops/scalar_like.h"
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
template <Output (*kHelper)(ScopeAt, Output, Output)>
Status ByHelper(GradientContext* c) {
  c->set_input_grad(0, kHelper(c->scope(), c->output(0), c->dense_grad()));
  return absl::OkStatus();
}

// --- Signs and roundings -------------------------------------------------------------------------

Output AbsDerivative(const Scope& s, Output x) { return Sign(s, x); }
const OpRegistration kAbs = UnarySpec("Abs", kReals).Gradient(FromInput<AbsDerivative>);
const KernelRegistration kAbsKernel = UnaryKernels<UnaryOp::kAbs>("Abs");

Status NegGradient(GradientContext* c) {
  c->set_input_grad(0, Neg(c->scope(), c->dense_grad()));
  return absl::OkStatus();
}
const OpRegistration kNeg = UnarySpec("Neg", kNumbers).Gradient(NegGradient);
const KernelRegistration kNegKernel = UnaryKernels<UnaryOp::kNeg>("Neg");

// Constant but for one point.
Status ZeroGradient(GradientContext* c) {
  c->set_input_grad(0, ZerosLike(c->scope(), c->input(0)));
  return absl::OkStatus();
}
const OpRegistration kSign = UnarySpec("Sign", kNumbers).Gradient(ZeroGradient);
const KernelRegistration kSignKernel = UnaryKernels<UnaryOp::kSign>("Sign");

const OpRegistration kFloor = UnarySpec("Floor", kFloats).NotDifferentiable();
const KernelRegistration kFloorKernel = UnaryKernels<UnaryOp::kFloor>("Floor");

const OpRegistration kCeil = UnarySpec("Ceil", kFloats).NotDifferentiable();
const KernelRegistration kCeilKernel = UnaryKernels<UnaryOp::kCeil>("Ceil");

const OpRegistration kRound = UnarySpec("Round", kNumbers).NotDifferentiable();
const KernelRegistration kRoundKernel = UnaryKernels<UnaryOp::kRound>("Round");

const OpRegistration kRint = UnarySpec("Rint", kFloats).NotDifferentiable();
const KernelRegistration kRintKernel = UnaryKernels<UnaryOp::kRound>("Rint");

Status ConjGradient(GradientContext* c) {
  c->set_input_grad(0, Conj(c->scope(), c->dense_grad()));
  return absl::OkStatus();
}
const OpRegistration kConj = OpSpec("Conj")
                                 .Input("input: T")
                                 .Output("output: T")
                                 .Attr("T: {complex64, complex128, variant} = DT_COMPLEX64")
                                 .Shape(UnchangedShape)
                                 .Gradient(ConjGradient);
const KernelRegistration kConjKernel = UnaryKernels<UnaryOp::kConj>("Conj");

// --- Powers and roots ----------------------------------------------------------------------------

Output SquareDerivative(const Scope& s, Output x) { return Mul(s, x, ScalarLike(s, x, 2)); }
const OpRegistration kSquare = UnarySpec("Square", kNumbers).Gradient(FromInput<SquareDerivative>);
const KernelRegistration kSquareKernel = UnaryKernels<UnaryOp::kSquare>("Square");

const OpRegistration kReciprocal =
    UnarySpec("Reciprocal", kNumbers).Gradient(ByHelper<ReciprocalGrad>);
const KernelRegistration kReciprocalKernel = UnaryKernels<UnaryOp::kReciprocal>("Reciprocal");

const OpRegistration kInv = UnarySpec("Inv", kNumbers).Gradient(ByHelper<InvGrad>);
const KernelRegistration kInvKernel = UnaryKernels<UnaryOp::kReciprocal>("Inv");

const OpRegistration kSqrt = UnarySpec("Sqrt", kFloatsAndComplex).Gradient(ByHelper<SqrtGrad>);
const KernelRegistration kSqrtKernel = UnaryKernels<UnaryOp::kSqrt>("Sqrt");

const OpRegistration kRsqrt = UnarySpec("Rsqrt", kFloatsAndComplex).Gradient(ByHelper<RsqrtGrad>);
const KernelRegistration kRsqrtKernel = UnaryKernels<UnaryOp::kRsqrt>("Rsqrt");

// --- Exponential functions -----------------------------------------------------------------------

// In terms of the result.
Output ExpDerivative(const Scope&, Output y) { return y; }
const OpRegistration kExp = UnarySpec("Exp", kFloatsAndComplex).Gradient(FromResult<ExpDerivative>);
const KernelRegistration kExpKernel = UnaryKernels<UnaryOp::kExp>("Exp");

Output Expm1Derivative(const Scope& s, Output x) { return Exp(s, x); }
const OpRegistration kExpm1 =
    UnarySpec("Expm1", kFloatsAndComplex).Gradient(FromInput<Expm1Derivative>);
const KernelRegistration kExpm1Kernel = UnaryKernels<UnaryOp::kExpm1>("Expm1");

Output LogDerivative(const Scope& s, Output x) { return Reciprocal(s, x); }
const OpRegistration kLog = UnarySpec("Log", kFloatsAndComplex).Gradient(FromInput<LogDerivative>);
const KernelRegistration kLogKernel = UnaryKernels<UnaryOp::kLog>("Log");

Output Log1pDerivative(const Scope& s, Output x) {
  return Reciprocal(s, Add(s, ScalarLike(s, x, 1), x));
}
const OpRegistration kLog1p =
    UnarySpec("Log1p", kFloatsAndComplex).Gradient(FromInput<Log1pDerivative>);
const KernelRegistration kLog1pKernel = UnaryKernels<UnaryOp::kLog1p>("Log1p");

const OpRegistration kSigmoid =
    UnarySpec("Sigmoid", kFloatsAndComplex).Gradient(ByHelper<SigmoidGrad>);
const KernelRegistration kSigmoidKernel = UnaryKernels<UnaryOp::kSigmoid>("Sigmoid");

const OpRegistration kTanh = UnarySpec("Tanh", kFloatsAndComplex).Gradient(ByHelper<TanhGrad>);
const KernelRegistration kTanhKernel = UnaryKernels<UnaryOp::kTanh>("Tanh");

Output SinhDerivative(const Scope& s, Output x) { return Cosh(s, x); }
const OpRegistration kSinh =
    UnarySpec("Sinh", kFloatsAndComplex).Gradient(FromInput<SinhDerivative>);
const KernelRegistration kSinhKernel = UnaryKernels<UnaryOp::kSinh>("Sinh");

Output CoshDerivative(const Scope& s, Output x) { return Sinh(s, x); }
const OpRegistration kCosh =
    UnarySpec("Cosh", kFloatsAndComplex).Gradient(FromInput<CoshDerivative>);
const KernelRegistration kCoshKernel = UnaryKernels<UnaryOp::kCosh>("Cosh");

// In terms of the result, as those of Acosh.
Output AsinhDerivative(const Scope& s, Output y) { return Reciprocal(s, Cosh(s, y)); }
const OpRegistration kAsinh =
    UnarySpec("Asinh", kFloatsAndComplex).Gradient(FromResult<AsinhDerivative>);
const KernelRegistration kAsinhKernel = UnaryKernels<UnaryOp::kAsinh>("Asinh");

Output AcoshDerivative(const Scope& s, Output y) { return Reciprocal(s, Sinh(s, y)); }
const OpRegistration kAcosh =
    UnarySpec("Acosh", kFloatsAndComplex).Gradient(FromResult<AcoshDerivative>);
const KernelRegistration kAcoshKernel = UnaryKernels<UnaryOp::kAcosh>("Acosh");

Output AtanhDerivative(const Scope& s, Output x) {
  return Reciprocal(s, Sub(s, ScalarLike(s, x, 1), Square(s, x)));
}
const OpRegistration kAtanh =
    UnarySpec("Atanh", kFloatsAndComplex).Gradient(FromInput<AtanhDerivative>);
const KernelRegistration kAtanhKernel = UnaryKernels<UnaryOp::kAtanh>("Atanh");

// --- Angles --------------------------------------------------------------------------------------

Output SinDerivative(const Scope& s, Output x) { return Cos(s, x); }
const OpRegistration kSin = UnarySpec("Sin", kFloatsAndComplex).Gradient(FromInput<SinDerivative>);
const KernelRegistration kSinKernel = UnaryKernels<UnaryOp::kSin>("Sin");

Output CosDerivative(const Scope& s, Output x) { return Neg(s, Sin(s, x)); }
const OpRegistration kCos = UnarySpec("Cos", kFloatsAndComplex).Gradient(FromInput<CosDerivative>);
const KernelRegistration kCosKernel = UnaryKernels<UnaryOp::kCos>("Cos");

Output TanDerivative(const Scope& s, Output x) { return Square(s, Reciprocal(s, Cos(s, x))); }
const OpRegistration kTan = UnarySpec("Tan", kNumbers).Gradient(FromInput<TanDerivative>);
const KernelRegistration kTanKernel = UnaryKernels<UnaryOp::kTan>("Tan");

Output AsinDerivative(const Scope& s, Output x) {
  return Rsqrt(s, Sub(s, ScalarLike(s, x, 1), Square(s, x)));
}
const OpRegistration kAsin = UnarySpec("Asin", kNumbers).Gradient(FromInput<AsinDerivative>);
const KernelRegistration kAsinKernel = UnaryKernels<UnaryOp::kAsin>("Asin");

Output AcosDerivative(const Scope& s, Output x) { return Neg(s, AsinDerivative(s, x)); }
const OpRegistration kAcos = UnarySpec("Acos", kNumbers).Gradient(FromInput<AcosDerivative>);
const KernelRegistration kAcosKernel = UnaryKernels<UnaryOp::kAcos>("Acos");

Output AtanDerivative(const Scope& s, Output x) {
  return Reciprocal(s, Add(s, ScalarLike(s, x, 1), Square(s, x)));
}
const OpRegistration kAtan = UnarySpec("Atan", kNumbers).Gradient(FromInput<AtanDerivative>);
const KernelRegistration kAtanKernel = UnaryKernels<UnaryOp::kAtan>("Atan");

// --- Error function ------------------------------------------------------------------------------

// exp(-x^2) * 2 / sqrt(pi)
Output ErfDerivative(const Scope& s, Output x) {
  const Output factor = ScalarLike(s, x, 1.1283791670955125739);
  return Mul(s, factor, Exp(s, Neg(s, Square(s, x))));
}

const OpRegistration kErf = UnarySpec("Erf", kFloats).Gradient(FromInput<ErfDerivative>);
const KernelRegistration kErfKernel = UnaryKernels<UnaryOp::kErf>("Erf");

Output ErfcDerivative(const Scope& s, Output x) { return Neg(s, ErfDerivative(s, x)); }
const OpRegistration kErfc = UnarySpec("Erfc", kFloats).Gradient(FromInput<ErfcDerivative>);
const KernelRegistration kErfcKernel = UnaryKernels<UnaryOp::kErfc>("Erfc");

// --- Tests ---------------------------------------------------------------------------------------

const OpRegistration kIsNan = TestSpec("IsNan");
const KernelRegistration kIsNanKernel = UnaryKernels<UnaryOp::kIsNan>("IsNan");

const OpRegistration kIsInf = TestSpec("IsInf");
const KernelRegistration kIsInfKernel = UnaryKernels<UnaryOp::kIsInf>("IsInf");

const OpRegistration kIsFinite = TestSpec("IsFinite");
const KernelRegistration kIsFiniteKernel = UnaryKernels<UnaryOp::kIsFinite>("IsFinite");

const OpRegistration kLogicalNot = OpSpec("LogicalNot")
                                       .Input("x: bool")
                                       .Output("y: bool")
                                       .Shape(UnchangedShape)
                                       .NotDifferentiable();
const KernelRegistration kLogicalNotKernel =
    KernelFor<UnaryKernel<UnaryOp::kLogicalNot>>("LogicalNot");

// --- Gradient helpers ----------------------------------------------------------------------------

// Each is linear in dy: its gradient with respect to dy is the helper itself.
using Helper = Output (*)(ScopeAt, Output, Output);
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

const OpRegistration kSigmoidGrad =
    HelperSpec("SigmoidGrad").Gradient(HelperGradient<SigmoidGrad, SigmoidGradDerivative>);
const KernelRegistration kSigmoidGradKernel =
    SameShapeKernels<BinaryOp::kSigmoidGrad>("SigmoidGrad");

const OpRegistration kTanhGrad =
    HelperSpec("TanhGrad").Gradient(HelperGradient<TanhGrad, MinusTwoY>);
const KernelRegistration kTanhGradKernel = SameShapeKernels<BinaryOp::kTanhGrad>("TanhGrad");

const OpRegistration kSqrtGrad =
    HelperSpec("SqrtGrad").Gradient(HelperGradient<SqrtGrad, SqrtGradDerivative>);
const KernelRegistration kSqrtGradKernel = SameShapeKernels<BinaryOp::kSqrtGrad>("SqrtGrad");

const OpRegistration kRsqrtGrad =
    HelperSpec("RsqrtGrad").Gradient(HelperGradient<RsqrtGrad, RsqrtGradDerivative>);
const KernelRegistration kRsqrtGradKernel = SameShapeKernels<BinaryOp::kRsqrtGrad>("RsqrtGrad");

const OpRegistration kReciprocalGrad =
    HelperSpec("ReciprocalGrad").Gradient(HelperGradient<ReciprocalGrad, MinusTwoY>);
const KernelRegistration kReciprocalGradKernel =
    SameShapeKernels<BinaryOp::kReciprocalGrad>("ReciprocalGrad");

const OpRegistration kInvGrad = HelperSpec("InvGrad").Gradient(HelperGradient<InvGrad, MinusTwoY>);
const KernelRegistration kInvGradKernel = SameShapeKernels<BinaryOp::kReciprocalGrad>("InvGrad");

}  // namespace
}  // namespace millrace
