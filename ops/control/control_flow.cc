// SPDX-License-Identifier: Apache-2.0
#include "ops/control/control_flow.h"

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "runtime/kernel.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

// --- Switch --------------------------------------------------------------------------------------

Status SwitchShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(1, 0).status());
  for (int i = 0; i < 2; ++i) {
    c->set_output(i, c->input(0));
    if (c->input_handle(0)) c->set_output_handle(i, *c->input_handle(0));
  }
  return absl::OkStatus();
}

class SwitchKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const bool pred, ctx->ScalarInput<bool>(1, "pred"));
    ctx->set_output(pred ? 1 : 0, ctx->TakeInput(0));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

class RefSwitchKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const bool pred, ctx->ScalarInput<bool>(1, "pred"));
    MR_ASSIGN_OR_RETURN(auto ref, ctx->ref_input(0));
    ctx->set_output_ref(pred ? 1 : 0, std::move(ref));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

const OpRegistration kSwitch = OpSpec("Switch")
                                   .Input("data: T")
                                   .Input("pred: bool")
                                   .Output("output_false: T")
                                   .Output("output_true: T")
                                   .Attr("T: type")
                                   .Shape(SwitchShape)
                                   .Gradient(GradientOfSwitch);
const KernelRegistration kSwitchKernel = KernelFor<SwitchKernel>("Switch");

const OpRegistration kRefSwitch = OpSpec("RefSwitch")
                                      .Input("data: Ref(T)")
                                      .Input("pred: bool")
                                      .Output("output_false: Ref(T)")
                                      .Output("output_true: Ref(T)")
                                      .Attr("T: type")
                                      .AllowsUninitializedInput()
                                      .Shape(SwitchShape)
                                      .NotDifferentiable();
const KernelRegistration kRefSwitchKernel = KernelFor<RefSwitchKernel>("RefSwitch");

// --- Merge ---------------------------------------------------------------------------------------

// What all inputs agree on; an input that is not known yet (the back edge of a loop) agrees with
// nothing but the rank.
Status MergeShape(InferenceContext* c) {
  PartialShape common = c->num_inputs() > 0 ? c->input(0) : PartialShape();
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
  c->set_output(0, std::move(common));
  c->set_output(1, Shape());
  if (c->num_inputs() > 0 && c->input_handle(0)) c->set_output_handle(0, *c->input_handle(0));
  return absl::OkStatus();
}

class MergeKernel : public Kernel {
 public:
  explicit MergeKernel(bool is_ref) : is_ref_(is_ref) {}
  Status Compute(KernelContext* ctx) const override {
    int found = -1;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      if (!ctx->has_input(i)) continue;
      if (found >= 0) return absl::InternalError("Merge can not have more than one valid input.");
      found = i;
    }
    if (found < 0) return absl::OkStatus();  // dead
    if (is_ref_) {
      MR_ASSIGN_OR_RETURN(auto ref, ctx->ref_input(found));
      ctx->set_output_ref(0, std::move(ref));
    } else {
      ctx->set_output(0, ctx->TakeInput(found));
    }
    MR_ASSIGN_OR_RETURN(Tensor * index, ctx->AllocateOutput(1, Shape()));
    index->mutable_raw<int32_t>()[0] = found;
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  const bool is_ref_;
};

class ValueMergeKernel : public MergeKernel {
 public:
  ValueMergeKernel() : MergeKernel(false) {}
};
class RefMergeKernel : public MergeKernel {
 public:
  RefMergeKernel() : MergeKernel(true) {}
};

const OpRegistration kMerge = OpSpec("Merge")
                                  .Input("inputs: N * T")
                                  .Output("output: T")
                                  .Output("value_index: int32")
                                  .Attr("T: type")
                                  .Attr("N: int >= 1")
                                  .Shape(MergeShape)
                                  .Gradient(GradientOfMerge);
const KernelRegistration kMergeKernel = KernelFor<ValueMergeKernel>("Merge");

const OpRegistration kRefMerge = OpSpec("RefMerge")
                                     .Input("inputs: Ref(N * T)")
                                     .Output("output: Ref(T)")
                                     .Output("value_index: int32")
                                     .Attr("T: type")
                                     .Attr("N: int >= 1")
                                     .Shape(MergeShape)
                                     .NotDifferentiable();
const KernelRegistration kRefMergeKernel = KernelFor<RefMergeKernel>("RefMerge");

// --- ControlTrigger ------------------------------------------------------------------------------

class ControlTriggerKernel : public Kernel {
 public:
  Status Compute(KernelContext*) const override { return absl::OkStatus(); }
  bool may_be_expensive() const override { return false; }
};

const OpRegistration kControlTrigger =
    OpSpec("ControlTrigger").Shape(NoOutputShape).NotDifferentiable();
const KernelRegistration kControlTriggerKernel = KernelFor<ControlTriggerKernel>("ControlTrigger");

}  // namespace
}  // namespace millrace
