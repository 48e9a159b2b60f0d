// SPDX-License-Identifier: Apache-2.0
#include "layers/dense.h"

#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/small_tensors.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/linalg/matmul.h"
#include "ops/math/reduction.h"
#include "ops/nn/bias.h"

namespace millrace {
namespace {

// All dimensions of x but the last, as a vector in the graph, then `last`.
Output ShapeWithLast(const ScopeAt& at, const Output& x, int rank, int64_t last) {
  const PartialShape known = at.scope.shape(x);
  std::vector<int64_t> dims(known.dims().begin(), known.dims().end() - 1);
  dims.push_back(last);
  const StatusOr<PartialShape> shape = PartialShape::Make(dims);
  if (shape.ok() && shape->IsFullyDefined()) return Const(at, DimsTensor(Shape::Of(*shape)));
  const Output leading =
      StridedSlice(at, ShapeOf(at, x, {.out_type = DT_INT64}), Const<int32_t>(at, {0}),
                   Const<int32_t>(at, {rank - 1}), Const<int32_t>(at, {1}));
  return ConcatV2(at, {leading, Const<int64_t>(at, {last})}, Const(at, int32_t{0}));
}

}  // namespace

DenseLayer Dense(ScopeAt at, const Output& x, int64_t units, const DenseAttrs& attrs) {
  constexpr char kLayer[] = "Dense", kName[] = "dense";
  if (!CheckLayerInput(at, kLayer, kName, x, 2, Shape::kMaxRank)) return {};
  const PartialShape shape = at.scope.shape(x);
  const int rank = shape.rank();
  if (!shape.has_rank() || shape.dim(rank - 1) < 1) {
    LayerError(at, kLayer, kName, "the last dimension of x must be known and >= 1, got shape ",
               shape, " of '", x.name(), "'");
    return {};
  }
  if (units < 1) {
    LayerError(at, kLayer, kName, "units must be >= 1, got ", units);
    return {};
  }
  const int64_t inputs = shape.dim(rank - 1);
  const DType dtype = WithoutRef(x.dtype());
  const Scope scope = at.scope.CompositeScope(kName);
  const ScopeAt in(scope, at.where);
  DenseLayer layer;
  layer.kernel_parts =
      MakeWeightParts(in, "kernel", {inputs, units}, dtype, attrs.partitioner,
                      {attrs.kernel_initializer, attrs.kernel_regularizer, attrs.trainable});
  if (attrs.use_bias) {
    layer.bias_parts =
        MakeWeightParts(in, "bias", {units}, dtype, attrs.partitioner,
                        {attrs.bias_initializer, attrs.bias_regularizer, attrs.trainable});
  }
  if (!at.scope.ok()) return {};
  if (!attrs.partitioner) {
    layer.kernel = layer.kernel_parts.parts[0];
    if (attrs.use_bias) layer.bias = layer.bias_parts.parts[0];
  }
  const Output rows = rank == 2 ? x : Reshape(in, x, Const<int64_t>(in, {-1, inputs}));
  Output y = MatMul(in, rows, WholeValue(in, layer.kernel_parts));
  if (attrs.use_bias) y = BiasAdd(in, y, WholeValue(in, layer.bias_parts));
  if (rank > 2) y = Reshape(in, y, ShapeWithLast(in, x, rank, units));
  static_cast<Output&>(layer) = Activated(in, attrs.activation, y);
  return layer;
}

Output Flatten(ScopeAt at, const Output& x) {
  constexpr char kLayer[] = "Flatten", kName[] = "flatten";
  if (!CheckLayerTensor(at, kLayer, kName, x, 1, Shape::kMaxRank)) return Output();
  const Scope scope = at.scope.CompositeScope(kName);
  const ScopeAt in(scope, at.where);
  const PartialShape shape = at.scope.shape(x);
  int64_t features = -1;
  if (shape.has_rank()) {
    features = 1;
    for (const int64_t dim : shape.dims().subspan(1)) {
      features = dim < 0 || features < 0 ? -1 : features * dim;
    }
  }
  // One unknown size is found from the number of elements, if that is not 0 for another reason.
  if (features > 0) return Reshape(in, x, Const<int64_t>(in, {-1, features}));
  const Output dims = ShapeOf(in, x, {.out_type = DT_INT64});
  const Output one = Const<int32_t>(in, {1});
  const Output batch = StridedSlice(in, dims, Const<int32_t>(in, {0}), one, one);
  const Output rest = features == 0
                          ? Const<int64_t>(in, {0})
                          : ReduceProd(in, StridedSlice(in, dims, one, one, one, {.end_mask = 1}),
                                       {0}, {.keep_dims = true});
  return Reshape(in, x, ConcatV2(in, {batch, rest}, Const(in, int32_t{0})));
}

}  // namespace millrace
