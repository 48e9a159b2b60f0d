// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/sparse_add.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/loops/binary.h"
#include "ops/loops/number.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/rules/elements.h"
#include "ops/rules/sparse_input.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- Two sparse tensors --------------------------------------------------------------------------

constexpr SparseArgs kA{.prefix = "a_"};
constexpr SparseArgs kB{.indices = 3, .values = 4, .shape = 5, .prefix = "b_"};

// The rank that both have.
StatusOr<int64_t> CheckTwo(const RuleContext* c) {
  MR_ASSIGN_OR_RETURN(const SparseSize a, CheckSparseInput(c, kA));
  MR_ASSIGN_OR_RETURN(const SparseSize b, CheckSparseInput(c, kB));
  if (a.rank >= 0 && b.rank >= 0 && a.rank != b.rank) {
    return InvalidArgument("b_shape must have ", a.rank, " dimensions as a_shape, got ", b.rank);
  }
  return std::max(a.rank, b.rank);
}

// An element of the union of two sparse tensors: which elements make it, -1 for none.
struct Pair {
  int64_t a = -1, b = -1;
};

// In row-major order.
StatusOr<std::vector<Pair>> Union(KernelContext* ctx) {
  MR_ASSIGN_OR_RETURN(const SparseShape a_shape, SparseShape::Of(ctx->input(2), "a_shape"));
  MR_ASSIGN_OR_RETURN(const SparseShape b_shape, SparseShape::Of(ctx->input(5), "b_shape"));
  if (a_shape.dims != b_shape.dims) {
    return InvalidArgument("a_shape and b_shape must be equal, got ", a_shape.ToString(), " and ",
                           b_shape.ToString());
  }
  MR_ASSIGN_OR_RETURN(const std::vector<int64_t> a,
                      FlatPlaces(ctx->input(0), a_shape, PlaceOrder::kSorted, "a_indices"));
  MR_ASSIGN_OR_RETURN(const std::vector<int64_t> b,
                      FlatPlaces(ctx->input(3), a_shape, PlaceOrder::kSorted, "b_indices"));
  std::vector<Pair> pairs;
  pairs.reserve(a.size() + b.size());
  size_t i = 0, j = 0;
  while (i < a.size() || j < b.size()) {
    const bool takes_a = j == b.size() || (i < a.size() && a[i] <= b[j]);
    const bool takes_b = i == a.size() || (j < b.size() && b[j] <= a[i]);
    Pair pair;
    if (takes_a) pair.a = static_cast<int64_t>(i++);
    if (takes_b) pair.b = static_cast<int64_t>(j++);
    pairs.push_back(pair);
  }
  return pairs;
}

// The index of each pair, into the rows of `out`.
void WriteIndices(const KernelContext* ctx, const std::vector<Pair>& pairs, Tensor* out) {
  const int64_t rank = out->dim(1);
  const int64_t* const a = ctx->input(0).raw<int64_t>().data();
  const int64_t* const b = ctx->input(3).raw<int64_t>().data();
  int64_t* to = out->mutable_raw<int64_t>().data();
  for (const Pair& pair : pairs) {
    to = std::copy_n(pair.a >= 0 ? a + pair.a * rank : b + pair.b * rank, rank, to);
  }
}

// --- SparseAdd -----------------------------------------------------------------------------------

struct SparseAddRule {
  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const int64_t rank, CheckTwo(c));
    MR_RETURN_IF_ERROR(c->InputWithRank(6, 0, "thresh").status());
    c->set_output(0, {-1, rank});
    c->set_output(1, {-1});
    c->set_output(2, {rank});
    return absl::OkStatus();
  }
};

template <typename T>
double Magnitude(T value) {
  if constexpr (math::kIsComplex<T>) {
    return static_cast<double>(std::abs(value));
  } else {
    return std::fabs(static_cast<double>(math::Load(value)));
  }
}

template <typename T>
Status RunSparseAdd(KernelContext* ctx, const SparseAddRule&) {
  using W = math::Wide<T>;
  MR_ASSIGN_OR_RETURN(std::vector<Pair> pairs, Union(ctx));
  const T* const a = ctx->input(1).raw<T>().data();
  const T* const b = ctx->input(4).raw<T>().data();
  const Tensor& threshold = ctx->input(6);
  const double thresh = math::LoopFor<math::RealTypes>(threshold.dtype(), []<typename R>() {
    return +[](const Tensor& t) { return static_cast<double>(math::Load(t.raw_scalar<R>())); };
  })(threshold);
  std::vector<T> sums;
  std::vector<Pair> kept;
  sums.reserve(pairs.size());
  kept.reserve(pairs.size());
  for (const Pair& pair : pairs) {
    T sum = pair.a >= 0 ? a[pair.a] : b[pair.b];
    if (pair.a >= 0 && pair.b >= 0) {
      sum = math::Store<T>(math::WrapAdd(W(math::Load(sum)), W(math::Load(b[pair.b]))));
    }
    // A NaN stays.
    if (Magnitude(sum) < thresh) continue;
    sums.push_back(sum);
    kept.push_back(pair);
  }
  MR_ASSIGN_OR_RETURN(const Shape shape,
                      Shape::Make({static_cast<int64_t>(kept.size()), ctx->input(0).dim(1)}));
  MR_ASSIGN_OR_RETURN(Tensor * indices, ctx->AllocateOutput(0, shape));
  WriteIndices(ctx, kept, indices);
  MR_ASSIGN_OR_RETURN(Tensor * values, ctx->AllocateOutput(1, shape.Slice(0, 1)));
  std::copy(sums.begin(), sums.end(), values->mutable_raw<T>().begin());
  ctx->set_output(2, ctx->input(2));
  return absl::OkStatus();
}

Status SparseAddGradient(GradientContext* c) {
  if (!c->has_grad(1)) return absl::OkStatus();
  const auto grads =
      SparseAddGrad(c->scope(), c->dense_grad(1), c->input(0), c->input(3), c->output(0));
  c->set_input_grad(1, grads.a_val_grad);
  c->set_input_grad(4, grads.b_val_grad);
  return absl::OkStatus();
}

const OpRegistration kSparseAdd =
    OpSpec("SparseAdd",
           "a_indices: int64, a_values: T, a_shape: int64, b_indices: int64, b_values: T, "
           "b_shape: int64, thresh: Treal -> sum_indices: int64, sum_values: T, sum_shape: int64",
           "T: numbertype; Treal: realnumbertype")
        .With(RuledKernelsFor<SparseAddRule, float, double, int32_t, int64_t, int16_t, int8_t,
                              std::complex<float>, std::complex<double>>(
            "T", []<typename T>() { return &RunSparseAdd<T>; }))
        .Gradient(SparseAddGradient);

// --- SparseAddGrad -------------------------------------------------------------------------------

struct SparseAddGradRule {
  Status operator()(RuleContext* c) const {
    const auto indices = [&](int i, absl::string_view prefix) {
      return CheckSparseInput(c, {.indices = i, .values = -1, .shape = -1, .prefix = prefix});
    };
    MR_ASSIGN_OR_RETURN(const SparseSize a, indices(1, "a_"));
    MR_ASSIGN_OR_RETURN(const SparseSize b, indices(2, "b_"));
    MR_ASSIGN_OR_RETURN(const SparseSize sum, indices(3, "sum_"));
    MR_ASSIGN_OR_RETURN(const PartialShape grad, c->InputWithRank(0, 1, "backprop_val_grad"));
    if (grad.dim(0) >= 0 && sum.count >= 0 && grad.dim(0) != sum.count) {
      return InvalidArgument("backprop_val_grad must have one element for each of the ", sum.count,
                             " sum_indices, got ", grad.dim(0));
    }
    for (const int64_t rank : {a.rank, b.rank}) {
      if (rank < 0 || sum.rank < 0 || rank == sum.rank) continue;
      return InvalidArgument(
          "a_indices, b_indices and sum_indices must have equally many columns, "
          "got ",
          a.rank, ", ", b.rank, " and ", sum.rank);
    }
    c->set_output(0, {a.count});
    c->set_output(1, {b.count});
    return absl::OkStatus();
  }
};

// Output `i`: for each of the indices (in order, as the sum's) what the sum there has; 0 where the
// sum was left out.
Status GatherSumGradient(KernelContext* ctx, int i) {
  const Tensor &indices = ctx->input(1 + i), &sums = ctx->input(3);
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateZeros(i));
  const int64_t rank = indices.dim(1), count = indices.dim(0), num_sums = sums.dim(0);
  const int64_t* const index = indices.raw<int64_t>().data();
  const int64_t* const sum = sums.raw<int64_t>().data();
  return VisitElements(out->dtype(), [&]<typename E>() {
    int64_t k = 0;
    for (int64_t j = 0; j < count && k < num_sums;) {
      const int64_t *x = index + j * rank, *y = sum + k * rank;
      if (std::lexicographical_compare(x, x + rank, y, y + rank)) {
        ++j;
      } else if (std::lexicographical_compare(y, y + rank, x, x + rank)) {
        ++k;
      } else {
        MutableElementsOf<E>(out)[j++] = ElementsOf<E>(ctx->input(0))[k++];
      }
    }
  });
}

Status RunSparseAddGrad(KernelContext* ctx, const SparseAddGradRule&) {
  MR_RETURN_IF_ERROR(GatherSumGradient(ctx, 0));
  return GatherSumGradient(ctx, 1);
}

const OpRegistration kSparseAddGrad =
    OpSpec("SparseAddGrad",
           "backprop_val_grad: T, a_indices: int64, b_indices: int64, sum_indices: int64 -> "
           "a_val_grad: T, b_val_grad: T",
           "T: numbertype")
        .With(RuledKernelFor<SparseAddGradRule>(RunSparseAddGrad));

// --- SparseSparseMaximum, SparseSparseMinimum ----------------------------------------------------

struct SparseSparseRule {
  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const int64_t rank, CheckTwo(c));
    c->set_output(0, {-1, rank});
    c->set_output(1, {-1});
    return absl::OkStatus();
  }
};

template <math::BinaryOp kOp>
Status RunSparseSparse(KernelContext* ctx, const SparseSparseRule&) {
  MR_ASSIGN_OR_RETURN(const std::vector<Pair> pairs, Union(ctx));
  const Tensor &a = ctx->input(1), &b = ctx->input(4);
  MR_ASSIGN_OR_RETURN(const Shape shape,
                      Shape::Make({static_cast<int64_t>(pairs.size()), ctx->input(0).dim(1)}));
  MR_ASSIGN_OR_RETURN(Tensor * indices, ctx->AllocateOutput(0, shape));
  WriteIndices(ctx, pairs, indices);
  MR_ASSIGN_OR_RETURN(Tensor * values, ctx->AllocateZeros(1, shape.Slice(0, 1)));
  MR_ASSIGN_OR_RETURN(Tensor other, ctx->AllocateTemp(a.dtype(), values->shape()));
  MR_RETURN_IF_ERROR(VisitElements(a.dtype(), [&]<typename E>() {
    E* x = MutableElementsOf<E>(values);
    E* y = MutableElementsOf<E>(&other);
    for (const Pair& pair : pairs) {
      *y = *x;  // zero
      if (pair.a >= 0) *x = ElementsOf<E>(a)[pair.a];
      if (pair.b >= 0) *y = ElementsOf<E>(b)[pair.b];
      ++x;
      ++y;
    }
  }));
  math::FindBinary(kOp, a.dtype())(values->raw_data(), false, other.raw_data(), false,
                                   values->mutable_raw_data(), shape.dim(0));
  return absl::OkStatus();
}

template <math::BinaryOp kOp>
OpSpec SparseSparseSpec(absl::string_view op, absl::string_view types) {
  return OpSpec(op,
                "a_indices: int64, a_values: T, a_shape: int64, b_indices: int64, b_values: T, "
                "b_shape: int64 -> output_indices: int64, output_values: T",
                absl::StrCat("T: ", types))
      .With(RuledKernelFor<SparseSparseRule>(RunSparseSparse<kOp>).TypesWith("T", [](DType dtype) {
        return math::FindBinary(kOp, dtype) != nullptr;
      }));
}
const OpRegistration kMaximum =
    SparseSparseSpec<math::BinaryOp::kMaximum>("SparseSparseMaximum", "realnumbertype");
const OpRegistration kMinimum =
    SparseSparseSpec<math::BinaryOp::kMinimum>("SparseSparseMinimum", "numbertype");

// --- SparseTensorDenseAdd ------------------------------------------------------------------------

struct SparseTensorDenseAddRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const SparseSize a, CheckSparseInput(c, kA));
    const PartialShape& b = c->input(3);
    if (a.rank < 0) return b;
    return c->InputWithRank(3, static_cast<int>(a.rank), "b");
  }
};

template <typename T>
Status RunSparseTensorDenseAdd(KernelContext* ctx, const SparseTensorDenseAddRule&) {
  using W = math::Wide<T>;
  const Tensor& b = ctx->input(3);
  MR_ASSIGN_OR_RETURN(const SparseShape shape, SparseShape::Of(ctx->input(2), "a_shape"));
  if (absl::MakeConstSpan(shape.dims) != b.shape().dims()) {
    return InvalidArgument("a_shape must be the shape of b ", b.shape(), ", got ",
                           shape.ToString());
  }
  MR_ASSIGN_OR_RETURN(const std::vector<int64_t> places,
                      FlatPlaces(ctx->input(0), shape, PlaceOrder::kAny, "a_indices"));
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->ForwardInputOrAllocateOutput({3}, 0));
  T* const to = out->mutable_raw<T>().data();
  const absl::Span<const T> from = b.raw<T>();
  if (to != from.data()) std::copy(from.begin(), from.end(), to);
  const T* value = ctx->input(1).raw<T>().data();
  for (const int64_t place : places) {
    to[place] = math::Store<T>(math::WrapAdd(W(math::Load(to[place])), W(math::Load(*value++))));
  }
  return absl::OkStatus();
}

std::vector<Output> SparseTensorDenseAddGradient(GradientContext* c) {
  const Output grad = c->dense_grad();
  return {Output(), GatherNd(c->scope(), grad, c->input(0)), Output(), grad};
}

const OpRegistration kSparseTensorDenseAdd =
    OpSpec("SparseTensorDenseAdd",
           "a_indices: Tindices, a_values: T, a_shape: Tindices, b: T -> output: T",
           "T: numbertype; Tindices: {int32, int64}")
        .With(RuledKernelsFor<SparseTensorDenseAddRule, float, double, int32_t, int64_t, int16_t,
                              int8_t, std::complex<float>, std::complex<double>>(
            "T", []<typename T>() { return &RunSparseTensorDenseAdd<T>; }))
        .Gradient(SparseTensorDenseAddGradient);

// --- SparseDenseCwise... -------------------------------------------------------------------------

struct SparseDenseCwiseRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const SparseSize sparse, CheckSparseInput(c, {.prefix = "sp_"}));
    const PartialShape& dense = c->input(3);
    if (sparse.rank >= 0 && dense.has_rank() && dense.rank() > sparse.rank) {
      return InvalidArgument("dense must have at most ", sparse.rank,
                             " dimensions, those of sp_shape, got shape ", dense);
    }
    return PartialShape({sparse.count});
  }
};

template <math::BinaryOp kOp>
Status RunSparseDenseCwise(KernelContext* ctx, const SparseDenseCwiseRule&) {
  const Tensor &values = ctx->input(1), &dense = ctx->input(3);
  MR_ASSIGN_OR_RETURN(const SparseShape shape, SparseShape::Of(ctx->input(2), "sp_shape"));
  // dense as the sparse shape sees it: stride 0 along what is repeated.
  SparseShape seen = shape;
  int64_t stride = 1;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    const int at = d - shape.rank() + dense.rank();
    const int64_t dim = at < 0 ? 1 : dense.dim(at);
    const size_t i = static_cast<size_t>(d);
    if (dim != 1 && dim != shape.dims[i]) {
      return InvalidArgument("dense must be broadcast to sp_shape ", shape.ToString(),
                             ", got shape ", dense.shape());
    }
    seen.strides[i] = dim == 1 ? 0 : stride;
    stride *= dim;
  }
  MR_ASSIGN_OR_RETURN(const std::vector<int64_t> places,
                      FlatPlaces(ctx->input(0), seen, PlaceOrder::kAny, "sp_indices"));
  MR_ASSIGN_OR_RETURN(Tensor picked, ctx->AllocateTemp(values.dtype(), values.shape()));
  MR_RETURN_IF_ERROR(VisitElements(values.dtype(), [&]<typename E>() {
    E* to = MutableElementsOf<E>(&picked);
    for (const int64_t place : places) *to++ = ElementsOf<E>(dense)[place];
  }));
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->ForwardInputOrAllocateOutput({1}, 0));
  if (math::FindBinary(kOp, values.dtype())(values.raw_data(), false, picked.raw_data(), false,
                                            out->mutable_raw_data(), values.num_elements())) {
    return absl::OkStatus();
  }
  return InvalidArgument("dense must not be 0 where an integer is divided by it");
}

// What of the dense tensor is at each index, and those indices in it.
struct Picked {
  Output indices, values, shape;
};
Picked PickDense(GradientContext* c) {
  const Scope& s = c->scope();
  const Output indices = c->input(0), shape = c->input(2), dense = c->input(3);
  const Output zero = Const(s, 0);
  const Output dense_shape = ShapeOf(s, dense, {.out_type = DT_INT64});
  // Its shape with as many dimensions as the sparse one has; how often each is repeated.
  const Output missing = Reshape(s, Sub(s, Size(s, shape), Rank(s, dense)), Const<int32_t>(s, {1}));
  const Output ones = Fill(s, missing, Const<int64_t>(s, 1));
  const Output whole = ConcatV2(s, {ones, dense_shape}, zero);
  const Output one = Const<int64_t>(s, 1);
  const Output repeats = Maximum(s, FloorDiv(s, shape, Maximum(s, whole, one)), one);
  const Output begin = ConcatV2(s, {Const<int32_t>(s, {0}), missing}, zero);
  const Output own = Slice(s, FloorDiv(s, indices, repeats), begin, Const<int32_t>(s, {-1, -1}));
  return {own, GatherNd(s, dense, own), dense_shape};
}

template <math::BinaryOp kOp>
Status SparseDenseCwiseGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& s = c->scope();
  const Output grad = c->dense_grad(), values = c->input(1);
  const Picked dense = PickDense(c);
  const bool is_complex = grad.dtype() == DT_COMPLEX64 || grad.dtype() == DT_COMPLEX128;
  const auto conj = [&](Output x) { return is_complex ? Conj(s, x) : x; };
  Output to_values = grad, to_dense = grad;
  if constexpr (kOp == math::BinaryOp::kMul) {
    to_values = Mul(s, grad, conj(dense.values));
    to_dense = Mul(s, grad, conj(values));
  } else if constexpr (kOp == math::BinaryOp::kDiv) {
    to_values = RealDiv(s, grad, conj(dense.values));
    const Output square = Mul(s, dense.values, dense.values);
    to_dense = Mul(s, grad, conj(RealDiv(s, Neg(s, values), square)));
  }
  c->set_input_grad(1, to_values);
  c->set_input_grad(3, ScatterNd(s, dense.indices, to_dense, dense.shape));
  return absl::OkStatus();
}

template <math::BinaryOp kOp>
OpSpec SparseDenseSpec(absl::string_view op) {
  return OpSpec(op, "sp_indices: int64, sp_values: T, sp_shape: int64, dense: T -> output: T",
                "T: numbertype")
      .With(
          RuledKernelFor<SparseDenseCwiseRule>(RunSparseDenseCwise<kOp>)
              .TypesWith("T", [](DType dtype) { return math::FindBinary(kOp, dtype) != nullptr; }))
      .Gradient(SparseDenseCwiseGradient<kOp>);
}
const OpRegistration kCwiseAdd = SparseDenseSpec<math::BinaryOp::kAdd>("SparseDenseCwiseAdd");
const OpRegistration kCwiseMul = SparseDenseSpec<math::BinaryOp::kMul>("SparseDenseCwiseMul");
const OpRegistration kCwiseDiv = SparseDenseSpec<math::BinaryOp::kDiv>("SparseDenseCwiseDiv");

}  // namespace
}  // namespace millrace
