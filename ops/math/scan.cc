// SPDX-License-Identifier: Apache-2.0
#include "ops/math/scan.h"

#include <complex>
#include <optional>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "ops/array/constant.h"
#include "ops/loops/number.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/select.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

struct ScanRule {
  ScanAttrs attrs;

  Status Init(const NodeAttrs& node) {
    return ReadAttrs(node, "exclusive", &attrs.exclusive, "reverse", &attrs.reverse);
  }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const std::optional<int64_t> axis, c->IntScalar(1, "axis"));
    const PartialShape& x = c->input(0);
    if (!axis || !x.has_rank() || ResolveAxis(*axis, x.rank()).ok()) return x;
    return InvalidArgument("Expected scan axis in the range [", -x.rank(), ", ", x.rank(),
                           "), but got ", *axis);
  }
};

template <typename E, bool kProduct>
Status RunScan(KernelContext* ctx, const ScanRule& rule) {
  using W = math::Wide<E>;
  const Tensor& x = ctx->input(0);
  MR_ASSIGN_OR_RETURN(const int axis, ResolveAxis(ctx->input(1).ints()[0], x.rank()));
  MR_ASSIGN_OR_RETURN(Tensor * y, ctx->AllocateOutput(0));
  if (y->num_elements() == 0) return absl::OkStatus();
  const E* xs = x.raw<E>().data();
  E* ys = y->mutable_raw<E>().data();
  const bool exclusive = rule.attrs.exclusive, reverse = rule.attrs.reverse;
  const int64_t n = x.dim(axis);
  const int64_t inner = x.shape().NumElements(axis + 1, x.rank());
  const int64_t outer = x.shape().NumElements(0, axis);
  // One task per line along the axis.
  const double cost_ns = 1.0 * static_cast<double>(n);
  ctx->ParallelFor(outer * inner, cost_ns, [=](int64_t begin, int64_t end) {
    for (int64_t line = begin; line < end; ++line) {
      const int64_t first = line / inner * n * inner + line % inner;
      W total = W(kProduct ? 1 : 0);
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = first + (reverse ? n - 1 - i : i) * inner;
        const W value = math::Load(xs[at]);
        const W next = kProduct ? math::WrapMul(total, value) : math::WrapAdd(total, value);
        ys[at] = math::Store<E>(exclusive ? total : next);
        total = next;
      }
    }
  });
  return absl::OkStatus();
}

// Of sums the running sum from the other end. Of products the sum, from the other end, of each
// product that contains x_i, divided by x_i. Behind the first 0 of a line all products are 0, so
// nothing is divided there but 0; for that 0 itself the products are those of the line with a 1 in
// its place. So are those for the second 0: they are 0, but their derivative by the first one is
// not. Behind it that is 0, too.
template <bool kProduct>
StatusOr<Output> ScanGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const ScanRule rule, c->GetRule<ScanRule>());
  const Scope& s = c->scope();
  const Output axis = c->input(1), grad = c->dense_grad();
  ScanAttrs back = rule.attrs;
  back.reverse = !back.reverse;
  if (!kProduct) return Cumsum(s, grad, axis, back);
  const Output x = Conjugate(s, c->input(0));
  const auto sum_products = [&](Output of) {
    return Cumsum(s, Mul(s, Cumprod(s, of, axis, rule.attrs), grad), axis, back);
  };
  const Output ones = OnesLike(s, x), is_zero = Equal(s, x, ZerosLike(s, x));
  const Output zeros_so_far =
      Cumsum(s, Cast(s, is_zero, DT_INT32), axis, {.reverse = rule.attrs.reverse});
  Output gradient = RealDiv(s, sum_products(x), Select(s, is_zero, ones, x));
  for (const int32_t number : {2, 1}) {
    const Output is_it = LogicalAnd(s, is_zero, Equal(s, zeros_so_far, Const(s, number)));
    gradient = Select(s, is_it, sum_products(Select(s, is_it, ones, x)), gradient);
  }
  return gradient;
}

template <bool kProduct>
OpSpec ScanSpec(absl::string_view op) {
  return OpSpec(op, "x: T, axis: Tidx -> out: T",
                "exclusive: bool = false; reverse: bool = false; T: numbertype; "
                "Tidx: {int32, int64} = DT_INT32")
      .With(RuledKernelsFor<ScanRule, float, double, Half, Bfloat16, int8_t, uint8_t, int16_t,
                            uint16_t, int32_t, uint32_t, int64_t, uint64_t, std::complex<float>,
                            std::complex<double>>(
          "T", []<typename E>() { return &RunScan<E, kProduct>; }))
      .Gradient(ScanGradient<kProduct>);
}

const OpRegistration kCumsum = ScanSpec<false>("Cumsum");
const OpRegistration kCumprod = ScanSpec<true>("Cumprod");

}  // namespace
}  // namespace millrace
