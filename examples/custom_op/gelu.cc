// SPDX-License-Identifier: Apache-2.0
#include "examples/custom_op/gelu.h"

#include <cmath>
#include <numbers>

#include "graph/gradient.h"
#include "ops/array/scalar_like.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// Of the tanh form.
constexpr double kScale = std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // sqrt(2 / pi)
constexpr double kCubic = 0.044715;

// Elements that are computed in one go, on any number of threads.
constexpr int64_t kBlock = 4096;

struct GeluRule {
  bool approximate = false;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "approximate", &approximate); }
  StatusOr<PartialShape> operator()(RuleContext* c) const { return c->input(0); }
};

template <typename T>
Status RunGelu(KernelContext* ctx, const GeluRule& rule) {
  MR_ASSIGN_OR_RETURN(Tensor * output, ctx->ForwardInputOrAllocateOutput({0}, 0));
  const T* const x = ctx->input(0).raw<T>().data();
  T* const y = output->mutable_raw<T>().data();
  const auto over = [&](double cost_ns, auto phi) {
    ctx->ParallelBlocks(output->num_elements(), kBlock, cost_ns, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) y[i] = x[i] * phi(x[i]);
    });
  };
  if (rule.approximate) {
    constexpr T kC = static_cast<T>(kCubic), kS = static_cast<T>(kScale);
    over(20, [](T v) { return T{0.5} * (1 + std::tanh(kS * (v + kC * v * v * v))); });
  } else {
    over(10, [](T v) { return T{0.5} * std::erfc(-v / std::numbers::sqrt2_v<T>); });
  }
  return absl::OkStatus();
}

// dy/dx = Phi(x) + x Phi'(x), of nodes: so it has a gradient, too.
StatusOr<Output> GeluGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const GeluRule rule, c->GetRule<GeluRule>());
  const Scope& s = c->scope();
  const Output x = c->input(0);
  const auto times = [&](double factor, Output v) { return Mul(s, ScalarLike(s, x, factor), v); };
  const auto plus = [&](double term, Output v) { return Add(s, ScalarLike(s, x, term), v); };
  const Output square = Square(s, x);
  Output phi, slope;  // Phi(x), Phi'(x)
  if (rule.approximate) {
    const Output t = Tanh(s, Mul(s, times(kScale, x), plus(1, times(kCubic, square))));
    phi = times(0.5, plus(1, t));
    slope = Mul(s, plus(1, times(-1, Square(s, t))),
                times(kScale / 2, plus(1, times(3 * kCubic, square))));
  } else {
    phi = times(0.5, Erfc(s, times(-1 / std::numbers::sqrt2, x)));
    slope = times(kScale / 2, Exp(s, times(-0.5, square)));
  }
  return Mul(s, c->dense_grad(), Add(s, phi, Mul(s, x, slope)));
}

const OpRegistration kGelu =
    OpSpec("Gelu", "x: T -> y: T", "approximate: bool = false; T: {float, double} = DT_FLOAT")
        .With(RuledKernelsFor<GeluRule, float, double>("T", []<typename T> { return &RunGelu<T>; }))
        .Gradient(GeluGradient);

}  // namespace
}  // namespace millrace
