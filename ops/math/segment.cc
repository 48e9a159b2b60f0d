// SPDX-License-Identifier: Apache-2.0
#include "ops/math/segment.h"

#include <algorithm>
#include <complex>
#include <limits>
#include <optional>
#include <type_traits>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/kernels/row_ranges.h"
#include "ops/loops/number.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/select.h"
#include "ops/rules/leading_dims.h"
#include "ops/rules/segment_ids.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- How rows are put together -------------------------------------------------------------------

// In the type that T computes in: half and bfloat16 as floats, rounded once.
template <typename T>
struct Total {
  using W = math::Wide<T>;
  static W Start() { return W{0}; }
  static W Next(W a, W b) { return math::WrapAdd(a, b); }
};
template <typename T>
struct Product {
  using W = math::Wide<T>;
  static W Start() { return W{1}; }
  static W Next(W a, W b) { return math::WrapMul(a, b); }
};
template <typename T>
struct Largest {
  using W = math::Wide<T>;
  static W Start() {
    if constexpr (std::is_same_v<T, Half>) {
      return ToFloat(Half{0xfbff});
    } else if constexpr (std::is_same_v<T, Bfloat16>) {
      return ToFloat(Bfloat16{0xff7f});
    } else {
      return std::numeric_limits<T>::lowest();
    }
  }
  static W Next(W a, W b) { return a < b ? b : a; }
};
template <typename T>
struct Smallest {
  using W = math::Wide<T>;
  static W Start() {
    if constexpr (math::kIsNarrowFloat<T>) {
      return -Largest<T>::Start();
    } else {
      return std::numeric_limits<T>::max();
    }
  }
  static W Next(W a, W b) { return b < a ? b : a; }
};

// Output 0: row i of input 0 put into row ids[i], which begins with `start`; negative ids are left
// out. finish(rows) may change what came out before it is rounded to T.
template <typename T, typename Step, typename Finish>
Status CombineRows(KernelContext* ctx, IntSpan ids, math::Wide<T> start, Finish finish) {
  using W = math::Wide<T>;
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  Tensor wide = *out;
  if constexpr (math::kIsNarrowFloat<T>) {
    MR_ASSIGN_OR_RETURN(wide, ctx->AllocateTemp(DTypeOf<W>, out->shape()));
  }
  const absl::Span<W> to = wide.mutable_raw<W>();
  std::fill(to.begin(), to.end(), start);
  const int64_t segments = out->dim(0);
  const int64_t width = out->shape().NumElements(1, out->rank());
  const T* const data = ctx->input(0).raw<T>().data();
  ParallelRowRanges(ctx, segments, width, static_cast<int64_t>(ids.size()),
                    [=](int64_t begin, int64_t end) {
                      const T* from = data;
                      for (const int64_t id : ids) {
                        if (id >= begin && id < end) {
                          W* const row = to.data() + id * width;
                          for (int64_t j = 0; j < width; ++j)
                            row[j] = Step::Next(row[j], math::Load(from[j]));
                        }
                        from += width;
                      }
                    });
  finish(to);
  if constexpr (math::kIsNarrowFloat<T>) {
    std::transform(to.begin(), to.end(), out->mutable_raw<T>().begin(),
                   [](W value) { return math::Store<T>(value); });
  }
  return absl::OkStatus();
}

// --- UnsortedSegment... --------------------------------------------------------------------------

struct UnsortedRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const std::optional<int64_t> segments, c->IntScalar(2, "num_segments"));
    if (segments.value_or(0) < 0) {
      return InvalidArgument("num_segments must be >= 0, got ", *segments);
    }
    return RowsBehind(segments.value_or(-1), c->input(0), c->input(1), "segment_ids");
  }
};

template <typename T, typename Step>
Status RunUnsorted(KernelContext* ctx, const UnsortedRule&) {
  const IntSpan ids = ctx->input(1).ints();
  const int64_t segments = ctx->output_shape(0).dim(0);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < segments) continue;
    return InvalidArgument("segment_ids[", i, "] = ", ids[i], " is out of range [0, ", segments,
                           ")");
  }
  return CombineRows<T, Step>(ctx, ids, Step::Start(), [](auto) {});
}

// Rows of `table` by id, zeros for negative ids, in the shape of `data`.
Output RowsOrZeros(const Scope& s, Output table, Output ids, Output data) {
  const Output flat = Reshape(s, ids, Const<int32_t>(s, {-1}));
  const Output zero = ZerosLike(s, flat);
  const Output rows = GatherV2(s, table, Maximum(s, flat, zero), Const(s, 0));
  const Output kept = Select(s, GreaterEqual(s, flat, zero), rows, ZerosLike(s, rows));
  return Reshape(s, kept, ShapeOf(s, data));
}

Output UnsortedSumGradient(GradientContext* c) {
  return RowsOrZeros(c->scope(), c->dense_grad(), c->input(1), c->input(0));
}

// Rows of `dtype` are counted in this: half and bfloat16 have no number for many of them, and
// complex numbers no larger one.
DType CountedIn(DType dtype) {
  if (dtype == DT_COMPLEX128) return DT_DOUBLE;
  return dtype == DT_HALF || dtype == DT_BFLOAT16 || dtype == DT_COMPLEX64 ? DT_FLOAT : dtype;
}
Output CastTo(const Scope& s, Output x, DType dtype) {
  return x.dtype() == dtype ? x : Cast(s, x, dtype);
}

// The elements that are the extremum share its gradient in equal parts. spread(table) is, for each
// row of the data, the row of its segment; add(rows) adds up segments.
template <typename Spread, typename Add>
Output ExtremumGradient(GradientContext* c, Spread spread, Add add) {
  const Scope& s = c->scope();
  const Output data = c->input(0);
  const Output chosen = Equal(s, data, spread(c->output(0)));
  // An empty segment has no element to divide by; nothing reads the result.
  const DType wide = CountedIn(data.dtype());
  const Output count = add(Cast(s, chosen, wide));
  const Output share =
      RealDiv(s, CastTo(s, c->dense_grad(), wide), Maximum(s, count, OnesLike(s, count)));
  const Output all = spread(CastTo(s, share, data.dtype()));
  return Select(s, chosen, all, ZerosLike(s, all));
}
Output UnsortedExtremumGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output ids = c->input(1);
  return ExtremumGradient(
      c, [&](Output table) { return RowsOrZeros(s, table, ids, c->input(0)); },
      [&](Output rows) { return UnsortedSegmentSum(s, rows, ids, c->input(2)); });
}

// Of a product the derivative by one factor is the product of the others: the result divided by it,
// and for the only 0 of a segment the product of what is not 0.
Output ProductGradient(GradientContext* c, Output num_segments) {
  const Scope& s = c->scope();
  const Output data = c->input(0), ids = c->input(1), grad = c->dense_grad();
  const auto spread = [&](Output table) { return RowsOrZeros(s, table, ids, data); };
  const Output is_zero = Equal(s, data, ZerosLike(s, data));
  const Output zeros = UnsortedSegmentSum(s, Cast(s, is_zero, DT_INT32), ids, num_segments);
  const Output several = Greater(s, zeros, OnesLike(s, zeros));
  const Output kept = Select(s, several, ZerosLike(s, grad), grad);
  const Output factors = Select(s, is_zero, OnesLike(s, data), data);
  const Output nonzero_product = UnsortedSegmentProd(s, factors, ids, num_segments);
  const Output others =
      Select(s, is_zero, spread(nonzero_product), RealDiv(s, spread(c->output(0)), factors));
  return Mul(s, spread(kept), others);
}
Output UnsortedProdGradient(GradientContext* c) { return ProductGradient(c, c->input(2)); }

template <template <typename> typename Step, typename... MoreTypes>
OpSpec UnsortedSpec(absl::string_view op, absl::string_view types) {
  return OpSpec(op, "data: T, segment_ids: Tindices, num_segments: Tnumsegments -> output: T",
                absl::StrCat("T: ", types,
                             "; Tindices: {int32, int64}; "
                             "Tnumsegments: {int32, int64} = DT_INT32"))
      .With(RuledKernelsFor<UnsortedRule, float, double, Half, Bfloat16, int32_t, int64_t,
                            MoreTypes...>("T",
                                          []<typename T>() { return &RunUnsorted<T, Step<T>>; }));
}

const OpRegistration kUnsortedSum = UnsortedSpec<Total, std::complex<float>, std::complex<double>>(
                                        "UnsortedSegmentSum", "numbertype")
                                        .Gradient(UnsortedSumGradient);
const OpRegistration kUnsortedProd =
    UnsortedSpec<Product, std::complex<float>, std::complex<double>>("UnsortedSegmentProd",
                                                                     "numbertype")
        .Gradient(UnsortedProdGradient);
const OpRegistration kUnsortedMax = UnsortedSpec<Largest>("UnsortedSegmentMax", "realnumbertype")
                                        .Gradient(UnsortedExtremumGradient);
const OpRegistration kUnsortedMin = UnsortedSpec<Smallest>("UnsortedSegmentMin", "realnumbertype")
                                        .Gradient(UnsortedExtremumGradient);

// --- Segment... (sorted) -------------------------------------------------------------------------

struct SegmentRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    const PartialShape& ids = c->input(1);
    if (ids.has_rank() && ids.rank() != 1) {
      return InvalidArgument("segment_ids must be a vector, got shape ", ids);
    }
    MR_ASSIGN_OR_RETURN(const PartialShape data, c->InputWithRankAtLeast(0, 1, "data"));
    if (!data.has_rank()) return data;
    if (!BeginsWith(data, ids)) {
      return InvalidArgument("segment_ids must have one element for each of the ", data.dim(0),
                             " rows of data, got ", ids.dim(0));
    }
    int64_t segments = -1;
    if (const Tensor* known = c->input_tensor(1)) {
      MR_ASSIGN_OR_RETURN(segments, CountSegments(known->ints()));
    }
    return RowsBehind(segments, data, PartialShape({-1}), "segment_ids");
  }
};

template <typename W>
W NumberOf(size_t count) {
  if constexpr (math::kIsComplex<W>) {
    return W(static_cast<typename W::value_type>(count));
  } else {
    return static_cast<W>(count);
  }
}

// What the rows of a segment are put to: infinities, unlike in the unsorted ops, as in TensorFlow.
template <typename T, typename Step>
math::Wide<T> SortedStart() {
  using W = math::Wide<T>;
  if constexpr (std::is_floating_point_v<W>) {
    if (std::is_same_v<Step, Largest<T>>) return -std::numeric_limits<W>::infinity();
    if (std::is_same_v<Step, Smallest<T>>) return std::numeric_limits<W>::infinity();
  }
  return Step::Start();
}

// An empty segment of Max and Min is 0 here, and one of one row that row, NaN or not; kMean divides
// by the number of rows.
template <typename T, typename Step, bool kMean>
Status RunSegment(KernelContext* ctx, const SegmentRule&) {
  using W = math::Wide<T>;
  constexpr bool kExtremum = std::is_same_v<Step, Largest<T>> || std::is_same_v<Step, Smallest<T>>;
  const IntSpan ids = ctx->input(1).ints();
  const Shape& shape = ctx->output_shape(0);
  const absl::Span<const T> data = ctx->input(0).raw<T>();
  return CombineRows<T, Step>(ctx, ids, SortedStart<T, Step>(), [&](absl::Span<W> rows) {
    if ((!kMean && !kExtremum) || rows.empty()) return;
    const size_t width = static_cast<size_t>(shape.NumElements(1, shape.rank()));
    size_t next = 0;
    for (int64_t segment = 0; segment < shape.dim(0); ++segment) {
      const size_t first = next;
      while (next < ids.size() && ids[next] == segment) ++next;
      const size_t count = next - first;
      const absl::Span<W> row = rows.subspan(static_cast<size_t>(segment) * width, width);
      if constexpr (kMean) {
        if (count == 0) continue;
        const W divisor = NumberOf<W>(count);
        for (W& v : row) v /= divisor;
      } else if (count == 0) {
        std::fill(row.begin(), row.end(), W{0});
      } else if (count == 1) {
        for (size_t j = 0; j < width; ++j) row[j] = math::Load(data[first * width + j]);
      }
    }
  });
}

Output RowsOf(GradientContext* c, Output table) {
  return GatherV2(c->scope(), table, c->input(1), Const(c->scope(), 0));
}

Output SegmentSumGradient(GradientContext* c) { return RowsOf(c, c->dense_grad()); }

Output SegmentMeanGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const DType dtype = c->input(0).dtype(), counted = CountedIn(dtype);
  // Half and bfloat16 are divided as floats.
  const DType wide = dtype == DT_HALF || dtype == DT_BFLOAT16 ? DT_FLOAT : dtype;
  const Output counts = SegmentSum(s, OnesLike(s, CastTo(s, c->input(1), counted)), c->input(1));
  // [segments, 1, ...]: the rank of the result, so that they divide rows.
  const Output num_ones = Sub(s, Rank(s, c->output(0)), Const(s, 1));
  const Output dims = Fill(s, Reshape(s, num_ones, Const<int32_t>(s, {1})), Const(s, 1));
  const Output divisors = Reshape(s, counts, ConcatV2(s, {ShapeOf(s, counts), dims}, Const(s, 0)));
  // An empty segment's gradient is divided by 1; nobody gathers it.
  const Output divisor = CastTo(s, Maximum(s, divisors, OnesLike(s, divisors)), wide);
  const Output share = RealDiv(s, CastTo(s, c->dense_grad(), wide), divisor);
  return RowsOf(c, CastTo(s, share, dtype));
}

Output SegmentExtremumGradient(GradientContext* c) {
  return ExtremumGradient(
      c, [&](Output table) { return RowsOf(c, table); },
      [&](Output rows) { return SegmentSum(c->scope(), rows, c->input(1)); });
}

Output SegmentProdGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output zero = Const<int32_t>(s, {0}), one = Const<int32_t>(s, {1});
  return ProductGradient(
      c, StridedSlice(s, ShapeOf(s, c->output(0)), zero, one, one, {.shrink_axis_mask = 1}));
}

template <template <typename> typename Step, bool kMean = false, typename... MoreTypes>
OpSpec SegmentSpec(absl::string_view op, absl::string_view types) {
  return OpSpec(op, "data: T, segment_ids: Tindices -> output: T",
                absl::StrCat("T: ", types, "; Tindices: {int32, int64}"))
      .With(RuledKernelsFor<SegmentRule, float, double, Half, Bfloat16, int32_t, int64_t,
                            MoreTypes...>(
          "T", []<typename T>() { return &RunSegment<T, Step<T>, kMean>; }));
}
template <template <typename> typename Step, bool kMean = false>
OpSpec AllNumbersSpec(absl::string_view op) {
  return SegmentSpec<Step, kMean, std::complex<float>, std::complex<double>>(op, "numbertype");
}

const OpRegistration kSegmentSum = AllNumbersSpec<Total>("SegmentSum").Gradient(SegmentSumGradient);
const OpRegistration kSegmentMean =
    AllNumbersSpec<Total, /*kMean=*/true>("SegmentMean").Gradient(SegmentMeanGradient);
const OpRegistration kSegmentProd =
    AllNumbersSpec<Product>("SegmentProd").Gradient(SegmentProdGradient);
const OpRegistration kSegmentMax =
    SegmentSpec<Largest>("SegmentMax", "realnumbertype").Gradient(SegmentExtremumGradient);
const OpRegistration kSegmentMin =
    SegmentSpec<Smallest>("SegmentMin", "realnumbertype").Gradient(SegmentExtremumGradient);

}  // namespace
}  // namespace millrace
