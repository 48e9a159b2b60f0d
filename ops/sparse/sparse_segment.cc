// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/sparse_segment.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/kernels/row_ranges.h"
#include "ops/loops/number.h"
#include "ops/loops/segment_rows.h"
#include "ops/rules/index_type.h"
#include "ops/rules/leading_dims.h"
#include "ops/rules/segment_ids.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

enum class Divisor { kOne, kCount, kRootOfCount };

double DivisorOf(Divisor kind, int64_t count) {
  switch (kind) {
    case Divisor::kOne:
      break;
    case Divisor::kCount:
      return static_cast<double>(count);
    case Divisor::kRootOfCount:
      return std::sqrt(static_cast<double>(count));
  }
  return 1;
}

// indices (input 1) and segment_ids (input 2): vectors of one length.
Status CheckLists(const RuleContext* c) {
  const PartialShape &indices = c->input(1), &ids = c->input(2);
  MR_RETURN_IF_ERROR(c->InputWithRank(1, 1, "indices").status());
  MR_RETURN_IF_ERROR(c->InputWithRank(2, 1, "segment_ids").status());
  if (indices.IsCompatibleWith(ids)) return absl::OkStatus();
  return InvalidArgument("segment_ids must have one id for each of the ", indices.dim(0),
                         " indices, got ", ids.dim(0));
}

Status CheckIndices(IntSpan indices, int64_t rows) {
  for (size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] >= 0 && indices[i] < rows) continue;
    return InvalidArgument("indices[", i, "] = ", indices[i], " is not in [0, ", rows, ")");
  }
  return absl::OkStatus();
}

// --- Segments ------------------------------------------------------------------------------------

// [segments] + the shape of a row of data. Input 3, where there is one, says how many segments.
struct SparseSegmentRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_RETURN_IF_ERROR(CheckLists(c));
    MR_ASSIGN_OR_RETURN(const PartialShape data, c->InputWithRankAtLeast(0, 1, "data"));
    int64_t segments = -1;
    if (const Tensor* ids = c->input_tensor(2)) {
      MR_ASSIGN_OR_RETURN(segments, CountSegments(ids->ints()));
    }
    if (c->num_inputs() > 3) {
      MR_ASSIGN_OR_RETURN(const std::optional<int64_t> given, c->IntScalar(3, "num_segments"));
      if (given.value_or(0) < 0) return InvalidArgument("num_segments must be >= 0, got ", *given);
      if (given && segments > *given) {
        return InvalidArgument("segment_ids must be < num_segments, got ", segments - 1,
                               " for num_segments ", *given);
      }
      segments = given.value_or(-1);
    }
    return RowsBehind(segments, data, PartialShape({-1}), "segment_ids");
  }
};

// Each run of equal ids is one output row; rows without a run are 0. What is before a run belongs
// to it, what is behind the last one to that.
template <typename Index>
void RunSegments(KernelContext* ctx, const math::SegmentLoops& loops, Divisor divisor,
                 Tensor* out) {
  const Tensor& data = ctx->input(0);
  const Index* const indices = ctx->input(1).raw<Index>().data();
  const absl::Span<const int32_t> ids = ctx->input(2).raw<int32_t>();
  const int64_t width = out->shape().NumElements(1, out->rank());
  const int64_t row_bytes = width * static_cast<int64_t>(DTypeSize(data.dtype()));
  char* const to = static_cast<char*>(out->mutable_raw_data());
  std::vector<int64_t> begins;  // of the runs, and the end of the last one
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i == 0 || ids[i] != ids[i - 1]) begins.push_back(static_cast<int64_t>(i));
  }
  begins.push_back(static_cast<int64_t>(ids.size()));
  const int64_t runs = static_cast<int64_t>(begins.size()) - 1;
  const auto clear = [&](int64_t begin, int64_t end) {
    std::memset(to + begin * row_bytes, 0, static_cast<size_t>((end - begin) * row_bytes));
  };
  const auto id_of = [&](int64_t run) {
    return int64_t{ids[static_cast<size_t>(begins[static_cast<size_t>(run)])]};
  };
  const math::SumRowsFn<Index> sum = loops.sum<Index>();
  const double rows_per_run = static_cast<double>(ids.size()) / static_cast<double>(runs + 1);
  const double cost_ns = 10 + rows_per_run * (5 + 0.1 * static_cast<double>(row_bytes));
  ctx->ParallelFor(runs, cost_ns, [&](int64_t first, int64_t last) {
    for (int64_t run = first; run < last; ++run) {
      const int64_t begin = begins[static_cast<size_t>(run)];
      const int64_t count = begins[static_cast<size_t>(run) + 1] - begin;
      clear(run == 0 ? 0 : id_of(run - 1) + 1, id_of(run));
      sum(data.raw_data(), width, indices + begin, count, DivisorOf(divisor, count),
          to + id_of(run) * row_bytes);
    }
  });
  clear(runs == 0 ? 0 : id_of(runs - 1) + 1, out->dim(0));
}

template <Divisor kDivisor>
Status RunSparseSegment(KernelContext* ctx, const SparseSegmentRule&, math::SegmentLoops loops) {
  MR_RETURN_IF_ERROR(CheckIndices(ctx->input(1).ints(), ctx->input(0).dim(0)));
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  if (out->num_elements() == 0) return absl::OkStatus();
  VisitIndexType(ctx->input_dtype(1),
                 [&]<typename Index>() { RunSegments<Index>(ctx, loops, kDivisor, out); });
  return absl::OkStatus();
}

// --- Gradients -----------------------------------------------------------------------------------

// [output_dim0] + the shape of a row of grad.
struct SparseSegmentGradRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_RETURN_IF_ERROR(CheckLists(c));
    MR_ASSIGN_OR_RETURN(const PartialShape grad, c->InputWithRankAtLeast(0, 1, "grad"));
    MR_ASSIGN_OR_RETURN(const std::optional<int64_t> rows, c->IntScalar(3, "output_dim0"));
    if (rows.value_or(0) < 0) return InvalidArgument("output_dim0 must be >= 0, got ", *rows);
    return RowsBehind(rows.value_or(-1), grad, PartialShape({-1}), "segment_ids");
  }
};

template <typename T, Divisor kDivisor>
Status RunSparseSegmentGrad(KernelContext* ctx, const SparseSegmentGradRule&) {
  const Tensor& grad = ctx->input(0);
  const IntSpan indices = ctx->input(1).ints();
  const absl::Span<const int32_t> ids = ctx->input(2).raw<int32_t>();
  MR_RETURN_IF_ERROR(CheckIndices(indices, ctx->output_shape(0).dim(0)));
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < grad.dim(0)) continue;
    return InvalidArgument("segment_ids[", i, "] = ", ids[i], " is not in [0, ", grad.dim(0), ")");
  }
  using W = math::Wide<T>;
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateZeros(0));
  // Without elements a segment costs no memory, and there may be any number of them.
  if (out->num_elements() == 0 || grad.num_elements() == 0) return absl::OkStatus();
  std::vector<int64_t> counts(static_cast<size_t>(grad.dim(0)));
  for (const int32_t id : ids) ++counts[static_cast<size_t>(id)];
  const int64_t width = out->shape().NumElements(1, out->rank());
  const T* const from = grad.raw<T>().data();
  // Sums of narrow floats are made as floats, and rounded when they are whole.
  Tensor sums = *out;
  if constexpr (math::kIsNarrowFloat<T>) {
    MR_ASSIGN_OR_RETURN(sums, ctx->AllocateTemp(DTypeOf<W>, out->shape()));
    std::memset(sums.mutable_raw_data(), 0, static_cast<size_t>(sums.TotalBytes()));
  }
  W* const to = sums.mutable_raw<W>().data();
  ParallelRowRanges(
      ctx, out->dim(0), width, static_cast<int64_t>(ids.size()), [&](int64_t begin, int64_t end) {
        for (size_t i = 0; i < ids.size(); ++i) {
          const int64_t row = indices[i];
          if (row < begin || row >= end) continue;
          const double divisor = DivisorOf(kDivisor, counts[static_cast<size_t>(ids[i])]);
          math::AddDivided<T, W>(from + ids[i] * width, width, static_cast<W>(divisor),
                                 to + row * width);
        }
        if constexpr (math::kIsNarrowFloat<T>) {
          T* const rounded = out->mutable_raw<T>().data();
          for (int64_t j = begin * width; j < end * width; ++j) {
            rounded[j] = math::Store<T>(to[j]);
          }
        }
      });
  return absl::OkStatus();
}

// The number of rows of `table`: an int32 scalar.
Output NumRows(const Scope& s, Output table) {
  const Output zero = Const<int32_t>(s, {0}), one = Const<int32_t>(s, {1});
  return StridedSlice(s, ShapeOf(s, table), zero, one, one, {.shrink_axis_mask = 1});
}

// Rows of the table: slices, so that an optimizer touches no others.
Status SumGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& s = c->scope();
  c->set_input_grad(0, IndexedSlices{GatherV2(s, c->dense_grad(), c->input(2), Const(s, 0)),
                                     c->input(1), ShapeOf(s, c->input(0))});
  return absl::OkStatus();
}

Output MeanGradient(GradientContext* c) {
  const Scope& s = c->scope();
  return SparseSegmentMeanGrad(s, c->dense_grad(), c->input(1), c->input(2),
                               NumRows(s, c->input(0)));
}
Output SqrtNGradient(GradientContext* c) {
  const Scope& s = c->scope();
  return SparseSegmentSqrtNGrad(s, c->dense_grad(), c->input(1), c->input(2),
                                NumRows(s, c->input(0)));
}

// --- Registration --------------------------------------------------------------------------------

OpSpec SegmentSpec(absl::string_view op, absl::string_view types, bool with_num_segments) {
  OpSpec spec(op);
  spec.Input("data: T").Input("indices: Tidx").Input("segment_ids: int32");
  if (with_num_segments) spec.Input("num_segments: Tnumsegments");
  spec.Output("output: T").Attr(absl::StrCat("T: ", types)).Attr("Tidx: {int32, int64} = DT_INT32");
  if (with_num_segments) spec.Attr("Tnumsegments: {int32, int64} = DT_INT32");
  return spec;
}

// TensorFlow 1.15 has the last two only.
constexpr char kFloats[] = "{bfloat16, half, float, double}";

// The op, and the same with the number of segments.
template <Divisor kDivisor, typename Gradient>
struct SegmentOps {
  SegmentOps(absl::string_view op, absl::string_view types, Gradient gradient) {
    for (const bool with_num_segments : {false, true}) {
      OpRegistration(SegmentSpec(absl::StrCat(op, with_num_segments ? "WithNumSegments" : ""),
                                 types, with_num_segments)
                         .With(RuledLoopKernelFor<SparseSegmentRule>(math::FindSegmentLoops,
                                                                     RunSparseSegment<kDivisor>)
                                   .TypesWith("T",
                                              [](DType dtype) {
                                                return math::FindSegmentLoops(dtype).sum_by_int32 !=
                                                       nullptr;
                                              }))
                         .Gradient(gradient));
    }
  }
};

const SegmentOps<Divisor::kOne, decltype(&SumGradient)> kSum("SparseSegmentSum", "realnumbertype",
                                                             SumGradient);
const SegmentOps<Divisor::kCount, decltype(&MeanGradient)> kMean("SparseSegmentMean", kFloats,
                                                                 MeanGradient);
const SegmentOps<Divisor::kRootOfCount, decltype(&SqrtNGradient)> kSqrtN("SparseSegmentSqrtN",
                                                                         kFloats, SqrtNGradient);

// Linear, and the other way round.
Output GradOfMeanGrad(GradientContext* c) {
  const Scope& s = c->scope();
  return SparseSegmentMeanWithNumSegments(s, c->dense_grad(), c->input(1), c->input(2),
                                          NumRows(s, c->input(0)));
}
Output GradOfSqrtNGrad(GradientContext* c) {
  const Scope& s = c->scope();
  return SparseSegmentSqrtNWithNumSegments(s, c->dense_grad(), c->input(1), c->input(2),
                                           NumRows(s, c->input(0)));
}

template <Divisor kDivisor>
OpSpec GradSpec(absl::string_view op) {
  return OpSpec(op, "grad: T, indices: Tidx, segment_ids: int32, output_dim0: int32 -> output: T",
                absl::StrCat("T: ", kFloats, "; Tidx: {int32, int64} = DT_INT32"))
      .With(RuledKernelsFor<SparseSegmentGradRule, float, double, Half, Bfloat16>(
          "T", []<typename T>() { return &RunSparseSegmentGrad<T, kDivisor>; }));
}

const OpRegistration kMeanGrad =
    GradSpec<Divisor::kCount>("SparseSegmentMeanGrad").Gradient(GradOfMeanGrad);
const OpRegistration kSqrtNGrad =
    GradSpec<Divisor::kRootOfCount>("SparseSegmentSqrtNGrad").Gradient(GradOfSqrtNGrad);

}  // namespace
}  // namespace millrace
