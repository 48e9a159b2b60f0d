// SPDX-License-Identifier: Apache-2.0
// Squareplus: an op that Millrace does not have, in a shared library that any program can load.
//
//   y = (x + sqrt(x^2 + width)) / 2        a smooth Relu, of x's shape
//
// How an op is written, and tested, is in the page adding_an_op.md.
#include <millrace/graph/gradient.h>
#include <millrace/graph/scope.h>
#include <millrace/ops/array/scalar_like.h>
#include <millrace/ops/math/cwise_binary.h>
#include <millrace/ops/math/cwise_unary.h>
#include <millrace/runtime/kernel.h>
#include <millrace/runtime/op_library.h>

#include <cmath>
#include <cstdint>

namespace millrace {
namespace {

// What is legal, and the shape that comes out.
struct SquareplusRule {
  float width = 1;

  Status Init(const NodeAttrs& attrs) {
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "width", &width));
    if (!(width > 0)) return InvalidArgument("width must be > 0, got ", width);
    return absl::OkStatus();
  }
  StatusOr<PartialShape> operator()(RuleContext* c) const { return c->input(0); }
};

template <typename T>
Status RunSquareplus(KernelContext* ctx, const SquareplusRule& rule) {
  MR_ASSIGN_OR_RETURN(Tensor * output, ctx->ForwardInputOrAllocateOutput({0}, 0));
  const T* const x = ctx->input(0).raw<T>().data();
  T* const y = output->mutable_raw<T>().data();
  const T width = static_cast<T>(rule.width);
  ctx->ParallelFor(output->num_elements(), 5, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = (x[i] + std::sqrt(x[i] * x[i] + width)) / 2;
  });
  return absl::OkStatus();
}

// dy/dx = (1 + x / sqrt(x^2 + width)) / 2, of nodes: so it has a gradient, too.
StatusOr<Output> SquareplusGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const SquareplusRule rule, c->GetRule<SquareplusRule>());
  const Scope& s = c->scope();
  const Output x = c->input(0);
  const Output root =
      Sqrt(s, Add(s, Square(s, x), ScalarLike(s, x, static_cast<double>(rule.width))));
  const Output slope = Add(s, ScalarLike(s, x, 1), RealDiv(s, x, root));
  return Mul(s, c->dense_grad(), Mul(s, ScalarLike(s, x, 0.5), slope));
}

const OpRegistration kSquareplus =
    OpSpec("Squareplus", "x: T -> y: T", "width: float = 1.0; T: {float, double} = DT_FLOAT")
        .With(RuledKernelsFor<SquareplusRule, float, double>(
            "T", []<typename T> { return &RunSquareplus<T>; }))
        .Gradient(SquareplusGradient);

}  // namespace
}  // namespace millrace

MILLRACE_OP_LIBRARY();
