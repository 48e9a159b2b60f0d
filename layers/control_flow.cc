// SPDX-License-Identifier: Apache-2.0
#include "layers/control_flow.h"

#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "graph/control_flow.h"
#include "graph/node_builder.h"
#include "layers/tensor_array.h"
#include "layers/weight.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/control/asserts.h"
#include "ops/control/control_flow.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"

namespace millrace {
namespace {

using Outputs = std::vector<Output>;

bool AllValid(const Outputs& outputs) {
  for (const Output& output : outputs) {
    if (!output.valid()) return false;
  }
  return true;
}

// A builder's tensors, all of which must be there; says which is not.
bool CheckTensors(const ScopeAt& at, absl::string_view builder, absl::string_view name,
                  absl::string_view what, const Outputs& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].valid()) continue;
    LayerError(at, builder, name, what, "[", i, "] must be a tensor, got an invalid Output");
    return false;
  }
  return at.scope.ok();
}

}  // namespace

// --- Cond, Case ----------------------------------------------------------------------------------

std::vector<Output> CondAll(ScopeAt at, const Output& pred, const BranchFn& then,
                            const BranchFn& otherwise) {
  constexpr char kBuilder[] = "Cond", kName[] = "cond";
  if (!CheckTensors(at, kBuilder, kName, "pred", {pred})) return {};
  if (WithoutRef(pred.dtype()) != DT_BOOL || !at.scope.shape(pred).IsCompatibleWith(Shape())) {
    LayerError(at, kBuilder, kName, "pred must be a bool scalar, got ", pred.dtype(),
               at.scope.shape(pred), " from '", pred.name(), "'");
    return {};
  }
  const Scope scope = at.scope.CompositeScope(kName);
  const ScopeAt in(scope, at.where);
  const SwitchOutputs pivots = Switch(in, pred, pred);
  const Output on_true = Identity({scope.WithName("switch_t"), at.where}, pivots.output_true);
  const Output on_false = Identity({scope.WithName("switch_f"), at.where}, pivots.output_false);
  const Output pred_id = Identity({scope.WithName("pred_id"), at.where}, pred);
  if (!scope.ok()) return {};

  Outputs results[2];  // of the false branch and of the true one
  for (const bool branch : {true, false}) {
    const Output& pivot = branch ? on_true : on_false;
    CondContext* const context = scope.AddContext(std::make_unique<CondContext>(
        scope.UniqueName("cond_text"), scope.context(), pred_id, pivot, branch));
    scope.SetContextOf(*pivot.node(), context);
    const Scope inside = scope.InContext(context).WithoutControlDependencies();
    Outputs& result = results[branch ? 1 : 0];
    result = (branch ? then : otherwise)(inside.BuiltWhereCalled());
    if (!scope.ok()) return {};
    for (size_t i = 0; i < result.size(); ++i) {
      if (!result[i].valid()) {
        LayerError(at, kBuilder, kName, branch ? "then" : "otherwise", " must give a tensor for [",
                   i, "], got an invalid Output");
        return {};
      }
      // What the branch passes on as it is comes in here.
      if (scope.ContextOf(*result[i].node()) != context) {
        result[i] = Identity({inside, at.where}, result[i]);
      }
    }
    if (!AllValid(result)) return {};
  }
  if (results[0].size() != results[1].size()) {
    LayerError(at, kBuilder, kName, "then and otherwise must give as many tensors, got ",
               results[1].size(), " and ", results[0].size());
    return {};
  }
  Outputs merged;
  for (size_t i = 0; i < results[0].size(); ++i) {
    const Output pair[] = {results[0][i], results[1][i]};
    if (WithoutRef(pair[0].dtype()) != WithoutRef(pair[1].dtype())) {
      LayerError(at, kBuilder, kName, "then and otherwise must give tensors of one type for [", i,
                 "], got ", pair[1].dtype(), " and ", pair[0].dtype());
      return {};
    }
    merged.push_back(NodeBuilder(in, "Merge")
                         .AcrossContexts()
                         .Input(absl::MakeConstSpan(pair))
                         .Finish()
                         .output(0));
  }
  return AllValid(merged) ? merged : Outputs();
}

std::vector<Output> Case(ScopeAt at, const std::vector<CaseBranch>& branches,
                         const BranchFn& otherwise, const CaseAttrs& attrs) {
  constexpr char kBuilder[] = "Case", kName[] = "case";
  Outputs preds;
  for (const CaseBranch& branch : branches) preds.push_back(branch.pred);
  if (!CheckTensors(at, kBuilder, kName, "preds", preds)) return {};
  if (branches.empty()) {
    LayerError(at, kBuilder, kName, "there must be a branch, got none");
    return {};
  }
  Scope scope = at.scope.CompositeScope(kName);
  if (attrs.exclusive && preds.size() > 1) {
    const ScopeAt in(scope, at.where);
    const Output all = Pack(in, preds);
    const Output count = Sum(in, Cast(in, all, DT_INT32), Const(in, 0));
    const Operation check = Assert(
        in, LessEqual(in, count, Const(in, 1)),
        {Const(in, "Input error: exclusive=True: more than 1 conditions evaluated as True:"), all});
    scope = scope.WithControlDependencies({check});
    // What decides waits for the check, so that no branch runs before it.
    for (Output& pred : preds) pred = Identity({scope, at.where}, pred);
    scope = scope.WithoutControlDependencies();
  }
  // From the last branch inwards: each is the other branch of the one before it.
  std::function<Outputs(const Scope&, size_t)> from = [&](const Scope& s, size_t i) {
    if (i == branches.size()) return otherwise(s);
    return CondAll({s, at.where}, preds[i], branches[i].then,
                   [&](const Scope& inside) { return from(inside, i + 1); });
  };
  return from(scope, 0);
}

// --- WhileLoop -----------------------------------------------------------------------------------

namespace {

// A loop of this name, its context "<name>/while_context".
LoopBuilder BeginLoop(ScopeAt at, const WhileContextOptions& options) {
  return LoopBuilder(at, std::make_unique<WhileContext>(at.scope.UniqueName("while_context"),
                                                        at.scope.context(), options));
}

}  // namespace

std::vector<Output> WhileLoop(ScopeAt at, const std::vector<Output>& variables,
                              const LoopConditionFn& condition, const LoopBodyFn& body,
                              const WhileLoopAttrs& attrs) {
  constexpr char kBuilder[] = "WhileLoop", kName[] = "while";
  if (!CheckTensors(at, kBuilder, kName, "variables", variables)) return {};
  if (variables.empty()) {
    LayerError(at, kBuilder, kName, "there must be a variable, got none");
    return {};
  }
  if (attrs.parallel_iterations < 1) {
    LayerError(at, kBuilder, kName, "parallel_iterations must be >= 1, got ",
               attrs.parallel_iterations);
    return {};
  }
  if (!attrs.shape_invariants.empty() && attrs.shape_invariants.size() != variables.size()) {
    LayerError(at, kBuilder, kName, "shape_invariants must be empty or one for each of the ",
               variables.size(), " variables, got ", attrs.shape_invariants.size());
    return {};
  }
  for (size_t i = 0; i < attrs.shape_invariants.size(); ++i) {
    const PartialShape& invariant = attrs.shape_invariants[i];
    const PartialShape shape = at.scope.shape(variables[i]);
    bool allows = invariant.valid();
    for (int d = 0; allows && invariant.has_rank() && d < invariant.rank(); ++d) {
      allows = shape.has_rank() && shape.rank() == invariant.rank() &&
               (invariant.dim(d) == -1 || invariant.dim(d) == shape.dim(d));
    }
    if (invariant.has_rank() && invariant.rank() == 0) allows = shape == invariant;
    if (allows) continue;
    LayerError(at, kBuilder, kName, "shape_invariants[", i,
               "] must allow the variable's shape at the beginning, ", shape, " of '",
               variables[i].name(), "', got ", invariant);
    return {};
  }
  const bool counts = attrs.maximum_iterations.valid();
  const Scope scope = at.scope.CompositeScope(kName);
  LoopBuilder loop = BeginLoop({scope, at.where}, {.parallel_iterations = attrs.parallel_iterations,
                                                   .back_prop = attrs.back_prop,
                                                   .swap_memory = attrs.swap_memory,
                                                   .maximum_iterations = attrs.maximum_iterations});
  if (counts) {
    loop.AddVariable(Const({scope.WithName("iteration_counter"), at.where}, 0),
                     PartialShape::Scalar());
  }
  const int first = loop.num_variables();
  for (size_t i = 0; i < variables.size(); ++i) {
    loop.AddVariable(variables[i], attrs.shape_invariants.empty() ? scope.shape(variables[i])
                                                                  : attrs.shape_invariants[i]);
  }
  if (!scope.ok()) return {};
  const int last = loop.num_variables();
  const Scope& inside = loop.inside();

  Outputs now;
  for (int i = first; i < last; ++i) now.push_back(loop.at_condition(i));
  Output go_on = condition(inside.BuiltWhereCalled(), now);
  if (!go_on.valid() || WithoutRef(go_on.dtype()) != DT_BOOL ||
      !inside.shape(go_on).IsCompatibleWith(Shape())) {
    if (scope.ok()) {
      LayerError(at, kBuilder, kName, "condition must give a bool scalar, got ",
                 go_on.valid()
                     ? absl::StrCat(DTypeName(go_on.dtype()), inside.shape(go_on).ToString())
                     : std::string("an invalid Output"));
    }
    return {};
  }
  if (counts) {
    go_on =
        LogicalAnd({inside, at.where},
                   Less({inside, at.where}, loop.at_condition(0), attrs.maximum_iterations), go_on);
  }
  loop.SetCondition(go_on);
  now.clear();
  for (int i = 0; i < last; ++i) {
    const Output value = loop.in_body(i);
    if (i >= first) now.push_back(value);
  }
  if (!scope.ok()) return {};
  const Outputs next = body(inside.BuiltWhereCalled(), now);
  if (!scope.ok()) return {};
  if (next.size() != variables.size()) {
    LayerError(at, kBuilder, kName, "body must give a value for each of the ", variables.size(),
               " variables, got ", next.size());
    return {};
  }
  if (counts) {
    loop.SetNext(0, Add({inside, at.where}, loop.in_body(0), Const({inside, at.where}, 1)));
  }
  for (size_t i = 0; i < next.size(); ++i) loop.SetNext(first + static_cast<int>(i), next[i]);
  Outputs results;
  for (int i = first; i < last; ++i) results.push_back(loop.Exit(i));
  return scope.ok() && AllValid(results) ? results : Outputs();
}

// --- Loops over rows -----------------------------------------------------------------------------

namespace {

struct RowLoopAttrs {
  WhileContextOptions options;
  bool reverse = false;
  bool keeps_all = false;  // stacks what the function gives
};

// The first dimension that all of `rows` have; -1 when it is not known. nullopt, and an error of
// the scope, for a scalar and for different ones.
std::optional<int64_t> NumRows(const ScopeAt& at, absl::string_view builder, absl::string_view name,
                               const Outputs& rows) {
  int64_t known_rows = -1;
  for (size_t i = 0; i < rows.size(); ++i) {
    const PartialShape shape = at.scope.shape(rows[i]);
    if (!shape.has_rank()) continue;
    if (shape.rank() == 0) {
      LayerError(at, builder, name, "rows[", i, "] must have rank >= 1, got the scalar '",
                 rows[i].name(), "'");
      return std::nullopt;
    }
    if (shape.dim(0) == -1) continue;
    if (known_rows != -1 && known_rows != shape.dim(0)) {
      LayerError(at, builder, name, "rows must have equal first dimensions, got ", known_rows,
                 " and ", shape.dim(0), " of '", rows[i].name(), "'");
      return std::nullopt;
    }
    known_rows = shape.dim(0);
  }
  return known_rows;
}

// `stacked` has `num_rows` rows; -1: nobody knows.
void SetNumRows(const Scope& scope, const Output& stacked, int64_t num_rows) {
  if (num_rows < 0 || !scope.shape(stacked).has_rank()) return;
  PartialShape shape = PartialShape::UnknownOfRank(scope.shape(stacked).rank());
  std::vector<int64_t> dims(shape.dims().begin(), shape.dims().end());
  dims[0] = num_rows;
  if (const auto made = PartialShape::Make(dims); made.ok()) scope.SetShape(stacked, *made);
}

// The loop behind all of them. Variables: the number of the iteration, then `initial`; function(
// inside, variables, elements) gives their next values, or, where there are none, what to stack.
Outputs LoopOverRows(const ScopeAt& at, absl::string_view builder, absl::string_view name,
                     const Outputs& rows, const Outputs& initial, const FoldFn& function,
                     const RowLoopAttrs& attrs) {
  if (!CheckTensors(at, builder, name, "rows", rows)) return {};
  if (!CheckTensors(at, builder, name, "initial", initial)) return {};
  if (rows.empty()) {
    LayerError(at, builder, name, "there must be a tensor with rows, got none");
    return {};
  }
  if (attrs.options.parallel_iterations < 1) {
    LayerError(at, builder, name, "parallel_iterations must be >= 1, got ",
               attrs.options.parallel_iterations);
    return {};
  }
  const std::optional<int64_t> checked_rows = NumRows(at, builder, name, rows);
  if (!checked_rows.has_value()) return {};
  const int64_t known_rows = *checked_rows;
  const Scope scope = at.scope.CompositeScope(name);
  const ScopeAt in(scope, at.where);
  std::vector<TensorArray> arrays;
  for (const Output& tensor : rows) arrays.push_back(TensorArray::OfRows(in, tensor));
  if (!scope.ok()) return {};
  const Output n = known_rows >= 0 ? Const(in, static_cast<int32_t>(known_rows))
                                   : arrays[0].Size({scope.WithName("num_rows"), at.where});
  WhileContextOptions options = attrs.options;
  options.maximum_iterations = n;
  LoopBuilder loop = BeginLoop(in, options);
  const int counter = loop.AddVariable(Const(in, 0), PartialShape::Scalar());
  for (const Output& tensor : initial) loop.AddVariable(tensor, scope.shape(tensor));
  if (!scope.ok()) return {};
  const Scope& inside = loop.inside();
  const ScopeAt body(inside, at.where);
  loop.SetCondition(Less(body, loop.at_condition(counter), n));
  const Output i = loop.in_body(counter);
  Outputs so_far;
  for (size_t v = 0; v < initial.size(); ++v) {
    so_far.push_back(loop.in_body(1 + static_cast<int>(v)));
  }
  const Output row = attrs.reverse ? Sub(body, Sub(body, n, Const(body, 1)), i) : i;
  Outputs elements;
  for (const TensorArray& array : arrays) elements.push_back(array.Read(body, row));
  if (!scope.ok()) return {};
  const Outputs given = function(inside.BuiltWhereCalled(), so_far, elements);
  if (!scope.ok()) return {};
  if (!CheckTensors(at, builder, name, "what the function gives", given)) return {};
  if (initial.empty() ? given.empty() : given.size() != initial.size()) {
    LayerError(at, builder, name, "the function must give ",
               initial.empty() ? std::string("a tensor")
                               : absl::StrCat("as many tensors as initial (", initial.size(), ")"),
               ", got ", given.size());
    return {};
  }
  // The arrays of results are made here, where their types and shapes are known, around the loop.
  std::vector<TensorArray> results;
  std::vector<int> flows;
  if (attrs.keeps_all) {
    for (const Output& tensor : given) {
      const TensorArray array(
          in, WithoutRef(tensor.dtype()), n,
          {.element_shape = inside.shape(tensor), .identical_element_shapes = true});
      if (!scope.ok()) return {};
      const int flow = loop.AddVariable(array.flow(), PartialShape::Scalar());
      loop.SetNext(flow, array.WithFlow(loop.in_body(flow)).Write(body, row, tensor).flow());
      results.push_back(array);
      flows.push_back(flow);
    }
  }
  loop.SetNext(counter, Add(body, i, Const(body, 1)));
  for (size_t v = 0; v < initial.size(); ++v) loop.SetNext(1 + static_cast<int>(v), given[v]);
  if (!scope.ok()) return {};
  loop.Exit(counter);
  Outputs outputs;
  if (attrs.keeps_all) {
    for (size_t r = 0; r < results.size(); ++r) {
      const Output stacked = results[r].WithFlow(loop.Exit(flows[r])).Stack(in);
      SetNumRows(scope, stacked, known_rows);
      outputs.push_back(stacked);
    }
  } else {
    for (size_t v = 0; v < initial.size(); ++v) {
      outputs.push_back(loop.Exit(1 + static_cast<int>(v)));
    }
  }
  return scope.ok() && AllValid(outputs) ? outputs : Outputs();
}

template <typename Attrs>
WhileContextOptions LoopOptions(const Attrs& attrs) {
  return {.parallel_iterations = attrs.parallel_iterations,
          .back_prop = attrs.back_prop,
          .swap_memory = attrs.swap_memory,
          .maximum_iterations = {}};
}

// Scan and folds need something to begin with.
bool CheckInitial(const ScopeAt& at, absl::string_view builder, absl::string_view name,
                  const Outputs& initial) {
  if (!initial.empty()) return true;
  LayerError(at, builder, name, "there must be an initial tensor, got none");
  return false;
}

}  // namespace

std::vector<Output> MapFn(
    ScopeAt at, const std::vector<Output>& rows,
    const std::function<std::vector<Output>(const Scope& s, const std::vector<Output>& elements)>&
        function,
    const MapAttrs& attrs) {
  return LoopOverRows(at, "MapFn", "map", rows, {},
                      [&](const Scope& s, const Outputs&, const Outputs& elements) {
                        return function(s, elements);
                      },
                      {.options = LoopOptions(attrs), .keeps_all = true});
}

Output MapFn(ScopeAt at, const Output& rows,
             const std::function<Output(const Scope& s, const Output& element)>& function,
             const MapAttrs& attrs) {
  const Outputs mapped = MapFn(
      at, Outputs{rows},
      [&](const Scope& s, const Outputs& elements) { return Outputs{function(s, elements[0])}; },
      attrs);
  return mapped.empty() ? Output() : mapped[0];
}

std::vector<Output> Scan(ScopeAt at, const std::vector<Output>& rows,
                         const std::vector<Output>& initial, const FoldFn& function,
                         const ScanFnAttrs& attrs) {
  if (!CheckInitial(at, "Scan", "scan", initial)) return {};
  return LoopOverRows(at, "Scan", "scan", rows, initial, function,
                      {.options = LoopOptions(attrs), .reverse = attrs.reverse, .keeps_all = true});
}

std::vector<Output> FoldL(ScopeAt at, const std::vector<Output>& rows,
                          const std::vector<Output>& initial, const FoldFn& function,
                          const MapAttrs& attrs) {
  if (!CheckInitial(at, "FoldL", "foldl", initial)) return {};
  return LoopOverRows(at, "FoldL", "foldl", rows, initial, function,
                      {.options = LoopOptions(attrs)});
}

std::vector<Output> FoldR(ScopeAt at, const std::vector<Output>& rows,
                          const std::vector<Output>& initial, const FoldFn& function,
                          const MapAttrs& attrs) {
  if (!CheckInitial(at, "FoldR", "foldr", initial)) return {};
  return LoopOverRows(at, "FoldR", "foldr", rows, initial, function,
                      {.options = LoopOptions(attrs), .reverse = true});
}

}  // namespace millrace
