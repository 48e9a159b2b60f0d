// SPDX-License-Identifier: Apache-2.0
#include "ops/state/count_up_to.h"

#include <memory>
#include <utility>

#include "graph/shape_inference.h"
#include "runtime/kernel.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

Status CountShape(InferenceContext* c) {
  if (c->input_handle(0) && !c->input_handle(0)->shape.IsCompatibleWith(Shape())) {
    return InvalidArgument("the variable must be a scalar, got shape ", c->input_handle(0)->shape);
  }
  c->set_output(0, Shape());
  return absl::OkStatus();
}

class CountKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(limit_, c->GetAttr<int64_t>("limit"));
    MR_ASSIGN_OR_RETURN(dtype_, c->GetAttr<DType>("T"));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    return dtype_ == DT_INT32 ? Count<int32_t>(ctx) : Count<int64_t>(ctx);
  }

 private:
  template <typename T>
  Status Count(KernelContext* ctx) const {
    MR_ASSIGN_OR_RETURN(auto variable, ctx->ResourceInput<VariableStorage>(0));
    if (variable->dtype() != dtype_) {
      return InvalidArgument("the variable must be ", dtype_, ", got ", variable->dtype());
    }
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, Shape()));
    VariableStorage* const storage = variable.get();
    return VariableStorage::UpdateDense(
        absl::MakeConstSpan(&storage, 1),
        [&](absl::Span<const Tensor> old) -> Status {
          if (!old[0].shape().is_scalar()) {
            return InvalidArgument("the variable must be a scalar, got shape ", old[0].shape());
          }
          if (old[0].raw_scalar<T>() < limit_) return absl::OkStatus();
          return OutOfRange("Reached limit of ", limit_);
        },
        [&](absl::Span<const Tensor> old, absl::Span<Tensor> fresh) {
          const T counted = old[0].raw_scalar<T>();
          out->mutable_raw<T>()[0] = counted;
          fresh[0].mutable_raw<T>()[0] = static_cast<T>(counted + 1);
          return absl::OkStatus();
        });
  }

  int64_t limit_ = 0;
  DType dtype_ = DT_INT64;
};

const OpRegistration kCountUpTo =
    OpSpec("ResourceCountUpTo", "resource: resource -> output: T", "limit: int; T: {int32, int64}")
        .Stateful()
        .Shape(CountShape)
        .NotDifferentiable()
        .With(KernelFor<CountKernel>());

}  // namespace
}  // namespace millrace
