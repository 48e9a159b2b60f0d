// SPDX-License-Identifier: Apache-2.0
#include "ops/state/ref_variable.h"

#include <memory>
#include <utility>

#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/kernels/variable_kernel.h"
#include "ops/kernels/variable_update.h"
#include "ops/rules/variable_rules.h"
#include "runtime/kernel.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

// --- VariableV2, Variable ------------------------------------------------------------------------

// In graphs of the oldest form an empty shape means that it is not known.
template <bool kScalarIsUnknown>
Status VariableRefShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape shape, c->GetAttr<PartialShape>("shape"));
  if (kScalarIsUnknown && shape == PartialShape::Scalar()) shape = PartialShape();
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

OpSpec VariableRefSpec(const char* name, ShapeFn shape) {
  return OpSpec(name, "-> ref: Ref(dtype)",
                "shape: shape; dtype: type; container: string = ''; shared_name: string = ''")
      .Stateful()
      .MakesVariable()
      .Shape(std::move(shape))
      .NotDifferentiable()
      .With(KernelFor<VariableKernel>());
}
const OpRegistration kVariables[] = {VariableRefSpec("VariableV2", VariableRefShape<false>),
                                     VariableRefSpec("Variable", VariableRefShape<true>)};

const OpRegistration kIsVariableInitialized =
    OpSpec("IsVariableInitialized", "ref: Ref(dtype) -> is_initialized: bool", "dtype: type")
        .AllowsUninitializedInput()
        .TakesVariable(0, VariableUse::kAsks)
        .Shape(ScalarShape)
        .NotDifferentiable()
        .With(KernelFor<IsInitializedKernel>());

// --- Assign, AssignAdd, AssignSub ----------------------------------------------------------------

// The only place that knows which value shapes Assign takes.
Status CheckAssign(const PartialShape& variable, const PartialShape& value) {
  if (variable.IsCompatibleWith(value)) return absl::OkStatus();
  return InvalidArgument("Assign requires shapes of both tensors to match. lhs shape= ", variable,
                         " rhs shape= ", value);
}

Status MergedShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape merged, c->input(0).MergeWith(c->input(1)));
  c->set_output(0, std::move(merged));
  return absl::OkStatus();
}

Status AssignShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const bool validate_shape, c->GetAttr<bool>("validate_shape"));
  if (validate_shape) {
    MR_RETURN_IF_ERROR(CheckAssign(c->input(0), c->input(1)));
    return MergedShape(c);
  }
  c->set_output(0, c->input(1));
  return absl::OkStatus();
}

class AssignKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    return ReadAttrs(c->attrs(), "validate_shape", &validate_shape_);
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto variable, ctx->ref_input(0));
    if (validate_shape_) {
      const StatusOr<Shape> shape = variable->shape();
      MR_RETURN_IF_ERROR(CheckAssign(shape.ok() ? PartialShape(*shape) : variable->declared_shape(),
                                     ctx->input(1).shape()));
    }
    MR_RETURN_IF_ERROR(variable->Assign(ctx->TakeInput(1), /*validate_shape=*/false));
    PassReference(ctx, std::move(variable));
    return absl::OkStatus();
  }

 private:
  bool validate_shape_ = true;
};
const OpRegistration kAssign =
    OpSpec("Assign", "ref: Ref(T), value: T -> output_ref: Ref(T)",
           "T: type; validate_shape: bool = true; use_locking: bool = true")
        .AllowsUninitializedInput()
        .Shape(AssignShape)
        .NotDifferentiable()
        .With(KernelFor<AssignKernel>());

OpSpec AssignUpdateSpec(const char* name) {
  return OpSpec(name, "ref: Ref(T), value: T -> output_ref: Ref(T)",
                "T: numbertype; use_locking: bool = false")
      .Shape(MergedShape)
      .NotDifferentiable();
}
const OpRegistration kAssignUpdates[] = {
    AssignUpdateSpec("AssignAdd").With(KernelsForNumbers<VariableUpdate<AddRule>::Dense>("T")),
    AssignUpdateSpec("AssignSub").With(KernelsForNumbers<VariableUpdate<SubRule>::Dense>("T"))};

// --- ScatterAdd, ScatterSub, ScatterUpdate -------------------------------------------------------

Status ScatterShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(CheckUpdates(c->input(2), c->input(1), c->input(0)));
  c->set_output(0, c->input(0));
  return absl::OkStatus();
}

OpSpec ScatterSpec(const char* name, const char* dtype, const char* use_locking) {
  return OpSpec(name, "ref: Ref(T), indices: Tindices, updates: T -> output_ref: Ref(T)",
                absl::StrCat("T: ", dtype,
                             "; Tindices: {int32, int64}; use_locking: bool = ", use_locking))
      .Shape(ScatterShape)
      .NotDifferentiable();
}
const OpRegistration kScatters[] = {
    ScatterSpec("ScatterAdd", "numbertype", "false")
        .With(KernelsForNumbers<VariableUpdate<AddRule>::Rows>("T")),
    ScatterSpec("ScatterSub", "numbertype", "false")
        .With(KernelsForNumbers<VariableUpdate<SubRule>::Rows>("T")),
    ScatterSpec("ScatterUpdate", "type", "true")
        .With(KernelsForNumbers<VariableUpdate<UpdateRule>::Rows>("T"))
        .With(KernelsFor<VariableUpdate<UpdateRule>::Rows, bool>("T"))};

}  // namespace
}  // namespace millrace
