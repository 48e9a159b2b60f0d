// SPDX-License-Identifier: Apache-2.0
#include "ops/strings/string_join.h"

#include <optional>
#include <string>
#include <utility>

#include "ops/rules/leading_dims.h"
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

// --- UnsortedSegmentJoin -------------------------------------------------------------------------

struct SegmentJoinRule {
  std::string separator;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "separator", &separator); }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialShape ids, c->InputWithRankAtLeast(1, 1, "segment_ids"));
    MR_ASSIGN_OR_RETURN(const std::optional<int64_t> segments, c->IntScalar(2, "num_segments"));
    if (segments.value_or(0) < 0) {
      return InvalidArgument("num_segments must be >= 0, got ", *segments);
    }
    return RowsBehind(segments.value_or(-1), c->input(0), ids, "segment_ids");
  }
};

Status RunSegmentJoin(KernelContext* ctx, const SegmentJoinRule& rule) {
  const IntSpan ids = ctx->input(1).ints();
  const int64_t segments = ctx->output_shape(0).dim(0);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < segments) continue;
    return InvalidArgument("segment_ids[", i, "] must be in [0, ", segments, "), got ", ids[i]);
  }
  MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(0));
  if (ctx->input(0).num_elements() == 0 || ids.empty()) return absl::OkStatus();
  const std::string* from = ctx->input(0).raw<std::string>().data();
  std::string* const out = output->mutable_raw<std::string>().data();
  const int64_t row = ctx->input(0).num_elements() / static_cast<int64_t>(ids.size());
  for (const int64_t id : ids) {
    for (int64_t i = 0; i < row; ++i) {
      std::string& text = out[id * row + i];
      if (!text.empty()) text += rule.separator;
      text += *from++;
    }
  }
  return absl::OkStatus();
}

const OpRegistration kUnsortedSegmentJoin =
    OpSpec("UnsortedSegmentJoin",
           "inputs: string, segment_ids: Tindices, num_segments: Tnumsegments -> output: string",
           "separator: string = ''; Tindices: {int32, int64}; "
           "Tnumsegments: {int32, int64} = DT_INT32")
        .With(RuledKernelFor<SegmentJoinRule>(RunSegmentJoin))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
