// SPDX-License-Identifier: Apache-2.0
#include "ops/control/control_flow.h"

#include "graph/gradient.h"
#include "graph/shape_inference.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- Switch --------------------------------------------------------------------------------------

Status SwitchShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(1, 0, "pred").status());
  ForwardInputToOutput(c, 0, 0);
  ForwardInputToOutput(c, 0, 1);
  return absl::OkStatus();
}

// Of RefSwitch, too: a reference to a variable is passed on as any value.
class SwitchKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const bool pred, ctx->ScalarInput<bool>(1, "pred"));
    ctx->set_output(pred ? 1 : 0, ctx->TakeInput(0));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

const OpRegistration kSwitch =
    OpSpec("Switch", "data: T, pred: bool -> output_false: T, output_true: T", "T: type")
        .Shape(SwitchShape)
        .Gradient(GradientOfSwitch)
        .With(KernelFor<SwitchKernel>());

const OpRegistration kRefSwitch =
    OpSpec("RefSwitch", "data: Ref(T), pred: bool -> output_false: Ref(T), output_true: Ref(T)",
           "T: type")
        .AllowsUninitializedInput()
        .Shape(SwitchShape)
        .NotDifferentiable()
        .With(KernelFor<SwitchKernel>());

// --- Merge ---------------------------------------------------------------------------------------

// What all inputs agree on; an input that is not known yet (the back edge of a loop) agrees with
// nothing but the rank.
Status MergeShape(InferenceContext* c) {
  PartialShape common = c->input(0);
  for (int i = 1; i < c->num_inputs(); ++i) {
    const PartialShape& other = c->input(i);
    if (!common.has_rank() || !other.has_rank() || common.rank() != other.rank()) {
      common = PartialShape();
      break;
    }
    std::vector<int64_t> dims(common.dims().begin(), common.dims().end());
    for (int d = 0; d < other.rank(); ++d) {
      if (dims[static_cast<size_t>(d)] != other.dim(d)) dims[static_cast<size_t>(d)] = -1;
    }
    MR_ASSIGN_OR_RETURN(common, PartialShape::Make(dims));
  }
  ForwardInputToOutput(c, 0, 0);  // what it is a handle of
  c->set_output(0, std::move(common));
  c->set_output(1, Shape());
  return absl::OkStatus();
}

// Of RefMerge, too.
class MergeKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    int found = -1;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      if (!ctx->has_input(i)) continue;
      if (found >= 0) return Internal("Merge can not have more than one valid input.");
      found = i;
    }
    if (found < 0) return absl::OkStatus();  // dead
    ctx->set_output(0, ctx->TakeInput(found));
    MR_ASSIGN_OR_RETURN(Tensor * index, ctx->AllocateOutput(1, Shape()));
    index->mutable_raw<int32_t>()[0] = found;
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

constexpr char kMergeAttrs[] = "T: type; N: int >= 1";
const OpRegistration kMerge =
    OpSpec("Merge", "inputs: N * T -> output: T, value_index: int32", kMergeAttrs)
        .Shape(MergeShape)
        .Gradient(GradientOfMerge)
        .With(KernelFor<MergeKernel>());

const OpRegistration kRefMerge =
    OpSpec("RefMerge", "inputs: Ref(N * T) -> output: Ref(T), value_index: int32", kMergeAttrs)
        .Shape(MergeShape)
        .NotDifferentiable()
        .With(KernelFor<MergeKernel>());

// --- Loops ---------------------------------------------------------------------------------------

// What takes a value from one iteration to another passes it on: the engine knows where to.
Status PassedOnShape(InferenceContext* c) {
  ForwardInputToOutput(c, 0, 0);
  return absl::OkStatus();
}

constexpr char kEnterAttrs[] =
    "T: type; frame_name: string; is_constant: bool = false; parallel_iterations: int = 10";
const OpRegistration kEnter = OpSpec("Enter", "data: T -> output: T", kEnterAttrs)
                                  .Shape(PassedOnShape)
                                  .NotDifferentiable()
                                  .With(KernelFor<PassInputKernel>());
const OpRegistration kRefEnter = OpSpec("RefEnter", "data: Ref(T) -> output: Ref(T)", kEnterAttrs)
                                     .Shape(PassedOnShape)
                                     .NotDifferentiable()
                                     .With(KernelFor<PassInputKernel>());

const OpRegistration kExit = OpSpec("Exit", "data: T -> output: T", "T: type")
                                 .Shape(PassedOnShape)
                                 .NotDifferentiable()
                                 .With(KernelFor<PassInputKernel>());
const OpRegistration kRefExit = OpSpec("RefExit", "data: Ref(T) -> output: Ref(T)", "T: type")
                                    .Shape(PassedOnShape)
                                    .NotDifferentiable()
                                    .With(KernelFor<PassInputKernel>());

const OpRegistration kNextIteration = OpSpec("NextIteration", "data: T -> output: T", "T: type")
                                          .Shape(PassedOnShape)
                                          .NotDifferentiable()
                                          .With(KernelFor<PassInputKernel>());
const OpRegistration kRefNextIteration =
    OpSpec("RefNextIteration", "data: Ref(T) -> output: Ref(T)", "T: type")
        .Shape(PassedOnShape)
        .NotDifferentiable()
        .With(KernelFor<PassInputKernel>());

const OpRegistration kLoopCond = OpSpec("LoopCond", "input: bool -> output: bool")
                                     .Shape(PassedOnShape)
                                     .NotDifferentiable()
                                     .With(KernelFor<PassInputKernel>());

// --- ControlTrigger ------------------------------------------------------------------------------

class ControlTriggerKernel : public Kernel {
 public:
  Status Compute(KernelContext*) const override { return absl::OkStatus(); }
  bool may_be_expensive() const override { return false; }
};

const OpRegistration kControlTrigger = OpSpec("ControlTrigger")
                                           .Trigger()
                                           .Shape(NoOutputShape)
                                           .NotDifferentiable()
                                           .With(KernelFor<ControlTriggerKernel>());

}  // namespace
}  // namespace millrace
