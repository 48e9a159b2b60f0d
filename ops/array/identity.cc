// SPDX-License-Identifier: Apache-2.0
#include "ops/array/identity.h"

#include "graph/gradient.h"
#include "graph/partial_value.h"
#include "graph/shape_inference.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// Output i is shaped as input i and holds what input i holds.
Status SameShapes(InferenceContext* c) {
  for (int i = 0; i < c->num_inputs(); ++i) ForwardInputToOutput(c, i, i);
  return absl::OkStatus();
}

Status PassGradients(GradientContext* c) {
  for (int i = 0; i < c->num_inputs(); ++i) {
    c->input_gradients()[static_cast<size_t>(i)] = c->grad(i);
  }
  return absl::OkStatus();
}

Status RefuseGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const std::string message, c->GetAttr<std::string>("message"));
  return absl::NotFoundError(absl::StrCat("PreventGradient '", c->node().name(),
                                          "': a gradient through it is forbidden",
                                          message.empty() ? "" : "; ", message));
}

// Every input as the output of its number: none for NoOp.
class PassInputsKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    for (int i = 0; i < ctx->num_inputs(); ++i) ctx->set_output(i, ctx->TakeInput(i));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

constexpr char kInToOut[] = "input: T -> output: T";

const OpRegistration kIdentity = OpSpec("Identity", kInToOut, "T: type")
                                     .HandsOn(HandsOn::kValueAndGradient)
                                     .Shape(SameShapes)
                                     .Gradient(PassGradients)
                                     .With(KernelFor<PassInputKernel>())
                                     .With(PartialValueRule(FirstInputValue));

const OpRegistration kIdentityN = OpSpec("IdentityN", kInToOut, "T: list(type) >= 1")
                                      .HandsOn(HandsOn::kValueAndGradient)
                                      .Shape(SameShapes)
                                      .Gradient(PassGradients)
                                      .With(KernelFor<PassInputsKernel>());

const OpRegistration kStopGradient = OpSpec("StopGradient", kInToOut, "T: type")
                                         .HandsOn(HandsOn::kValue)
                                         .Shape(SameShapes)
                                         .NotDifferentiable()
                                         .With(KernelFor<PassInputKernel>())
                                         .With(PartialValueRule(FirstInputValue));

const OpRegistration kPreventGradient =
    OpSpec("PreventGradient", kInToOut, "T: type; message: string = ''")
        .HandsOn(HandsOn::kValue)
        .Shape(SameShapes)
        .Gradient(RefuseGradient)
        .With(KernelFor<PassInputKernel>());

const OpRegistration kNoOp =
    OpSpec("NoOp").Shape(NoOutputShape).NotDifferentiable().With(KernelFor<PassInputsKernel>());

}  // namespace
}  // namespace millrace
