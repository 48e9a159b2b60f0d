// SPDX-License-Identifier: Apache-2.0
#include "ops/array/gather.h"

#include <algorithm>
#include <atomic>
#include <complex>
#include <cstring>
#include <optional>
#include <vector>

#include "graph/gradient.h"
#include "graph/op_registry.h"
#include "graph/partial_value.h"
#include "graph/shape_inference.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/array/transpose.h"
#include "ops/rules/elements.h"
#include "ops/rules/int_inputs.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

// "1,0" for flat index 2 of shape [2,2].
std::string IndexText(const Shape& shape, int64_t flat) {
  std::string text;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    text = absl::StrCat(flat % shape.dim(d), text.empty() ? "" : ",", text);
    flat /= shape.dim(d);
  }
  return text;
}

// Position of the first index outside of [0, limit), or -1.
template <typename Index>
int64_t FirstOutside(const Tensor& indices, int64_t limit) {
  const absl::Span<const Index> values = indices.raw<Index>();
  for (size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0 || int64_t{values[i]} >= limit) return static_cast<int64_t>(i);
  }
  return -1;
}

template <typename Index>
Status CheckIndices(const Tensor& indices, int64_t limit) {
  const int64_t bad = FirstOutside<Index>(indices, limit);
  if (bad < 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "indices[", IndexText(indices.shape(), bad),
      "] = ", indices.raw<Index>()[static_cast<size_t>(bad)], " is not in [0, ", limit, ")"));
}

// Copies one slice.
template <typename E>
void CopySlice(const E* from, int64_t size, E* to) {
  if constexpr (std::is_trivially_copyable_v<E>) {
    if (size == 1) {
      *to = *from;
    } else {
      std::memcpy(to, from, static_cast<size_t>(size) * sizeof(E));
    }
  } else {
    std::copy(from, from + size, to);
  }
}

// --- Gather, GatherV2 ----------------------------------------------------------------------------

// Axis and number of batch dimensions, counted from the front.
struct GatherPlace {
  int axis, batch_dims;
};

// The only place that knows which (params, indices, axis, batch_dims) are legal. Both have a rank.
StatusOr<GatherPlace> ResolveGather(const PartialShape& params, const PartialShape& indices,
                                    int64_t axis, int64_t batch_dims) {
  if (params.rank() < 1) {
    return absl::InvalidArgumentError("params must have rank >= 1, got shape []");
  }
  MR_ASSIGN_OR_RETURN(const int at, ResolveAxis(axis, params.rank()));
  if (batch_dims < -indices.rank() || batch_dims > indices.rank()) {
    return absl::InvalidArgumentError(absl::StrCat("batch_dims must be in [", -indices.rank(), ", ",
                                                   indices.rank(), "], got ", batch_dims));
  }
  const int batch = static_cast<int>(batch_dims < 0 ? batch_dims + indices.rank() : batch_dims);
  if (batch > at) {
    return absl::InvalidArgumentError(
        absl::StrCat("batch_dims must be <= axis ", at, ", got ", batch));
  }
  for (int d = 0; d < batch; ++d) {
    if (params.dim(d) != indices.dim(d) && params.dim(d) != -1 && indices.dim(d) != -1) {
      return absl::InvalidArgumentError(
          absl::StrCat("params and indices must agree in batch dimension ", d, ", got shapes ",
                       params.ToString(), " and ", indices.ToString()));
    }
  }
  return GatherPlace{at, batch};
}

StatusOr<PartialShape> GatheredShape(const PartialShape& params, const PartialShape& indices,
                                     const GatherPlace& place) {
  Ints dims(params.dims().begin(), params.dims().begin() + place.axis);
  dims.insert(dims.end(), indices.dims().begin() + place.batch_dims, indices.dims().end());
  dims.insert(dims.end(), params.dims().begin() + place.axis + 1, params.dims().end());
  return PartialShape::Make(dims);
}

Status GatherShapeOf(InferenceContext* c, std::optional<int64_t> axis, int64_t batch_dims) {
  MR_ASSIGN_OR_RETURN(const PartialShape params, c->InputWithRankAtLeast(0, 1));
  const PartialShape& indices = c->input(1);
  if (!params.has_rank() || !indices.has_rank()) return absl::OkStatus();
  if (!axis) {
    const int64_t rank = int64_t{params.rank()} + indices.rank() - 1 -
                         (batch_dims < 0 ? batch_dims + indices.rank() : batch_dims);
    if (rank >= 0 && rank <= Shape::kMaxRank) {
      c->set_output(0, PartialShape::UnknownOfRank(static_cast<int>(rank)));
    }
    return absl::OkStatus();
  }
  MR_ASSIGN_OR_RETURN(const GatherPlace place, ResolveGather(params, indices, *axis, batch_dims));
  MR_ASSIGN_OR_RETURN(PartialShape shape, GatheredShape(params, indices, place));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}
Status GatherV2Shape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(2, 0).status());
  MR_ASSIGN_OR_RETURN(const int64_t batch_dims, c->GetAttr<int64_t>("batch_dims"));
  return GatherShapeOf(c, ConstantInt(c, 2), batch_dims);
}
Status GatherV1Shape(InferenceContext* c) { return GatherShapeOf(c, 0, 0); }

// out[b, o, i, :] = params[b, o, indices[b, i], :].
template <typename Index>
class GatherKernel : public Kernel {
 public:
  Status Init(KernelConstruction* c) override {
    has_axis_ = c->num_inputs() > 2;
    if (has_axis_) {
      MR_ASSIGN_OR_RETURN(batch_dims_, c->GetAttr<int64_t>("batch_dims"));
    }
    return absl::OkStatus();
  }
  Status Compute(KernelContext* ctx) const override {
    int64_t axis = 0;
    if (has_axis_) {
      MR_ASSIGN_OR_RETURN(axis, ctx->IntScalarInput(2, "axis"));
    }
    const Tensor params = ctx->input(0);
    const Tensor indices = ctx->input(1);
    MR_ASSIGN_OR_RETURN(const GatherPlace place,
                        ResolveGather(params.shape(), indices.shape(), axis, batch_dims_));
    MR_ASSIGN_OR_RETURN(const PartialShape known,
                        GatheredShape(params.shape(), indices.shape(), place));
    MR_ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    const Shape& p = params.shape();
    const int64_t limit = p.dim(place.axis);
    MR_RETURN_IF_ERROR(CheckIndices<Index>(indices, limit));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    if (shape.num_elements() == 0) return absl::OkStatus();
    const int64_t outer = p.NumElements(place.batch_dims, place.axis);
    const int64_t inner = p.NumElements(place.axis + 1, p.rank());
    const int64_t n = indices.shape().NumElements(place.batch_dims, indices.rank());
    const Index* index = indices.raw<Index>().data();
    return VisitElements(params.dtype(), [&]<typename E>() {
      const E* from = ElementsOf<E>(params);
      E* to = MutableElementsOf<E>(out);
      const int64_t slices = shape.num_elements() / inner;
      ctx->ParallelFor(slices, 3 + 0.1 * static_cast<double>(inner) * sizeof(E),
                       [=](int64_t begin, int64_t end) {
                         for (int64_t s = begin; s < end; ++s) {
                           const int64_t block = s / n;  // b * outer + o
                           const int64_t row = index[block / outer * n + s % n];
                           CopySlice(from + (block * limit + row) * inner, inner, to + s * inner);
                         }
                       });
    });
  }

 private:
  bool has_axis_ = false;
  int64_t batch_dims_ = 0;
};

Output Binary(const Scope& scope, const char* op, Output a, Output b) {
  return NodeBuilder(scope, op).Input(a).Input(b).Finish().output(0);
}
Output IntsConst(const Scope& scope, std::initializer_list<int32_t> values) {
  return Const<int32_t>(scope, values);
}
// The product of a vector as a vector of one element.
Output ProductOf(const Scope& scope, Output vector) {
  return NodeBuilder(scope, "Prod")
      .Input(vector)
      .Input(IntsConst(scope, {0}))
      .Attr("keep_dims", true)
      .Finish()
      .output(0);
}

// Rows of the first dimension: what an embedding's gradient is.
void SetSlicesGradient(GradientContext* c) {
  const Scope& scope = c->scope();
  const Output shape = ShapeOf(scope, c->input(0));
  const Output row = StridedSlice(scope, shape, IntsConst(scope, {1}), IntsConst(scope, {0}),
                                  IntsConst(scope, {1}), {.end_mask = 1});
  const Output count = Reshape(scope, Size(scope, c->input(1)), IntsConst(scope, {1}));
  IndexedSlices slices;
  slices.values =
      Reshape(scope, c->dense_grad(0), ConcatV2(scope, {count, row}, Const(scope, int32_t{0})));
  slices.indices = Reshape(scope, c->input(1), IntsConst(scope, {-1}));
  slices.dense_shape = shape;
  c->set_input_grad(0, slices);
}

// Any axis: params are seen as [batch, outer, dim, inner], the gradient as [batch, outer, n,
// inner]; both turned to [batch * dim or n, outer, inner], the rows are added up by index.
Status SetDenseGradient(GradientContext* c, Output axis, int64_t batch_dims) {
  const Scope& scope = c->scope();
  const Output shape = ShapeOf(scope, c->input(0));
  Output indices = c->input(1);
  const Output one = IntsConst(scope, {1}), zero = IntsConst(scope, {0});
  if (axis.dtype() != DT_INT32) {
    axis = NodeBuilder(scope, "Cast").Input(axis).Attr("DstT", DT_INT32).Finish().output(0);
  }
  const Output at = Reshape(scope, Binary(scope, "FloorMod", axis, Rank(scope, c->input(0))), one);
  const Output after = Binary(scope, "Add", at, one);
  Output batch_end = IntsConst(scope, {static_cast<int32_t>(batch_dims)});
  if (batch_dims < 0) {
    batch_end = Reshape(
        scope,
        Binary(scope, "Add", Rank(scope, indices), Const(scope, static_cast<int32_t>(batch_dims))),
        one);
  }
  const auto part = [&](Output of, Output begin, Output end, int64_t end_mask) {
    return StridedSlice(scope, of, begin, end, one, {.end_mask = end_mask});
  };
  const Output batch = ProductOf(scope, part(shape, zero, batch_end, 0));
  const Output outer = ProductOf(scope, part(shape, batch_end, at, 0));
  const Output dim = part(shape, at, after, 0);
  const Output inner = ProductOf(scope, part(shape, after, zero, 1));
  const Output n = ProductOf(scope, part(ShapeOf(scope, indices), batch_end, zero, 1));
  const Output axis0 = Const(scope, int32_t{0});
  const auto shaped = [&](Output x, absl::Span<const Output> dims) {
    return Reshape(scope, x, ConcatV2(scope, dims, axis0));
  };
  // Index i of batch b stands for row b * dim + i.
  if (batch_dims != 0) {
    const auto cast = [&](Output x) {
      if (x.dtype() == indices.dtype()) return x;
      return NodeBuilder(scope, "Cast").Input(x).Attr("DstT", indices.dtype()).Finish().output(0);
    };
    const Output scalar = IntsConst(scope, {});
    const Output batches =
        Range(scope, Const(scope, int32_t{0}), Reshape(scope, batch, scalar), Const(scope, 1));
    const Output offsets = cast(Binary(scope, "Mul", batches, dim));
    indices = Binary(scope, "Add", shaped(indices, {batch, n}), shaped(offsets, {batch, one}));
  }
  indices = Reshape(scope, indices, IntsConst(scope, {-1}));
  const Output swap = IntsConst(scope, {0, 2, 1, 3});
  const Output rows =
      shaped(Transpose(scope, shaped(c->dense_grad(0), {batch, outer, n, inner}), swap),
             {Binary(scope, "Mul", batch, n), outer, inner});
  const Output sums =
      NodeBuilder(scope, "UnsortedSegmentSum")
          .Input(rows)
          .Input(indices)
          .Input(Reshape(scope, Binary(scope, "Mul", batch, dim), IntsConst(scope, {})))
          .Finish()
          .output(0);
  const Output grad = Transpose(scope, shaped(sums, {batch, dim, outer, inner}), swap);
  c->set_input_grad(0, Reshape(scope, grad, shape));
  return absl::OkStatus();
}

Status GatherV2Gradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const int64_t batch_dims, c->GetAttr<int64_t>("batch_dims"));
  const Tensor* axis = c->scope().constant_value(c->input(2));
  if (axis != nullptr && axis->num_elements() == 1 && IntElements(*axis)[0] == 0 &&
      batch_dims == 0) {
    SetSlicesGradient(c);
    return absl::OkStatus();
  }
  return SetDenseGradient(c, c->input(2), batch_dims);
}
Status GatherV1Gradient(GradientContext* c) {
  if (c->has_grad(0)) SetSlicesGradient(c);
  return absl::OkStatus();
}

// Elements of a vector.
std::optional<PartialValue> GatherV1Value(PartialValueContext* c) {
  const std::optional<PartialValue> params = c->input(0);
  const std::optional<PartialValue> indices = c->input(1);
  if (!params || params->is_scalar || !indices) return std::nullopt;
  PartialValue gathered;
  gathered.is_scalar = indices->is_scalar;
  for (const std::optional<int64_t>& i : indices->elements) {
    if (i && (*i < 0 || *i >= static_cast<int64_t>(params->elements.size()))) return std::nullopt;
    gathered.elements.push_back(i ? params->elements[static_cast<size_t>(*i)] : std::nullopt);
  }
  return gathered;
}
std::optional<PartialValue> GatherV2Value(PartialValueContext* c) {
  const std::optional<int64_t> axis = c->input_scalar(2);
  const StatusOr<int64_t> batch_dims = c->GetAttr<int64_t>("batch_dims");
  if (!axis || (*axis != 0 && *axis != -1) || !batch_dims.ok() || *batch_dims != 0) {
    return std::nullopt;
  }
  return GatherV1Value(c);
}

const OpRegistration kGatherV2 = OpSpec("GatherV2")
                                     .Input("params: Tparams")
                                     .Input("indices: Tindices")
                                     .Input("axis: Taxis")
                                     .Output("output: Tparams")
                                     .Attr("batch_dims: int = 0")
                                     .Attr("Tparams: type")
                                     .Attr("Tindices: {int32, int64}")
                                     .Attr("Taxis: {int32, int64}")
                                     .Shape(GatherV2Shape)
                                     .Gradient(GatherV2Gradient);
const PartialValueRule kGatherV2Rule("GatherV2", GatherV2Value);
const KernelRegistration kGatherV2Kernel32 =
    KernelFor<GatherKernel<int32_t>>("GatherV2").Type<int32_t>("Tindices");
const KernelRegistration kGatherV2Kernel64 =
    KernelFor<GatherKernel<int64_t>>("GatherV2").Type<int64_t>("Tindices");

const OpRegistration kGather = OpSpec("Gather")
                                   .Input("params: Tparams")
                                   .Input("indices: Tindices")
                                   .Output("output: Tparams")
                                   .Attr("validate_indices: bool = true")
                                   .Attr("Tparams: type")
                                   .Attr("Tindices: {int32, int64}")
                                   .Shape(GatherV1Shape)
                                   .Gradient(GatherV1Gradient);
const PartialValueRule kGatherRule("Gather", GatherV1Value);
const KernelRegistration kGatherKernel32 =
    KernelFor<GatherKernel<int32_t>>("Gather").Type<int32_t>("Tindices");
const KernelRegistration kGatherKernel64 =
    KernelFor<GatherKernel<int64_t>>("Gather").Type<int64_t>("Tindices");

// --- GatherNd, ScatterNd -------------------------------------------------------------------------

// How many dimensions of `params` one index names; the only place that knows which are legal.
StatusOr<int> IndexDepth(const PartialShape& indices, const PartialShape& params) {
  if (indices.rank() < 1) {
    return absl::InvalidArgumentError("indices must have rank >= 1, got shape []");
  }
  const int64_t depth = indices.dim(indices.rank() - 1);
  if (depth == -1) return -1;
  if (depth > params.rank()) {
    return absl::InvalidArgumentError(absl::StrCat("the last dimension of indices must be at most ",
                                                   params.rank(), ", the rank of the tensor, got ",
                                                   depth));
  }
  return static_cast<int>(depth);
}

// indices.shape[:-1] + params.shape[depth:].
StatusOr<PartialShape> NdSlicesShape(const PartialShape& indices, const PartialShape& params,
                                     int depth) {
  Ints dims(indices.dims().begin(), indices.dims().end() - 1);
  dims.insert(dims.end(), params.dims().begin() + depth, params.dims().end());
  return PartialShape::Make(dims);
}

Status GatherNdShape(InferenceContext* c) {
  const PartialShape& params = c->input(0);
  const PartialShape& indices = c->input(1);
  if (!params.has_rank() || !indices.has_rank()) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const int depth, IndexDepth(indices, params));
  if (depth == -1) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(PartialShape shape, NdSlicesShape(indices, params, depth));
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

// The flat slice that each index names.
template <typename Index>
StatusOr<Ints> FlatSlices(const Tensor& indices, const Shape& params, int depth) {
  const absl::Span<const Index> values = indices.raw<Index>();
  const int64_t n = indices.shape().NumElements(0, indices.rank() - 1);
  Ints slices(static_cast<size_t>(n), 0);
  size_t at = 0;
  for (int64_t& slice : slices) {
    for (int d = 0; d < depth; ++d, ++at) {
      const int64_t i = values[at];
      if (i < 0 || i >= params.dim(d)) {
        const Index* const index = values.data() + (at - static_cast<size_t>(d));
        std::string text;
        for (int k = 0; k < depth; ++k) text += absl::StrCat(k > 0 ? "," : "", index[k]);
        const int64_t row = static_cast<int64_t>(at) / depth;
        return absl::InvalidArgumentError(
            absl::StrCat("indices[", IndexText(indices.shape().Slice(0, indices.rank() - 1), row),
                         "] = [", text, "] does not index into shape ", params.ToString()));
      }
      slice = slice * params.dim(d) + i;
    }
  }
  return slices;
}

template <typename Index>
class GatherNdKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Tensor params = ctx->input(0);
    const Tensor indices = ctx->input(1);
    MR_ASSIGN_OR_RETURN(const int depth, IndexDepth(indices.shape(), params.shape()));
    MR_ASSIGN_OR_RETURN(const PartialShape known,
                        NdSlicesShape(indices.shape(), params.shape(), depth));
    MR_ASSIGN_OR_RETURN(const Shape shape, known.ToShape());
    MR_ASSIGN_OR_RETURN(const Ints slices, FlatSlices<Index>(indices, params.shape(), depth));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    if (shape.num_elements() == 0) return absl::OkStatus();
    const int64_t inner = params.shape().NumElements(depth, params.rank());
    return VisitElements(params.dtype(), [&]<typename E>() {
      const E* from = ElementsOf<E>(params);
      E* to = MutableElementsOf<E>(out);
      const int64_t* slice = slices.data();
      ctx->ParallelFor(static_cast<int64_t>(slices.size()),
                       3 + 0.1 * static_cast<double>(inner) * sizeof(E),
                       [=](int64_t begin, int64_t end) {
                         for (int64_t i = begin; i < end; ++i) {
                           CopySlice(from + slice[i] * inner, inner, to + i * inner);
                         }
                       });
    });
  }
};

Status GatherNdGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& scope = c->scope();
  const Output shape = ShapeOf(scope, c->input(0), {.out_type = c->input(1).dtype()});
  c->set_input_grad(0, ScatterNd(scope, c->input(1), c->dense_grad(0), shape));
  return absl::OkStatus();
}

const OpRegistration kGatherNd = OpSpec("GatherNd")
                                     .Input("params: Tparams")
                                     .Input("indices: Tindices")
                                     .Output("output: Tparams")
                                     .Attr("Tparams: type")
                                     .Attr("Tindices: {int32, int64}")
                                     .Shape(GatherNdShape)
                                     .Gradient(GatherNdGradient);
const KernelRegistration kGatherNdKernel32 =
    KernelFor<GatherNdKernel<int32_t>>("GatherNd").Type<int32_t>("Tindices");
const KernelRegistration kGatherNdKernel64 =
    KernelFor<GatherNdKernel<int64_t>>("GatherNd").Type<int64_t>("Tindices");

// The only place that knows which updates fit.
Status CheckNdUpdates(const PartialShape& indices, const PartialShape& updates,
                      const PartialShape& shape) {
  MR_ASSIGN_OR_RETURN(const int depth, IndexDepth(indices, shape));
  if (depth == -1) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const PartialShape want, NdSlicesShape(indices, shape, depth));
  if (!updates.IsCompatibleWith(want)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "updates must have shape ", want.ToString(), " for indices ", indices.ToString(),
        " into shape ", shape.ToString(), ", got ", updates.ToString()));
  }
  return absl::OkStatus();
}

Status ScatterNdShape(InferenceContext* c) {
  MR_RETURN_IF_ERROR(c->InputWithRank(2, 1).status());
  MR_ASSIGN_OR_RETURN(PartialShape shape, c->input_as_shape(2));
  if (shape.has_rank() && c->input(0).has_rank()) {
    MR_RETURN_IF_ERROR(CheckNdUpdates(c->input(0), c->input(1), shape));
  }
  c->set_output(0, std::move(shape));
  return absl::OkStatus();
}

template <typename T, typename Index>
class ScatterNdKernel : public Kernel {
 public:
  Status Compute(KernelContext* ctx) const override {
    const Tensor& indices = ctx->input(0);
    const Tensor& updates = ctx->input(1);
    MR_ASSIGN_OR_RETURN(const Ints dims, ctx->IntVectorInput(2, "shape"));
    MR_ASSIGN_OR_RETURN(const Shape shape, Shape::Make(dims));
    MR_RETURN_IF_ERROR(CheckNdUpdates(indices.shape(), updates.shape(), shape));
    MR_ASSIGN_OR_RETURN(const int depth, IndexDepth(indices.shape(), shape));
    MR_ASSIGN_OR_RETURN(const Ints slices, FlatSlices<Index>(indices, shape, depth));
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0, shape));
    absl::Span<T> to = out->mutable_raw<T>();
    std::fill(to.begin(), to.end(), T{0});
    const int64_t inner = shape.NumElements(depth, shape.rank());
    const T* from = ctx->input(1).template raw<T>().data();
    for (const int64_t slice : slices) {
      T* const row = to.data() + slice * inner;
      for (int64_t i = 0; i < inner; ++i) {
        if constexpr (std::is_integral_v<T>) {  // wraps
          using U = std::make_unsigned_t<T>;
          row[i] = static_cast<T>(static_cast<U>(row[i]) + static_cast<U>(from[i]));
        } else {
          row[i] += from[i];
        }
      }
      from += inner;
    }
    return absl::OkStatus();
  }
};

Status ScatterNdGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  c->set_input_grad(1, GatherNd(c->scope(), c->dense_grad(0), c->input(0)));
  return absl::OkStatus();
}

const OpRegistration kScatterNd = OpSpec("ScatterNd")
                                      .Input("indices: Tindices")
                                      .Input("updates: T")
                                      .Input("shape: Tindices")
                                      .Output("output: T")
                                      .Attr("T: type")
                                      .Attr("Tindices: {int32, int64}")
                                      .Shape(ScatterNdShape)
                                      .Gradient(ScatterNdGradient);

template <typename T>
struct ScatterNdKernels {
  KernelRegistration with32 = KernelFor<ScatterNdKernel<T, int32_t>>("ScatterNd")
                                  .template Type<T>("T")
                                  .template Type<int32_t>("Tindices");
  KernelRegistration with64 = KernelFor<ScatterNdKernel<T, int64_t>>("ScatterNd")
                                  .template Type<T>("T")
                                  .template Type<int64_t>("Tindices");
};
const ScatterNdKernels<float> kScatterNdFloat;
const ScatterNdKernels<double> kScatterNdDouble;
const ScatterNdKernels<int32_t> kScatterNdInt32;
const ScatterNdKernels<int64_t> kScatterNdInt64;
const ScatterNdKernels<std::complex<float>> kScatterNdComplex64;
const ScatterNdKernels<std::complex<double>> kScatterNdComplex128;

}  // namespace
}  // namespace millrace
