// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_DISTINCT_H_
#define MILLRACE_OPS_ARRAY_DISTINCT_H_

// IsDistinct: is it known, while the graph is built, that no element of a vector appears twice?
// Then rows that it picks need not be made unique again, nor their gradients added up by row.
//
// Only Unique's own output is known to be so, and what _PartRows makes of it for each part
// (ops/state/part_rows.h). Nothing is built.

#include "graph/graph.h"
#include "graph/scope.h"

namespace millrace {

// False when it is not known, and for an invalid Output.
inline bool IsDistinct(const Output& vector) {
  if (!vector.valid()) return false;
  const Node& node = *vector.node();
  if (node.op() == "_PartRows") {
    const OutputRef& ids = node.input(0);
    return vector.index() < node.num_outputs() / 2 && IsDistinct(Output(ids.node, ids.index));
  }
  return vector.index() == 0 && (node.op() == "Unique" || node.op() == "UniqueWithCounts");
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_DISTINCT_H_
