// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_RULES_GATHER_SHAPE_H_
#define MILLRACE_OPS_RULES_GATHER_SHAPE_H_

// The shape of slices that are picked along one axis, where params and indices may share their
// first dimensions.
//
// Pure function. Failure: InvalidArgument.

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/shape.h"
#include "core/status.h"

namespace millrace {

// params[:axis] + indices[batch_dims:] + params[axis + 1:], as far as it is known. `axis` and
// `batch_dims` (of the rank of indices) count from the end when negative; `name` is what messages
// call params, which has rank >= 1.
inline StatusOr<PartialShape> GatheredShape(const PartialShape& params, const PartialShape& indices,
                                            std::optional<int64_t> axis, int64_t batch_dims,
                                            absl::string_view name = "params") {
  if (!params.has_rank() || !indices.has_rank()) return PartialShape();
  if (batch_dims < -indices.rank() || batch_dims > indices.rank()) {
    return InvalidArgument("batch_dims must be in [", -indices.rank(), ", ", indices.rank(),
                           "], got ", batch_dims);
  }
  const int batch = static_cast<int>(batch_dims < 0 ? batch_dims + indices.rank() : batch_dims);
  const int rank = params.rank() + indices.rank() - 1 - batch;
  if (!axis) return PartialShape::Make(std::vector<int64_t>(static_cast<size_t>(rank), -1));
  MR_ASSIGN_OR_RETURN(const int at, ResolveAxis(*axis, params.rank()));
  if (batch > at) return InvalidArgument("batch_dims must be <= axis ", at, ", got ", batch);
  for (int d = 0; d < batch; ++d) {
    if (params.dim(d) != indices.dim(d) && params.dim(d) != -1 && indices.dim(d) != -1) {
      return InvalidArgument(name, " and indices must agree in batch dimension ", d,
                             ", got shapes ", params, " and ", indices);
    }
  }
  std::vector<int64_t> dims(params.dims().begin(), params.dims().begin() + at);
  dims.insert(dims.end(), indices.dims().begin() + batch, indices.dims().end());
  dims.insert(dims.end(), params.dims().begin() + at + 1, params.dims().end());
  return PartialShape::Make(dims);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_RULES_GATHER_SHAPE_H_
