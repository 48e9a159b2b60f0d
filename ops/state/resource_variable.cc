// SPDX-License-Identifier: Apache-2.0
#include "ops/state/resource_variable.h"

#include <limits>
#include <memory>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/kernels/variable_kernel.h"
#include "ops/kernels/variable_update.h"
#include "ops/rules/variable_rules.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

// --- VarHandleOp, VarIsInitializedOp -------------------------------------------------------------

Status VarHandleShape(InferenceContext* c) {
  HandleData data;
  MR_RETURN_IF_ERROR(ReadAttrs(c->attrs(), "dtype", &data.dtype, "shape", &data.shape));
  c->set_output(0, Shape());
  c->set_output_handle(0, std::move(data));
  return absl::OkStatus();
}

const OpRegistration kVarHandleOp =
    OpSpec("VarHandleOp", "-> resource: resource",
           "container: string = ''; shared_name: string = ''; dtype: type; shape: shape")
        .Stateful()
        .MakesVariable()
        .SameEachStep()
        .Shape(VarHandleShape)
        .NotDifferentiable()
        .With(KernelFor<VariableKernel>());

const OpRegistration kVarIsInitialized =
    OpSpec("VarIsInitializedOp", "resource: resource -> is_initialized: bool")
        .Stateful()
        .TakesVariable(0, VariableUse::kAsks)
        .Shape(ScalarShape)
        .NotDifferentiable()
        .With(KernelFor<IsInitializedKernel>());

// --- ReadVariableOp ------------------------------------------------------------------------------

Status ReadVariableShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape shape, ShapeOfHandle(c));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

class ReadVariableKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    by_reference_ = IsRef(c->output_type(0));
    return ReadAttrs(c->attrs(), "dtype", &dtype_);
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto variable, VariableInput(ctx, 0, dtype_));
    if (by_reference_) {
      if (!variable->IsInitialized()) {
        return ReadError(*variable, ctx->input(0).raw_scalar<ResourceHandle>());
      }
      ctx->set_output_ref(0, std::move(variable));
      return absl::OkStatus();
    }
    StatusOr<Tensor> value = variable->Read();
    if (absl::IsFailedPrecondition(value.status())) {
      return ReadError(*variable, ctx->input(0).raw_scalar<ResourceHandle>());
    }
    MR_RETURN_IF_ERROR(value.status());
    ctx->set_output(0, *std::move(value));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  DType dtype_ = DT_INVALID;
  bool by_reference_ = false;  // only saves read it (runtime/plan.cc)
};

// The gradient of the value, dense or slices, is the gradient of the variable.
Status ReadVariableGradient(GradientContext* c) {
  c->input_gradients()[0] = c->grad();
  return absl::OkStatus();
}

const OpRegistration kReadVariable =
    OpSpec("ReadVariableOp", "resource: resource -> value: dtype", "dtype: type")
        .Stateful()
        .TakesVariable(0, VariableUse::kReads)
        .Shape(ReadVariableShape)
        .Gradient(ReadVariableGradient)
        .With(KernelFor<ReadVariableKernel>());

// --- VariableShape -------------------------------------------------------------------------------

Status VariableShapeShape(InferenceContext* c) {
  const PartialShape shape = HandleOf(c, 0).shape;
  c->set_output(0, PartialShape({shape.has_rank() ? shape.rank() : -1}));
  return absl::OkStatus();
}

template <typename T>
class VariableShapeKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto variable, VariableInput(ctx, 0));
    MR_ASSIGN_OR_RETURN(const Shape shape, variable->shape());
    const size_t rank = static_cast<size_t>(shape.rank());
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, Shape::Vector(rank)));
    for (size_t i = 0; i < rank; ++i) {
      const int64_t dim = shape.dims()[i];
      if (dim > std::numeric_limits<T>::max()) {
        return InvalidArgument("dimension ", i, " must fit into out_type int32, got ", dim);
      }
      out->mutable_raw<T>()[i] = static_cast<T>(dim);
    }
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

const OpRegistration kVariableShape =
    OpSpec("VariableShape", "input: resource -> output: out_type",
           "out_type: {int32, int64} = DT_INT32")
        .Stateful()
        .TakesVariable(0, VariableUse::kAsks)
        .Shape(VariableShapeShape)
        .NotDifferentiable()
        .With(KernelsFor<VariableShapeKernel, int32_t, int64_t>("out_type"));

// --- DestroyResourceOp ---------------------------------------------------------------------------

class DestroyResourceKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    return ReadAttrs(c->attrs(), "ignore_lookup_error", &ignore_lookup_error_);
  }
  Status Compute(KernelContext* ctx) const override {
    if (!ctx->input(0).shape().is_scalar()) {
      return InvalidArgument("resource must be a scalar, got shape ", ctx->input(0).shape());
    }
    const Status status =
        ctx->resources()->DeleteHandle(ctx->input(0).raw_scalar<ResourceHandle>());
    return ignore_lookup_error_ && absl::IsNotFound(status) ? absl::OkStatus() : status;
  }

 private:
  bool ignore_lookup_error_ = true;
};

const OpRegistration kDestroyResource =
    OpSpec("DestroyResourceOp", "resource: resource", "ignore_lookup_error: bool = true")
        .Stateful()
        .Shape(NoOutputShape)
        .NotDifferentiable()
        .With(KernelFor<DestroyResourceKernel>());

// --- AssignVariableOp, AssignAddVariableOp, AssignSubVariableOp ----------------------------------

Status AssignVariableShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const PartialShape shape, ShapeOfHandle(c));
  if (shape.IsCompatibleWith(c->input(1))) return absl::OkStatus();
  return InvalidArgument("value must have the variable's shape ", shape, ", got ", c->input(1));
}

class AssignVariableKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto variable, VariableInput(ctx, 0, ctx->input_dtype(1)));
    return variable->Assign(ctx->TakeInput(1), /*validate_shape=*/true);
  }
};

OpSpec AssignSpec(const char* name) {
  return OpSpec(name, "resource: resource, value: dtype", "dtype: type")
      .Stateful()
      .Shape(AssignVariableShape)
      .NotDifferentiable();
}
const OpRegistration kAssigns[] = {
    AssignSpec("AssignVariableOp").With(KernelFor<AssignVariableKernel>()),
    AssignSpec("AssignAddVariableOp")
        .With(KernelsForNumbers<VariableUpdate<AddRule>::Dense>("dtype")),
    AssignSpec("AssignSubVariableOp")
        .With(KernelsForNumbers<VariableUpdate<SubRule>::Dense>("dtype"))};

}  // namespace
}  // namespace millrace
