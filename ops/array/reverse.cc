// SPDX-License-Identifier: Apache-2.0
#include "ops/array/reverse.h"

#include <optional>
#include <vector>

#include "graph/gradient.h"
#include "ops/rules/copy_box.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

struct ReverseRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialInts axes, c->IntVector(1, "axis"));
    const PartialShape& input = c->input(0);
    if (!input.has_rank() || !axes.has_size()) return input;
    std::vector<bool> reversed(static_cast<size_t>(input.rank()), false);
    for (int i = 0; i < axes.size(); ++i) {
      const std::optional<int64_t> given = axes.at(i);
      if (!given) continue;
      const StatusOr<int> axis = ResolveAxis(*given, input.rank());
      if (!axis.ok()) {
        return InvalidArgument("axis[", i, "] must be in [", -input.rank(), ", ", input.rank(),
                               "), got ", *given);
      }
      if (reversed[static_cast<size_t>(*axis)]) {
        return InvalidArgument("axis must name a dimension once, got ", *axis, " twice");
      }
      reversed[static_cast<size_t>(*axis)] = true;
    }
    return input;
  }
};

Status RunReverse(KernelContext* ctx, const ReverseRule&) {
  const Tensor& input = ctx->input(0);
  const IntSpan axes = ctx->input(1).ints();
  if (axes.empty() || input.num_elements() == 0) return ctx->PassInput(0);
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  const absl::Span<const int64_t> dims = input.shape().dims();
  BoxSide from = DenseSide(dims);
  for (const int64_t axis : axes) {
    const size_t d = static_cast<size_t>(axis < 0 ? axis + input.rank() : axis);
    from.origin += (dims[d] - 1) * from.strides[d];
    from.strides[d] = -from.strides[d];
  }
  return CopyBox(ctx, dims, input, from, out, DenseSide(dims));
}

Output ReverseGradient(GradientContext* c) {
  return ReverseV2(c->scope(), c->dense_grad(), c->input(1));
}

const OpRegistration kReverseV2 =
    OpSpec("ReverseV2", "tensor: T, axis: Tidx -> output: T",
           "Tidx: {int32, int64} = DT_INT32; "
           "T: {uint8, int8, uint16, int16, int32, int64, bool, bfloat16, half, float, double, "
           "complex64, complex128, string}")
        .With(RuledKernelFor<ReverseRule>(RunReverse))
        .Gradient(ReverseGradient);

}  // namespace
}  // namespace millrace
