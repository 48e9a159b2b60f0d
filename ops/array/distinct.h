// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_DISTINCT_H_
#define MILLRACE_OPS_ARRAY_DISTINCT_H_

// IsDistinct: is it known, while the graph is built, that no element of a vector appears twice?
// Then rows that it picks need not be made unique again, nor their gradients added up by row.
//
// Only Unique's own output is known to be so. Nothing is built.

#include "graph/graph.h"
#include "graph/scope.h"

namespace millrace {

// False when it is not known, and for an invalid Output.
inline bool IsDistinct(const Output& vector) {
  if (!vector.valid() || vector.index() != 0) return false;
  return vector.node()->op() == "Unique" || vector.node()->op() == "UniqueWithCounts";
}

}  // namespace millrace

#endif  // MILLRACE_OPS_ARRAY_DISTINCT_H_
