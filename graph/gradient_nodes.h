// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_GRAPH_GRADIENT_NODES_H_
#define MILLRACE_GRAPH_GRADIENT_NODES_H_

// The nodes that the engine of gradients itself adds, by op name: graph knows no builders.
//
// Thread-safety and failure: as the Scope's.

#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/dtype.h"
#include "core/tensor.h"
#include "graph/gradient.h"
#include "graph/scope.h"

namespace millrace::gradient_nodes {

Output Const(const Scope& scope, absl::string_view name, const Tensor& value);
Output Identity(const Scope& scope, const Output& x);
// A tensor like `like` with every element `value` (0 or 1). Only the shape of `like` is used, and
// only when it is not known while the graph is built.
Output FilledLike(const Scope& scope, absl::string_view name, const Output& like, float value);
// `parts` one behind the other along dimension 0.
Output Concat(const Scope& scope, absl::Span<const Output> parts);
Output AddN(const Scope& scope, absl::Span<const Output> parts);
Output MergeTwo(const Scope& scope, absl::string_view name, const Output& on_false,
                const Output& on_true);
// Contributions of several paths as one gradient.
Gradient Aggregate(const Scope& scope, const std::vector<Gradient>& parts);

}  // namespace millrace::gradient_nodes

#endif  // MILLRACE_GRAPH_GRADIENT_NODES_H_
