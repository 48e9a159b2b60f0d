// SPDX-License-Identifier: Apache-2.0
#include "ops/math/bucketize.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "graph/op_registry.h"
#include "ops/loops/bucketize.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

Status CheckBoundaries(absl::Span<const float> boundaries) {
  for (size_t i = 0; i < boundaries.size(); ++i) {
    if (std::isnan(boundaries[i])) {
      return InvalidArgument("boundaries[", i, "] must be a number, got NaN");
    }
    if (i > 0 && boundaries[i] < boundaries[i - 1]) {
      return InvalidArgument("boundaries must be sorted: boundaries[", i,
                             "] must be >= ", boundaries[i - 1], ", got ", boundaries[i]);
    }
  }
  return absl::OkStatus();
}

template <typename T>
Status FillBuckets(KernelContext* ctx, absl::Span<const float> boundaries) {
  const T* const x = ctx->input(0).raw<T>().data();
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  int32_t* const buckets = out->mutable_raw<int32_t>().data();
  const int64_t m = static_cast<int64_t>(boundaries.size());
  const double cost_ns = 0.5 + std::min(0.1 * static_cast<double>(m), 8.0);
  ctx->ParallelFor(out->num_elements(), cost_ns, [=](int64_t begin, int64_t end) {
    math::Bucketize(x + begin, end - begin, boundaries.data(), m, buckets + begin);
  });
  return absl::OkStatus();
}

struct BucketizeRule {
  std::vector<float> boundaries;

  Status Init(const NodeAttrs& attrs) {
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "boundaries", &boundaries));
    return CheckBoundaries(boundaries);
  }
  StatusOr<PartialShape> operator()(RuleContext* c) const { return c->input(0); }
};

template <typename T>
Status RunBucketize(KernelContext* ctx, const BucketizeRule& rule) {
  return FillBuckets<T>(ctx, rule.boundaries);
}

// Boundaries of any shape are taken one after the other: models have them as [1,n].
struct WithInputBoundariesRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const { return c->input(0); }
};

template <typename T>
Status RunWithInputBoundaries(KernelContext* ctx, const WithInputBoundariesRule&) {
  const absl::Span<const float> boundaries = ctx->input(1).raw<float>();
  MR_RETURN_IF_ERROR(CheckBoundaries(boundaries));
  return FillBuckets<T>(ctx, boundaries);
}

const OpRegistration kBucketize =
    OpSpec("Bucketize", "input: T -> output: int32",
           "T: {int32, int64, float, double}; boundaries: list(float)")
        .With(RuledKernelsFor<BucketizeRule, int32_t, int64_t, float, double>(
            "T", []<typename T>() { return &RunBucketize<T>; }))
        .NotDifferentiable();

const OpRegistration kBucketizeWithInputBoundaries =
    OpSpec("BucketizeWithInputBoundaries", "input: T, boundaries: float -> output: int32",
           "T: {int32, int64, float, double}")
        .With(RuledKernelsFor<WithInputBoundariesRule, int32_t, int64_t, float, double>(
            "T", []<typename T>() { return &RunWithInputBoundaries<T>; }))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
