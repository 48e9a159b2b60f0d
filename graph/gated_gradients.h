// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_GATED_GRADIENTS_H_
#define MILLRACE_GRAPH_GATED_GRADIENTS_H_

// Gated gradients: AddGradients (graph/gradient.h) with TensorFlow's gate_gradients=True.
//
// A node with several inputs gives several gradients. Gated, none of them is used before all of
// them are computed: a NoOp after all of them, and an Identity each after it, named
// `<op>_grad/tuple/...` as TensorFlow names them. Values are the same. Not gated: what passes
// through a Switch or Merge, where one of the gradients does not come in each step.
//
// A header of its own: gradient functions, which are many, have no use for it.

#include <vector>

#include "absl/types/span.h"
#include "core/status.h"
#include "graph/gradient.h"
#include "graph/scope.h"

namespace millrace {

// As AddGradients.
StatusOr<std::vector<Gradient>> AddGatedGradients(ScopeAt at, absl::Span<const Output> ys,
                                                  absl::Span<const Output> xs,
                                                  const GradientOptions& options = {});

// The gradients, none of which is there before all of them are computed (slices: their values).
// Nodes are added in `scope`; fewer than two gradients stay as they are.
std::vector<Gradient> GateTogether(const Scope& scope, std::vector<Gradient> gradients);

}  // namespace millrace

#endif  // MILLRACE_GRAPH_GATED_GRADIENTS_H_
