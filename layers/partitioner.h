// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_PARTITIONER_H_
#define MILLRACE_LAYERS_PARTITIONER_H_

// Partitioner: into how many parts a variable is cut, so that parameter servers share it.
//
//   Dense(scope, x, 1024, {.partitioner = MinMaxVariablePartitioner({.max_partitions = num_ps})});
//   Embedding(scope, ids, 1'000'000, 64, {.partitioner = FixedSizePartitioner(2)});
//
// A partitioner gives one number for each dimension of the variable: {1, 4} makes four parts, each
// with all rows and a quarter of the columns. One dimension at most is cut. A variable with a
// partitioner has parts even when there is one, "<name>/part_0", as in TensorFlow; checkpoints hold
// the whole under its own name, and restore it into any other parts.
//
// Where no partitioner is given, the scope's device function may say how tables are cut
// (graph/table_parts.h): with two parameter servers or more those above 64 MiB are. What it leaves
// whole has its own name, without a part_0. Layers whose weights all travel (Dense and the like)
// stay whole without a partitioner.
//
// The three below are those of TensorFlow 1.15 (python/ops/partitioned_variables.py), with its
// arguments and numbers. `axis` < 0 counts from the last dimension, as in Python. Any function of
// the same form serves as well.
//
// Failure: InvalidArgument, when the partitioner is asked (in the scope, "Variable '<name>': ..."):
// an axis that the variable does not have, bytes that are not positive.
//
// Values; threads may share them.

#include <cstdint>
#include <functional>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "graph/scope.h"
#include "layers/initializers.h"
#include "layers/variable.h"

namespace millrace {

// How many parts each dimension of a variable of this shape is cut into. The rank is >= 1: nothing
// is asked about scalars, which cannot be cut.
using Partitioner = std::function<StatusOr<std::vector<int64_t>>(const Shape& shape, DType dtype)>;

// min(num_shards, dim[axis]) parts.
Partitioner FixedSizePartitioner(int64_t num_shards, int axis = 0);

struct VariableAxisSizePartitionerAttrs {
  int axis = 0;
  int64_t bytes_per_string_element = 16;  // what an element of strings is taken for
  int64_t max_shards = 0;                 // 0: any number; it goes before max_shard_bytes
};
// As few parts as possible of at most `max_shard_bytes`. With slices of one element along the axis:
//   ceil(dim[axis] / max(1, floor(max_shard_bytes / bytes of a slice)))
// A part has one slice even if that is larger. A variable without elements is one part.
Partitioner VariableAxisSizePartitioner(int64_t max_shard_bytes,
                                        const VariableAxisSizePartitionerAttrs& attrs = {});

struct MinMaxVariablePartitionerAttrs {
  int64_t max_partitions = 1;
  int axis = 0;
  int64_t min_slice_size = int64_t{256} << 10;  // bytes
  int64_t bytes_per_string_element = 16;
};
// At most max_partitions parts, one for each min_slice_size bytes that the variable begins:
//   max(1, min(dim[axis], max_partitions, ceil(bytes of the variable / min_slice_size)))
Partitioner MinMaxVariablePartitioner(const MinMaxVariablePartitionerAttrs& attrs = {});

// The scope's WithName gives the name. Without a partitioner a variable of rank >= 2 that is not
// local has the parts that the scope's device function says; all others are whole: one part, which
// is no slice of anything.
PartitionedVariable MakeVariableInParts(ScopeAt at, const Shape& shape, DType dtype,
                                        const Partitioner& partitioner,
                                        const Initializer& initializer,
                                        const VariableAttrs& attrs = {});

// The whole, put together of its parts in a node that has the variable's name (made unique, for a
// whole variable: its own read).
Output WholeValue(ScopeAt at, const PartitionedVariable& variable);

}  // namespace millrace

#endif  // MILLRACE_LAYERS_PARTITIONER_H_
