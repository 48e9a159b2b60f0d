// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_DYNAMIC_PARTITION_H_
#define MILLRACE_OPS_ARRAY_DYNAMIC_PARTITION_H_

// Rows dealt out by number and put together again. All dtypes.

#include <vector>

#include "graph/node_builder.h"

namespace millrace {

// Output p gets the rows of `data` whose element of `partitions` (int32, the first dimensions of
// data) is p, in their order. InvalidArgument for a number outside of [0, num_partitions).
inline std::vector<Output> DynamicPartition(ScopeAt at, Output data, Output partitions,
                                            int num_partitions) {
  return BuildOp(at, "DynamicPartition", {data, partitions}, "num_partitions", num_partitions)
      .outputs(0, num_partitions);
}
// Row indices[m][i...] of the result is data[m][i...]; of equal indices the last one wins. The
// result has as many rows as the largest index + 1; rows that nothing names are 0.
// data[m].shape = indices[m].shape + (the same for all m). Indices: int32, >= 0.
inline Output DynamicStitch(ScopeAt at, absl::Span<const Output> indices,
                            absl::Span<const Output> data) {
  return BuildOp(at, "DynamicStitch", {indices, data});
}
// The same; which of equal indices wins is not defined.
inline Output ParallelDynamicStitch(ScopeAt at, absl::Span<const Output> indices,
                                    absl::Span<const Output> data) {
  return BuildOp(at, "ParallelDynamicStitch", {indices, data});
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_DYNAMIC_PARTITION_H_
