// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_BATCH_HINT_H_
#define MILLRACE_GRAPH_BATCH_HINT_H_

// BatchHint: the end of an error about a value that is one row where a batch of rows is wanted.
//
// Thread-safety: a function of its arguments. Failure: none.

#include <string>

#include "core/shape.h"

namespace millrace {

// "; it is one row: did you forget the batch dimension, as in [1,784]?" where `got` lacks only the
// first dimension of `wanted`, and that one may have any size; else "".
std::string BatchHint(const PartialShape& wanted, const Shape& got);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_BATCH_HINT_H_
