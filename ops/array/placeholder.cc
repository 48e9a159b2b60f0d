// SPDX-License-Identifier: Apache-2.0
#include "ops/array/placeholder.h"

#include "graph/gradient.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

struct PlaceholderRule {
  DType dtype = DT_INVALID;
  PartialShape shape;
  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "dtype", &dtype, "shape", &shape); }
  StatusOr<PartialShape> operator()(RuleContext*) const { return shape; }
};

// Runs only when nothing was fed: feeding replaces the node.
Status RefuseToRun(KernelContext* ctx, const PlaceholderRule& rule) {
  // TensorFlow's text, which says nothing of a scalar either.
  const bool tells = rule.shape.has_rank() && rule.shape.rank() > 0;
  const std::string shape = tells ? " and shape " + rule.shape.ToString() : "";
  return InvalidArgument("You must feed a value for placeholder tensor '", ctx->node_name(),
                         "' with dtype ", rule.dtype, shape);
}

// What is fed may differ from the default, so only the declared shape is known.
struct PlaceholderWithDefaultRule {
  PartialShape shape;
  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "shape", &shape); }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    if (c->input(0).IsCompatibleWith(shape)) return shape;
    return InvalidArgument("the default's shape must be compatible with ", shape, ", got ",
                           c->input(0));
  }
};

Output PassGradient(GradientContext* c) { return c->dense_grad(); }

const OpRegistration kPlaceholder =
    OpSpec("Placeholder", "-> output: dtype", "dtype: type; shape: shape = { unknown_rank: true }")
        .ToBeFed(Feeding::kRequired)
        .With(RuledKernelFor<PlaceholderRule>(RefuseToRun))
        .NotDifferentiable();

const OpRegistration kPlaceholderV2 =
    OpSpec("PlaceholderV2", "-> output: dtype", "dtype: type; shape: shape")
        .ToBeFed(Feeding::kRequired)
        .Deprecated(23, "Placeholder now behaves the same as PlaceholderV2.")
        .With(RuledKernelFor<PlaceholderRule>(RefuseToRun))
        .NotDifferentiable();

const OpRegistration kPlaceholderWithDefault =
    OpSpec("PlaceholderWithDefault", "input: dtype -> output: dtype", "dtype: type; shape: shape")
        .ToBeFed(Feeding::kOptional)
        .Rule<PlaceholderWithDefaultRule>()
        .Gradient(PassGradient)
        .With(KernelFor<PassInputKernel>());

}  // namespace
}  // namespace millrace
