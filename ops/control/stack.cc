// SPDX-License-Identifier: Apache-2.0
#include "ops/control/stack.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/mutex.h"
#include "graph/shape_inference.h"
#include "ops/kernels/step_objects.h"
#include "runtime/kernel.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

constexpr char kStacks[] = "_stacks";

// --- The stack behind a handle -------------------------------------------------------------------

// Thread-safety: all methods, from any thread.
class StackStorage : public StepObject {
 public:
  static constexpr const char* kTypeName = "Stack";

  StackStorage(std::string name, DType type, int64_t max_size)
      : name_(std::move(name)), type_(type), max_size_(max_size) {}

  const std::string& name() const { return name_; }
  std::string DebugString() const override {
    MutexLock lock(&mu_);
    return absl::StrCat("Stack[", elements_.size(), "]");
  }
  void EndWithStep() override { Close(); }

  Status Push(Tensor element) {
    if (element.dtype() != type_) {
      return InvalidArgument("Must have type ", type_, " but got ", element.dtype());
    }
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(CheckOpen());
    if (max_size_ >= 0 && static_cast<int64_t>(elements_.size()) >= max_size_) {
      return InvalidArgument("Stack[", name_, "] overflowed its max_size (", max_size_, ")");
    }
    elements_.push_back(std::move(element));
    return absl::OkStatus();
  }
  StatusOr<Tensor> Pop(DType type) {
    if (type != type_) return InvalidArgument("Must have type ", type_, " but got ", type);
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(CheckOpen());
    if (elements_.empty()) {
      return InvalidArgument("Stack[", name_, "] is empty when calling Pop().");
    }
    Tensor last = std::move(elements_.back());
    elements_.pop_back();
    return last;
  }
  void Close() {
    std::vector<Tensor> elements;  // freed without the lock
    MutexLock lock(&mu_);
    elements.swap(elements_);
    closed_ = true;
  }

 private:
  Status CheckOpen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!closed_) return absl::OkStatus();
    return InvalidArgument("Stack[", name_, "] has already been closed.");
  }

  const std::string name_;
  const DType type_;
  const int64_t max_size_;  // negative: no limit
  mutable Mutex mu_;
  std::vector<Tensor> elements_ ABSL_GUARDED_BY(mu_);
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
};

StatusOr<std::shared_ptr<StackStorage>> StackInput(const KernelContext& ctx) {
  if (ctx.input_dtype(0) == DT_RESOURCE) return StepObjectInput<StackStorage>(ctx, 0);
  MR_ASSIGN_OR_RETURN(const auto variable, ctx.ref_input(0));
  MR_ASSIGN_OR_RETURN(const Tensor names, variable->Read());
  if (names.dtype() != DT_STRING || names.num_elements() != 2) {
    return InvalidArgument("Stack handle must have two elements, but had shape: ", names.shape());
  }
  MR_ASSIGN_OR_RETURN(const auto objects, StepObjects::Of(ctx));
  const absl::Span<const std::string> parts = names.raw<std::string>();
  auto found = std::dynamic_pointer_cast<StackStorage>(objects->Find(parts[1]));
  if (found != nullptr) return found;
  return absl::NotFoundError(absl::StrCat("Resource ", parts[0], "/", parts[1], "/",
                                          StackStorage::kTypeName, " does not exist."));
}

// --- Stack, StackV2 ------------------------------------------------------------------------------

Status StackShape(InferenceContext* c) {
  const bool is_resource = c->num_inputs() > 0;
  if (is_resource) MR_RETURN_IF_ERROR(c->InputWithRank(0, 0, "max_size").status());
  c->set_output(0, is_resource ? PartialShape::Scalar() : PartialShape({2}));
  return absl::OkStatus();
}

class StackKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    return ReadAttrs(c->attrs(), "elem_type", &type_, "stack_name", &name_);
  }
  Status Compute(KernelContext* ctx) const override {
    const bool is_resource = ctx->num_inputs() > 0;
    int32_t max_size = -1;
    if (is_resource) {
      MR_ASSIGN_OR_RETURN(max_size, ctx->ScalarInput<int32_t>(0, "max_size"));
    }
    auto stack = std::make_shared<StackStorage>(
        StepObjects::UniqueName(name_.empty() ? ctx->node_name() : name_), type_, max_size);
    MR_ASSIGN_OR_RETURN(const auto objects, StepObjects::Of(*ctx));
    objects->Add(stack->name(), stack, is_resource ? KeptBy::kHandles : KeptBy::kStep);
    if (is_resource) {
      const std::string name = stack->name();
      ctx->set_output(0, StepObjectHandle(*ctx, kStacks, name, std::move(stack)));
      return absl::OkStatus();
    }
    auto variable = std::make_shared<VariableStorage>(stack->name(), DT_STRING, PartialShape({2}));
    MR_RETURN_IF_ERROR(variable->Assign(Tensor::Vector<std::string>({kStacks, stack->name()}),
                                        /*validate_shape=*/true));
    ctx->set_output_ref(0, std::move(variable));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  DType type_ = DT_INVALID;
  std::string name_;
};

constexpr char kStackAttrs[] = "elem_type: type; stack_name: string = ''";
const OpRegistration kStackV1 = OpSpec("Stack", "-> handle: Ref(string)", kStackAttrs)
                                    .Stateful()
                                    .Shape(StackShape)
                                    .NotDifferentiable()
                                    .With(KernelFor<StackKernel>());
const OpRegistration kStackV2 =
    OpSpec("StackV2", "max_size: int32 -> handle: resource", kStackAttrs)
        .Stateful()
        .Shape(StackShape)
        .NotDifferentiable()
        .With(KernelFor<StackKernel>());

// --- Push, pop, close ----------------------------------------------------------------------------

Status PushShape(InferenceContext* c) {
  ForwardInputToOutput(c, 1, 0);
  return absl::OkStatus();
}

class PushKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto stack, StackInput(*ctx));
    MR_RETURN_IF_ERROR(stack->Push(ctx->input(1)));
    ctx->set_output(0, ctx->TakeInput(1));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

class PopKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override { return ReadAttrs(c->attrs(), "elem_type", &type_); }
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto stack, StackInput(*ctx));
    MR_ASSIGN_OR_RETURN(Tensor element, stack->Pop(type_));
    ctx->set_output(0, std::move(element));
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }

 private:
  DType type_ = DT_INVALID;
};

class CloseKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    MR_ASSIGN_OR_RETURN(const auto stack, StackInput(*ctx));
    stack->Close();
    return absl::OkStatus();
  }
  bool may_be_expensive() const override { return false; }
};

// `handle` is its type.
OpSpec PushSpec(const char* op, absl::string_view handle) {
  return OpSpec(op, absl::StrCat("handle: ", handle, ", elem: T -> output: T"),
                "T: type; swap_memory: bool = false")
      .Shape(PushShape)
      .NotDifferentiable()
      .With(KernelFor<PushKernel>());
}
OpSpec PopSpec(const char* op, absl::string_view handle) {
  return OpSpec(op, absl::StrCat("handle: ", handle, " -> elem: elem_type"), "elem_type: type")
      .Shape(ValueDependentShape)
      .NotDifferentiable()
      .With(KernelFor<PopKernel>());
}
OpSpec CloseSpec(const char* op, absl::string_view handle) {
  return OpSpec(op, absl::StrCat("handle: ", handle))
      .Shape(NoOutputShape)
      .NotDifferentiable()
      .With(KernelFor<CloseKernel>());
}
const OpRegistration kOfReferences[] = {PushSpec("StackPush", "Ref(string)"),
                                        PopSpec("StackPop", "Ref(string)"),
                                        CloseSpec("StackClose", "Ref(string)")};
const OpRegistration kOfResources[] = {PushSpec("StackPushV2", "resource").Stateful(),
                                       PopSpec("StackPopV2", "resource").Stateful(),
                                       CloseSpec("StackCloseV2", "resource").Stateful()};

}  // namespace
}  // namespace millrace
