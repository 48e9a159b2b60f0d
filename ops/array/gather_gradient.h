// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_GATHER_GRADIENT_H_
#define MILLRACE_OPS_ARRAY_GATHER_GRADIENT_H_

// The way back from slices that were picked along any axis: they are added up by index, as a dense
// tensor. (Rows of the first dimension without batches are better off as IndexedSlices.) And from
// slices that were picked by coordinates.

#include "absl/types/span.h"
#include "core/shape.h"
#include "core/status.h"
#include "graph/gradient.h"
#include "graph/scope.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/gather.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/array/transpose.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/reduction.h"
#include "ops/math/segment.h"

namespace millrace {

// The gradient of params of shape `shape` (an int32 vector), of which `indices` picked slices along
// `axis` (an int32 scalar, counted from the end when negative) behind `batch_dims` dimensions that
// both share; `grad` is that of the slices.
//
// Params are seen as [batch, outer, dim, inner], the gradient as [batch, outer, n, inner]; both
// turned to [batch * dim or n, outer, inner], the rows are added up by index.
inline Output DenseGatherGradient(const Scope& s, Output shape, Output indices, Output axis,
                                  int64_t batch_dims, Output grad) {
  const Output one = Const<int32_t>(s, {1}), zero = Const<int32_t>(s, {0});
  const Output scalar = Const<int32_t>(s, {}), swap = Const<int32_t>(s, {0, 2, 1, 3});
  const Output at = Reshape(s, FloorMod(s, axis, Size(s, shape)), one);
  const Output after = Add(s, at, one);
  Output batch_end = Const(s, {static_cast<int32_t>(batch_dims)});
  if (batch_dims < 0) batch_end = Add(s, Rank(s, indices), batch_end);
  const auto slice = [&](Output of, Output begin, Output end, int64_t end_mask) {
    return StridedSlice(s, of, begin, end, one, {.end_mask = end_mask});
  };
  const auto size = [&](Output dims) { return Prod(s, dims, zero, {.keep_dims = true}); };
  const auto shaped = [&](Output x, absl::Span<const Output> dims) {
    return Reshape(s, x, ConcatV2(s, dims, Const(s, 0)));
  };
  const Output batch = size(slice(shape, zero, batch_end, 0));
  const Output outer = size(slice(shape, batch_end, at, 0));
  const Output dim = slice(shape, at, after, 0);
  const Output inner = size(slice(shape, after, zero, 1));
  const Output n = size(slice(ShapeOf(s, indices), batch_end, zero, 1));
  // Index i of batch b stands for row b * dim + i.
  if (batch_dims != 0) {
    const Output batches = Range(s, Const(s, 0), Reshape(s, batch, scalar), Const(s, 1));
    Output offsets = Mul(s, batches, dim);
    if (indices.dtype() != DT_INT32) offsets = Cast(s, offsets, indices.dtype());
    indices = Add(s, shaped(indices, {batch, n}), shaped(offsets, {batch, one}));
  }
  const Output turned = Transpose(s, shaped(grad, {batch, outer, n, inner}), swap);
  const Output rows = shaped(turned, {Mul(s, batch, n), outer, inner});
  const Output sums = UnsortedSegmentSum(s, rows, Reshape(s, indices, Const<int32_t>(s, {-1})),
                                         Reshape(s, Mul(s, batch, dim), scalar));
  return Reshape(s, Transpose(s, shaped(sums, {batch, dim, outer, inner}), swap), shape);
}

// The gradient of a gather by coordinates: of input 0, of which `shape(type)` is the shape as a
// vector of that type, by the indices that are input 1. Rows that one coordinate each names stay
// slices, so that an optimizer touches no others; what is smaller is put into zeros.
template <typename ShapeOfParams>
Status GatherNdGradientOf(GradientContext* c, ShapeOfParams shape) {
  if (!c->has_grad(0)) return absl::OkStatus();
  const Scope& s = c->scope();
  const Output indices = c->input(1);
  const PartialShape known = s.shape(indices);
  if (known.has_rank() && known.rank() == 2 && known.dim(1) == 1) {
    IndexedSlices slices;
    slices.values = c->dense_grad(0);
    slices.indices = Reshape(s, indices, Const<int32_t>(s, {-1}));
    slices.dense_shape = shape(DT_INT32);
    c->set_input_grad(0, slices);
  } else {
    c->set_input_grad(0, ScatterNd(s, indices, c->dense_grad(0), shape(indices.dtype())));
  }
  return absl::OkStatus();
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_GATHER_GRADIENT_H_
