// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_VARIABLE_KERNEL_H_
#define MILLRACE_OPS_KERNELS_VARIABLE_KERNEL_H_

// The kernels that both kinds of variables have: those that are named by a handle (resource) and
// those of graphs before them (reference).

#include <atomic>
#include <deque>
#include <memory>
#include <string>

#include "core/mutex.h"
#include "ops/rules/variable_rules.h"
#include "proto/node_def.pb.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"
#include "runtime/variable_storage.h"

namespace millrace {

// The variable behind input i, a handle or a reference.
inline StatusOr<std::shared_ptr<VariableStorage>> VariableInput(KernelContext* ctx, int i) {
  if (ctx->input(i).is_reference()) return ctx->ref_input(i);
  return ctx->ResourceInput<VariableStorage>(i);
}
// InvalidArgument when it has another dtype.
inline StatusOr<std::shared_ptr<VariableStorage>> VariableInput(KernelContext* ctx, int i,
                                                                DType dtype) {
  MR_ASSIGN_OR_RETURN(auto variable, VariableInput(ctx, i));
  MR_RETURN_IF_ERROR(CheckStorageDtype(*variable, dtype));
  return variable;
}

// Ops on references give their variable on as output 0; those on handles have no output.
inline void PassReference(KernelContext* ctx, std::shared_ptr<VariableStorage> variable) {
  if (ctx->num_outputs() > 0) ctx->set_output_ref(0, std::move(variable));
}

// VarHandleOp, VariableV2 and Variable: a variable, by a handle or by reference.
//
// Nodes that name the same container and shared_name share one variable; a node without
// shared_name names it by its own name. The first to come makes it, without a value. It is found
// once and handed out by every step without a lock; after a Reset of the container it is found or
// made anew. What steps may still hold stays until the kernel goes.
//
// Failure: InvalidArgument when the variable that is there has another dtype.
class VariableKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    by_handle_ = c->output_type(0) == DT_RESOURCE;
    MR_RETURN_IF_ERROR(ReadAttrs(c->attrs(), "dtype", &dtype_, "shape", &shape_, "container",
                                 &container_, "shared_name", &name_));
    if (name_.empty()) name_ = c->node().name();
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    const Found* found = current_.load(std::memory_order_acquire);
    if (found == nullptr || found->storage->abandoned()) {
      MR_ASSIGN_OR_RETURN(found, FindOrMake(ctx->resources()));
    }
    if (by_handle_) {
      ctx->set_output(0, found->handle);
    } else {
      ctx->set_output_ref(0, found->storage);
    }
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  struct Found {
    std::shared_ptr<VariableStorage> storage;
    Tensor handle;
  };

  StatusOr<const Found*> FindOrMake(ResourceManager* resources) const {
    MutexLock lock(&mu_);
    const auto make = [this]() -> StatusOr<std::shared_ptr<VariableStorage>> {
      return std::make_shared<VariableStorage>(name_, dtype_, shape_);
    };
    MR_ASSIGN_OR_RETURN(auto storage,
                        resources->LookupOrCreate<VariableStorage>(container_, name_, make));
    MR_RETURN_IF_ERROR(CheckStorageDtype(*storage, dtype_));
    ResourceHandle handle = resources->MakeHandle<VariableStorage>(container_, name_, storage);
    handle.dtypes = {dtype_};
    handle.shapes = {shape_};
    all_.push_back({std::move(storage), Tensor::Scalar<ResourceHandle>(std::move(handle))});
    current_.store(&all_.back(), std::memory_order_release);
    return &all_.back();
  }

  DType dtype_ = DT_INVALID;
  PartialShape shape_;
  std::string container_, name_;
  bool by_handle_ = false;
  mutable std::atomic<const Found*> current_{nullptr};  // release after the element is complete
  mutable Mutex mu_;
  mutable std::deque<Found> all_ ABSL_GUARDED_BY(mu_);
};

// VarIsInitializedOp and IsVariableInitialized. A variable that is not there has no value.
class IsInitializedKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const auto variable = VariableInput(ctx, 0);
    if (!variable.ok() && !absl::IsNotFound(variable.status())) return variable.status();
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, Shape()));
    out->mutable_raw<bool>()[0] = variable.ok() && (*variable)->IsInitialized();
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_VARIABLE_KERNEL_H_
