// SPDX-License-Identifier: Apache-2.0
#include "ops/array/gather.h"

#include <algorithm>
#include <complex>
#include <cstring>
#include <optional>
#include <type_traits>
#include <vector>

#include "graph/gradient.h"
#include "graph/later_attrs.h"
#include "graph/op_registry.h"
#include "graph/partial_value.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/distinct.h"
#include "ops/array/gather_gradient.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/loops/number.h"
#include "ops/math/cast.h"
#include "ops/rules/elements.h"
#include "ops/rules/gather_shape.h"
#include "ops/rules/index_type.h"
#include "ops/rules/nd_index.h"
#include "ops/rules/shape_input.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

// Output 0: slice i is slice source(i) of params; a slice has `size` elements.
template <typename Source>
Status CopySlices(KernelContext* ctx, const Tensor& params, int64_t size, Source source) {
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateOutput(0));
  if (out->num_elements() == 0) return absl::OkStatus();
  return VisitElements(params.dtype(), [&]<typename E>() {
    const E* from = ElementsOf<E>(params);
    E* to = MutableElementsOf<E>(out);
    const double cost_ns = 3 + 0.1 * static_cast<double>(size) * sizeof(E);
    ctx->ParallelFor(out->num_elements() / size, cost_ns, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const E* const slice = from + source(i) * size;
        if constexpr (!std::is_trivially_copyable_v<E>) {
          std::copy(slice, slice + size, to + i * size);
        } else if (size == 1) {
          to[i] = *slice;
        } else {
          std::memcpy(to + i * size, slice, static_cast<size_t>(size) * sizeof(E));
        }
      }
    });
  });
}

// --- Gather, GatherV2 ----------------------------------------------------------------------------

// Dimension `i`, or a number of dimensions, counted from the end when negative.
int FromFront(int64_t i, int rank) { return static_cast<int>(i < 0 ? i + rank : i); }

// The shape of params with dimension `axis` replaced by the shape of indices behind the batch
// dimensions, which both share. Gather has neither attr nor axis: both are 0.
struct GatherRule {
  int64_t batch_dims = 0;

  Status Init(const NodeAttrs& attrs) {
    if (!HasAttr(attrs.node(), "batch_dims")) return absl::OkStatus();
    return ReadAttrs(attrs, "batch_dims", &batch_dims);
  }
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    std::optional<int64_t> axis = 0;
    if (c->num_inputs() > 2) {
      MR_ASSIGN_OR_RETURN(axis, c->IntScalar(2, "axis"));
    }
    MR_ASSIGN_OR_RETURN(const PartialShape params, c->InputWithRankAtLeast(0, 1, "params"));
    return GatheredShape(params, c->input(1), axis, batch_dims);
  }
};

// out[b, o, i, :] = params[b, o, indices[b, i], :].
Status RunGather(KernelContext* ctx, const GatherRule& rule) {
  const Tensor& params = ctx->input(0);
  const Tensor& indices = ctx->input(1);
  const int64_t axis = ctx->num_inputs() > 2 ? ctx->input(2).ints()[0] : 0;
  const Shape& p = params.shape();
  const int at = FromFront(axis, p.rank()), batch = FromFront(rule.batch_dims, indices.rank());
  const int64_t limit = p.dim(at);
  const int64_t outer = p.NumElements(batch, at);
  const int64_t n = indices.shape().NumElements(batch, indices.rank());
  return VisitIndexType(indices.dtype(), [&]<typename Index>() -> Status {
    const absl::Span<const Index> rows = indices.raw<Index>();
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] >= 0 && int64_t{rows[i]} < limit) continue;
      return InvalidArgument("indices[", IndexText(indices.shape(), static_cast<int64_t>(i)),
                             "] = ", rows[i], " is not in [0, ", limit, ")");
    }
    return CopySlices(ctx, params, p.NumElements(at + 1, p.rank()),
                      [=, row = rows.data()](int64_t slice) {
                        const int64_t block = slice / n;  // b * outer + o
                        return block * limit + row[block / outer * n + slice % n];
                      });
  });
}

// Rows of the first dimension stay slices: what an embedding's gradient is.
Status GatherGradient(GradientContext* c) {
  if (!c->has_grad(0)) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const GatherRule rule, c->GetRule<GatherRule>());
  const Scope& s = c->scope();
  if (c->num_inputs() > 2) {
    const Tensor* axis = s.constant_value(c->input(2));
    if (axis == nullptr || axis->ints()[0] != 0 || rule.batch_dims != 0) {
      Output at = c->input(2);
      if (at.dtype() != DT_INT32) at = Cast(s, at, DT_INT32);
      c->set_input_grad(0, DenseGatherGradient(s, ShapeOf(s, c->input(0)), c->input(1), at,
                                               rule.batch_dims, c->dense_grad()));
      return absl::OkStatus();
    }
  }
  const Output zero = Const<int32_t>(s, {0}), one = Const<int32_t>(s, {1});
  const Output shape = ShapeOf(s, c->input(0));
  const Output row = StridedSlice(s, shape, one, zero, one, {.end_mask = 1});
  const Output count = Reshape(s, Size(s, c->input(1)), one);
  const Output values = Reshape(s, c->dense_grad(), ConcatV2(s, {count, row}, Const(s, 0)));
  const Output indices = Reshape(s, c->input(1), Const<int32_t>(s, {-1}));
  c->set_input_grad(0, IndexedSlices{values, indices, shape, IsDistinct(c->input(1))});
  return absl::OkStatus();
}

// Elements of a vector.
std::optional<PartialValue> GatherValue(PartialValueContext* c) {
  const std::optional<PartialValue> params = c->input(0), indices = c->input(1);
  if (!params || params->is_scalar || !indices) return std::nullopt;
  if (c->num_inputs() > 2) {
    const std::optional<int64_t> axis = c->input_scalar(2);
    const StatusOr<int64_t> batch_dims = c->GetAttr<int64_t>("batch_dims");
    if ((axis != 0 && axis != -1) || batch_dims.value_or(-1) != 0) return std::nullopt;
  }
  PartialValue gathered{indices->is_scalar, {}};
  for (const std::optional<int64_t>& i : indices->elements) {
    if (i && (*i < 0 || *i >= static_cast<int64_t>(params->elements.size()))) return std::nullopt;
    gathered.elements.push_back(i ? params->elements[static_cast<size_t>(*i)] : std::nullopt);
  }
  return gathered;
}

const OpRegistration kGatherV2 =
    OpSpec("GatherV2", "params: Tparams, indices: Tindices, axis: Taxis -> output: Tparams",
           "batch_dims: int = 0; Tparams: type; Tindices: {int32, int64}; Taxis: {int32, int64}")
        .With(RuledKernelFor<GatherRule>(RunGather))
        .Gradient(GatherGradient)
        .With(PartialValueRule(GatherValue));

const OpRegistration kGather =
    OpSpec("Gather", "params: Tparams, indices: Tindices -> output: Tparams",
           "validate_indices: bool = true; Tparams: type; Tindices: {int32, int64}")
        .With(RuledKernelFor<GatherRule>(RunGather))
        .Gradient(GatherGradient)
        .With(PartialValueRule(GatherValue));

// --- GatherNd, ScatterNd -------------------------------------------------------------------------

// Bad indices are refused; later programs may ask to ignore them.
constexpr char kBadIndicesPolicy[] = "bad_indices_policy: string = ''";

struct GatherNdRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    return NdSlices(c->input(1), c->input(0));
  }
};

Status RunGatherNd(KernelContext* ctx, const GatherNdRule&) {
  const Tensor& params = ctx->input(0);
  const Tensor& indices = ctx->input(1);
  // Indices without coordinates may be too many to list.
  if (indices.num_elements() == 0 && ctx->output_shape(0).num_elements() == 0) {
    return ctx->AllocateOutput(0).status();
  }
  MR_ASSIGN_OR_RETURN(const Ints slices, FlatSlices(indices, params.shape()));
  const int depth = static_cast<int>(indices.dim(indices.rank() - 1));
  return CopySlices(ctx, params, params.shape().NumElements(depth, params.rank()),
                    [slice = slices.data()](int64_t i) { return slice[i]; });
}

Status GatherNdGradient(GradientContext* c) {
  return GatherNdGradientOf(
      c, [c](DType type) { return ShapeOf(c->scope(), c->input(0), {.out_type = type}); });
}

const OpRegistration kGatherNd =
    OpSpec("GatherNd", "params: Tparams, indices: Tindices -> output: Tparams",
           "Tparams: type; Tindices: {int32, int64}")
        .With(LaterAttr(kBadIndicesPolicy))
        .With(RuledKernelFor<GatherNdRule>(RunGatherNd))
        .Gradient(GatherNdGradient);

// Output 0 has the shape that input 2 says; the updates are what indices name of it.
struct ScatterNdRule {
  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_ASSIGN_OR_RETURN(const PartialShape shape, ShapeOfInput(c, 2, "shape"));
    if (!shape.has_rank()) return shape;
    const PartialShape &indices = c->input(0), &updates = c->input(1);
    MR_ASSIGN_OR_RETURN(const PartialShape slices, NdSlices(indices, shape));
    if (updates.IsCompatibleWith(slices)) return shape;
    return InvalidArgument("updates must have shape ", slices, " for indices ", indices,
                           " into shape ", shape, ", got ", updates);
  }
};

template <typename T>
Status RunScatterNd(KernelContext* ctx, const ScatterNdRule&) {
  const Shape& shape = ctx->output_shape(0);
  const Tensor& indices = ctx->input(0);
  if (indices.num_elements() == 0 && ctx->input(1).num_elements() == 0) {
    return ctx->AllocateZeros(0).status();
  }
  MR_ASSIGN_OR_RETURN(const Ints slices, FlatSlices(indices, shape));
  MR_ASSIGN_OR_RETURN(Tensor * out, ctx->AllocateZeros(0));
  const int depth = static_cast<int>(indices.dim(indices.rank() - 1));
  const int64_t size = shape.NumElements(depth, shape.rank());
  const T* from = ctx->input(1).raw<T>().data();
  for (const int64_t slice : slices) {
    T* const to = out->mutable_raw<T>().data() + slice * size;
    for (int64_t i = 0; i < size; ++i) {
      to[i] = math::Store<T>(math::WrapAdd(math::Load(to[i]), math::Load(from[i])));
    }
    from += size;
  }
  return absl::OkStatus();
}

std::vector<Output> ScatterNdGradient(GradientContext* c) {
  return {Output(), GatherNd(c->scope(), c->dense_grad(), c->input(0))};
}

const OpRegistration kScatterNd =
    OpSpec("ScatterNd", "indices: Tindices, updates: T, shape: Tindices -> output: T",
           "T: type; Tindices: {int32, int64}")
        .With(LaterAttr(kBadIndicesPolicy))
        .With(RuledKernelsFor<ScatterNdRule, float, double, Half, Bfloat16, int32_t, int64_t,
                              std::complex<float>, std::complex<double>>(
            "T", []<typename T>() { return &RunScatterNd<T>; }))
        .Gradient(ScatterNdGradient);

}  // namespace
}  // namespace millrace
