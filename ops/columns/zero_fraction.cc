// SPDX-License-Identifier: Apache-2.0
#include "ops/columns/zero_fraction.h"

#include <atomic>
#include <cstdint>
#include <memory>

#include "ops/kernels/variable_kernel.h"
#include "ops/loops/non_zeros.h"
#include "ops/rules/variable_rules.h"
#include "ops/state/resource_variable.h"
#include "runtime/kernel.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

struct ZeroFractionRule {
  Status operator()(RuleContext* c) const {
    c->set_output(0, PartialShape::Scalar());
    return absl::OkStatus();
  }
};

Status RunZeroFraction(KernelContext* ctx, const ZeroFractionRule&) {
  constexpr double kElementNs = 0.1;
  int64_t elements = 0;
  std::atomic<int64_t> non_zeros{0};  // relaxed: read when the loops have ended
  for (int k = 0; k < ctx->num_inputs(); ++k) {
    MR_ASSIGN_OR_RETURN(const auto variable, VariableInput(ctx, k, DT_FLOAT));
    const StatusOr<Tensor> value = variable->Read();
    if (absl::IsFailedPrecondition(value.status())) {
      return ReadError(*variable, ctx->input(k).raw_scalar<ResourceHandle>());
    }
    MR_RETURN_IF_ERROR(value.status());
    const float* const from = value->raw<float>().data();
    ctx->ParallelFor(value->num_elements(), kElementNs, [&](int64_t begin, int64_t end) {
      non_zeros.fetch_add(math::CountNonZeros(from + begin, end - begin),
                          std::memory_order_relaxed);
    });
    elements += value->num_elements();
  }
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  out->mutable_raw<float>()[0] =
      static_cast<float>(elements - non_zeros.load(std::memory_order_relaxed)) /
      static_cast<float>(elements);
  return absl::OkStatus();
}

const OpRegistration kZeroFraction =
    OpSpec("_ZeroFraction", "variables: K * resource -> fraction: float", "K: int >= 1")
        .Stateful()
        .With(RuledKernelFor<ZeroFractionRule>(RunZeroFraction))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
