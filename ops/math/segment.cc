// SPDX-License-Identifier: Apache-2.0
#include "ops/math/segment.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/rules/int_inputs.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

// --- How rows are put together -------------------------------------------------------------------

template <typename T, typename Combine>
T Wrapping(T a, T b, Combine combine) {
  if constexpr (std::is_integral_v<T>) {
    // 64 unsigned bits: narrower ones would be promoted to int.
    return static_cast<T>(combine(static_cast<uint64_t>(a), static_cast<uint64_t>(b)));
  } else {
    return combine(a, b);
  }
}
struct SumRule {
  template <typename T>
  static T Start() {
    return T{0};
  }
  template <typename T>
  static T Apply(T a, T b) {
    return Wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
};
struct ProdRule {
  template <typename T>
  static T Start() {
    return T{1};
  }
  template <typename T>
  static T Apply(T a, T b) {
    return Wrapping(a, b, [](auto x, auto y) { return x * y; });
  }
};
struct MaxRule {
  template <typename T>
  static T Start() {
    return std::numeric_limits<T>::lowest();
  }
  template <typename T>
  static T Apply(T a, T b) {
    return a < b ? b : a;
  }
};
struct MinRule {
  template <typename T>
  static T Start() {
    return std::numeric_limits<T>::max();
  }
  template <typename T>
  static T Apply(T a, T b) {
    return b < a ? b : a;
  }
};

// Combines row i of `data` into row ids[i] of `out` for the ids in [begin, end).
template <typename T, typename Rule>
void CombineRows(absl::Span<const int64_t> ids, const T* data, int64_t width, int64_t begin,
                 int64_t end, T* out) {
  for (const int64_t id : ids) {
    if (id >= begin && id < end) {
      T* const row = out + id * width;
      for (int64_t j = 0; j < width; ++j) row[j] = Rule::Apply(row[j], data[j]);
    }
    data += width;
  }
}

// Every thread walks over all ids and takes those of its own segments, so that each sum is made in
// the order of the rows, however many threads there are.
template <typename T, typename Rule>
void CombineOnThreads(KernelContext* ctx, absl::Span<const int64_t> ids, const T* data,
                      int64_t width, int64_t num_segments, T* out) {
  const double row_cost = 2 + 0.3 * static_cast<double>(width);
  const double work = row_cost * static_cast<double>(ids.size());
  constexpr double kWorthAThread = 50e3;  // ns
  const int64_t parts = std::clamp<int64_t>(static_cast<int64_t>(work / kWorthAThread), 1,
                                            width < 8 ? 1 : ctx->num_threads());
  ctx->ParallelFor(parts, work / static_cast<double>(parts), [=](int64_t first, int64_t last) {
    CombineRows<T, Rule>(ids, data, width, first * num_segments / parts,
                         last * num_segments / parts, out);
  });
}

// --- UnsortedSegment... --------------------------------------------------------------------------

Status CheckUnsortedIds(const PartialShape& data, const PartialShape& ids) {
  if (!data.has_rank() || !ids.has_rank()) return absl::OkStatus();
  bool prefix = ids.rank() <= data.rank();
  for (int d = 0; prefix && d < ids.rank(); ++d) {
    prefix = ids.dim(d) == -1 || data.dim(d) == -1 || ids.dim(d) == data.dim(d);
  }
  if (!prefix) {
    return absl::InvalidArgumentError(
        absl::StrCat("the shape of segment_ids must begin the shape of data ", data.ToString(),
                     ", got ", ids.ToString()));
  }
  return absl::OkStatus();
}

// [num_segments] + data without the dimensions of the ids; -1 stands for an unknown number.
StatusOr<PartialShape> UnsortedResult(const PartialShape& data, const PartialShape& ids,
                                      int64_t num_segments) {
  if (!data.has_rank() || !ids.has_rank()) return PartialShape();
  Ints dims = {num_segments};
  dims.insert(dims.end(), data.dims().begin() + ids.rank(), data.dims().end());
  return PartialShape::Make(dims);
}

Status CheckNumSegments(int64_t num_segments) {
  if (num_segments < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("num_segments must be >= 0, got ", num_segments));
  }
  return absl::OkStatus();
}

Status UnsortedSegmentShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(2, 0).status());
  MR_RETURN_IF_ERROR(CheckUnsortedIds(c->input(0), c->input(1)));
  const std::optional<int64_t> num_segments = ConstantInt(c, 2);
  if (num_segments) MR_RETURN_IF_ERROR(CheckNumSegments(*num_segments));
  MR_ASSIGN_OR_RETURN(PartialShape shape,
                      UnsortedResult(c->input(0), c->input(1), num_segments.value_or(-1)));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

template <typename T, typename Rule>
class UnsortedSegmentKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Tensor& data = ctx->input(0);
    const Tensor& ids = ctx->input(1);
    MR_ASSIGN_OR_RETURN(const int64_t num_segments, ctx->IntScalarInput(2, "num_segments"));
    MR_RETURN_IF_ERROR(CheckNumSegments(num_segments));
    MR_RETURN_IF_ERROR(CheckUnsortedIds(data.shape(), ids.shape()));
    MR_ASSIGN_OR_RETURN(const PartialShape known,
                        UnsortedResult(data.shape(), ids.shape(), num_segments));
    MR_ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    const Ints segments = IntElements(ids);
    for (size_t i = 0; i < segments.size(); ++i) {
      if (segments[i] >= num_segments) {
        return absl::InvalidArgumentError(absl::StrCat("segment_ids[", i, "] = ", segments[i],
                                                       " is out of range [0, ", num_segments, ")"));
      }
    }
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    absl::Span<T> to = out->mutable_raw<T>();
    std::fill(to.begin(), to.end(), Rule::template Start<T>());
    if (data.num_elements() == 0) return absl::OkStatus();
    const int64_t width = data.shape().NumElements(ids.rank(), data.rank());
    CombineOnThreads<T, Rule>(ctx, segments, ctx->input(0).template raw<T>().data(), width,
                              num_segments, to.data());
    return absl::OkStatus();
  }
};

Output Unary(const Scope& scope, const char* op, Output x) {
  return NodeBuilder(scope, op).Input(x).Finish().output(0);
}
Output Binary(const Scope& scope, const char* op, Output a, Output b) {
  return NodeBuilder(scope, op).Input(a).Input(b).Finish().output(0);
}
Output Cast(const Scope& scope, Output x, DType dtype) {
  return NodeBuilder(scope, "Cast").Input(x).Attr("DstT", dtype).Finish().output(0);
}
Output SelectOf(const Scope& scope, Output condition, Output a, Output b) {
  return NodeBuilder(scope, "Select").Input(condition).Input(a).Input(b).Finish().output(0);
}

// Rows of `table` by id, zeros for negative ids, in the shape of `data`.
Output RowsOrZeros(const Scope& scope, Output table, Output ids, Output data) {
  const Output flat = Reshape(scope, ids, Const<int32_t>(scope, {-1}));
  const Output zero = ZerosLike(scope, flat);
  const Output rows =
      GatherV2(scope, table, Binary(scope, "Maximum", flat, zero), Const(scope, int32_t{0}));
  const Output kept =
      SelectOf(scope, Binary(scope, "GreaterEqual", flat, zero), rows, ZerosLike(scope, rows));
  return Reshape(scope, kept, ShapeOf(scope, data));
}

Status UnsortedSumGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  c->set_input_grad(0, RowsOrZeros(c->scope(), c->dense_grad(0), c->input(1), c->input(0)));
  return absl::OkStatus();
}

// The elements that are the extremum share its gradient in equal parts.
Status UnsortedExtremumGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& scope = c->scope();
  const Output data = c->input(0), ids = c->input(1);
  const Output chosen = Binary(scope, "Equal", data, RowsOrZeros(scope, c->output(0), ids, data));
  const Output count =
      UnsortedSegmentSum(scope, Cast(scope, chosen, data.dtype()), ids, c->input(2));
  // An empty segment has no element to divide by; nothing reads the result.
  const Output share = Binary(scope, "RealDiv", c->dense_grad(0),
                              Binary(scope, "Maximum", count, Unary(scope, "OnesLike", count)));
  const Output all = RowsOrZeros(scope, share, ids, data);
  c->set_input_grad(0, SelectOf(scope, chosen, all, ZerosLike(scope, all)));
  return absl::OkStatus();
}

// Of a product the derivative by one factor is the product of the others: the result divided by it,
// and for the only 0 of a segment the product of what is not 0.
Output ProductGradient(const Scope& scope, Output grad, Output product, Output data, Output ids,
                       Output num_segments) {
  const Output is_zero = Binary(scope, "Equal", data, ZerosLike(scope, data));
  const Output zeros = UnsortedSegmentSum(scope, Cast(scope, is_zero, DT_INT32), ids, num_segments);
  const Output several = Binary(scope, "Greater", zeros, Unary(scope, "OnesLike", zeros));
  const Output kept = SelectOf(scope, several, ZerosLike(scope, grad), grad);
  const Output factors = SelectOf(scope, is_zero, Unary(scope, "OnesLike", data), data);
  const Output nonzero_product = UnsortedSegmentProd(scope, factors, ids, num_segments);
  const Output others =
      SelectOf(scope, is_zero, RowsOrZeros(scope, nonzero_product, ids, data),
               Binary(scope, "RealDiv", RowsOrZeros(scope, product, ids, data), factors));
  return Binary(scope, "Mul", RowsOrZeros(scope, kept, ids, data), others);
}
Status UnsortedProdGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  c->set_input_grad(0, ProductGradient(c->scope(), c->dense_grad(0), c->output(0), c->input(0),
                                       c->input(1), c->input(2)));
  return absl::OkStatus();
}

OpSpec UnsortedSpec(const char* name, const char* types) {
  return OpSpec(name)
      .Input("data: T")
      .Input("segment_ids: Tindices")
      .Input("num_segments: Tnumsegments")
      .Output("output: T")
      .Attr(absl::StrCat("T: ", types))
      .Attr("Tindices: {int32, int64}")
      .Attr("Tnumsegments: {int32, int64} = DT_INT32")
      .Shape(UnsortedSegmentShape);
}
const OpRegistration kUnsortedSum =
    UnsortedSpec("UnsortedSegmentSum", "numbertype").Gradient(UnsortedSumGradient);
const OpRegistration kUnsortedProd =
    UnsortedSpec("UnsortedSegmentProd", "numbertype").Gradient(UnsortedProdGradient);
const OpRegistration kUnsortedMax =
    UnsortedSpec("UnsortedSegmentMax", "realnumbertype").Gradient(UnsortedExtremumGradient);
const OpRegistration kUnsortedMin =
    UnsortedSpec("UnsortedSegmentMin", "realnumbertype").Gradient(UnsortedExtremumGradient);

// --- Segment... (sorted) -------------------------------------------------------------------------

Status CheckSortedShapes(const PartialShape& data, const PartialShape& ids) {
  if (ids.has_rank() && ids.rank() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment_ids must be a vector, got shape ", ids.ToString()));
  }
  if (data.has_rank() && data.rank() < 1) {
    return absl::InvalidArgumentError("data must have rank >= 1, got shape []");
  }
  if (data.has_rank() && ids.has_rank() && data.dim(0) != -1 && ids.dim(0) != -1 &&
      data.dim(0) != ids.dim(0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment_ids must have one element for each of the ", data.dim(0),
                     " rows of data, got ", ids.dim(0)));
  }
  return absl::OkStatus();
}

// How many segments there are; the only place that knows which ids are sorted.
StatusOr<int64_t> CountSortedSegments(const Ints& ids) {
  int64_t last = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < last) {
      return absl::InvalidArgumentError(
          i == 0 ? absl::StrCat("segment_ids[0] must be >= 0, got ", ids[0])
                 : absl::StrCat("segment ids are not increasing: segment_ids[", i,
                                "] must be >= ", last, ", got ", ids[i]));
    }
    last = ids[i];
  }
  if (ids.empty()) return 0;
  if (last >= Shape::kMaxElements) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment_ids must be < ", Shape::kMaxElements, ", got ", last));
  }
  return last + 1;
}

Status SegmentShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(CheckSortedShapes(c->input(0), c->input(1)));
  if (!c->input(0).has_rank()) return absl::OkStatus();
  Ints dims(c->input(0).dims().begin(), c->input(0).dims().end());
  dims[0] = -1;
  if (const std::optional<Ints> ids = ConstantInts(c, 1)) {
    MR_ASSIGN_OR_RETURN(dims[0], CountSortedSegments(*ids));
  }
  MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make(dims));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

template <typename T, typename Rule, bool kMean>
class SegmentKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Tensor& data = ctx->input(0);
    MR_RETURN_IF_ERROR(CheckSortedShapes(data.shape(), ctx->input(1).shape()));
    const Ints ids = IntElements(ctx->input(1));
    MR_ASSIGN_OR_RETURN(const int64_t num_segments, CountSortedSegments(ids));
    Ints dims(data.shape().dims().begin(), data.shape().dims().end());
    dims[0] = num_segments;
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    absl::Span<T> to = out->mutable_raw<T>();
    std::fill(to.begin(), to.end(), Rule::template Start<T>());
    if (ids.empty() || shape.num_elements() == 0) return absl::OkStatus();
    const int64_t width = shape.NumElements(1, shape.rank());
    CombineOnThreads<T, Rule>(ctx, ids, ctx->input(0).template raw<T>().data(), width, num_segments,
                              to.data());
    Finish(ids, width, to);
    return absl::OkStatus();
  }

 private:
  // Divides by the number of rows; an empty segment of Max and Min is 0 here.
  static void Finish(const Ints& ids, int64_t width, absl::Span<T> to) {
    constexpr bool kExtremum = std::is_same_v<Rule, MaxRule> || std::is_same_v<Rule, MinRule>;
    if (!kMean && !kExtremum) return;
    size_t i = 0;
    const size_t segments = to.size() / static_cast<size_t>(width);
    for (size_t s = 0; s < segments; ++s) {
      size_t count = 0;
      for (; i < ids.size() && ids[i] == static_cast<int64_t>(s); ++i) ++count;
      const auto row = to.subspan(s * static_cast<size_t>(width), static_cast<size_t>(width));
      if (kMean && count > 0) {
        for (T& v : row) v /= static_cast<T>(count);
      }
      if (kExtremum && count == 0) std::fill(row.begin(), row.end(), T{0});
    }
  }
};

Status SegmentSumGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  c->set_input_grad(
      0, GatherV2(c->scope(), c->dense_grad(0), c->input(1), Const(c->scope(), int32_t{0})));
  return absl::OkStatus();
}

// Ones in the shape of the ids followed by 1s up to the rank of data, so that they divide rows.
Output RowCounts(const Scope& scope, Output data, Output ids, Output result) {
  const Output ones = Unary(scope, "OnesLike", Cast(scope, ids, data.dtype()));
  const Output counts = SegmentSum(scope, ones, ids);
  const Output one = Const<int32_t>(scope, {1});
  // [segments, 1, ...]: the rank of the result.
  const Output shape =
      NodeBuilder(scope, "ConcatV2")
          .Input({ShapeOf(scope, counts),
                  NodeBuilder(scope, "Fill")
                      .Input(Reshape(
                          scope,
                          Binary(scope, "Sub", Rank(scope, result), Const(scope, int32_t{1})), one))
                      .Input(Const(scope, int32_t{1}))
                      .Finish()
                      .output(0)})
          .Input(Const(scope, int32_t{0}))
          .Finish()
          .output(0);
  return Reshape(scope, counts, shape);
}

Status SegmentMeanGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& scope = c->scope();
  const Output counts = RowCounts(scope, c->input(0), c->input(1), c->output(0));
  // An empty segment's gradient is divided by 1; nobody gathers it.
  const Output share = Binary(scope, "RealDiv", c->dense_grad(0),
                              Binary(scope, "Maximum", counts, Unary(scope, "OnesLike", counts)));
  c->set_input_grad(0, GatherV2(scope, share, c->input(1), Const(scope, int32_t{0})));
  return absl::OkStatus();
}

Status SegmentExtremumGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& scope = c->scope();
  const Output data = c->input(0), ids = c->input(1);
  const auto gather = [&](Output table) {
    return GatherV2(scope, table, ids, Const(scope, int32_t{0}));
  };
  const Output chosen = Binary(scope, "Equal", data, gather(c->output(0)));
  const Output count = SegmentSum(scope, Cast(scope, chosen, data.dtype()), ids);
  const Output share = Binary(scope, "RealDiv", c->dense_grad(0),
                              Binary(scope, "Maximum", count, Unary(scope, "OnesLike", count)));
  const Output all = gather(share);
  c->set_input_grad(0, SelectOf(scope, chosen, all, ZerosLike(scope, all)));
  return absl::OkStatus();
}

Status SegmentProdGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& scope = c->scope();
  const Output zero = Const<int32_t>(scope, {0}), one = Const<int32_t>(scope, {1});
  const Output num_segments =
      StridedSlice(scope, ShapeOf(scope, c->output(0)), zero, one, one, {.shrink_axis_mask = 1});
  c->set_input_grad(0, ProductGradient(scope, c->dense_grad(0), c->output(0), c->input(0),
                                       c->input(1), num_segments));
  return absl::OkStatus();
}

OpSpec SegmentSpec(const char* name, const char* types) {
  return OpSpec(name)
      .Input("data: T")
      .Input("segment_ids: Tindices")
      .Output("output: T")
      .Attr(absl::StrCat("T: ", types))
      .Attr("Tindices: {int32, int64}")
      .Shape(SegmentShape);
}
const OpRegistration kSegmentSum =
    SegmentSpec("SegmentSum", "numbertype").Gradient(SegmentSumGradient);
const OpRegistration kSegmentMean =
    SegmentSpec("SegmentMean", "numbertype").Gradient(SegmentMeanGradient);
const OpRegistration kSegmentProd =
    SegmentSpec("SegmentProd", "numbertype").Gradient(SegmentProdGradient);
const OpRegistration kSegmentMax =
    SegmentSpec("SegmentMax", "realnumbertype").Gradient(SegmentExtremumGradient);
const OpRegistration kSegmentMin =
    SegmentSpec("SegmentMin", "realnumbertype").Gradient(SegmentExtremumGradient);

// --- Kernels by element type ---------------------------------------------------------------------

template <typename T>
struct SegmentKernels {
  template <typename K>
  static KernelRegistration Of(const char* op) {
    return KernelFor<K>(op).template Type<T>("T");
  }
  KernelRegistration all[9] = {
      Of<UnsortedSegmentKernel<T, SumRule>>("UnsortedSegmentSum"),
      Of<UnsortedSegmentKernel<T, ProdRule>>("UnsortedSegmentProd"),
      Of<UnsortedSegmentKernel<T, MaxRule>>("UnsortedSegmentMax"),
      Of<UnsortedSegmentKernel<T, MinRule>>("UnsortedSegmentMin"),
      Of<SegmentKernel<T, SumRule, false>>("SegmentSum"),
      Of<SegmentKernel<T, SumRule, true>>("SegmentMean"),
      Of<SegmentKernel<T, ProdRule, false>>("SegmentProd"),
      Of<SegmentKernel<T, MaxRule, false>>("SegmentMax"),
      Of<SegmentKernel<T, MinRule, false>>("SegmentMin"),
  };
};
const SegmentKernels<float> kFloatSegments;
const SegmentKernels<double> kDoubleSegments;
const SegmentKernels<int32_t> kInt32Segments;
const SegmentKernels<int64_t> kInt64Segments;

}  // namespace
}  // namespace millrace
