// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/string_join.h"

#include <string>
#include <utility>

#include "runtime/kernel.h"

namespace millrace {
namespace {

// Inputs are scalars or have the shape of the result. One of unknown rank may be a scalar.
struct StringJoinRule {
  std::string separator;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "separator", &separator); }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    PartialShape joined;
    bool all_scalars = true;
    for (int i = 0; i < c->num_inputs(); ++i) {
      const PartialShape& input = c->input(i);
      all_scalars = all_scalars && input.has_rank() && input.rank() == 0;
      if (!input.has_rank() || input.rank() == 0) continue;
      StatusOr<PartialShape> merged = joined.MergeWith(input);
      if (!merged.ok()) {
        return InvalidArgument("inputs[", i, "] must be a scalar or have shape ", joined,
                               ", got shape ", input);
      }
      joined = *std::move(merged);
    }
    return all_scalars ? PartialShape::Scalar() : joined;
  }
};

Status RunStringJoin(KernelContext* ctx, const StringJoinRule& rule) {
  MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(0));
  absl::Span<std::string> out = output->mutable_raw<std::string>();
  for (size_t j = 0; j < out.size(); ++j) {
    std::string text;
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      if (i > 0) text += rule.separator;
      const Tensor& input = ctx->input(i);
      text += input.raw<std::string>()[input.shape().is_scalar() ? 0 : j];
    }
    out[j] = std::move(text);
  }
  return absl::OkStatus();
}

const OpRegistration kStringJoin = OpSpec("StringJoin", "inputs: N * string -> output: string",
                                          "N: int >= 1; separator: string = ''")
                                       .With(RuledKernelFor<StringJoinRule>(RunStringJoin))
                                       .NotDifferentiable();

}  // namespace
}  // namespace millrace
