// SPDX-License-Identifier: Apache-2.0
#include "ops/state/resource_variable.h"

#include <atomic>
#include <complex>
#include <deque>
#include <limits>
#include <memory>

#include "core/mutex.h"
#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/kernels/variable_maker.h"
#include "ops/kernels/variable_update.h"
#include "ops/rules/variable_rules.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

// --- VarHandleOp ---------------------------------------------------------------------------------

Status VarHandleShape(InferenceContext* c) {
  HandleData data;
  MR_ASSIGN_OR_RETURN(data.dtype, c->GetAttr<DType>("dtype"));
  MR_ASSIGN_OR_RETURN(data.shape, c->GetAttr<PartialShape>("shape"));
  c->set_output(0, Shape());
  c->set_output_handle(0, std::move(data));
  return absl::OkStatus();
}

// The handle is made once and handed out by every step without a lock; after a Reset of the
// container it is made anew. Handles that steps may still hold stay until the kernel goes.
class VarHandleKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override { return maker_.Init(c); }
  Status Compute(KernelContext* ctx) const override {
    const Tensor* handle = current_.load(std::memory_order_acquire);
    if (handle == nullptr || handle->raw_scalar<ResourceHandle>().resource->abandoned()) {
      MR_ASSIGN_OR_RETURN(handle, MakeHandle(ctx->resources()));
    }
    ctx->set_output(0, *handle);
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  StatusOr<const Tensor*> MakeHandle(ResourceManager* resources) const {
    MutexLock lock(&mu_);
    MR_ASSIGN_OR_RETURN(auto storage, maker_.FindOrMake(resources));
    ResourceHandle handle =
        resources->MakeHandle<VariableStorage>(maker_.container(), maker_.name(), storage);
    handle.dtypes = {maker_.dtype()};
    handle.shapes = {maker_.shape()};
    all_.push_back(Tensor::Scalar<ResourceHandle>(std::move(handle)));
    current_.store(&all_.back(), std::memory_order_release);
    return &all_.back();
  }

  VariableMaker maker_;
  mutable std::atomic<const Tensor*> current_{nullptr};  // release after the element is complete
  mutable Mutex mu_;
  mutable std::deque<Tensor> all_ ABSL_GUARDED_BY(mu_);
};

const OpRegistration kVarHandleOp = OpSpec("VarHandleOp")
                                        .Output("resource: resource")
                                        .Attr("container: string = ''")
                                        .Attr("shared_name: string = ''")
                                        .Attr("dtype: type")
                                        .Attr("shape: shape")
                                        .Stateful()
                                        .Shape(VarHandleShape)
                                        .NotDifferentiable();
const KernelRegistration kVarHandleKernel = KernelFor<VarHandleKernel>("VarHandleOp");

// --- VarIsInitializedOp, ReadVariableOp, VariableShape, DestroyResourceOp ------------------------

class VarIsInitializedKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    auto variable = ctx->ResourceInput<VariableStorage>(0);
    if (!variable.ok() && !absl::IsNotFound(variable.status())) return variable.status();
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, Shape()));
    out->mutable_raw<bool>()[0] = variable.ok() && (*variable)->IsInitialized();
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

const OpRegistration kVarIsInitialized = OpSpec("VarIsInitializedOp")
                                             .Input("resource: resource")
                                             .Output("is_initialized: bool")
                                             .Stateful()
                                             .Shape(ScalarShape)
                                             .NotDifferentiable();
const KernelRegistration kVarIsInitializedKernel =
    KernelFor<VarIsInitializedKernel>("VarIsInitializedOp");

Status ReadVariableShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const DType dtype, c->GetAttr<DType>("dtype"));
  const HandleData handle = HandleOf(c, 0);
  MR_RETURN_IF_ERROR(CheckHandleDtype(handle, dtype));
  c->set_output(0, handle.shape);
  return absl::OkStatus();
}

class ReadVariableKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(dtype_, c->GetAttr<DType>("dtype"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto variable, ctx->ResourceInput<VariableStorage>(0));
    MR_RETURN_IF_ERROR(CheckStorageDtype(*variable, dtype_));
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
};

// The gradient of the value is the gradient of the variable.
Status ReadVariableGradient(GradientContext* c) {
  const Gradient& grad = c->grad(0);
  if (const Output* dense = std::get_if<Output>(&grad)) c->set_input_grad(0, *dense);
  if (const IndexedSlices* slices = std::get_if<IndexedSlices>(&grad)) {
    c->set_input_grad(0, *slices);
  }
  return absl::OkStatus();
}

const OpRegistration kReadVariable = OpSpec("ReadVariableOp")
                                         .Input("resource: resource")
                                         .Output("value: dtype")
                                         .Attr("dtype: type")
                                         .Stateful()
                                         .Shape(ReadVariableShape)
                                         .Gradient(ReadVariableGradient);
const KernelRegistration kReadVariableKernel = KernelFor<ReadVariableKernel>("ReadVariableOp");

Status VariableShapeShape(InferenceContext* c) {
  const HandleData handle = HandleOf(c, 0);
  const int64_t rank = handle.shape.has_rank() ? handle.shape.rank() : -1;
  MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make({rank}));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

class VariableShapeKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto variable, ctx->ResourceInput<VariableStorage>(0));
    MR_ASSIGN_OR_RETURN(const Shape shape, variable->shape());
    MR_ASSIGN_OR_RETURN(Tensor * out,
                        ctx->AllocateOutput(0, Shape::Vector(static_cast<size_t>(shape.rank()))));
    for (int i = 0; i < shape.rank(); ++i) {
      if (out->dtype() == DT_INT64) {
        out->mutable_raw<int64_t>()[static_cast<size_t>(i)] = shape.dim(i);
        continue;
      }
      if (shape.dim(i) > std::numeric_limits<int32_t>::max()) {
        return absl::InvalidArgumentError(
            absl::StrCat("dimension ", i, " must fit into out_type int32, got ", shape.dim(i)));
      }
      out->mutable_raw<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(shape.dim(i));
    }
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

const OpRegistration kVariableShape = OpSpec("VariableShape")
                                          .Input("input: resource")
                                          .Output("output: out_type")
                                          .Attr("out_type: {int32, int64} = DT_INT32")
                                          .Stateful()
                                          .Shape(VariableShapeShape)
                                          .NotDifferentiable();
const KernelRegistration kVariableShapeKernel = KernelFor<VariableShapeKernel>("VariableShape");

class DestroyResourceKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(ignore_lookup_error_, c->GetAttr<bool>("ignore_lookup_error"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    if (!ctx->input(0).shape().is_scalar()) {
      return absl::InvalidArgumentError(
          absl::StrCat("resource must be a scalar, got shape ", ctx->input(0).shape().ToString()));
    }
    const Status status =
        ctx->resources()->DeleteHandle(ctx->input(0).raw_scalar<ResourceHandle>());
    return ignore_lookup_error_ && absl::IsNotFound(status) ? absl::OkStatus() : status;
  }

 private:
  bool ignore_lookup_error_ = true;
};

const OpRegistration kDestroyResource = OpSpec("DestroyResourceOp")
                                            .Input("resource: resource")
                                            .Attr("ignore_lookup_error: bool = true")
                                            .Stateful()
                                            .Shape(NoOutputShape)
                                            .NotDifferentiable();
const KernelRegistration kDestroyResourceKernel =
    KernelFor<DestroyResourceKernel>("DestroyResourceOp");

// --- AssignVariableOp, AssignAddVariableOp, AssignSubVariableOp ----------------------------------

Status AssignVariableShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const DType dtype, c->GetAttr<DType>("dtype"));
  const HandleData handle = HandleOf(c, 0);
  MR_RETURN_IF_ERROR(CheckHandleDtype(handle, dtype));
  if (!handle.shape.IsCompatibleWith(c->input(1))) {
    return absl::InvalidArgumentError(absl::StrCat("value must have the variable's shape ",
                                                   handle.shape.ToString(), ", got ",
                                                   c->input(1).ToString()));
  }
  return absl::OkStatus();
}

class AssignVariableKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto variable, ctx->ResourceInput<VariableStorage>(0));
    MR_RETURN_IF_ERROR(CheckStorageDtype(*variable, ctx->input(1).dtype()));
    return variable->Assign(ctx->TakeInput(1), /*validate_shape=*/true);
  }
};

const OpRegistration kAssignVariable = OpSpec("AssignVariableOp")
                                           .Input("resource: resource")
                                           .Input("value: dtype")
                                           .Attr("dtype: type")
                                           .Stateful()
                                           .Shape(AssignVariableShape)
                                           .NotDifferentiable();
const KernelRegistration kAssignVariableKernel =
    KernelFor<AssignVariableKernel>("AssignVariableOp");

template <typename T, template <typename> class Rule>
class AssignUpdateVariableKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto variable, ctx->ResourceInput<VariableStorage>(0));
    MR_RETURN_IF_ERROR(CheckStorageDtype(*variable, DTypeOf<T>));
    return UpdateDense<T, Rule>(ctx, variable.get(), ctx->input(1));
  }
};

OpSpec AssignUpdateSpec(const char* name) {
  return OpSpec(name)
      .Input("resource: resource")
      .Input("value: dtype")
      .Attr("dtype: type")
      .Stateful()
      .Shape(AssignVariableShape)
      .NotDifferentiable();
}
const OpRegistration kAssignAddVariable = AssignUpdateSpec("AssignAddVariableOp");
const OpRegistration kAssignSubVariable = AssignUpdateSpec("AssignSubVariableOp");

template <typename T>
struct UpdateKernels {
  KernelRegistration add = KernelFor<AssignUpdateVariableKernel<T, AddRule>>("AssignAddVariableOp")
                               .template Type<T>("dtype");
  KernelRegistration sub = KernelFor<AssignUpdateVariableKernel<T, SubRule>>("AssignSubVariableOp")
                               .template Type<T>("dtype");
};
const ForNumbers<UpdateKernels> kUpdates;

}  // namespace
}  // namespace millrace
