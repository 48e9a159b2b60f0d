// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/activations.h"

#include "graph/gradient.h"
#include "graph/shape_inference.h"
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
constexpr char kReals[] =
    "T: {float, double, int32, uint8, int16, int8, int64, bfloat16, uint16, half, uint32, uint64}";

OpSpec ActivationSpec(absl::string_view op, absl::string_view types) {
  return OpSpec(op).Input("features: T").Output("activations: T").Attr(types).Shape(UnchangedShape);
}

// The two inputs have one shape.
Status SameShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape shape, MergeAll(c, 0, 2));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

// `second` is "features" or "outputs".
OpSpec HelperSpec(absl::string_view op, absl::string_view second, absl::string_view types) {
  return OpSpec(op)
      .Input("gradients: T")
      .Input(absl::StrCat(second, ": T"))
      .Output("backprops: T")
      .Attr(types)
      .Shape(SameShape);
}

using Helper = Output (*)(ScopeAt, Output, Output);

// By a helper op of (incoming gradient, result) or (incoming gradient, input).
template <Helper kHelper>
Status FromResult(GradientContext* c) {
  c->set_input_grad(0, kHelper(c->scope(), c->dense_grad(), c->output(0)));
  return absl::OkStatus();
}
template <Helper kHelper>
Status FromInput(GradientContext* c) {
  c->set_input_grad(0, kHelper(c->scope(), c->dense_grad(), c->input(0)));
  return absl::OkStatus();
}

// A helper is linear in `gradients`: its gradient with respect to them is the helper itself.
// `kSecond` gives the gradient with respect to the second input x from x and grad * gradients.
using SecondGradient = Output (*)(const Scope& s, Output x, Output grad_gradients);
template <Helper kHelper, SecondGradient kSecond>
Status HelperGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output grad = c->dense_grad();
  c->set_input_grad(0, kHelper(s, grad, c->input(1)));
  c->set_input_grad(1, kSecond(s, c->input(1), Mul(s, grad, c->input(0))));
  return absl::OkStatus();
}
// The derivative is constant by parts.
Output ZeroSecond(const Scope& s, Output x, Output) { return ZerosLike(s, x); }

// --- Elu, Selu -----------------------------------------------------------------------------------

// Below zero the derivative is the output plus a constant.
Output WhereNegative(const Scope& s, Output outputs, Output grad_gradients) {
  const Output zeros = ZerosLike(s, outputs);
  return Select(s, Less(s, outputs, zeros), grad_gradients, zeros);
}

// --- Softplus, Softsign --------------------------------------------------------------------------

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
    {ActivationSpec("Relu",
                    "T: {float, double, int32, uint8, int16, int8, int64, bfloat16, uint16, half, "
                    "uint32, uint64, qint8}")
         .Gradient(FromResult<ReluGrad>),
     UnaryOp::kRelu},
    {ActivationSpec("Relu6", kReals).Gradient(FromResult<Relu6Grad>), UnaryOp::kRelu6},
    {ActivationSpec("Elu", kFloats).Gradient(FromResult<EluGrad>), UnaryOp::kElu},
    {ActivationSpec("Selu", kFloats).Gradient(FromResult<SeluGrad>), UnaryOp::kSelu},
    {ActivationSpec("Softplus", kFloats).Gradient(FromInput<SoftplusGrad>), UnaryOp::kSoftplus},
    {ActivationSpec("Softsign", kFloats).Gradient(FromInput<SoftsignGrad>), UnaryOp::kSoftsign},
};

const SameShapeOps kGradientHelpers = {
    {HelperSpec("ReluGrad", "features", kReals).Gradient(HelperGradient<ReluGrad, ZeroSecond>),
     BinaryOp::kReluGrad},
    {HelperSpec("Relu6Grad", "features", kReals).Gradient(HelperGradient<Relu6Grad, ZeroSecond>),
     BinaryOp::kRelu6Grad},
    {HelperSpec("EluGrad", "outputs", kFloats).Gradient(HelperGradient<EluGrad, WhereNegative>),
     BinaryOp::kEluGrad},
    {HelperSpec("SeluGrad", "outputs", kFloats).Gradient(HelperGradient<SeluGrad, WhereNegative>),
     BinaryOp::kSeluGrad},
    {HelperSpec("SoftplusGrad", "features", kFloats)
         .Gradient(HelperGradient<SoftplusGrad, SoftplusSecond>),
     BinaryOp::kSoftplusGrad},
    {HelperSpec("SoftsignGrad", "features", kFloats)
         .Gradient(HelperGradient<SoftsignGrad, SoftsignSecond>),
     BinaryOp::kSoftsignGrad},
};

// --- LeakyRelu -----------------------------------------------------------------------------------

// LeakyRelu has one input, LeakyReluGrad two: (gradients, features).
class LeakyReluKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(alpha_, c->GetAttr<float>("alpha"));
    features_ = c->num_inputs() - 1;
    const DType dtype = WithoutRef(c->input_type(0));
    fn_ = math::FindLeakyRelu(dtype);
    if (fn_ == nullptr) {
      return absl::UnimplementedError(absl::StrCat("has no kernel for ", DTypeName(dtype)));
    }
    size_ = static_cast<int64_t>(DTypeSize(dtype));
    return absl::OkStatus();
  }

  Status Compute(KernelContext* ctx) const override {
    const Tensor& g = ctx->input(0);
    const Tensor& x = ctx->input(features_);
    if (g.shape() != x.shape()) {
      return absl::InvalidArgumentError(absl::StrCat("inputs must have the same shape, got ",
                                                     g.shape().ToString(), " and ",
                                                     x.shape().ToString()));
    }
    const char* gs = static_cast<const char*>(g.raw_data());
    const char* xs = static_cast<const char*>(x.raw_data());
    MR_ASSIGN_OR_RETURN(Tensor * z,
                        ctx->ForwardInputOrAllocateOutput({0, features_}, 0, g.shape()));
    char* zs = static_cast<char*>(z->mutable_raw_data());
    ctx->ParallelBlocks(z->num_elements(), kElementBlock, 0.1 * static_cast<double>(size_),
                        [&](int64_t begin, int64_t end) {
                          fn_(gs + begin * size_, xs + begin * size_, alpha_, zs + begin * size_,
                              end - begin);
                        });
    return absl::OkStatus();
  }

 private:
  float alpha_ = 0;
  int features_ = 0;
  math::LeakyReluFn fn_ = nullptr;
  int64_t size_ = 0;
};

KernelSpec LeakyReluKernels(absl::string_view op) {
  return KernelFor<LeakyReluKernel>(op).Types("T", {DT_HALF, DT_BFLOAT16, DT_FLOAT, DT_DOUBLE});
}

Status LeakyReluGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const float alpha, c->GetAttr<float>("alpha"));
  c->set_input_grad(0, LeakyReluGrad(c->scope(), c->dense_grad(), c->input(0), {.alpha = alpha}));
  return absl::OkStatus();
}

Status LeakyReluGradGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const float alpha, c->GetAttr<float>("alpha"));
  c->set_input_grad(0, LeakyReluGrad(c->scope(), c->dense_grad(), c->input(1), {.alpha = alpha}));
  c->set_input_grad(1, ZerosLike(c->scope(), c->input(1)));
  return absl::OkStatus();
}

constexpr char kLeakyTypes[] = "T: {half, bfloat16, float, double} = DT_FLOAT";

const OpRegistration kLeakyRelu = OpSpec("LeakyRelu")
                                      .Input("features: T")
                                      .Output("activations: T")
                                      .Attr("alpha: float = 0.2")
                                      .Attr(kLeakyTypes)
                                      .Shape(UnchangedShape)
                                      .Gradient(LeakyReluGradient);
const KernelRegistration kLeakyReluKernel = LeakyReluKernels("LeakyRelu");
const OpRegistration kLeakyReluGrad = OpSpec("LeakyReluGrad")
                                          .Input("gradients: T")
                                          .Input("features: T")
                                          .Output("backprops: T")
                                          .Attr("alpha: float = 0.2")
                                          .Attr(kLeakyTypes)
                                          .Shape(SameShape)
                                          .Gradient(LeakyReluGradGradient);
const KernelRegistration kLeakyReluGradKernel = LeakyReluKernels("LeakyReluGrad");

}  // namespace
}  // namespace millrace
