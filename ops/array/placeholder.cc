// SPDX-License-Identifier: Apache-2.0
#include "ops/array/placeholder.h"

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

Status PlaceholderShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape shape, c->GetAttr<PartialShape>("shape"));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

Status PlaceholderWithDefaultShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape shape, c->GetAttr<PartialShape>("shape"));
  if (!c->input(0).IsCompatibleWith(shape)) {
    return absl::InvalidArgumentError(absl::StrCat("the default's shape must be compatible with ",
                                                   shape.ToString(), ", got ",
                                                   c->input(0).ToString()));
  }
  // What is fed may differ from the default, so only the declared shape is known.
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

// Runs only when nothing was fed: feeding replaces the node.
class PlaceholderKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(dtype_, c->GetAttr<DType>("dtype"));
    MR_ASSIGN_OR_RETURN(shape_, c->GetAttr<PartialShape>("shape"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    const std::string shape =
        shape_.has_rank() ? absl::StrCat(" and shape ", shape_.ToString()) : "";
    return absl::InvalidArgumentError(absl::StrCat("You must feed a value for placeholder tensor '",
                                                   ctx->node_name(), "' with dtype ",
                                                   DTypeName(dtype_), shape));
  }
  bool may_be_expensive() const override { return false; }

 private:
  DType dtype_ = DT_INVALID;
  PartialShape shape_;
};

Status PassGradient(GradientContext* c) {
  if (c->has_grad(0)) c->set_input_grad(0, c->dense_grad(0));
  return absl::OkStatus();
}

const OpRegistration kPlaceholder = OpSpec("Placeholder")
                                        .Output("output: dtype")
                                        .Attr("dtype: type")
                                        .Attr("shape: shape = { unknown_rank: true }")
                                        .Shape(PlaceholderShape)
                                        .NotDifferentiable();
const KernelRegistration kPlaceholderKernel = KernelFor<PlaceholderKernel>("Placeholder");

const OpRegistration kPlaceholderV2 =
    OpSpec("PlaceholderV2")
        .Output("output: dtype")
        .Attr("dtype: type")
        .Attr("shape: shape")
        .Deprecated(23, "Placeholder now behaves the same as PlaceholderV2.")
        .Shape(PlaceholderShape)
        .NotDifferentiable();
const KernelRegistration kPlaceholderV2Kernel = KernelFor<PlaceholderKernel>("PlaceholderV2");

const OpRegistration kPlaceholderWithDefault = OpSpec("PlaceholderWithDefault")
                                                   .Input("input: dtype")
                                                   .Output("output: dtype")
                                                   .Attr("dtype: type")
                                                   .Attr("shape: shape")
                                                   .Shape(PlaceholderWithDefaultShape)
                                                   .Gradient(PassGradient);
const KernelRegistration kPlaceholderWithDefaultKernel =
    KernelFor<PassInputKernel>("PlaceholderWithDefault");

}  // namespace
}  // namespace millrace
