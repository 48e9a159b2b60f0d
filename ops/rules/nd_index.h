// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_RULES_ND_INDEX_H_
#define MILLRACE_OPS_RULES_ND_INDEX_H_

// Indices of several coordinates: the last dimension of `indices` names a place in the first
// dimensions of a tensor (GatherNd, ScatterNd and their kin).
//
// Pure functions. Failure: InvalidArgument.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "ops/rules/index_type.h"

namespace millrace {

// "1,0" for flat index 2 of shape [2,2].
inline std::string IndexText(const Shape& shape, int64_t flat) {
  std::string text;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    text = absl::StrCat(flat % shape.dim(d), text.empty() ? "" : ",", text);
    flat /= shape.dim(d);
  }
  return text;
}

// What is picked from `tensor`, or put into it: indices.shape[:-1] + tensor.shape[depth:], where
// depth, the last dimension of indices, is how many dimensions of the tensor an index names.
inline StatusOr<PartialShape> NdSlices(const PartialShape& indices, const PartialShape& tensor) {
  if (!indices.has_rank() || !tensor.has_rank()) return PartialShape();
  if (indices.rank() < 1) return InvalidArgument("indices must have rank >= 1, got shape []");
  const int64_t depth = indices.dim(indices.rank() - 1);
  if (depth > tensor.rank()) {
    return InvalidArgument("the last dimension of indices must be at most ", tensor.rank(),
                           ", the rank of the tensor, got ", depth);
  }
  if (depth == -1) return PartialShape();
  std::vector<int64_t> dims(indices.dims().begin(), indices.dims().end() - 1);
  dims.insert(dims.end(), tensor.dims().begin() + depth, tensor.dims().end());
  return PartialShape::Make(dims);
}

// The flat slice of a tensor of this shape that each index names.
inline StatusOr<std::vector<int64_t>> FlatSlices(const Tensor& indices, const Shape& tensor) {
  using Slices = std::vector<int64_t>;
  const Shape outer = indices.shape().Slice(0, indices.rank() - 1);
  const size_t depth = static_cast<size_t>(indices.dim(outer.rank()));
  Slices slices(static_cast<size_t>(outer.num_elements()), 0);
  return VisitIndexType(indices.dtype(), [&]<typename Index>() -> StatusOr<Slices> {
    const absl::Span<const Index> values = indices.raw<Index>();
    for (size_t row = 0; row < slices.size(); ++row) {
      const absl::Span<const Index> index = values.subspan(row * depth, depth);
      for (size_t d = 0; d < depth; ++d) {
        const int64_t dim = tensor.dim(static_cast<int>(d));
        if (index[d] < 0 || index[d] >= dim) {
          return InvalidArgument("indices[", IndexText(outer, static_cast<int64_t>(row)), "] = [",
                                 absl::StrJoin(index, ","), "] does not index into shape ", tensor);
        }
        slices[row] = slices[row] * dim + index[d];
      }
    }
    return std::move(slices);
  });
}

}  // namespace millrace

#endif  // MILLRACE_OPS_RULES_ND_INDEX_H_
