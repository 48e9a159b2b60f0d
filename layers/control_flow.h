// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_CONTROL_FLOW_H_
#define MILLRACE_LAYERS_CONTROL_FLOW_H_

// Conditionals and loops in graphs.
//
//   Output y = Cond(s, Less(s, x, zero),
//                   [&](const Scope& then) { return Neg(then, x); },
//                   [&](const Scope&) { return x; });
//
//   std::vector<Output> out = WhileLoop(
//       s, {Const(s, 0), x},
//       [&](const Scope& c, const std::vector<Output>& v) { return Less(c, v[0], n); },
//       [&](const Scope& b, const std::vector<Output>& v) -> std::vector<Output> {
//         return {Add(b, v[0], one), MatMul(b, v[1], w)};
//       });
//
// The functions are called once, to build; what they build is run as often as the graph says. They
// build with the Scope that they are given (or operators on what they are given) and may use any
// tensor of the program: it comes in by itself. Only what they build is conditional: a tensor that
// was made before a Cond is computed whichever branch is taken. Variables that are made inside are
// variables of the whole model.
//
// The nodes are those of TensorFlow 1.15 (graph/control_flow.h), and the collections "cond_context"
// and "while_context" tell it what they are. Gradients go through all of them, nested ones, too:
// docs/control_flow.md.
//
// Failure: an error in the Scope, "<builder> '<name>': ..." or that of a node, and invalid outputs.

#include <cstdint>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/shape.h"
#include "graph/scope.h"

namespace millrace {

// --- Cond, Case ----------------------------------------------------------------------------------

using BranchFn = std::function<std::vector<Output>(const Scope& branch)>;

// What `then` gives when `pred` (a bool scalar) is true, else what `otherwise` gives; only one of
// them runs. Both give as many tensors, of the same types. Named "cond".
std::vector<Output> CondAll(ScopeAt at, const Output& pred, const BranchFn& then,
                            const BranchFn& otherwise);

// The same of branches that give one tensor each, or several.
template <typename Then, typename Else>
auto Cond(ScopeAt at, const Output& pred, Then then, Else otherwise) {
  using Result = std::invoke_result_t<Then, const Scope&>;
  if constexpr (std::is_convertible_v<Result, std::vector<Output>>) {
    return CondAll(at, pred, then, otherwise);
  } else {
    const std::vector<Output> one = CondAll(
        at, pred, [&](const Scope& s) { return std::vector<Output>{then(s)}; },
        [&](const Scope& s) { return std::vector<Output>{otherwise(s)}; });
    return one.empty() ? Output() : one[0];
  }
}

struct CaseBranch {
  Output pred;
  BranchFn then;
};
struct CaseAttrs {
  bool exclusive = false;  // InvalidArgument in the step when more than one pred is true
};
// What the first branch whose pred is true gives, else what `otherwise` gives. Named "case".
std::vector<Output> Case(ScopeAt at, const std::vector<CaseBranch>& branches,
                         const BranchFn& otherwise, const CaseAttrs& attrs = {});

// --- WhileLoop -----------------------------------------------------------------------------------

using LoopConditionFn =
    std::function<Output(const Scope& condition, const std::vector<Output>& variables)>;
using LoopBodyFn =
    std::function<std::vector<Output>(const Scope& body, const std::vector<Output>& variables)>;

struct WhileLoopAttrs {
  // What holds of each variable's shape in every iteration; empty: its shape at the beginning.
  std::vector<PartialShape> shape_invariants = {};
  // An int32 scalar: the loop ends after so many iterations whatever the condition says.
  Output maximum_iterations = {};
  // So many iterations may be under way at once, each as far as what it needs is there.
  int64_t parallel_iterations = 10;
  bool back_prop = true;     // false: no gradient passes, and nothing is kept for one
  bool swap_memory = false;  // written down for TensorFlow; no effect here
};
// The variables after as many iterations of `body` as `condition` allows, beginning with
// `variables`. body gives each variable's next value, of its type and shape. Named "while".
std::vector<Output> WhileLoop(ScopeAt at, const std::vector<Output>& variables,
                              const LoopConditionFn& condition, const LoopBodyFn& body,
                              const WhileLoopAttrs& attrs = {});

// --- Loops over rows -----------------------------------------------------------------------------

// Each takes tensors whose first dimensions are equal; `elements` are one row of each.

struct MapAttrs {
  int64_t parallel_iterations = 10;
  bool back_prop = true;
  bool swap_memory = false;
};
// What `function` gives for the rows, as rows. Named "map".
std::vector<Output> MapFn(
    ScopeAt at, const std::vector<Output>& rows,
    const std::function<std::vector<Output>(const Scope& s, const std::vector<Output>& elements)>&
        function,
    const MapAttrs& attrs = {});
// The same for one tensor.
Output MapFn(ScopeAt at, const Output& rows,
             const std::function<Output(const Scope& s, const Output& element)>& function,
             const MapAttrs& attrs = {});

using FoldFn = std::function<std::vector<Output>(const Scope& s, const std::vector<Output>& so_far,
                                                 const std::vector<Output>& elements)>;
struct ScanFnAttrs {
  int64_t parallel_iterations = 10;
  bool back_prop = true;
  bool swap_memory = false;
  bool reverse = false;  // from the last row to the first
};
// so_far = function(so_far, elements) from `initial` on; all that it has been, as rows. Named
// "scan".
std::vector<Output> Scan(ScopeAt at, const std::vector<Output>& rows,
                         const std::vector<Output>& initial, const FoldFn& function,
                         const ScanFnAttrs& attrs = {});
// The last of them; from the first row to the last, and from the last to the first. Named "foldl"
// and "foldr".
std::vector<Output> FoldL(ScopeAt at, const std::vector<Output>& rows,
                          const std::vector<Output>& initial, const FoldFn& function,
                          const MapAttrs& attrs = {});
std::vector<Output> FoldR(ScopeAt at, const std::vector<Output>& rows,
                          const std::vector<Output>& initial, const FoldFn& function,
                          const MapAttrs& attrs = {});

}  // namespace millrace

#endif  // MILLRACE_LAYERS_CONTROL_FLOW_H_
