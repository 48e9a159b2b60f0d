// SPDX-License-Identifier: Apache-2.0
#include "ops/sparse/sparse_reduce.h"

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "ops/array/constant.h"
#include "ops/array/dynamic_partition.h"
#include "ops/array/gather.h"
#include "ops/array/reshape.h"
#include "ops/loops/number.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/select.h"
#include "ops/rules/sparse_input.h"
#include "ops/sparse/sparse_add.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

// --- What is reduced -----------------------------------------------------------------------------

using Ints = std::vector<int64_t>;
using Flags = std::vector<char>;  // by dimension: is it reduced?

StatusOr<Flags> ReducedDims(IntSpan axes, int rank) {
  Flags reduced(static_cast<size_t>(rank), 0);
  for (size_t i = 0; i < axes.size(); ++i) {
    const StatusOr<int> axis = ResolveAxis(axes[i], rank);
    if (!axis.ok()) {
      return InvalidArgument("reduction_axes[", i, "] must be in [", -rank, ", ", rank, "), got ",
                             axes[i]);
    }
    reduced[static_cast<size_t>(*axis)] = 1;
  }
  return reduced;
}

// The dimensions of the result.
Ints ResultDims(IntSpan dims, const Flags& reduced, bool keep_dims) {
  Ints result;
  for (size_t d = 0; d < reduced.size(); ++d) {
    if (reduced[d] == 0) {
      result.push_back(dims[d]);
    } else if (keep_dims) {
      result.push_back(1);
    }
  }
  return result;
}

// As far as they are known; nullopt when not even their number is.
StatusOr<std::optional<Ints>> InferResultDims(RuleContext* c, bool keep_dims) {
  MR_ASSIGN_OR_RETURN(const SparseSize input, CheckSparseInput(c, {.prefix = "input_"}));
  MR_ASSIGN_OR_RETURN(const PartialInts axes, c->IntVector(3, "reduction_axes", true));
  MR_ASSIGN_OR_RETURN(const PartialInts shape, c->IntVector(2, "input_shape"));
  if (input.rank < 0 || !axes.all_known()) return std::nullopt;
  const int rank = static_cast<int>(input.rank);
  MR_ASSIGN_OR_RETURN(const Flags reduced, ReducedDims(absl::MakeConstSpan(axes.values()), rank));
  Ints dims;
  for (int d = 0; d < rank; ++d) {
    const std::optional<int64_t> dim = shape.at(d);
    if (dim.value_or(0) < 0) {
      return InvalidArgument("input_shape[", d, "] must be >= 0, got ", *dim);
    }
    dims.push_back(dim.value_or(-1));
  }
  return ResultDims(absl::MakeConstSpan(dims), reduced, keep_dims);
}

// Where in the result each element goes, and the result's shape.
struct Targets {
  SparseShape shape;  // with dimensions that are reduced, of size 1
  Ints places;
};

StatusOr<Targets> ReadTargets(KernelContext* ctx) {
  MR_ASSIGN_OR_RETURN(SparseShape input, SparseShape::Of(ctx->input(2), "input_shape"));
  MR_ASSIGN_OR_RETURN(const Flags reduced, ReducedDims(ctx->input(3).ints(), input.rank()));
  Targets targets;
  const Ints dims = ResultDims(absl::MakeConstSpan(input.dims), reduced, true);
  MR_ASSIGN_OR_RETURN(targets.shape,
                      SparseShape::Make(absl::MakeConstSpan(dims), "the shape of the result"));
  input.strides = targets.shape.strides;
  for (size_t d = 0; d < reduced.size(); ++d) {
    if (reduced[d] != 0) input.strides[d] = 0;
  }
  MR_ASSIGN_OR_RETURN(targets.places,
                      FlatPlaces(ctx->input(0), input, PlaceOrder::kAny, "input_indices"));
  return targets;
}

template <typename T>
struct Total {
  static T Next(T a, T b) { return math::WrapAdd(a, b); }
};
template <typename T>
struct Largest {
  static T Next(T a, T b) { return a < b ? b : a; }
};

// --- Dense results -------------------------------------------------------------------------------

struct SparseReduceRule {
  bool keep_dims = false;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "keep_dims", &keep_dims); }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const std::optional<Ints> dims, InferResultDims(c, keep_dims));
    return dims ? PartialShape::Make(*dims) : PartialShape();
  }
};

template <typename T, typename Step>
Status RunSparseReduce(KernelContext* ctx, const SparseReduceRule&) {
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateZeros(0));
  MR_ASSIGN_OR_RETURN(const Targets targets, ReadTargets(ctx));
  T* const to = out->mutable_raw<T>().data();
  const T* value = ctx->input(1).raw<T>().data();
  std::vector<bool> has_value(static_cast<size_t>(out->num_elements()));
  for (const int64_t place : targets.places) {
    const bool is_first = !has_value[static_cast<size_t>(place)];
    to[place] = is_first ? *value : Step::Next(to[place], *value);
    has_value[static_cast<size_t>(place)] = true;
    ++value;
  }
  return absl::OkStatus();
}

// Looks results up for elements: pick(table)[i] is what a tensor of the result's shape has where
// element i went.
struct Picker {
  explicit Picker(GradientContext* c) : s(c->scope()) {
    const Output shape = c->input(2), one = Const<int64_t>(s, 1);
    const Output axes = Reshape(s, c->input(3), Const<int32_t>(s, {-1})), rank = Size(s, shape);
    const Output at = FloorMod(s, Add(s, axes, rank), Maximum(s, rank, Const(s, 1)));
    const Output all = Range(s, Const(s, 0), rank, Const(s, 1));
    kept_shape = DynamicStitch(s, {all, at}, {shape, Fill(s, ShapeOf(s, at), one)});
    const Output repeats = Maximum(s, FloorDiv(s, shape, Maximum(s, kept_shape, one)), one);
    indices = FloorDiv(s, c->input(0), repeats);
  }
  Output operator()(Output table) const {
    return GatherNd(s, Reshape(s, table, kept_shape), indices);
  }

  const Scope& s;
  Output kept_shape, indices;
};

std::vector<Output> SparseReduceSumGradient(GradientContext* c) {
  return {Output(), Picker(c)(c->dense_grad())};
}

// The elements that are the largest share the gradient in equal parts.
StatusOr<std::vector<Output>> SparseReduceMaxGradient(GradientContext* c) {
  MR_ASSIGN_OR_RETURN(const SparseReduceRule rule, c->GetRule<SparseReduceRule>());
  const Scope& s = c->scope();
  const Picker pick(c);
  const Output values = c->input(1);
  const Output chosen = Equal(s, values, pick(c->output(0)));
  const Output count =
      SparseReduceSum(s, {c->input(0), Cast(s, chosen, values.dtype()), c->input(2)}, c->input(3),
                      {.keep_dims = rule.keep_dims});
  // A place without an element divides by 1; nobody picks it.
  const Output share = RealDiv(s, c->dense_grad(), Maximum(s, count, OnesLike(s, count)));
  return std::vector<Output>{Output(), Select(s, chosen, pick(share), ZerosLike(s, values))};
}

OpSpec ReduceSpec(absl::string_view op, absl::string_view types) {
  return OpSpec(op,
                "input_indices: int64, input_values: T, input_shape: int64, reduction_axes: int32 "
                "-> output: T",
                absl::StrCat("keep_dims: bool = false; T: ", types));
}

const OpRegistration kSparseReduceSum =
    ReduceSpec("SparseReduceSum", "numbertype")
        .With(RuledKernelsFor<SparseReduceRule, float, double, int32_t, int64_t,
                              std::complex<float>, std::complex<double>>(
            "T", []<typename T>() { return &RunSparseReduce<T, Total<T>>; }))
        .Gradient(SparseReduceSumGradient);
const OpRegistration kSparseReduceMax =
    ReduceSpec("SparseReduceMax", "realnumbertype")
        .With(RuledKernelsFor<SparseReduceRule, float, double, int32_t, int64_t>(
            "T", []<typename T>() { return &RunSparseReduce<T, Largest<T>>; }))
        .Gradient(SparseReduceMaxGradient);

// --- Sparse results ------------------------------------------------------------------------------

struct SparseReduceSparseRule {
  bool keep_dims = false;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "keep_dims", &keep_dims); }
  Status operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const std::optional<Ints> dims, InferResultDims(c, keep_dims));
    const int64_t rank = dims ? static_cast<int64_t>(dims->size()) : -1;
    c->set_output(0, {-1, rank});
    c->set_output(1, {-1});
    c->set_output(2, {rank});
    return absl::OkStatus();
  }
};

template <typename T, typename Step>
Status RunSparseReduceSparse(KernelContext* ctx, const SparseReduceSparseRule& rule) {
  MR_ASSIGN_OR_RETURN(const Targets targets, ReadTargets(ctx));
  const Ints& places = targets.places;
  const Ints order = OrderOf(places);
  const T* const value = ctx->input(1).raw<T>().data();
  Ints results;
  std::vector<T> combined;
  for (size_t i = 0; i < places.size(); ++i) {
    const size_t at = order.empty() ? i : static_cast<size_t>(order[i]);
    if (results.empty() || results.back() != places[at]) {
      results.push_back(places[at]);
      combined.push_back(value[at]);
    } else {
      combined.back() = Step::Next(combined.back(), value[at]);
    }
  }
  MR_ASSIGN_OR_RETURN(const Flags reduced, ReducedDims(ctx->input(3).ints(), targets.shape.rank()));
  MR_ASSIGN_OR_RETURN(Tensor * shape, ctx->AllocateOutput(2));
  const Ints dims = ResultDims(ctx->input(2).ints(), reduced, rule.keep_dims);
  std::copy(dims.begin(), dims.end(), shape->mutable_raw<int64_t>().begin());
  MR_ASSIGN_OR_RETURN(const Shape indices_shape,
                      Shape::Make({static_cast<int64_t>(results.size()), shape->dim(0)}));
  MR_ASSIGN_OR_RETURN(Tensor * indices, ctx->AllocateOutput(0, indices_shape));
  int64_t* index = indices->mutable_raw<int64_t>().data();
  for (int64_t place : results) {
    for (size_t d = 0; d < reduced.size(); ++d) {
      const int64_t stride = targets.shape.strides[d];
      if (reduced[d] == 0 || rule.keep_dims) *index++ = place / stride;
      place %= stride;
    }
  }
  MR_ASSIGN_OR_RETURN(Tensor * values, ctx->AllocateOutput(1, indices_shape.Slice(0, 1)));
  std::copy(combined.begin(), combined.end(), values->mutable_raw<T>().begin());
  return absl::OkStatus();
}

OpSpec ReduceSparseSpec(absl::string_view op, absl::string_view types) {
  return OpSpec(op,
                "input_indices: int64, input_values: T, input_shape: int64, reduction_axes: int32 "
                "-> output_indices: int64, output_values: T, output_shape: int64",
                absl::StrCat("keep_dims: bool = false; T: ", types));
}

const OpRegistration kSparseReduceSumSparse =
    ReduceSparseSpec("SparseReduceSumSparse", "numbertype")
        .With(RuledKernelsFor<SparseReduceSparseRule, float, double, int32_t, int64_t,
                              std::complex<float>, std::complex<double>>(
            "T", []<typename T>() { return &RunSparseReduceSparse<T, Total<T>>; }));
const OpRegistration kSparseReduceMaxSparse =
    ReduceSparseSpec("SparseReduceMaxSparse", "realnumbertype")
        .With(RuledKernelsFor<SparseReduceSparseRule, float, double, int32_t, int64_t>(
            "T", []<typename T>() { return &RunSparseReduceSparse<T, Largest<T>>; }));

// --- SparseSoftmax -------------------------------------------------------------------------------

struct SparseSoftmaxRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const SparseSize input, CheckSparseInput(c, {.prefix = "sp_"}));
    if (input.rank >= 0 && input.rank < 2) {
      return InvalidArgument("sp_shape must have at least 2 dimensions, got ", input.rank);
    }
    return PartialShape({input.count});
  }
};

template <typename T>
Status RunSparseSoftmax(KernelContext* ctx, const SparseSoftmaxRule&) {
  MR_ASSIGN_OR_RETURN(const SparseShape shape, SparseShape::Of(ctx->input(2), "sp_shape"));
  MR_ASSIGN_OR_RETURN(const Ints places,
                      FlatPlaces(ctx->input(0), shape, PlaceOrder::kUnique, "sp_indices"));
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  const absl::Span<const T> values = ctx->input(1).raw<T>();
  const absl::Span<T> to = out->mutable_raw<T>();
  for (size_t begin = 0, end = 0; begin < places.size(); begin = end) {
    const int64_t columns = shape.dims.back(), row = places[begin] / columns;
    T largest = values[begin], sum = 0;
    for (; end < places.size() && places[end] / columns == row; ++end) {
      largest = std::max(largest, values[end]);
    }
    for (size_t i = begin; i < end; ++i) sum += to[i] = std::exp(values[i] - largest);
    for (size_t i = begin; i < end; ++i) to[i] /= sum;
  }
  return absl::OkStatus();
}

// y * (grad - the sum of y * grad in the row)
std::vector<Output> SparseSoftmaxGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output indices = c->input(0), shape = c->input(2), y = c->output(0), grad = c->dense_grad();
  const Output sums =
      SparseReduceSum(s, {indices, Mul(s, y, grad), shape}, Const(s, -1), {.keep_dims = true});
  const Output rest = SparseDenseCwiseAdd(s, {indices, grad, shape}, Neg(s, sums)).values;
  return {Output(), Mul(s, y, rest)};
}

const OpRegistration kSparseSoftmax =
    OpSpec("SparseSoftmax", "sp_indices: int64, sp_values: T, sp_shape: int64 -> output: T",
           "T: {float, double}")
        .With(RuledKernelsFor<SparseSoftmaxRule, float, double>(
            "T", []<typename T>() { return &RunSparseSoftmax<T>; }))
        .Gradient(SparseSoftmaxGradient);

}  // namespace
}  // namespace millrace
