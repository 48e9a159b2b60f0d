// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/top_k.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <vector>

#include "graph/gradient.h"
#include "graph/later_attrs.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/loops/number.h"
#include "ops/math/cwise_binary.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// k: the attr of the old forms, input `i` of the others; nullopt where it is not known.
struct KOf {
  std::optional<int64_t> attr;

  Status Init(const NodeAttrs& attrs) {
    if (!HasAttr(attrs.node(), "k")) return absl::OkStatus();
    MR_ASSIGN_OR_RETURN(attr, GetAttr<int64_t>(attrs, "k"));
    return absl::OkStatus();
  }
  StatusOr<std::optional<int64_t>> Get(RuleContext* c, int i) const {
    if (attr) return attr;
    return c->IntScalar(i, "k");
  }
};

// --- TopK, TopKV2 --------------------------------------------------------------------------------

struct TopKRule {
  KOf k;
  Status Init(const NodeAttrs& attrs) { return k.Init(attrs); }
  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const std::optional<int64_t> count, k.Get(c, 1));
    if (count.value_or(0) < 0) return InvalidArgument("Need k >= 0, got ", *count);
    const PartialShape& input = c->input(0);
    if (!input.has_rank()) return absl::OkStatus();
    if (input.rank() < 1) return InvalidArgument("input must have rank >= 1, got shape []");
    std::vector<int64_t> dims(input.dims().begin(), input.dims().end());
    if (dims.back() >= 0 && count.value_or(0) > dims.back()) {
      return InvalidArgument("input must have at least k columns. Had ", dims.back(), ", needed ",
                             *count);
    }
    constexpr int64_t kMaxColumns = std::numeric_limits<int32_t>::max();  // of output indices
    if (dims.back() > kMaxColumns) {
      return InvalidArgument("input must have at most ", kMaxColumns, " columns, got shape ",
                             input);
    }
    dims.back() = count.value_or(-1);
    MR_ASSIGN_OR_RETURN(const PartialShape shape, PartialShape::Make(dims));
    for (const int i : {0, 1}) c->set_output(i, shape);
    return absl::OkStatus();
  }
};

template <typename T>
Status RunTopK(KernelContext* ctx, const TopKRule&) {
  const Tensor& input = ctx->input(0);
  MR_ASSIGN_OR_RETURN(Tensor * values, ctx->AllocateOutput(0));
  MR_ASSIGN_OR_RETURN(Tensor * indices, ctx->AllocateOutput(1));
  if (values->num_elements() == 0) return absl::OkStatus();
  const int64_t width = input.dim(input.rank() - 1), k = values->dim(input.rank() - 1);
  const T* from = input.raw<T>().data();
  T* to = values->mutable_raw<T>().data();
  int32_t* where = indices->mutable_raw<int32_t>().data();
  ctx->ParallelFor(input.num_elements() / width, 5.0 * static_cast<double>(width),
                   [=](int64_t begin, int64_t end) {
                     std::vector<int32_t> order(static_cast<size_t>(width));
                     for (int64_t r = begin; r < end; ++r) {
                       const T* row = from + r * width;
                       std::iota(order.begin(), order.end(), 0);
                       std::partial_sort(order.begin(), order.begin() + k, order.end(),
                                         [row](int32_t a, int32_t b) {
                                           const auto x = math::Load(row[a]);
                                           const auto y = math::Load(row[b]);
                                           return x > y || (!(y > x) && a < b);
                                         });
                       for (int64_t i = 0; i < k; ++i) {
                         where[r * k + i] = order[static_cast<size_t>(i)];
                         to[r * k + i] = row[order[static_cast<size_t>(i)]];
                       }
                     }
                   });
  return absl::OkStatus();
}

// The gradients go back to where the values were: row * width + index in the flat input.
Output TopKGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output last = Const<int32_t>(s, {-1}), one = Const<int32_t>(s, {1}), zero = Const(s, 0);
  const auto last_dim = [&](Output shape) {
    return StridedSlice(s, shape, last, Const<int32_t>(s, {0}), one,
                        {.end_mask = 1, .shrink_axis_mask = 1});
  };
  const Output shape = ShapeOf(s, c->input(0));
  const Output width = last_dim(shape), k = last_dim(ShapeOf(s, c->output(1)));
  const Output size = Size(s, c->input(0));
  const Output starts = Range(s, zero, size, width);
  const Output rows = Reshape(s, c->output(1), Pack(s, {Size(s, starts), k}));
  const Output flat =
      Reshape(s, Add(s, rows, ExpandDims(s, starts, Const(s, 1))), Const<int32_t>(s, {-1, 1}));
  const Output grad = Reshape(s, c->dense_grad(0), last);
  return Reshape(s, ScatterNd(s, flat, grad, Reshape(s, size, one)), shape);
}

std::vector<KernelSpec> TopKKernels() {
  return RuledKernelsFor<TopKRule, float, double, Half, Bfloat16, int32_t, int64_t, uint8_t>(
      "T", []<typename T>() { return &RunTopK<T>; });
}
const OpRegistration kTopKV2 = OpSpec("TopKV2", "input: T, k: int32 -> values: T, indices: int32",
                                      "sorted: bool = true; T: realnumbertype")
                                   .With(LaterAttr("index_type: type = DT_INT32"))
                                   .With(TopKKernels())
                                   .Gradient(TopKGradient);
const OpRegistration kTopK = OpSpec("TopK", "input: T -> values: T, indices: int32",
                                    "k: int >= 0; sorted: bool = true; T: realnumbertype")
                                 .Deprecated(7, "Use TopKV2 instead")
                                 .With(TopKKernels())
                                 .Gradient(TopKGradient);

// --- InTopK, InTopKV2 ----------------------------------------------------------------------------

struct InTopKRule {
  KOf k;
  Status Init(const NodeAttrs& attrs) { return k.Init(attrs); }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    const PartialShape &predictions = c->input(0), &targets = c->input(1);
    const StatusOr<PartialShape> matrix = c->InputWithRank(0, 2), vector = c->InputWithRank(1, 1);
    if (!matrix.ok()) {
      return InvalidArgument("predictions must be a matrix, got shape ", predictions);
    }
    if (!vector.ok()) return InvalidArgument("targets must be a vector, got shape ", targets);
    MR_RETURN_IF_ERROR(k.Get(c, 2).status());
    StatusOr<PartialShape> batch = vector->MergeWith({matrix->dim(0)});
    if (batch.ok()) return batch;
    return InvalidArgument("targets must have one element for each of the ", matrix->dim(0),
                           " rows of predictions, got ", vector->dim(0));
  }
};

// Fewer than k classes have a larger prediction.
bool IsInTopK(absl::Span<const float> row, int64_t target, int64_t k) {
  if (target < 0 || target >= static_cast<int64_t>(row.size())) return false;
  const float own = row[static_cast<size_t>(target)];
  if (!std::isfinite(own)) return false;
  int64_t larger = 0;
  for (const float other : row) {
    if (!std::isfinite(other)) return false;
    larger += other > own ? 1 : 0;
  }
  return larger < k;
}

Status RunInTopK(KernelContext* ctx, const InTopKRule& rule) {
  const int64_t k = rule.k.attr ? *rule.k.attr : ctx->input(2).ints()[0];
  const IntSpan targets = ctx->input(1).ints();
  const absl::Span<const float> predictions = ctx->input(0).raw<float>();
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  const size_t classes = targets.empty() ? 0 : predictions.size() / targets.size();
  for (size_t i = 0; i < targets.size(); ++i) {
    out->mutable_raw<bool>()[i] =
        IsInTopK(predictions.subspan(i * classes, classes), targets[i], k);
  }
  return absl::OkStatus();
}

const OpRegistration kInTopKV2 =
    OpSpec("InTopKV2", "predictions: float, targets: T, k: T -> precision: bool",
           "T: {int32, int64} = DT_INT32")
        .With(RuledKernelFor<InTopKRule>(RunInTopK))
        .NotDifferentiable();
const OpRegistration kInTopK = OpSpec("InTopK", "predictions: float, targets: T -> precision: bool",
                                      "k: int; T: {int32, int64} = DT_INT32")
                                   .With(RuledKernelFor<InTopKRule>(RunInTopK))
                                   .NotDifferentiable();

}  // namespace
}  // namespace millrace
