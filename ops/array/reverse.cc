// SPDX-License-Identifier: Apache-2.0
#include "ops/array/reverse.h"

#include <optional>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/rules/copy_box.h"
#include "ops/rules/int_inputs.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

// Which dimensions turn around; the only place that knows which axes are legal.
StatusOr<std::vector<bool>> ReversedDims(int rank, const Ints& axes) {
  std::vector<bool> reversed(static_cast<size_t>(rank), false);
  for (size_t i = 0; i < axes.size(); ++i) {
    const StatusOr<int> axis = ResolveAxis(axes[i], rank);
    if (!axis.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("axis[", i, "] must be in [", -rank, ", ", rank, "), got ", axes[i]));
    }
    if (reversed[static_cast<size_t>(*axis)]) {
      return absl::InvalidArgumentError(
          absl::StrCat("axis must name a dimension once, got ", *axis, " twice"));
    }
    reversed[static_cast<size_t>(*axis)] = true;
  }
  return reversed;
}

Status ReverseShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(1, 1).status());
  const std::optional<Ints> axes = ConstantInts(c, 1);
  if (axes && c->input(0).has_rank()) {
    MR_RETURN_IF_ERROR(ReversedDims(c->input(0).rank(), *axes).status());
  }
  c->set_output(0, c->input(0));
  return absl::OkStatus();
}

class ReverseKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const Ints axes, ctx->IntVectorInput(1, "axis"));
    const Tensor input = ctx->TakeInput(0);
    MR_ASSIGN_OR_RETURN(const std::vector<bool> reversed, ReversedDims(input.rank(), axes));
    if (axes.empty() || input.num_elements() == 0) {
      ctx->set_output(0, input);
      return absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, input.shape()));
    const absl::Span<const int64_t> dims = input.shape().dims();
    BoxSide from = DenseSide(dims);
    for (size_t d = 0; d < reversed.size(); ++d) {
      if (!reversed[d]) continue;
      from.origin += (dims[d] - 1) * from.strides[d];
      from.strides[d] = -from.strides[d];
    }
    return CopyBox(ctx, dims, input, from, out, DenseSide(dims));
  }
};

Status ReverseGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  c->set_input_grad(0, ReverseV2(c->scope(), c->dense_grad(0), c->input(1)));
  return absl::OkStatus();
}

const OpRegistration kReverseV2 =
    OpSpec("ReverseV2")
        .Input("tensor: T")
        .Input("axis: Tidx")
        .Output("output: T")
        .Attr("Tidx: {int32, int64} = DT_INT32")
        .Attr(
            "T: {uint8, int8, uint16, int16, int32, int64, bool, bfloat16, half, float, double, "
            "complex64, complex128, string}")
        .Shape(ReverseShape)
        .Gradient(ReverseGradient);
const KernelRegistration kReverseKernel = KernelFor<ReverseKernel>("ReverseV2");

}  // namespace
}  // namespace millrace
