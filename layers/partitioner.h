// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_PARTITIONER_H_
#define MILLRACE_LAYERS_PARTITIONER_H_

// Partitioner: into how many parts a variable is cut, so that parameter servers share it.
//
//   Dense(scope, x, 1024, {.partitioner = MinMaxPartitioner(num_ps)});
//   Embedding(scope, ids, 1'000'000, 64, {.partitioner = FixedSizePartitioner(2)});
//
// The parts are rows: dimension 0 is cut (layers/variable.h, MakePartitionedVariable). A variable
// with a partitioner has parts even when there is one, "<name>/part_0", as in TensorFlow;
// checkpoints hold the whole under its own name.
//
// Values; threads may share them.

#include <cstdint>
#include <functional>

#include "core/dtype.h"
#include "core/shape.h"
#include "graph/scope.h"
#include "layers/initializers.h"
#include "layers/variable.h"

namespace millrace {

// Into how many parts along dimension 0 a variable of this shape is cut.
using Partitioner = std::function<int(const Shape& shape, DType dtype)>;
// So many parts, or one per row where there are fewer rows.
Partitioner FixedSizePartitioner(int num_parts);
// Parts of at least min_slice_bytes, at most max_parts of them, at most one per row.
Partitioner MinMaxPartitioner(int max_parts, int64_t min_slice_bytes = int64_t{256} << 10);

// The scope's WithName gives the name. Without a partitioner a whole variable: one part, which is
// no slice of anything.
PartitionedVariable MakeVariableInParts(ScopeAt at, const Shape& shape, DType dtype,
                                        const Partitioner& partitioner,
                                        const Initializer& initializer,
                                        const VariableAttrs& attrs = {});

// The whole, put together of its parts in a node that has the variable's name (made unique, for a
// whole variable: its own read).
Output WholeValue(ScopeAt at, const PartitionedVariable& variable);

}  // namespace millrace

#endif  // MILLRACE_LAYERS_PARTITIONER_H_
