// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/activations.h"

#include "graph/gradient.h"
#include "ops/array/constant.h"
#include "ops/array/scalar_like.h"
#include "ops/kernels/cwise.h"
#include "ops/kernels/element_block.h"
#include "ops/loops/leaky_relu.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/select.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using math::BinaryOp;
using math::UnaryOp;

constexpr char kFloats[] = "T: {half, bfloat16, float, double}";
constexpr char kReals[] = "T: realnumbertype";

// All inputs have one shape.
struct SameShapeRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    const PartialShape &first = c->input(0), &last = c->input(c->num_inputs() - 1);
    StatusOr<PartialShape> both = first.MergeWith(last);
    if (both.ok()) return both;
    return InvalidArgument("inputs must have the same shape, got ", first, " and ", last);
  }
};

OpSpec ActivationSpec(absl::string_view op, absl::string_view types) {
  return OpSpec(op, "features: T -> activations: T", types).Rule<UnchangedShapeRule>();
}
// By a helper op of (incoming gradient, result) or (incoming gradient, input).
template <const BinaryBuilder& kHelper>
Output FromResult(GradientContext* c) {
  return kHelper(c->scope(), c->dense_grad(), c->output(0));
}
template <const BinaryBuilder& kHelper>
Output FromInput(GradientContext* c) {
  return kHelper(c->scope(), c->dense_grad(), c->input(0));
}

// A helper is linear in `gradients`: its gradient with respect to them is the helper itself.
// `kSecond` gives the gradient with respect to the second input x from x and grad * gradients.
using SecondGradient = Output (*)(const Scope& s, Output x, Output grad_gradients);
template <const BinaryBuilder& kHelper, SecondGradient kSecond>
std::vector<Output> HelperGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output grad = c->dense_grad(), x = c->input(1);
  const Output to_gradients = kHelper(s, grad, x);
  return {to_gradients, kSecond(s, x, Mul(s, grad, c->input(0)))};
}

// `second` is "features" or "outputs".
template <const BinaryBuilder& kHelper, SecondGradient kSecond>
OpSpec HelperSpec(absl::string_view second, absl::string_view types) {
  return OpSpec(kHelper.op, absl::StrCat("gradients: T, ", second, ": T -> backprops: T"), types)
      .Rule<SameShapeRule>()
      .Gradient(HelperGradient<kHelper, kSecond>);
}

// The derivative is constant by parts.
Output ZeroSecond(const Scope& s, Output x, Output) { return ZerosLike(s, x); }

// Below zero the derivative of Elu and Selu is the output plus a constant.
Output WhereNegative(const Scope& s, Output outputs, Output grad_gradients) {
  const Output zeros = ZerosLike(s, outputs);
  return Select(s, Less(s, outputs, zeros), grad_gradients, zeros);
}

// The derivative is sigmoid(x); its own is sigmoid(x) * (1 - sigmoid(x)).
Output SoftplusSecond(const Scope& s, Output x, Output grad_gradients) {
  return SigmoidGrad(s, Sigmoid(s, x), grad_gradients);
}

// The derivative is (1 + |x|)^-2; its own is -2 sign(x) (1 + |x|)^-3.
Output SoftsignSecond(const Scope& s, Output x, Output grad_gradients) {
  const Output d = Add(s, ScalarLike(s, x, 1), Abs(s, x));
  const Output factor = Mul(s, ScalarLike(s, x, -2), Sign(s, x));
  return RealDiv(s, Mul(s, grad_gradients, factor), Mul(s, d, Square(s, d)));
}

// --- Tables --------------------------------------------------------------------------------------

const UnaryOps kActivations = {
    {ActivationSpec("Relu", "T: {realnumbertype, qint8}").Gradient(FromResult<ReluGrad>),
     UnaryOp::kRelu},
    {ActivationSpec("Relu6", kReals).Gradient(FromResult<Relu6Grad>), UnaryOp::kRelu6},
    {ActivationSpec("Elu", kFloats).Gradient(FromResult<EluGrad>), UnaryOp::kElu},
    {ActivationSpec("Selu", kFloats).Gradient(FromResult<SeluGrad>), UnaryOp::kSelu},
    {ActivationSpec("Softplus", kFloats).Gradient(FromInput<SoftplusGrad>), UnaryOp::kSoftplus},
    {ActivationSpec("Softsign", kFloats).Gradient(FromInput<SoftsignGrad>), UnaryOp::kSoftsign},
};

const SameShapeOps kGradientHelpers = {
    {HelperSpec<ReluGrad, ZeroSecond>("features", kReals), BinaryOp::kReluGrad},
    {HelperSpec<Relu6Grad, ZeroSecond>("features", kReals), BinaryOp::kRelu6Grad},
    {HelperSpec<EluGrad, WhereNegative>("outputs", kFloats), BinaryOp::kEluGrad},
    {HelperSpec<SeluGrad, WhereNegative>("outputs", kFloats), BinaryOp::kSeluGrad},
    {HelperSpec<SoftplusGrad, SoftplusSecond>("features", kFloats), BinaryOp::kSoftplusGrad},
    {HelperSpec<SoftsignGrad, SoftsignSecond>("features", kFloats), BinaryOp::kSoftsignGrad},
};

// --- LeakyRelu -----------------------------------------------------------------------------------

// LeakyRelu has one input, LeakyReluGrad two: (gradients, features).
struct LeakyReluRule {
  float alpha = 0;
  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "alpha", &alpha); }
  StatusOr<PartialShape> operator()(RuleContext* c) const { return SameShapeRule()(c); }
};

Status RunLeakyRelu(KernelContext* ctx, const LeakyReluRule& rule, math::LeakyReluFn loop) {
  const int64_t size = static_cast<int64_t>(DTypeSize(ctx->input_dtype(0)));
  const int features = ctx->num_inputs() - 1;
  const char* g = static_cast<const char*>(ctx->input(0).raw_data());
  const char* x = static_cast<const char*>(ctx->input(features).raw_data());
  MR_ASSIGN_OR_RETURN(Tensor * output, ctx->ForwardInputOrAllocateOutput({0, features}, 0));
  char* z = static_cast<char*>(output->mutable_raw_data());
  ctx->ParallelBlocks(output->num_elements(), kElementBlock, 0.1 * static_cast<double>(size),
                      [&](int64_t begin, int64_t end) {
                        const int64_t at = begin * size;
                        loop(g + at, x + at, rule.alpha, z + at, end - begin);
                      });
  return absl::OkStatus();
}

StatusOr<Output> LeakyReluGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const float alpha, c->GetAttr<float>("alpha"));
  return LeakyReluGrad(c->scope(), c->dense_grad(), c->input(0), {.alpha = alpha});
}

StatusOr<std::vector<Output>> LeakyReluGradGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const float alpha, c->GetAttr<float>("alpha"));
  const Scope& s = c->scope();
  const Output x = c->input(1);
  const Output to_gradients = LeakyReluGrad(s, c->dense_grad(), x, {.alpha = alpha});
  return std::vector<Output>{to_gradients, ZerosLike(s, x)};
}

constexpr char kLeakyAttrs[] = "alpha: float = 0.2; T: {half, bfloat16, float, double} = DT_FLOAT";

const OpRegistration kLeakyRelu =
    OpSpec("LeakyRelu", "features: T -> activations: T", kLeakyAttrs)
        .With(RuledLoopKernelFor<LeakyReluRule>(math::FindLeakyRelu, RunLeakyRelu))
        .Gradient(LeakyReluGradient);
const OpRegistration kLeakyReluGrad =
    OpSpec("LeakyReluGrad", "gradients: T, features: T -> backprops: T", kLeakyAttrs)
        .With(RuledLoopKernelFor<LeakyReluRule>(math::FindLeakyRelu, RunLeakyRelu))
        .Gradient(LeakyReluGradGradient);

}  // namespace
}  // namespace millrace
