// SPDX-License-Identifier: Apache-2.0
#include "ops/math/scan.h"

#include <algorithm>
#include <complex>

#include "graph/gradient.h"
#include "graph/shape_inference.h"
#include "ops/loops/number.h"
#include "ops/math/cwise_binary.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// The only place that knows which axes are legal.
StatusOr<int> ScanAxis(int64_t axis, int rank) {
  StatusOr<int> resolved = ResolveAxis(axis, rank);
  if (resolved.ok()) return resolved;
  return absl::InvalidArgumentError(
      absl::StrCat("Expected scan axis in the range [", -rank, ", ", rank, "), but got ", axis));
}

template <typename E>
struct SumStep {
  static math::Wide<E> Start() { return math::Wide<E>(0); }
  static math::Wide<E> Next(math::Wide<E> a, math::Wide<E> b) { return math::WrapAdd(a, b); }
};
template <typename E>
struct ProductStep {
  static math::Wide<E> Start() { return math::Wide<E>(1); }
  static math::Wide<E> Next(math::Wide<E> a, math::Wide<E> b) { return math::WrapMul(a, b); }
};

template <typename E, template <typename> typename Step>
class ScanKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(exclusive_, c->GetAttr<bool>("exclusive"));
    MR_ASSIGN_OR_RETURN(reverse_, c->GetAttr<bool>("reverse"));
    return absl::OkStatus();
  }

  Status Compute(KernelContext* ctx) const override {
    using W = math::Wide<E>;
    const Tensor& x = ctx->input(0);
    MR_ASSIGN_OR_RETURN(const int64_t axis_value, ctx->IntScalarInput(1, "axis"));
    MR_ASSIGN_OR_RETURN(const int axis, ScanAxis(axis_value, x.rank()));
    MR_ASSIGN_OR_RETURN(Tensor * y, ctx->AllocateOutput(0, x.shape()));
    const E* xs = x.raw<E>().data();
    E* ys = y->mutable_raw<E>().data();
    const int64_t n = x.dim(axis);
    const int64_t inner = x.shape().NumElements(axis + 1, x.rank());
    const int64_t outer = x.shape().NumElements(0, axis);
    const double cost_ns = 1.0 * static_cast<double>(n);
    // One task per line along the axis.
    ctx->ParallelFor(outer * inner, cost_ns, [&](int64_t begin, int64_t end) {
      for (int64_t line = begin; line < end; ++line) {
        const int64_t first = line / inner * n * inner + line % inner;
        W total = Step<E>::Start();
        for (int64_t i = 0; i < n; ++i) {
          const int64_t at = first + (reverse_ ? n - 1 - i : i) * inner;
          const W next = Step<E>::Next(total, math::Load(xs[at]));
          ys[at] = math::Store<E>(exclusive_ ? total : next);
          total = next;
        }
      }
    });
    return absl::OkStatus();
  }

 private:
  bool exclusive_ = false;
  bool reverse_ = false;
};

Status ScanShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(1, 0).status());
  const Tensor* axis = c->input_tensor(1);
  if (axis != nullptr && c->input(0).has_rank()) {
    const int64_t value =
        axis->dtype() == DT_INT64 ? axis->raw_scalar<int64_t>() : axis->raw_scalar<int32_t>();
    MR_RETURN_IF_ERROR(ScanAxis(value, c->input(0).rank()).status());
  }
  c->set_output(0, c->input(0));
  return absl::OkStatus();
}

StatusOr<ScanAttrs> AttrsOf(GradientContext* c) {
  ScanAttrs attrs;
  MR_ASSIGN_OR_RETURN(attrs.exclusive, c->GetAttr<bool>("exclusive"));
  MR_ASSIGN_OR_RETURN(attrs.reverse, c->GetAttr<bool>("reverse"));
  return attrs;
}

// The running sum from the other end.
Status CumsumGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(ScanAttrs attrs, AttrsOf(c));
  attrs.reverse = !attrs.reverse;
  c->set_input_grad(0, Cumsum(c->scope(), c->dense_grad(), c->input(1), attrs));
  return absl::OkStatus();
}

// Each product that contains x_i, divided by x_i: not defined where an input is 0.
Status CumprodGradient(GradientContext* c) {
  const Scope& s = c->scope();
  MR_ASSIGN_OR_RETURN(ScanAttrs attrs, AttrsOf(c));
  const Output products = Cumprod(s, c->input(0), c->input(1), attrs);
  attrs.reverse = !attrs.reverse;
  const Output sums = Cumsum(s, Mul(s, products, c->dense_grad()), c->input(1), attrs);
  c->set_input_grad(0, RealDiv(s, sums, c->input(0)));
  return absl::OkStatus();
}

OpSpec ScanSpec(absl::string_view op) {
  return OpSpec(op)
      .Input("x: T")
      .Input("axis: Tidx")
      .Output("out: T")
      .Attr("exclusive: bool = false")
      .Attr("reverse: bool = false")
      .Attr(
          "T: {float, double, int32, uint8, int16, int8, complex64, int64, qint8, quint8, "
          "qint32, bfloat16, uint16, complex128, half, uint32, uint64}")
      .Attr("Tidx: {int32, int64} = DT_INT32")
      .Shape(ScanShape);
}

template <template <typename> typename Step, typename... E>
std::vector<KernelRegistration> ScanKernels(absl::string_view op) {
  return {KernelFor<ScanKernel<E, Step>>(op).template Type<E>("T")...};
}
#define MR_SCAN_TYPES                                                                            \
  float, double, Half, Bfloat16, int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, \
      uint64_t, std::complex<float>, std::complex<double>

const OpRegistration kCumsum = ScanSpec("Cumsum").Gradient(CumsumGradient);
const auto kCumsumKernels = ScanKernels<SumStep, MR_SCAN_TYPES>("Cumsum");
const OpRegistration kCumprod = ScanSpec("Cumprod").Gradient(CumprodGradient);
const auto kCumprodKernels = ScanKernels<ProductStep, MR_SCAN_TYPES>("Cumprod");
#undef MR_SCAN_TYPES

}  // namespace
}  // namespace millrace
