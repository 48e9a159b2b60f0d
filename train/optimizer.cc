// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer.h"

#include <algorithm>
#include <limits>

#include "absl/container/flat_hash_map.h"
#include "graph/node_builder.h"
#include "ops/constant.h"
#include "ops/identity.h"
#include "ops/state.h"

namespace millrace {
namespace {

constexpr char kTrainOp[] = "train_op";

// A scalar constant of the variable's dtype next to the variable.
Output ScalarLike(const Scope& scope, const Variable& variable, double value) {
  if (variable.dtype == DT_DOUBLE) return Const(scope, value);
  const Output single = Const(scope, static_cast<float>(value));
  if (variable.dtype == DT_FLOAT) return single;
  return NodeBuilder(scope, "Cast").Input(single).Attr("DstT", variable.dtype).Finish().output(0);
}

// A value that lives with another variable, in the dtype of this one.
Output CastTo(const Scope& scope, const Variable& variable, const Variable& from) {
  if (from.dtype == variable.dtype) return from.value;
  return NodeBuilder(scope, "Cast")
      .Input(from.value)
      .Attr("DstT", variable.dtype)
      .Finish()
      .output(0);
}

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

// Collections and names of a colocated scope: nodes of one variable's update live next to it.
Scope NextTo(const Scope& scope, const Variable& variable) {
  return scope.ColocatedWith(variable.handle.op());
}

}  // namespace

std::vector<GradientAndVariable> Optimizer::ComputeGradients(
    ScopeAt at, Output loss, const std::vector<Variable>& variables) {
  std::vector<GradientAndVariable> result;
  if (!loss.valid()) return result;
  std::vector<Variable> wanted =
      variables.empty() ? VariablesOf(at.scope, "trainable_variables") : variables;
  if (wanted.empty()) {
    at.scope.UpdateStatus(absl::InvalidArgumentError(absl::StrCat(
                              name_, ": the graph must have trainable variables, got none")),
                          at.where);
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

Operation Optimizer::ApplyGradients(ScopeAt at, const std::vector<GradientAndVariable>& gradients,
                                    const MinimizeOptions& options) {
  if (!at.scope.ok()) return Operation();
  std::vector<Variable> variables;
  for (const GradientAndVariable& pair : gradients) {
    if (HasGradient(pair.gradient)) variables.push_back(pair.variable);
  }
  if (variables.empty()) {
    std::vector<std::string> names;
    for (const GradientAndVariable& pair : gradients) names.push_back(pair.variable.name);
    at.scope.UpdateStatus(
        absl::InvalidArgumentError(absl::StrCat(
            name_, ": at least one variable must have a gradient, got none for ", names.size(),
            " variable(s)", names.empty() ? "" : absl::StrCat(" (first '", names[0], "')"),
            "; does the loss depend on them?")),
        at.where);
    return Operation();
  }
  const Scope scope = at.scope.WithoutControlDependencies();
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

  Operation train;
  if (options.global_step && options.global_step->valid()) {
    const Variable& step = *options.global_step;
    const Operation all = Group(ScopeAt(updates_scope.WithName("update"), at.where), updates);
    const Scope after = NextTo(updates_scope, step).WithControlDependencies({all});
    const Output one = step.dtype == DT_INT32 ? Const(after, int32_t{1}) : Const(after, int64_t{1});
    const Operation count =
        AssignAddVariableOp(ScopeAt(after.WithName("AssignAdd"), at.where), step.handle, one);
    // The result has the optimizer's name itself; the scope of that name exists already.
    train = Group(ScopeAt(updates_scope.WithName("train"), at.where), {count});
  } else {
    train = Group(ScopeAt(updates_scope.WithName("train"), at.where), updates);
  }
  if (train.valid()) at.scope.AddToNodeCollection(kTrainOp, train.name());
  return train;
}

Operation Optimizer::Minimize(ScopeAt at, Output loss, const MinimizeOptions& options) {
  return ApplyGradients(at, ComputeGradients(at, loss, options.variables), options);
}

Output StepAfter(ScopeAt at, Operation train, const Variable& global_step) {
  if (!at.scope.ok()) return Output();
  if (!train.valid() || !global_step.valid()) {
    at.scope.UpdateStatus(
        absl::InvalidArgumentError(absl::StrCat(
            "StepAfter: train and global_step must belong to the graph, got an invalid ",
            train.valid() ? "global_step" : "train")),
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
  const Scope initializer = root.WithSubScope(full_name + "/Initializer");
  const Output fill =
      Fill(initializer, FillDims(initializer, *shape), ScalarLike(initializer, variable, value));
  VariableAttrs attrs;
  attrs.trainable = false;
  if (!variable.slice.full_name().empty()) {
    // The slot of a part is the same part of the slot of the whole.
    attrs.slice = variable.slice;
    attrs.slice.set_full_name(variable.slice.full_name() + "/" + slot_name);
  }
  return MakeVariable(root.WithName(full_name), fill, attrs);
}

// --- GradientDescent -----------------------------------------------------------------------------

struct GradientDescentOptimizer::State {
  GradientDescentOptions options;
  absl::flat_hash_map<DType, Output> learning_rate;
};

GradientDescentOptimizer::GradientDescentOptimizer(GradientDescentOptions options)
    : Optimizer(options.name, options.use_locking), state_(std::make_unique<State>()) {
  state_->options = std::move(options);
}
GradientDescentOptimizer::~GradientDescentOptimizer() = default;

void GradientDescentOptimizer::Prepare(const Scope&, const std::vector<Variable>&) {}

Operation GradientDescentOptimizer::ApplyDense(const Scope& scope, const Variable& variable,
                                               Output gradient) {
  return NodeBuilder(scope.WithName("ResourceApplyGradientDescent"), "ResourceApplyGradientDescent")
      .Input(variable.handle)
      .Input(ScalarLike(scope.WithName("learning_rate"), variable, state_->options.learning_rate))
      .Input(gradient)
      .Attr("use_locking", use_locking())
      .Finish()
      .operation();
}

Operation GradientDescentOptimizer::ApplySparse(const Scope& scope, const Variable& variable,
                                                Output values, Output rows) {
  const Output scaled = NodeBuilder(scope, "Mul")
                            .Input(values)
                            .Input(ScalarLike(scope.WithName("learning_rate"), variable,
                                              state_->options.learning_rate))
                            .Finish()
                            .output(0);
  return ResourceScatterSub(scope, variable.handle, rows, scaled);
}

// --- Adam ----------------------------------------------------------------------------------------

struct AdamOptimizer::State {
  AdamOptions options;
  Variable beta1_power, beta2_power;
  absl::flat_hash_map<std::string, std::pair<Variable, Variable>> slots;  // m and v by variable
};

AdamOptimizer::AdamOptimizer(AdamOptions options)
    : Optimizer(options.name, options.use_locking), state_(std::make_unique<State>()) {
  state_->options = std::move(options);
}
AdamOptimizer::~AdamOptimizer() = default;

void AdamOptimizer::Prepare(const Scope& scope, const std::vector<Variable>& variables) {
  // The powers live with the first variable by name, so that all workers agree where they are.
  const Variable& first =
      *std::min_element(variables.begin(), variables.end(),
                        [](const Variable& a, const Variable& b) { return a.name < b.name; });
  const Scope near = scope.ColocatedWith(first.handle.op());
  VariableAttrs attrs;
  attrs.trainable = false;
  const auto power = [&](const char* name, double value) {
    const Output initial =
        ScalarLike(near.WithName(std::string(name) + "/initial_value"), first, value);
    return MakeVariable(near.WithName(name), initial, attrs);
  };
  state_->beta1_power = power("beta1_power", state_->options.beta1);
  state_->beta2_power = power("beta2_power", state_->options.beta2);
  for (const Variable& variable : variables) {
    Variable m = MakeSlot(scope, variable, 0, name());
    Variable v = MakeSlot(scope, variable, 0, name());
    state_->slots[variable.name] = {std::move(m), std::move(v)};
  }
}

Operation AdamOptimizer::ApplyDense(const Scope& scope, const Variable& variable, Output gradient) {
  const auto& [m, v] = state_->slots[variable.name];
  const AdamOptions& o = state_->options;
  const auto number = [&](const char* name, double value) {
    return ScalarLike(scope.WithName(name), variable, value);
  };
  return NodeBuilder(scope.WithName("ResourceApplyAdam"), "ResourceApplyAdam")
      .Input(variable.handle)
      .Input(m.handle)
      .Input(v.handle)
      .Input(CastTo(scope, variable, state_->beta1_power))
      .Input(CastTo(scope, variable, state_->beta2_power))
      .Input(number("learning_rate", o.learning_rate))
      .Input(number("beta1", o.beta1))
      .Input(number("beta2", o.beta2))
      .Input(number("epsilon", o.epsilon))
      .Input(gradient)
      .Attr("use_locking", use_locking())
      .Finish()
      .operation();
}

// As TensorFlow's: not lazy. m and v decay over the whole variable, the gradient's rows are added,
// then the whole variable moves.
Operation AdamOptimizer::ApplySparse(const Scope& scope, const Variable& variable, Output values,
                                     Output rows) {
  const auto& [m, v] = state_->slots[variable.name];
  const AdamOptions& o = state_->options;
  const auto number = [&](double value) { return ScalarLike(scope, variable, value); };
  const auto binary = [&](const Scope& s, const char* op, Output a, Output b) {
    return NodeBuilder(s, op).Input(a).Input(b).Finish().output(0);
  };
  const auto unary = [&](const Scope& s, const char* op, Output a) {
    return NodeBuilder(s, op).Input(a).Finish().output(0);
  };
  const Output beta1 = number(o.beta1);
  const Output beta2 = number(o.beta2);
  // lr * sqrt(1 - beta2^t) / (1 - beta1^t)
  const Output one = number(1);
  const Output beta1_power = CastTo(scope, variable, state_->beta1_power);
  const Output beta2_power = CastTo(scope, variable, state_->beta2_power);
  const Output rate = binary(scope, "RealDiv",
                             binary(scope, "Mul", number(o.learning_rate),
                                    unary(scope, "Sqrt", binary(scope, "Sub", one, beta2_power))),
                             binary(scope, "Sub", one, beta1_power));
  const auto decay_and_add = [&](const Variable& slot, Output beta, double rest, Output addend) {
    const Output old = ReadVariableOp(scope, slot.handle, slot.dtype);
    const Operation decayed = AssignVariableOp(scope, slot.handle, binary(scope, "Mul", old, beta));
    const Scope then = scope.WithControlDependencies({decayed});
    const Operation added =
        ResourceScatterAdd(then, slot.handle, rows, binary(scope, "Mul", addend, number(rest)));
    return ReadVariableOp(scope.WithControlDependencies({added}), slot.handle, slot.dtype);
  };
  const Output new_m = decay_and_add(m, beta1, 1 - o.beta1, values);
  const Output new_v = decay_and_add(v, beta2, 1 - o.beta2, binary(scope, "Mul", values, values));
  const Output move = binary(scope, "RealDiv", binary(scope, "Mul", new_m, rate),
                             binary(scope, "Add", unary(scope, "Sqrt", new_v), number(o.epsilon)));
  return AssignSubVariableOp(scope, variable.handle, move);
}

std::vector<Operation> AdamOptimizer::Finish(const Scope& scope,
                                             const std::vector<Operation>& updates) {
  // The powers used in step t are beta^t; they move on only after every update of the step.
  std::vector<Operation> all = updates;
  const auto multiply = [&](const Variable& power, double beta) {
    const Scope after = NextTo(scope, power).WithControlDependencies(updates);
    const Output product = NodeBuilder(after, "Mul")
                               .Input(power.value)
                               .Input(ScalarLike(after, power, beta))
                               .Finish()
                               .output(0);
    all.push_back(AssignVariableOp(after, power.handle, product));
  };
  multiply(state_->beta1_power, state_->options.beta1);
  multiply(state_->beta2_power, state_->options.beta2);
  return all;
}

// --- Adagrad -------------------------------------------------------------------------------------

struct AdagradOptimizer::State {
  AdagradOptions options;
  absl::flat_hash_map<std::string, Variable> accumulators;
};

AdagradOptimizer::AdagradOptimizer(AdagradOptions options)
    : Optimizer(options.name, options.use_locking), state_(std::make_unique<State>()) {
  state_->options = std::move(options);
}
AdagradOptimizer::~AdagradOptimizer() = default;

void AdagradOptimizer::Prepare(const Scope& scope, const std::vector<Variable>& variables) {
  if (!(state_->options.initial_accumulator_value > 0)) {
    scope.UpdateStatus(absl::InvalidArgumentError(absl::StrCat(
                           "Adagrad '", name(), "': initial_accumulator_value must be > 0, got ",
                           state_->options.initial_accumulator_value)),
                       std::source_location::current());
    return;
  }
  for (const Variable& variable : variables) {
    state_->accumulators[variable.name] =
        MakeSlot(scope, variable, state_->options.initial_accumulator_value, name());
  }
}

Operation AdagradOptimizer::ApplyDense(const Scope& scope, const Variable& variable,
                                       Output gradient) {
  return NodeBuilder(scope.WithName("ResourceApplyAdagrad"), "ResourceApplyAdagrad")
      .Input(variable.handle)
      .Input(state_->accumulators[variable.name].handle)
      .Input(ScalarLike(scope.WithName("learning_rate"), variable, state_->options.learning_rate))
      .Input(gradient)
      .Attr("use_locking", use_locking())
      .Finish()
      .operation();
}

Operation AdagradOptimizer::ApplySparse(const Scope& scope, const Variable& variable, Output values,
                                        Output rows) {
  return NodeBuilder(scope.WithName("ResourceSparseApplyAdagrad"), "ResourceSparseApplyAdagrad")
      .Input(variable.handle)
      .Input(state_->accumulators[variable.name].handle)
      .Input(ScalarLike(scope.WithName("learning_rate"), variable, state_->options.learning_rate))
      .Input(values)
      .Input(rows)
      .Attr("use_locking", use_locking())
      .Finish()
      .operation();
}

}  // namespace millrace
