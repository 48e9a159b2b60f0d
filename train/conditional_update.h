// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_CONDITIONAL_UPDATE_H_
#define MILLRACE_TRAIN_CONDITIONAL_UPDATE_H_

// RunUpdateOnlyIf: an optimizer's update that runs in some steps and not in others, whatever ops it
// is made of and without a branch around it.
//
// Thread-safety: adds nodes and edges to a graph, as any builder. Failure: of the scope.

#include "graph/scope.h"

namespace millrace {

// Nothing that `update` runs, of the nodes made since the graph had `first` node ids, changes a
// variable in a step where `pred` (a bool scalar) is false: these nodes are dead then, and so is
// what waits for them (a ControlTrigger runs all the same). Nodes that change nothing may run.
// `pred` goes once to each device that has such nodes; it must not depend on them.
void RunUpdateOnlyIf(const Scope& scope, const Output& pred, const Operation& update, int first);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_CONDITIONAL_UPDATE_H_
