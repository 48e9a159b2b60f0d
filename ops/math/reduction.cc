// SPDX-License-Identifier: Apache-2.0
// Reductions: axes become a ReducePlan, whose tasks run on the arena.
#include "ops/math/reduction.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "graph/gradient.h"
#include "graph/partial_value.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/reshape.h"
#include "ops/array/scalar_like.h"
#include "ops/array/transpose.h"
#include "ops/loops/reduce.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/scan.h"
#include "ops/math/select.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using math::FindReduce;
using math::ReduceFns;
using math::ReduceOp;
using math::ReducePlan;

// --- Rules ---------------------------------------------------------------------------------------

using Flags = absl::InlinedVector<bool, 8>;

// Which dimensions of a tensor of this rank are reduced, as far as the axes are known.
StatusOr<Flags> ReducedDims(int rank, const PartialInts& axes) {
  Flags reduced(static_cast<size_t>(rank), false);
  for (int i = 0; i < axes.size(); ++i) {
    if (!axes.at(i)) continue;
    const StatusOr<int> axis = ResolveAxis(*axes.at(i), rank);
    if (!axis.ok()) {
      return InvalidArgument("Invalid reduction dimension (reduction_indices[", i, "] must be in [",
                             -rank, ", ", rank, ") for input with ", rank, " dimension(s), got ",
                             *axes.at(i), ")");
    }
    bool& flag = reduced[static_cast<size_t>(*axis)];
    if (flag) {
      return InvalidArgument("Invalid reduction arguments: Axes contains duplicate dimension: ",
                             *axis);
    }
    flag = true;
  }
  return reduced;
}

struct ReductionRule {
  bool keep_dims = false;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "keep_dims", &keep_dims); }
  StatusOr<Planned<Flags>> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialInts axes,
                        c->IntVector(1, "reduction_indices", /*allow_scalar=*/true));
    const PartialShape& input = c->input(0);
    if (!input.has_rank()) return input;
    const int rank = input.rank();
    if (!axes.has_size()) return keep_dims ? PartialShape::UnknownOfRank(rank) : PartialShape();
    MR_ASSIGN_OR_RETURN(const Flags reduced, ReducedDims(rank, axes));
    if (axes.size() > rank) {
      return InvalidArgument("reduction_indices must name at most ", rank, " axes, got ",
                             axes.size());
    }
    // Every axis is named once, so their number tells the rank that remains.
    if (!axes.all_known() && !keep_dims) return PartialShape::UnknownOfRank(rank - axes.size());
    std::vector<int64_t> dims;
    for (int d = 0; d < rank; ++d) {
      if (!reduced[static_cast<size_t>(d)]) {
        dims.push_back(axes.all_known() ? input.dim(d) : -1);
      } else if (keep_dims) {
        dims.push_back(1);
      }
    }
    return WithPlan(PartialShape::Make(dims), reduced);
  }
};

// The index of an element along one dimension, which goes.
struct ArgRule {
  DType output_type = DT_INT64;

  Status Init(const NodeAttrs& attrs) { return ReadAttrs(attrs, "output_type", &output_type); }
  StatusOr<Planned<int>> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const std::optional<int64_t> dimension, c->IntScalar(1, "dimension"));
    MR_ASSIGN_OR_RETURN(const PartialShape input, c->InputWithRankAtLeast(0, 1, "the input"));
    if (!input.has_rank()) return input;
    const int rank = input.rank();
    if (!dimension) return PartialShape::UnknownOfRank(rank - 1);
    const StatusOr<int> axis = ResolveAxis(*dimension, rank);
    if (!axis.ok()) {
      return InvalidArgument("Expected dimension in the range [", -rank, ", ", rank, "), but got ",
                             *dimension);
    }
    const int64_t n = input.dim(*axis);
    if (n == 0) {
      return InvalidArgument("Reduction axis ", *dimension, " is empty in shape ", input);
    }
    if (output_type == DT_INT32 && n > std::numeric_limits<int32_t>::max()) {
      return InvalidArgument("a dimension of size ", n, " needs output_type int64, got int32");
    }
    std::vector<int64_t> dims(input.dims().begin(), input.dims().end());
    dims.erase(dims.begin() + *axis);
    return WithPlan(PartialShape::Make(dims), *axis);
  }
};

struct ScalarRule {
  StatusOr<PartialShape> operator()(RuleContext*) const { return PartialShape::Scalar(); }
};

// --- Kernels -------------------------------------------------------------------------------------

// Reduces `in` along the dimensions marked in `reduced` into output 0.
Status Reduce(KernelContext* ctx, const ReduceFns& fns, const Tensor& in, const Flags& reduced) {
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  if (in.num_elements() == 0) {
    fns.fill_empty(out->mutable_raw_data(), out->num_elements());
    return absl::OkStatus();
  }
  const ReducePlan plan(in.shape().dims(), reduced);
  MR_ASSIGN_OR_RETURN(const int64_t scratch_bytes,
                      CheckedProduct(plan.num_partials(), static_cast<int64_t>(fns.partial_size)));
  MR_ASSIGN_OR_RETURN(
      Tensor scratch,
      ctx->AllocateTemp(DT_UINT8, Shape::Vector(static_cast<size_t>(scratch_bytes))));
  void* partials = scratch.mutable_raw_data();
  const void* from = in.raw_data();
  void* to = out->mutable_raw_data();
  // About 5 ns to start a task, and 0.1 ns for an element.
  const double cost_ns = 5 + 0.1 * static_cast<double>(plan.elements_per_task());
  ctx->ParallelFor(plan.num_tasks(), cost_ns, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) fns.run(plan, task, from, partials);
  });
  const double parts = static_cast<double>(plan.num_partials()) /
                       static_cast<double>(std::max<int64_t>(1, plan.num_outputs()));
  ctx->ParallelFor(plan.num_outputs(), parts,
                   [&](int64_t begin, int64_t end) { fns.finish(plan, begin, end, partials, to); });
  return absl::OkStatus();
}

Status RunReduction(KernelContext* ctx, const ReductionRule& rule, ReduceFns fns) {
  const Tensor& in = ctx->input(0);
  // Nothing but dimensions of size 1 is reduced.
  const int64_t n = in.num_elements();
  if (n > 0 && n == ctx->output_shape(0).num_elements()) return ctx->PassInput(0);
  return Reduce(ctx, fns, in, ctx->plan(rule));
}

Status RunL2Loss(KernelContext* ctx, const ScalarRule&, ReduceFns fns) {
  const Tensor& in = ctx->input(0);
  return Reduce(ctx, fns, in, Flags(static_cast<size_t>(in.rank()), true));
}

Status RunArgReduction(KernelContext* ctx, const ArgRule& rule, math::ArgReduceFn fn) {
  const Tensor& in = ctx->input(0);
  const int axis = ctx->plan(rule);
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  if (out->num_elements() == 0) return absl::OkStatus();
  const int64_t n = in.dim(axis);
  const int64_t outer = in.shape().NumElements(0, axis);
  const int64_t inner = in.shape().NumElements(axis + 1, in.rank());
  // The loop gives int64; int32 is narrowed from scratch.
  Tensor wide = *out;
  if (out->dtype() == DT_INT32) {
    MR_ASSIGN_OR_RETURN(wide, ctx->AllocateTemp(DT_INT64, out->shape()));
  }
  int64_t* const indices = wide.mutable_raw<int64_t>().data();
  const int64_t step = n * inner * static_cast<int64_t>(DTypeSize(in.dtype()));
  const char* from = static_cast<const char*>(in.raw_data());
  const double cost_ns = 1.0 * static_cast<double>(n) * static_cast<double>(inner);
  ctx->ParallelFor(outer, cost_ns, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) fn(from + i * step, n, inner, indices + i * inner);
  });
  if (out->dtype() == DT_INT32) {
    std::transform(indices, indices + out->num_elements(), out->mutable_raw<int32_t>().begin(),
                   [](int64_t index) { return static_cast<int32_t>(index); });
  }
  return absl::OkStatus();
}

// --- Gradients -----------------------------------------------------------------------------------

// An int32 vector with one place per dimension of the input: 1 where it is reduced, else 0.
Output ReducedMask(GradientContext* c) {
  const Scope& s = c->scope();
  const Output rank = Rank(s, c->input(0)), one = Const<int32_t>(s, {1});
  Output axes = c->input(1);
  if (axes.dtype() != DT_INT32) axes = Cast(s, axes, DT_INT32);
  axes = FloorMod(s, Add(s, axes, rank), rank);
  const Output places = Reshape(s, axes, Const<int32_t>(s, {-1, 1}));
  const Output ones = Fill(s, Reshape(s, Size(s, axes), one), Const(s, 1));
  return ScatterNd(s, places, ones, Reshape(s, rank, one));
}

// The shape of the input with the reduced dimensions set to 1: what keep_dims gives. Fully known
// shapes make a constant.
Output KeptDimsShape(GradientContext* c) {
  const Scope& s = c->scope();
  const PartialShape known = s.shape(c->input(0));
  const Tensor* axes = s.constant_value(c->input(1));
  if (known.IsFullyDefined() && axes != nullptr) {
    const StatusOr<Flags> reduced = ReducedDims(known.rank(), PartialInts(axes->ints()));
    std::vector<int32_t> dims;
    for (int i = 0; reduced.ok() && i < known.rank(); ++i) {
      const int64_t size = (*reduced)[static_cast<size_t>(i)] ? 1 : known.dim(i);
      if (size > std::numeric_limits<int32_t>::max()) break;
      dims.push_back(static_cast<int32_t>(size));
    }
    if (static_cast<int>(dims.size()) == known.rank()) return ConstVector<int32_t>(s, dims);
  }
  const Output shape = ShapeOf(s, c->input(0));
  const Output is_kept = Equal(s, ReducedMask(c), ZerosLike(s, shape));
  return Select(s, is_kept, shape, OnesLike(s, shape));
}

// The gradient of a sum: that of the result, repeated to the input's shape.
Output SumGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output grad = c->dense_grad();
  return BroadcastTo(s, Reshape(s, grad, KeptDimsShape(c)), ShapeOf(s, c->input(0)));
}

// The gradient of the sum divided by the number of elements that became one.
Output MeanGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output spread = SumGradient(c);
  const PartialShape in = s.shape(c->input(0)), out = s.shape(c->output(0));
  if (in.IsFullyDefined() && out.IsFullyDefined() && out.num_elements() > 0) {
    const int64_t count = in.num_elements() / out.num_elements();
    return RealDiv(s, spread, ScalarLike(s, spread, static_cast<double>(count)));
  }
  const Output in_size = Size(s, c->input(0));
  const Output out_size = Maximum(s, Size(s, c->output(0)), Const(s, 1));
  return RealDiv(s, spread, Cast(s, FloorDiv(s, in_size, out_size), spread.dtype()));
}

// The gradient goes to the elements that equal the result, in equal parts.
Output ExtremeGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output kept = KeptDimsShape(c);
  const Output y = BroadcastTo(s, Reshape(s, c->output(0), kept), ShapeOf(s, c->input(0)));
  const Output chosen = Cast(s, Equal(s, y, c->input(0)), c->input(0).dtype());
  const Output count = Reshape(s, Sum(s, chosen, c->input(1)), kept);
  return Mul(s, RealDiv(s, chosen, count), Reshape(s, c->dense_grad(), kept));
}

// d(prod)/dx_i = product of the others. With the reduced dimensions brought to the front, that is
// the product of all before it times the product of all after it, which is right for zeros, too.
Output ProdGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output input = c->input(0);
  const Output grad = SumGradient(c);
  const Output zero = Const(s, 0);
  // Where each dimension goes: reduced ones first, both kinds in their order.
  const Output reduced = ReducedMask(c);
  const Output kept = Sub(s, Const(s, 1), reduced);
  const Output before_reduced = Cumsum(s, reduced, zero, {.exclusive = true});
  const Output before_kept = Cumsum(s, kept, zero, {.exclusive = true});
  const Output num_reduced = Sum(s, reduced, zero);
  const Output places =
      Add(s, Mul(s, reduced, before_reduced), Mul(s, kept, Add(s, num_reduced, before_kept)));
  // As a matrix: a row for each combination of reduced indices.
  const Output turned = Transpose(s, input, InvertPermutation(s, places));
  const Output shape = ShapeOf(s, input), ones = OnesLike(s, shape);
  const Output is_reduced = Greater(s, reduced, ZerosLike(s, shape));
  const Output rows = Prod(s, Select(s, is_reduced, shape, ones), zero);
  const Output columns = Prod(s, Select(s, is_reduced, ones, shape), zero);
  const Output matrix = Reshape(s, turned, Pack(s, {rows, columns}));
  const Output before = Cumprod(s, matrix, zero, {.exclusive = true});
  const Output after = Cumprod(s, matrix, zero, {.exclusive = true, .reverse = true});
  const Output others = Reshape(s, Mul(s, before, after), ShapeOf(s, turned));
  const Output factor = Transpose(s, others, places);
  return Mul(s, grad, IsComplex(input.dtype()) ? Conj(s, factor) : factor);
}

Output L2LossGradient(GradientContext* c) { return Mul(c->scope(), c->input(0), c->dense_grad()); }

// Of a vector over its only axis.
std::optional<PartialValue> ProdValue(PartialValueContext* c) {
  const std::optional<PartialValue> value = c->input(0);
  const std::optional<int64_t> axis = c->input_single(1) ? c->input_single(1) : c->input_scalar(1);
  const PartialShape out = c->output_shape();
  if (!value || value->is_scalar || (axis != 0 && axis != -1) || !out.has_rank()) {
    return std::nullopt;
  }
  std::optional<int64_t> product = 1;
  for (const std::optional<int64_t>& element : value->elements) {
    int64_t next = 0;
    const bool known = product && element && !__builtin_mul_overflow(*product, *element, &next);
    product = known ? IfItFits(next, c->dtype()) : std::nullopt;
  }
  return PartialValue{out.rank() == 0, {product}};
}

// --- Definitions ---------------------------------------------------------------------------------

template <ReduceOp kOp>
ReduceFns Find(DType dtype) {
  return FindReduce(kOp, dtype);
}
template <ReduceOp kOp>
math::ArgReduceFn FindArg(DType dtype) {
  return math::FindArgReduce(kOp, dtype);
}

template <ReduceOp kOp>
OpSpec ReductionSpec(absl::string_view op) {
  return OpSpec(op, "input: T, reduction_indices: Tidx -> output: T",
                "keep_dims: bool = false; T: numbertype; Tidx: {int32, int64} = DT_INT32")
      .With(RuledLoopKernelFor<ReductionRule>(Find<kOp>, RunReduction)
                .TypesWith("T", [](DType dtype) { return Find<kOp>(dtype).run != nullptr; }));
}
template <ReduceOp kOp>
OpSpec LogicalReductionSpec(absl::string_view op) {
  return OpSpec(op, "input: bool, reduction_indices: Tidx -> output: bool",
                "keep_dims: bool = false; Tidx: {int32, int64} = DT_INT32")
      .With(RuledLoopKernelFor<ReductionRule>(Find<kOp>, RunReduction))
      .NotDifferentiable();
}
template <ReduceOp kOp>
OpSpec ArgSpec(absl::string_view op) {
  return OpSpec(op, "input: T, dimension: Tidx -> output: output_type",
                "T: numbertype; Tidx: {int32, int64} = DT_INT32; "
                "output_type: {int32, int64} = DT_INT64")
      .With(RuledLoopKernelFor<ArgRule>(FindArg<kOp>, RunArgReduction).TypesWith("T", FindArg<kOp>))
      .NotDifferentiable();
}

const OpRegistration kSum = ReductionSpec<ReduceOp::kSum>("Sum").Gradient(SumGradient);
const OpRegistration kMean = ReductionSpec<ReduceOp::kMean>("Mean").Gradient(MeanGradient);
const OpRegistration kProd =
    ReductionSpec<ReduceOp::kProd>("Prod").Gradient(ProdGradient).With(PartialValueRule(ProdValue));
const OpRegistration kMax = ReductionSpec<ReduceOp::kMax>("Max").Gradient(ExtremeGradient);
const OpRegistration kMin = ReductionSpec<ReduceOp::kMin>("Min").Gradient(ExtremeGradient);
const OpRegistration kAny = LogicalReductionSpec<ReduceOp::kAny>("Any");
const OpRegistration kAll = LogicalReductionSpec<ReduceOp::kAll>("All");
const OpRegistration kArgMax = ArgSpec<ReduceOp::kMax>("ArgMax");
const OpRegistration kArgMin = ArgSpec<ReduceOp::kMin>("ArgMin");
const OpRegistration kL2Loss =
    OpSpec("L2Loss", "t: T -> output: T", "T: {half, bfloat16, float, double}")
        .With(RuledLoopKernelFor<ScalarRule>(Find<ReduceOp::kHalfSumOfSquares>, RunL2Loss))
        .Gradient(L2LossGradient);

}  // namespace
}  // namespace millrace
