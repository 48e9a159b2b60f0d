// SPDX-License-Identifier: Apache-2.0
#include "ops/state/ref_variable.h"

#include <atomic>
#include <complex>
#include <deque>
#include <memory>
#include <string>
#include <utility>

#include "core/mutex.h"
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

// --- VariableV2, Variable ------------------------------------------------------------------------

Status VariableRefShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape shape, c->GetAttr<PartialShape>("shape"));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

// In graphs of the oldest form an empty shape means that it is not known.
Status VariableV1Shape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape shape, c->GetAttr<PartialShape>("shape"));
  c->set_output(0, shape.has_rank() && shape.rank() == 0 ? PartialShape() : shape);
  return absl::OkStatus();
}

// The storage is found once and handed out by every step without a lock; after a Reset of the
// container it is found or made anew. What steps may still hold stays until the kernel goes.
class VariableRefKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override { return maker_.Init(c); }
  Status Compute(KernelContext* ctx) const override {
    const std::shared_ptr<VariableStorage>* storage = current_.load(std::memory_order_acquire);
    if (storage == nullptr || (*storage)->abandoned()) {
      MutexLock lock(&mu_);
      MR_ASSIGN_OR_RETURN(auto found, maker_.FindOrMake(ctx->resources()));
      all_.push_back(std::move(found));
      storage = &all_.back();
      current_.store(storage, std::memory_order_release);
    }
    ctx->set_output_ref(0, *storage);
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  VariableMaker maker_;
  mutable std::atomic<const std::shared_ptr<VariableStorage>*> current_{
      nullptr};  // release/acquire
  mutable Mutex mu_;
  mutable std::deque<std::shared_ptr<VariableStorage>> all_ ABSL_GUARDED_BY(mu_);
};

OpSpec VariableRefSpec(const char* name, ShapeFn shape) {
  return OpSpec(name)
      .Output("ref: Ref(dtype)")
      .Attr("shape: shape")
      .Attr("dtype: type")
      .Attr("container: string = ''")
      .Attr("shared_name: string = ''")
      .Stateful()
      .Shape(std::move(shape))
      .NotDifferentiable();
}
const OpRegistration kVariableV2 = VariableRefSpec("VariableV2", VariableRefShape);
const KernelRegistration kVariableV2Kernel = KernelFor<VariableRefKernel>("VariableV2");
const OpRegistration kVariableV1 = VariableRefSpec("Variable", VariableV1Shape);
const KernelRegistration kVariableV1Kernel = KernelFor<VariableRefKernel>("Variable");

// --- IsVariableInitialized, Assign, AssignAdd, AssignSub -----------------------------------------

class IsVariableInitializedKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto variable, ctx->ref_input(0));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, Shape()));
    out->mutable_raw<bool>()[0] = variable->IsInitialized();
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};
const OpRegistration kIsVariableInitialized = OpSpec("IsVariableInitialized")
                                                  .Input("ref: Ref(dtype)")
                                                  .Output("is_initialized: bool")
                                                  .Attr("dtype: type")
                                                  .AllowsUninitializedInput()
                                                  .Shape(ScalarShape)
                                                  .NotDifferentiable();
const KernelRegistration kIsVariableInitializedKernel =
    KernelFor<IsVariableInitializedKernel>("IsVariableInitialized");

// The only place that knows which value shapes Assign takes.
Status CheckAssign(const PartialShape& variable, const PartialShape& value, bool validate_shape) {
  if (validate_shape && !variable.IsCompatibleWith(value)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Assign requires shapes of both tensors to match. lhs shape= ", variable.ToString(),
        " rhs shape= ", value.ToString()));
  }
  return absl::OkStatus();
}

Status AssignShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const bool validate_shape, c->GetAttr<bool>("validate_shape"));
  MR_RETURN_IF_ERROR(CheckAssign(c->input(0), c->input(1), validate_shape));
  if (!validate_shape) {
    c->set_output(0, c->input(1));
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(PartialShape merged, c->input(0).MergeWith(c->input(1)));
  c->set_output(0, std::move(merged));
  return absl::OkStatus();
}

class AssignKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(validate_shape_, c->GetAttr<bool>("validate_shape"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto variable, ctx->ref_input(0));
    if (validate_shape_) {
      const StatusOr<Shape> shape = variable->shape();
      MR_RETURN_IF_ERROR(CheckAssign(shape.ok() ? PartialShape(*shape) : variable->declared_shape(),
                                     ctx->input(1).shape(), true));
    }
    MR_RETURN_IF_ERROR(variable->Assign(ctx->TakeInput(1), /*validate_shape=*/false));
    ctx->set_output_ref(0, std::move(variable));
    return absl::OkStatus();
  }

 private:
  bool validate_shape_ = true;
};
const OpRegistration kAssign = OpSpec("Assign")
                                   .Input("ref: Ref(T)")
                                   .Input("value: T")
                                   .Output("output_ref: Ref(T)")
                                   .Attr("T: type")
                                   .Attr("validate_shape: bool = true")
                                   .Attr("use_locking: bool = true")
                                   .AllowsUninitializedInput()
                                   .Shape(AssignShape)
                                   .NotDifferentiable();
const KernelRegistration kAssignKernel = KernelFor<AssignKernel>("Assign");

Status AssignUpdateShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape merged, c->input(0).MergeWith(c->input(1)));
  c->set_output(0, std::move(merged));
  return absl::OkStatus();
}

template <typename T, template <typename> class Rule>
class AssignUpdateKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto variable, ctx->ref_input(0));
    MR_RETURN_IF_ERROR((UpdateDense<T, Rule>(ctx, variable.get(), ctx->input(1))));
    ctx->set_output_ref(0, std::move(variable));
    return absl::OkStatus();
  }
};

OpSpec RefUpdateSpec(const char* name) {
  return OpSpec(name)
      .Input("ref: Ref(T)")
      .Input("value: T")
      .Output("output_ref: Ref(T)")
      .Attr(absl::StrCat("T: ", kNumberTypes))
      .Attr("use_locking: bool = false")
      .Shape(AssignUpdateShape)
      .NotDifferentiable();
}
const OpRegistration kAssignAdd = RefUpdateSpec("AssignAdd");
const OpRegistration kAssignSub = RefUpdateSpec("AssignSub");

// --- ScatterAdd, ScatterSub, ScatterUpdate -------------------------------------------------------

Status ScatterShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(CheckUpdates(c->input(2), c->input(1), c->input(0)));
  c->set_output(0, c->input(0));
  return absl::OkStatus();
}

template <typename T, typename Index, template <typename> class Rule>
class ScatterKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(exclusive_, c->GetAttr<bool>("use_locking"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(auto variable, ctx->ref_input(0));
    MR_RETURN_IF_ERROR((ScatterRows<T, Index, Rule>(ctx, variable.get(), ctx->input(1),
                                                    ctx->input(2), exclusive_)));
    ctx->set_output_ref(0, std::move(variable));
    return absl::OkStatus();
  }

 private:
  bool exclusive_ = false;
};

OpSpec ScatterSpec(const char* name, const std::string& dtype, const char* use_locking) {
  return OpSpec(name)
      .Input("ref: Ref(T)")
      .Input("indices: Tindices")
      .Input("updates: T")
      .Output("output_ref: Ref(T)")
      .Attr(absl::StrCat("T: ", dtype))
      .Attr("Tindices: {int32, int64}")
      .Attr(absl::StrCat("use_locking: bool = ", use_locking))
      .Shape(ScatterShape)
      .NotDifferentiable();
}
const OpRegistration kScatterAdd = ScatterSpec("ScatterAdd", kNumberTypes, "false");
const OpRegistration kScatterSub = ScatterSpec("ScatterSub", kNumberTypes, "false");
const OpRegistration kScatterUpdate = ScatterSpec("ScatterUpdate", "type", "true");

template <typename T>
struct UpdateKernels {
  KernelRegistration add =
      KernelFor<AssignUpdateKernel<T, AddRule>>("AssignAdd").template Type<T>("T");
  KernelRegistration sub =
      KernelFor<AssignUpdateKernel<T, SubRule>>("AssignSub").template Type<T>("T");
  ScatterKernels<ScatterKernel, T, AddRule> scatter_add{"ScatterAdd", "T"};
  ScatterKernels<ScatterKernel, T, SubRule> scatter_sub{"ScatterSub", "T"};
  ScatterKernels<ScatterKernel, T, UpdateRule> scatter_update{"ScatterUpdate", "T"};
};
const ForNumbers<UpdateKernels> kUpdates;
const ScatterKernels<ScatterKernel, bool, UpdateRule> kBoolUpdates{"ScatterUpdate", "T"};

}  // namespace
}  // namespace millrace
