// SPDX-License-Identifier: Apache-2.0
#include "ops/array/identity.h"

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/partial_value.h"
#include "graph/shape_inference.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// Output i is shaped as input i and holds what input i holds.
Status SameShapes(InferenceContext* c) {
  for (int i = 0; i < c->num_inputs() && i < c->num_outputs(); ++i) {
    c->set_output(i, c->input(i));
    if (c->input_handle(i)) c->set_output_handle(i, *c->input_handle(i));
  }
  return absl::OkStatus();
}

Status PassGradient(GradientContext* c) {
  for (int i = 0; i < c->num_inputs(); ++i) {
    const Gradient& grad = c->grad(i);
    if (const Output* dense = std::get_if<Output>(&grad)) c->set_input_grad(i, *dense);
    if (const IndexedSlices* s = std::get_if<IndexedSlices>(&grad)) c->set_input_grad(i, *s);
  }
  return absl::OkStatus();
}

Status RefuseGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const std::string message, c->GetAttr<std::string>("message"));
  return absl::NotFoundError(absl::StrCat("PreventGradient '", c->node().name(),
                                          "': a gradient through it is forbidden",
                                          message.empty() ? "" : "; ", message));
}

class IdentityNKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    for (int i = 0; i < ctx->num_inputs(); ++i) ctx->set_output(i, ctx->TakeInput(i));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

class NoOpKernel : public Kernel {
 public:
  Status Compute(KernelContext*) const override { return absl::OkStatus(); }
  bool may_be_expensive() const override { return false; }
};

const OpRegistration kIdentity = OpSpec("Identity")
                                     .Input("input: T")
                                     .Output("output: T")
                                     .Attr("T: type")
                                     .Shape(SameShapes)
                                     .Gradient(PassGradient);
const PartialValueRule kIdentityRule("Identity", FirstInputValue);
const KernelRegistration kIdentityKernel = KernelFor<PassInputKernel>("Identity");

const OpRegistration kIdentityN = OpSpec("IdentityN")
                                      .Input("input: T")
                                      .Output("output: T")
                                      .Attr("T: list(type) >= 1")
                                      .Shape(SameShapes)
                                      .Gradient(PassGradient);
const KernelRegistration kIdentityNKernel = KernelFor<IdentityNKernel>("IdentityN");

const OpRegistration kStopGradient = OpSpec("StopGradient")
                                         .Input("input: T")
                                         .Output("output: T")
                                         .Attr("T: type")
                                         .Shape(SameShapes)
                                         .NotDifferentiable();
const PartialValueRule kStopGradientRule("StopGradient", FirstInputValue);
const KernelRegistration kStopGradientKernel = KernelFor<PassInputKernel>("StopGradient");

const OpRegistration kPreventGradient = OpSpec("PreventGradient")
                                            .Input("input: T")
                                            .Output("output: T")
                                            .Attr("T: type")
                                            .Attr("message: string = ''")
                                            .Shape(SameShapes)
                                            .Gradient(RefuseGradient);
const KernelRegistration kPreventGradientKernel = KernelFor<PassInputKernel>("PreventGradient");

const OpRegistration kNoOp = OpSpec("NoOp").Shape(NoOutputShape).NotDifferentiable();
const KernelRegistration kNoOpKernel = KernelFor<NoOpKernel>("NoOp");

}  // namespace
}  // namespace millrace
