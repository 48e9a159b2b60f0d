// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/lrn.h"

#include <algorithm>

#include "graph/gradient.h"
#include "ops/loops/lrn.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// One shape of rank 4 for all inputs.
struct LrnRule {
  LRNAttrs attrs;

  Status Init(const NodeAttrs& node) {
    MR_RETURN_IF_ERROR(ReadAttrs(node, "depth_radius", &attrs.depth_radius, "bias", &attrs.bias,
                                 "alpha", &attrs.alpha, "beta", &attrs.beta));
    if (attrs.depth_radius >= 0) return absl::OkStatus();
    return InvalidArgument("depth_radius must be >= 0, got ", attrs.depth_radius);
  }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    PartialShape common;
    for (int i = 0; i < c->num_inputs(); ++i) {
      MR_ASSIGN_OR_RETURN(const PartialShape shape, c->InputWithRank(i, 4, "input"));
      const StatusOr<PartialShape> merged = common.MergeWith(shape);
      if (!merged.ok()) {
        return InvalidArgument("inputs must have the same shape, got ", common, " and ", shape);
      }
      common = *merged;
    }
    return common;
  }
};

// One input forwards, three backwards.
Status RunLrn(KernelContext* ctx, const LrnRule& rule, const math::LrnLoops* loops) {
  MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(0));
  if (output->num_elements() == 0) return absl::OkStatus();
  const LRNAttrs& a = rule.attrs;
  const math::LrnShape s{output->dim(3), a.depth_radius, a.bias, a.alpha, a.beta};
  const int64_t row_size = s.channels * static_cast<int64_t>(DTypeSize(output->dtype()));
  const auto at = [&](int i, int64_t row) {
    return static_cast<const char*>(ctx->input(i).raw_data()) + row * row_size;
  };
  char* to = static_cast<char*>(output->mutable_raw_data());
  const double element_ns = 20 + static_cast<double>(std::min(s.radius, s.channels));
  ctx->ParallelFor(output->num_elements() / s.channels,
                   element_ns * static_cast<double>(s.channels), [&](int64_t begin, int64_t end) {
                     char* out = to + begin * row_size;
                     if (ctx->num_inputs() == 1) {
                       loops->forward(s, at(0, begin), out, end - begin);
                     } else {
                       loops->gradient(s, at(0, begin), at(1, begin), at(2, begin), out,
                                       end - begin);
                     }
                   });
  return absl::OkStatus();
}

StatusOr<Output> LrnGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const LrnRule rule, c->GetRule<LrnRule>());
  return LRNGrad(c->scope(), c->dense_grad(), c->input(0), c->output(0), rule.attrs);
}

// Silence here would make second derivatives wrong.
Status RefuseSecondDerivative(GradientContext* c) {
  return Unimplemented("LRNGrad '", c->node().name(), "': the gradient of LRN has no gradient");
}

OpSpec Spec(absl::string_view op, absl::string_view arguments) {
  return OpSpec(op, arguments,
                "depth_radius: int = 5; bias: float = 1.0; alpha: float = 1.0; beta: float = 0.5; "
                "T: {half, bfloat16, float} = DT_FLOAT")
      .With(RuledLoopKernelFor<LrnRule>(math::FindLrn, RunLrn));
}

const OpRegistration kLrn = Spec("LRN", "input: T -> output: T").Gradient(LrnGradient);

const OpRegistration kLrnGrad =
    Spec("LRNGrad", "input_grads: T, input_image: T, output_image: T -> output: T")
        .Gradient(RefuseSecondDerivative);

}  // namespace
}  // namespace millrace
