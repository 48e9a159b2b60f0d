// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_KNOWN_SHAPE_H_
#define MILLRACE_TRAIN_KNOWN_SHAPE_H_

// Known shape: what training makes next to a variable (a slot, an average) has the variable's
// shape, which the graph must know whole. Graphs that were read do not always say it: an op
// Variable, the oldest kind, with the shape [] may have any.

#include "core/shape.h"
#include "core/status.h"
#include "layers/variable.h"

namespace millrace {

// InvalidArgument, which names the variable and says how to tell the graph its shape.
StatusOr<Shape> KnownShape(const Variable& variable);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_KNOWN_SHAPE_H_
