// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_CONDITIONAL_UPDATE_H_
#define MILLRACE_TRAIN_CONDITIONAL_UPDATE_H_

// RunUpdateOnlyIf: an optimizer's update that runs in some steps and not in others, whatever ops it
// is made of and without a branch around it.
//
// Thread-safety: adds nodes and edges to a graph, as any builder. Failure: of the scope.

#include <vector>

#include "graph/scope.h"
#include "layers/variable.h"

namespace millrace {

// Nothing that `update` runs, of the nodes made since the graph had `first` node ids, changes a
// variable in a step where `pred` (a bool scalar) is false: these nodes are dead then, and so is
// what waits for them (a ControlTrigger runs all the same). Nor is anything computed for it then on
// their devices, but for constants, and the handles and own reads of `variables` (the optimizer's),
// which are everybody's. `pred` goes once to each of these devices; it must not depend on them.
void RunUpdateOnlyIf(const Scope& scope, const Output& pred, const Operation& update, int first,
                     const std::vector<Variable>& variables);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_CONDITIONAL_UPDATE_H_
