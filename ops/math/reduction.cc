// SPDX-License-Identifier: Apache-2.0
// Reductions: axes become a ReducePlan, whose tasks run on the arena.
#include "ops/math/reduction.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "graph/gradient.h"
#include "graph/partial_value.h"
#include "graph/shape_inference.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/reshape.h"
#include "ops/array/scalar_like.h"
#include "ops/array/transpose.h"
#include "ops/loops/reduce.h"
#include "ops/math/broadcast_gradient.h"
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

// --- Axes ----------------------------------------------------------------------------------------

// The values of the axes tensor. The only place that knows which tensors are legal.
StatusOr<std::vector<int64_t>> AxesOf(const Tensor& t) {
  if (t.rank() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "reduction_indices must be a scalar or a vector, got shape ", t.shape().ToString()));
  }
  std::vector<int64_t> axes;
  for (int64_t i = 0; i < t.num_elements(); ++i) {
    const size_t at = static_cast<size_t>(i);
    axes.push_back(t.dtype() == DT_INT64 ? t.raw<int64_t>()[at] : t.raw<int32_t>()[at]);
  }
  return axes;
}

// Which dimensions of a tensor of this rank are reduced. The only place that knows which axes are
// legal.
StatusOr<std::vector<char>> ReducedDims(int rank, absl::Span<const int64_t> axes) {
  std::vector<char> reduced(static_cast<size_t>(rank), 0);
  for (size_t i = 0; i < axes.size(); ++i) {
    StatusOr<int> axis = ResolveAxis(axes[i], rank);
    if (!axis.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Invalid reduction dimension (reduction_indices[", i, "] must be in [", -rank, ", ", rank,
          ") for input with ", rank, " dimension(s), got ", axes[i], ")"));
    }
    char& flag = reduced[static_cast<size_t>(*axis)];
    if (flag != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("Invalid reduction arguments: Axes contains duplicate dimension: ", *axis));
    }
    flag = 1;
  }
  return reduced;
}

std::vector<int64_t> ResultDims(absl::Span<const int64_t> dims, absl::Span<const char> reduced,
                                bool keep_dims) {
  std::vector<int64_t> result;
  for (size_t i = 0; i < dims.size(); ++i) {
    if (reduced[i] == 0) {
      result.push_back(dims[i]);
    } else if (keep_dims) {
      result.push_back(1);
    }
  }
  return result;
}

Status ReductionShape(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(const bool keep_dims, c->GetAttr<bool>("keep_dims"));
  const PartialShape& input = c->input(0);
  const PartialShape& axes_shape = c->input(1);
  if (axes_shape.has_rank() && axes_shape.rank() > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "reduction_indices must be a scalar or a vector, got shape ", axes_shape.ToString()));
  }
  const Tensor* axes_tensor = c->input_tensor(1);
  if (axes_tensor != nullptr && input.has_rank()) {
    MR_ASSIGN_OR_RETURN(const std::vector<int64_t> axes, AxesOf(*axes_tensor));
    MR_ASSIGN_OR_RETURN(const std::vector<char> reduced, ReducedDims(input.rank(), axes));
    MR_ASSIGN_OR_RETURN(PartialShape shape,
                        PartialShape::Make(ResultDims(input.dims(), reduced, keep_dims)));
    c->set_output(0, std::move(shape));
    return absl::OkStatus();
  }
  if (keep_dims && input.has_rank()) {
    c->set_output(0, PartialShape::UnknownOfRank(input.rank()));
    return absl::OkStatus();
  }
  // Every axis is named once, so their number tells the rank that remains.
  const int64_t count = axes_shape.has_rank() ? axes_shape.num_elements() : -1;
  if (input.has_rank() && count >= 0) {
    if (count > input.rank()) {
      return absl::InvalidArgumentError(
          absl::StrCat("reduction_indices must name at most ", input.rank(), " axes, got ", count));
    }
    c->set_output(0, PartialShape::UnknownOfRank(input.rank() - static_cast<int>(count)));
    return absl::OkStatus();
  }
  c->set_output(0, PartialShape());
  return absl::OkStatus();
}

// --- Kernel --------------------------------------------------------------------------------------

// Reduces `in` along the dimensions marked in `reduced` into `out`, which has the elements that
// remain.
Status Reduce(KernelContext* ctx, const ReduceFns& fns, const Tensor& in,
              absl::Span<const char> reduced, Tensor* out) {
  if (in.num_elements() == 0) {
    fns.fill_empty(out->mutable_raw_data(), out->num_elements());
    return absl::OkStatus();
  }
  absl::InlinedVector<bool, 8> flags;
  for (const char flag : reduced) flags.push_back(flag != 0);
  const ReducePlan plan(in.shape().dims(), flags);
  MR_ASSIGN_OR_RETURN(const int64_t scratch_bytes,
                      CheckedProduct(plan.num_partials(), static_cast<int64_t>(fns.partial_size)));
  MR_ASSIGN_OR_RETURN(const Shape scratch_shape, Shape::Make({scratch_bytes}));
  MR_ASSIGN_OR_RETURN(Tensor scratch, ctx->AllocateTemp(DT_UINT8, scratch_shape));
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

template <ReduceOp kOp>
class ReductionKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    MR_ASSIGN_OR_RETURN(keep_dims_, c->GetAttr<bool>("keep_dims"));
    const DType dtype = WithoutRef(c->input_type(0));
    fns_ = FindReduce(kOp, dtype);
    if (fns_.run == nullptr) {
      return absl::UnimplementedError(absl::StrCat("has no kernel for ", DTypeName(dtype)));
    }
    return absl::OkStatus();
  }

  Status Compute(KernelContext* ctx) const override {
    const Tensor& in = ctx->input(0);
    MR_ASSIGN_OR_RETURN(const std::vector<int64_t> axes, AxesOf(ctx->input(1)));
    MR_ASSIGN_OR_RETURN(const std::vector<char> reduced, ReducedDims(in.rank(), axes));
    MR_ASSIGN_OR_RETURN(const Shape shape,
                        Shape::Make(ResultDims(in.shape().dims(), reduced, keep_dims_)));
    if (shape.num_elements() == in.num_elements() && in.num_elements() > 0) {
      // Nothing but dimensions of size 1 is reduced.
      MR_ASSIGN_OR_RETURN(Tensor same, in.Reshaped(shape));
      ctx->set_output(0, std::move(same));
      return absl::OkStatus();
    }
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    return Reduce(ctx, fns_, in, reduced, out);
  }

 private:
  bool keep_dims_ = false;
  ReduceFns fns_;
};

template <ReduceOp kOp>
KernelSpec ReductionKernels(absl::string_view op) {
  KernelSpec spec = KernelFor<ReductionKernel<kOp>>(op);
  for (int number = 1; number <= kNumDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    if (FindReduce(kOp, dtype).run != nullptr) spec.Type("T", dtype);
  }
  return spec;
}

// --- Gradients -----------------------------------------------------------------------------------

// An int32 vector with one place per dimension of the input: 1 where it is reduced, else 0.
Output ReducedMask(GradientContext* c) {
  const Scope& s = c->scope();
  const Output rank = Rank(s, c->input(0));
  Output axes = c->input(1);
  if (axes.dtype() != DT_INT32) axes = Cast(s, axes, DT_INT32);
  axes = FloorMod(s, Add(s, axes, rank), rank);
  const Output places = Reshape(s, axes, Const<int32_t>(s, {-1, 1}));
  const Output ones =
      Fill(s, Reshape(s, Size(s, axes), Const<int32_t>(s, {1})), Const(s, int32_t{1}));
  return ScatterNd(s, places, ones, Reshape(s, rank, Const<int32_t>(s, {1})));
}

// The shape of the input with the reduced dimensions set to 1: what keep_dims gives. Fully known
// shapes make a constant.
Output KeptDimsShape(GradientContext* c) {
  const Scope& s = c->scope();
  const PartialShape known = s.shape(c->input(0));
  const Tensor* axes_tensor = s.constant_value(c->input(1));
  if (known.IsFullyDefined() && axes_tensor != nullptr) {
    const StatusOr<std::vector<int64_t>> axes = AxesOf(*axes_tensor);
    if (axes.ok()) {
      const StatusOr<std::vector<char>> reduced = ReducedDims(known.rank(), *axes);
      if (reduced.ok()) {
        std::vector<int32_t> dims;
        for (int i = 0; i < known.rank(); ++i) {
          const int64_t size = (*reduced)[static_cast<size_t>(i)] != 0 ? 1 : known.dim(i);
          if (size > std::numeric_limits<int32_t>::max()) break;
          dims.push_back(static_cast<int32_t>(size));
        }
        if (static_cast<int>(dims.size()) == known.rank()) return ConstVector<int32_t>(s, dims);
      }
    }
  }
  const Output shape = ShapeOf(s, c->input(0));
  const Output zeros = ZerosLike(s, shape);
  const Output is_kept = Equal(s, ReducedMask(c), zeros);
  return Select(s, is_kept, shape, OnesLike(s, shape));
}

// The gradient of the result, repeated to the input's shape.
Output SpreadGradient(GradientContext* c, Output grad, Output kept_dims_shape) {
  const Scope& s = c->scope();
  return BroadcastTo(s, Reshape(s, grad, kept_dims_shape), ShapeOf(s, c->input(0)));
}

Status SumGradient(GradientContext* c) {
  const Output grad = c->dense_grad();
  c->set_input_grad(0, SpreadGradient(c, grad, KeptDimsShape(c)));
  return absl::OkStatus();
}

// The gradient of the sum divided by the number of elements that became one.
Status MeanGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output grad = c->dense_grad();
  const Output spread = SpreadGradient(c, grad, KeptDimsShape(c));
  const PartialShape in = s.shape(c->input(0));
  const PartialShape out = s.shape(c->output(0));
  if (in.IsFullyDefined() && out.IsFullyDefined() && out.num_elements() > 0) {
    const int64_t count = in.num_elements() / out.num_elements();
    c->set_input_grad(0, RealDiv(s, spread, ScalarLike(s, spread, static_cast<double>(count))));
    return absl::OkStatus();
  }
  const Output in_size = Size(s, c->input(0));
  const Output out_size = Maximum(s, Size(s, c->output(0)), Const(s, int32_t{1}));
  const Output count = Cast(s, FloorDiv(s, in_size, out_size), spread.dtype());
  c->set_input_grad(0, RealDiv(s, spread, count));
  return absl::OkStatus();
}

// The gradient goes to the elements that equal the result, in equal parts.
Status ExtremeGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output kept = KeptDimsShape(c);
  const Output input_shape = ShapeOf(s, c->input(0));
  const Output y = BroadcastTo(s, Reshape(s, c->output(0), kept), input_shape);
  const Output chosen = Cast(s, Equal(s, y, c->input(0)), c->input(0).dtype());
  const Output count = Reshape(s, Sum(s, chosen, c->input(1)), kept);
  const Output grad = Reshape(s, c->dense_grad(), kept);
  c->set_input_grad(0, Mul(s, RealDiv(s, chosen, count), grad));
  return absl::OkStatus();
}

// d(prod)/dx_i = product of the others. With the reduced dimensions brought to the front, that is
// the product of all before it times the product of all after it, which is right for zeros, too.
Status ProdGradient(GradientContext* c) {
  const Scope& s = c->scope();
  const Output input = c->input(0);
  const Output grad = SpreadGradient(c, c->dense_grad(), KeptDimsShape(c));
  const Output zero = Const(s, int32_t{0});
  const Output one = Const(s, int32_t{1});
  // Where each dimension goes: reduced ones first, both kinds in their order.
  const Output reduced = ReducedMask(c);
  const Output kept = Sub(s, one, reduced);
  const Output before_reduced = Cumsum(s, reduced, zero, {.exclusive = true});
  const Output before_kept = Cumsum(s, kept, zero, {.exclusive = true});
  const Output num_reduced = Sum(s, reduced, zero);
  const Output places =
      Add(s, Mul(s, reduced, before_reduced), Mul(s, kept, Add(s, num_reduced, before_kept)));
  const Output order = InvertPermutation(s, places);
  // As a matrix: a row for each combination of reduced indices.
  const Output turned = Transpose(s, input, order);
  const Output shape = ShapeOf(s, input);
  const Output ones = OnesLike(s, shape);
  const Output zeros = ZerosLike(s, shape);
  const Output is_reduced = Greater(s, reduced, zeros);
  const Output rows = Prod(s, Select(s, is_reduced, shape, ones), zero);
  const Output columns = Prod(s, Select(s, is_reduced, ones, shape), zero);
  const Output matrix_dims[] = {rows, columns};
  const Output matrix = Reshape(s, turned, Pack(s, matrix_dims));
  const Output before = Cumprod(s, matrix, zero, {.exclusive = true});
  const Output after = Cumprod(s, matrix, zero, {.exclusive = true, .reverse = true});
  const Output others = Reshape(s, Mul(s, before, after), ShapeOf(s, turned));
  const Output turned_back = Transpose(s, others, places);
  const Output factor = IsComplex(input.dtype()) ? Conj(s, turned_back) : turned_back;
  c->set_input_grad(0, Mul(s, grad, factor));
  return absl::OkStatus();
}

// --- Definitions ---------------------------------------------------------------------------------

constexpr char kNumbers[] =
    "T: {float, double, int32, uint8, int16, int8, complex64, int64, qint8, quint8, qint32, "
    "bfloat16, uint16, complex128, half, uint32, uint64}";

OpSpec ReductionSpec(absl::string_view op) {
  return OpSpec(op)
      .Input("input: T")
      .Input("reduction_indices: Tidx")
      .Output("output: T")
      .Attr("keep_dims: bool = false")
      .Attr(kNumbers)
      .Attr("Tidx: {int32, int64} = DT_INT32")
      .Shape(ReductionShape);
}

OpSpec LogicalReductionSpec(absl::string_view op) {
  return OpSpec(op)
      .Input("input: bool")
      .Input("reduction_indices: Tidx")
      .Output("output: bool")
      .Attr("keep_dims: bool = false")
      .Attr("Tidx: {int32, int64} = DT_INT32")
      .Shape(ReductionShape)
      .NotDifferentiable();
}

// Of a vector over its only axis.
std::optional<PartialValue> ProdValue(PartialValueContext* c) {
  const std::optional<PartialValue> value = c->input(0);
  std::optional<int64_t> axis = c->input_single(1);
  if (!axis) axis = c->input_scalar(1);
  const PartialShape out = c->output_shape();
  if (!value || value->is_scalar || !axis || (*axis != 0 && *axis != -1) || !out.has_rank() ||
      out.rank() > 1) {
    return std::nullopt;
  }
  std::optional<int64_t> product = 1;
  for (const std::optional<int64_t>& element : value->elements) {
    int64_t next = 0;
    if (!product || !element || __builtin_mul_overflow(*product, *element, &next)) {
      product.reset();
      break;
    }
    product = IfItFits(next, c->dtype());
  }
  return PartialValue{out.rank() == 0, {product}};
}

const OpRegistration kSum = ReductionSpec("Sum").Gradient(SumGradient);
const OpRegistration kMean = ReductionSpec("Mean").Gradient(MeanGradient);
const OpRegistration kProd = ReductionSpec("Prod").Gradient(ProdGradient);
const PartialValueRule kProdRule("Prod", ProdValue);
const OpRegistration kMax = ReductionSpec("Max").Gradient(ExtremeGradient);
const OpRegistration kMin = ReductionSpec("Min").Gradient(ExtremeGradient);
const OpRegistration kAny = LogicalReductionSpec("Any");
const OpRegistration kAll = LogicalReductionSpec("All");
const KernelRegistration kSumKernel = ReductionKernels<ReduceOp::kSum>("Sum");
const KernelRegistration kMeanKernel = ReductionKernels<ReduceOp::kMean>("Mean");
const KernelRegistration kProdKernel = ReductionKernels<ReduceOp::kProd>("Prod");
const KernelRegistration kMaxKernel = ReductionKernels<ReduceOp::kMax>("Max");
const KernelRegistration kMinKernel = ReductionKernels<ReduceOp::kMin>("Min");
const KernelRegistration kAnyKernel = KernelFor<ReductionKernel<ReduceOp::kAny>>("Any");
const KernelRegistration kAllKernel = KernelFor<ReductionKernel<ReduceOp::kAll>>("All");

// --- ArgMax, ArgMin ------------------------------------------------------------------------------

// The axis. The only place that knows which dimensions are legal.
StatusOr<int> ArgAxis(int64_t dimension, const PartialShape& input) {
  if (dimension < -input.rank() || dimension >= input.rank()) {
    return absl::InvalidArgumentError(absl::StrCat("Expected dimension in the range [",
                                                   -input.rank(), ", ", input.rank(), "), but got ",
                                                   dimension));
  }
  const int axis = static_cast<int>(dimension < 0 ? dimension + input.rank() : dimension);
  if (input.dim(axis) == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("Reduction axis ", dimension, " is empty in shape ", input.ToString()));
  }
  return axis;
}

template <ReduceOp kOp>
class ArgReductionKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    const DType dtype = WithoutRef(c->input_type(0));
    fn_ = math::FindArgReduce(kOp, dtype);
    if (fn_ == nullptr) {
      return absl::UnimplementedError(absl::StrCat("has no kernel for ", DTypeName(dtype)));
    }
    element_size_ = static_cast<int64_t>(DTypeSize(dtype));
    return absl::OkStatus();
  }

  Status Compute(KernelContext* ctx) const override {
    const Tensor& in = ctx->input(0);
    MR_ASSIGN_OR_RETURN(const int64_t dimension, ctx->IntScalarInput(1, "dimension"));
    MR_ASSIGN_OR_RETURN(const int axis, ArgAxis(dimension, in.shape()));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, in.shape().WithoutDim(axis)));
    if (out->num_elements() == 0) return absl::OkStatus();
    const int64_t n = in.dim(axis);
    if (out->dtype() == DT_INT32 && n > std::numeric_limits<int32_t>::max()) {
      return absl::InvalidArgumentError(
          absl::StrCat("a dimension of size ", n, " needs output_type int64, got int32"));
    }
    const int64_t outer = in.shape().NumElements(0, axis);
    const int64_t inner = in.shape().NumElements(axis + 1, in.rank());
    // The loop gives int64; int32 is narrowed from scratch.
    Tensor wide;
    int64_t* indices = nullptr;
    if (out->dtype() == DT_INT64) {
      indices = out->mutable_raw<int64_t>().data();
    } else {
      MR_ASSIGN_OR_RETURN(wide, ctx->AllocateTemp(DT_INT64, out->shape()));
      indices = wide.mutable_raw<int64_t>().data();
    }
    const char* from = static_cast<const char*>(in.raw_data());
    const double cost_ns = 1.0 * static_cast<double>(n) * static_cast<double>(inner);
    ctx->ParallelFor(outer, cost_ns, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        fn_(from + i * n * inner * element_size_, n, inner, indices + i * inner);
      }
    });
    if (out->dtype() == DT_INT32) {
      const absl::Span<int32_t> narrow = out->mutable_raw<int32_t>();
      for (size_t i = 0; i < narrow.size(); ++i) narrow[i] = static_cast<int32_t>(indices[i]);
    }
    return absl::OkStatus();
  }

 private:
  math::ArgReduceFn fn_ = nullptr;
  int64_t element_size_ = 0;
};

Status ArgReductionShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(1, 0).status());
  const PartialShape& input = c->input(0);
  if (!input.has_rank()) {
    c->set_output(0, PartialShape());
    return absl::OkStatus();
  }
  const Tensor* dimension = c->input_tensor(1);
  if (dimension == nullptr) {
    if (input.rank() == 0) {
      return absl::InvalidArgumentError("the input must have rank at least 1, got shape []");
    }
    c->set_output(0, PartialShape::UnknownOfRank(input.rank() - 1));
    return absl::OkStatus();
  }
  const int64_t value = dimension->dtype() == DT_INT64 ? dimension->raw_scalar<int64_t>()
                                                       : dimension->raw_scalar<int32_t>();
  MR_ASSIGN_OR_RETURN(const int axis, ArgAxis(value, input));
  std::vector<int64_t> dims(input.dims().begin(), input.dims().end());
  dims.erase(dims.begin() + axis);
  MR_ASSIGN_OR_RETURN(PartialShape shape, PartialShape::Make(dims));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

OpSpec ArgSpec(absl::string_view op) {
  return OpSpec(op)
      .Input("input: T")
      .Input("dimension: Tidx")
      .Output("output: output_type")
      .Attr(kNumbers)
      .Attr("Tidx: {int32, int64} = DT_INT32")
      .Attr("output_type: {int32, int64} = DT_INT64")
      .Shape(ArgReductionShape)
      .NotDifferentiable();
}

template <ReduceOp kOp>
KernelSpec ArgKernels(absl::string_view op) {
  KernelSpec spec = KernelFor<ArgReductionKernel<kOp>>(op);
  for (int number = 1; number <= kNumDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    if (math::FindArgReduce(kOp, dtype) != nullptr) spec.Type("T", dtype);
  }
  return spec;
}

const OpRegistration kArgMax = ArgSpec("ArgMax");
const OpRegistration kArgMin = ArgSpec("ArgMin");
const KernelRegistration kArgMaxKernel = ArgKernels<ReduceOp::kMax>("ArgMax");
const KernelRegistration kArgMinKernel = ArgKernels<ReduceOp::kMin>("ArgMin");

// --- L2Loss --------------------------------------------------------------------------------------

class L2LossKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    fns_ = FindReduce(ReduceOp::kHalfSumOfSquares, WithoutRef(c->input_type(0)));
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    const Tensor& in = ctx->input(0);
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, Shape()));
    const std::vector<char> reduced(static_cast<size_t>(in.rank()), 1);
    return Reduce(ctx, fns_, in, reduced, out);
  }

 private:
  ReduceFns fns_;
};

Status L2LossGradient(GradientContext* c) {
  c->set_input_grad(0, Mul(c->scope(), c->input(0), c->dense_grad()));
  return absl::OkStatus();
}

const OpRegistration kL2Loss = OpSpec("L2Loss")
                                   .Input("t: T")
                                   .Output("output: T")
                                   .Attr("T: {half, bfloat16, float, double}")
                                   .Shape(ScalarShape)
                                   .Gradient(L2LossGradient);
const KernelRegistration kL2LossKernel =
    KernelFor<L2LossKernel>("L2Loss").Types("T", {DT_HALF, DT_BFLOAT16, DT_FLOAT, DT_DOUBLE});

}  // namespace
}  // namespace millrace
