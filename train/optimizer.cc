// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer.h"

#include <algorithm>
#include <limits>

#include "core/status.h"
#include "graph/node_builder.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/state/state.h"
#include "train/beside_variable.h"

namespace millrace {
namespace {

constexpr char kTrainOp[] = "train_op";

// The dimensions as Fill takes them: int32 as in TensorFlow's graphs, int64 when one does not fit.
Output FillDims(const Scope& scope, const Shape& shape) {
  const bool fits = std::all_of(shape.dims().begin(), shape.dims().end(), [](int64_t dim) {
    return dim <= std::numeric_limits<int32_t>::max();
  });
  if (!fits) return ConstVector<int64_t>(scope, shape.dims());
  std::vector<int32_t> dims;
  for (int64_t dim : shape.dims()) dims.push_back(static_cast<int32_t>(dim));
  return ConstVector<int32_t>(scope, dims);
}

// Rows that appear once each: the values of repeated rows are added.
struct UniqueRows {
  Output values;
  Output rows;
};
UniqueRows SumRepeatedRows(const Scope& scope, const IndexedSlices& slices) {
  const BuiltNode unique = NodeBuilder(scope, "Unique").Input(slices.indices).Finish();
  const Output rows = unique.output(0);
  const Output shape = NodeBuilder(scope, "Shape").Input(rows).Finish().output(0);
  const Output count = NodeBuilder(scope, "StridedSlice")
                           .Input(shape)
                           .Input(Const<int32_t>(scope, {0}))
                           .Input(Const<int32_t>(scope, {1}))
                           .Input(Const<int32_t>(scope, {1}))
                           .Attr("shrink_axis_mask", int64_t{1})
                           .Finish()
                           .output(0);
  return {NodeBuilder(scope, "UnsortedSegmentSum")
              .Input(slices.values)
              .Input(unique.output(1))
              .Input(count)
              .Finish()
              .output(0),
          rows};
}

}  // namespace

std::vector<GradientAndVariable> Optimizer::ComputeGradients(
    ScopeAt at, Output loss, const std::vector<Variable>& variables) {
  std::vector<GradientAndVariable> result;
  if (!loss.valid()) return result;
  std::vector<Variable> wanted =
      variables.empty() ? VariablesOf(at.scope, "trainable_variables") : variables;
  if (wanted.empty()) {
    at.scope.UpdateStatus(
        InvalidArgument(name_, ": the graph must have trainable variables, got none"), at.where);
    return result;
  }
  std::vector<Output> handles;
  for (const Variable& variable : wanted) handles.push_back(variable.handle);
  const Scope plain = at.scope.WithoutControlDependencies();
  StatusOr<std::vector<Gradient>> gradients = AddGradients(plain, {loss}, handles);
  if (!gradients.ok()) {
    at.scope.UpdateStatus(gradients.status(), at.where);
    return result;
  }
  for (size_t i = 0; i < wanted.size(); ++i) {
    result.push_back({std::move((*gradients)[i]), std::move(wanted[i])});
  }
  return result;
}

Operation Optimizer::ApplyGradients(ScopeAt at, const std::vector<GradientAndVariable>& given,
                                    const MinimizeOptions& options) {
  at.scope.UpdateStatus(CheckOptions(at.scope), at.where);
  if (!at.scope.ok()) return Operation();
  const Scope scope = at.scope.WithoutControlDependencies();
  const std::vector<GradientAndVariable> gradients =
      options.clip ? options.clip(ScopeAt(scope.WithName(""), at.where), given) : given;
  if (!at.scope.ok()) return Operation();
  std::vector<Variable> variables;
  for (const GradientAndVariable& pair : gradients) {
    if (HasGradient(pair.gradient)) variables.push_back(pair.variable);
  }
  if (variables.empty()) {
    std::vector<std::string> names;
    for (const GradientAndVariable& pair : gradients) names.push_back(pair.variable.name);
    at.scope.UpdateStatus(
        InvalidArgument(name_, ": at least one variable must have a gradient, got none for ",
                        names.size(), " variable(s)",
                        names.empty() ? "" : absl::StrCat(" (first '", names[0], "')"),
                        "; does the loss depend on them?"),
        at.where);
    return Operation();
  }
  Prepare(scope, variables);

  const std::string result_name = options.name.empty() ? name_ : options.name;
  // "Adam/update_w/...", as in TensorFlow's graphs.
  const Scope updates_scope = scope.WithSubScope(result_name);
  std::vector<Operation> updates;
  for (const GradientAndVariable& pair : gradients) {
    if (!HasGradient(pair.gradient)) continue;
    const Scope update =
        NextTo(updates_scope, pair.variable).WithSubScope("update_" + pair.variable.name);
    if (const Output* dense = std::get_if<Output>(&pair.gradient)) {
      updates.push_back(ApplyDense(update, pair.variable, *dense));
    } else {
      const UniqueRows unique = SumRepeatedRows(update, std::get<IndexedSlices>(pair.gradient));
      updates.push_back(ApplySparse(update, pair.variable, unique.values, unique.rows));
    }
  }
  updates = Finish(updates_scope, updates);
  if (!at.scope.ok()) return Operation();

  // The result has the optimizer's name itself, as in TensorFlow's graphs: it ends the scope.
  const std::string own_name = updates_scope.prefix();
  Operation train;
  if (options.global_step && options.global_step->valid()) {
    const Variable& step = *options.global_step;
    // Beside the step: what runs on its device says so without a message.
    const Scope beside = NextTo(updates_scope, step);
    const Operation all = Group(ScopeAt(beside.WithName("update"), at.where), updates);
    const Scope after = beside.WithControlDependencies({all});
    const Output one = step.dtype == DT_INT32 ? Const(after, int32_t{1}) : Const(after, int64_t{1});
    train = AssignAddVariableOp(ScopeAt(after.WithName(own_name), at.where), step.handle, one);
  } else {
    train = Group(ScopeAt(updates_scope.WithName(own_name), at.where), updates);
  }
  if (train.valid()) at.scope.AddToNodeCollection(kTrainOp, train.name());
  return train;
}

Operation Optimizer::Minimize(ScopeAt at, Output loss) { return Minimize(at, std::move(loss), {}); }

Operation Optimizer::Minimize(ScopeAt at, Output loss, const MinimizeOptions& options) {
  const std::vector<GradientAndVariable> gradients = ComputeGradients(at, loss, options.variables);
  const auto has_one = [](const GradientAndVariable& pair) { return HasGradient(pair.gradient); };
  if (at.scope.ok() && !gradients.empty() &&
      std::none_of(gradients.begin(), gradients.end(), has_one)) {
    const Variable& first = gradients[0].variable;
    at.scope.UpdateStatus(
        InvalidArgument(name_, ": at least one variable must have a gradient, got none for ",
                        gradients.size(), " variable(s); of '", first.name,
                        "': ", WhyNoGradient(loss, first.handle)),
        at.where);
  }
  return ApplyGradients(at, gradients, options);
}

Output StepAfter(ScopeAt at, Operation train, const Variable& global_step) {
  if (!at.scope.ok()) return Output();
  if (!train.valid() || !global_step.valid()) {
    at.scope.UpdateStatus(
        InvalidArgument(
            "StepAfter: train and global_step must belong to the graph, got an invalid ",
            train.valid() ? "global_step" : "train"),
        at.where);
    return Output();
  }
  const Scope after = NextTo(at.scope, global_step).WithControlDependencies({train});
  return ReadVariableOp(ScopeAt(after, at.where), global_step.handle, global_step.dtype);
}

Variable Optimizer::MakeSlot(const Scope& scope, const Variable& variable, double value,
                             const std::string& slot_name) {
  // Slots ignore name scopes: "<variable>/<slot_name>", "_1", ... (checkpoints depend on it).
  const Scope root = scope.WithRootPrefix().ColocatedWith(variable.handle.op());
  const StatusOr<Shape> shape = variable.shape.ToShape();
  if (!shape.ok()) {
    scope.UpdateStatus(shape.status(), std::source_location::current());
    return Variable();
  }
  const std::string full_name = variable.name + "/" + slot_name;
  // A second slot of that name is "<slot_name>_1", in checkpoints, too.
  std::string own = slot_name;
  for (int i = 1; scope.graph()->FindNode(variable.name + "/" + own) != nullptr; ++i) {
    own = absl::StrCat(slot_name, "_", i);
  }
  const Scope initializer = root.WithSubScope(full_name + "/Initializer");
  const Output fill =
      Fill(initializer, FillDims(initializer, *shape), ScalarLike(initializer, variable, value));
  VariableAttrs attrs;
  attrs.trainable = false;
  if (!variable.slice.full_name.empty()) {
    // The slot of a part is the same part of the slot of the whole.
    attrs.slice = variable.slice;
    attrs.slice.full_name += "/" + own;
  }
  return MakeVariable(root.WithName(variable.name + "/" + own), fill, attrs);
}

}  // namespace millrace
