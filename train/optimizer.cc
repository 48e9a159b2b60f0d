// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/logging.h"
#include "core/small_tensors.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/gated_gradients.h"
#include "graph/graph.h"
#include "layers/variable_update.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/indices.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/math/segment.h"
#include "train/known_shape.h"

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
  if (slices.unique_indices) return {slices.values, slices.indices};
  const UniqueOutputs unique = Unique(scope, slices.indices);
  const Output shape = ShapeOf(scope, unique.y);
  const Output begin = Const<int32_t>(scope, {0});
  const Output end = Const<int32_t>(scope, {1});
  const Output strides = Const<int32_t>(scope, {1});
  const Output count = StridedSlice(scope, shape, begin, end, strides, {.shrink_axis_mask = 1});
  return {UnsortedSegmentSum(scope, slices.values, unique.idx, count), unique.y};
}

// Nodes made with the result stand on the variable's device.
Scope NextTo(const Scope& scope, const Variable& variable) {
  return scope.ColocatedWith(variable.handle.op());
}

std::vector<Variable> VariablesOf(const std::vector<GradientAndVariable>& gradients) {
  std::vector<Variable> variables;
  for (const GradientAndVariable& pair : gradients) variables.push_back(pair.variable);
  return variables;
}

// "'w', 'b'", the first ten.
std::string NamesOf(const std::vector<Variable>& variables) {
  constexpr size_t kMost = 10;
  std::vector<std::string> names;
  for (const Variable& variable : variables) {
    if (names.size() == kMost) break;
    names.push_back(absl::StrCat("'", variable.name, "'"));
  }
  if (variables.size() > kMost) names.push_back(absl::StrCat(variables.size() - kMost, " more"));
  return absl::StrJoin(names, ", ");
}

bool HasAny(const std::vector<GradientAndVariable>& gradients) {
  return std::any_of(gradients.begin(), gradients.end(),
                     [](const GradientAndVariable& pair) { return HasGradient(pair.gradient); });
}

}  // namespace

struct Optimizer::Made {
  // Of a graph, of a variable there ("" for what belongs to none), the slot's name. The graph lives
  // for as long as a variable of it is held here.
  using Key = std::tuple<const Graph*, std::string, std::string>;
  std::map<Key, Variable> variables;
  // Of which a warning has told that they are 0.
  std::set<std::pair<std::string, DType>> warned;

  Variable Find(const Key& key) const {
    const auto found = variables.find(key);
    return found == variables.end() ? Variable() : found->second;
  }
};

Optimizer::Optimizer(OptimizerSpec spec)
    : spec_(std::move(spec)), made_(std::make_unique<Made>()) {}
Optimizer::~Optimizer() = default;

// --- Gradients -----------------------------------------------------------------------------------

std::vector<GradientAndVariable> Optimizer::ComputeGradients(ScopeAt at, Output loss,
                                                             const MinimizeOptions& options) {
  std::vector<GradientAndVariable> result;
  if (!at.scope.ok() || !loss.valid()) return result;
  std::vector<Variable> wanted =
      options.variables.empty() ? VariablesOf(at.scope, "trainable_variables") : options.variables;
  if (wanted.empty()) {
    at.scope.UpdateStatus(
        InvalidArgument(name(), ": the graph must have trainable variables, got none"), at.where);
    return result;
  }
  std::vector<Output> handles;
  for (const Variable& variable : wanted) handles.push_back(variable.handle);
  const Scope plain = at.here().WithoutControlDependencies();
  GradientOptions gradient_options;
  gradient_options.colocate_with_ops = options.colocate_gradients_with_ops;
  if (options.grad_loss.valid()) gradient_options.grad_ys = {options.grad_loss};
  StatusOr<std::vector<Gradient>> gradients =
      options.gate_gradients == GateGradients::kOp
          ? AddGatedGradients(plain, {loss}, handles, gradient_options)
          : AddGradients(plain, {loss}, handles, gradient_options);
  if (!gradients.ok()) {
    at.scope.UpdateStatus(gradients.status(), at.where);
    return result;
  }
  if (options.gate_gradients == GateGradients::kGraph) {
    *gradients = GateTogether(plain.WithName(""), *std::move(gradients));
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
  const Scope scope = at.here().WithoutControlDependencies();
  const Scope clips = scope.WithName("").BuiltWhereCalled();
  const std::vector<GradientAndVariable> gradients =
      options.clip ? options.clip(ScopeAt(clips, at.where), given) : given;
  if (!at.scope.ok()) return Operation();
  if (!HasAny(gradients)) {
    at.scope.UpdateStatus(
        gradients.empty() ? InvalidArgument(name(), ": No variables provided.")
                          : InvalidArgument(name(), ": No gradients provided for any variable: ",
                                            NamesOf(VariablesOf(gradients)), "."),
        at.where);
    return Operation();
  }
  std::vector<Variable> variables;
  for (const GradientAndVariable& pair : gradients) {
    if (HasGradient(pair.gradient)) variables.push_back(pair.variable);
  }
  Prepare(scope, variables);

  const std::string result_name = options.name.empty() ? name() : options.name;
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
    // On the step's device: what runs there says so without a message.
    const Scope beside = NextTo(updates_scope, step);
    const Operation all = Group(ScopeAt(beside.WithName("update"), at.where), updates);
    const Scope after = beside.WithControlDependencies({all});
    const Output one = step.dtype == DT_INT32 ? Const(after, int32_t{1}) : Const(after, int64_t{1});
    train = AssignAddVariable(ScopeAt(after.WithName(own_name), at.where), step, one);
  } else {
    train = Group(ScopeAt(updates_scope.WithName(own_name), at.where), updates);
  }
  if (train.valid()) at.scope.AddToNodeCollection(kTrainOp, train.name());
  return train;
}

Operation Optimizer::Minimize(ScopeAt at, Output loss) { return Minimize(at, std::move(loss), {}); }

Operation Optimizer::Minimize(ScopeAt at, Output loss, const MinimizeOptions& options) {
  const std::vector<GradientAndVariable> gradients = ComputeGradients(at, loss, options);
  if (at.scope.ok() && !gradients.empty() && !HasAny(gradients)) {
    const Variable& first = gradients[0].variable;
    at.scope.UpdateStatus(
        InvalidArgument(name(),
                        ": No gradients provided for any variable, check your graph for ops that "
                        "do not support gradients, between variables ",
                        NamesOf(VariablesOf(gradients)), " and loss '", loss.name(), "'; of '",
                        first.name, "': ", WhyNoGradient(loss, first.handle)),
        at.where);
  }
  return ApplyGradients(at, gradients, options);
}

// --- What optimizers are made of -----------------------------------------------------------------

Status Optimizer::CheckOptions(const Scope& scope) const {
  for (const auto& [option, value] : spec_.hyperparameters) {
    if (value.is_number() && !std::isfinite(value.number())) {
      return InvalidArgument(name(), ": ", option, " must be finite, got ", value.number());
    }
    MR_RETURN_IF_ERROR(CheckFloatingScalar(scope, name(), option, value));
  }
  return absl::OkStatus();
}

void Optimizer::Prepare(const Scope& scope, const std::vector<Variable>& variables) {
  for (const Variable& variable : variables) {
    for (const auto& [slot, initial_value] : spec_.slots) {
      Variable& made = made_->variables[{scope.graph(), variable.name, slot}];
      if (!made.valid()) made = MakeSlot(scope, variable, initial_value);
    }
  }
}

Operation Optimizer::ApplyDense(const Scope& scope, const Variable& variable, Output) {
  scope.UpdateStatus(Unimplemented(name(), ": ApplyDense must be defined to update '",
                                   variable.name, "', got none"),
                     ScopeAt(scope).where);
  return Operation();
}

Operation Optimizer::ApplySparse(const Scope& scope, const Variable& variable, Output, Output) {
  scope.UpdateStatus(Unimplemented(name(), ": ApplySparse must be defined to update rows of '",
                                   variable.name, "', got none"),
                     ScopeAt(scope).where);
  return Operation();
}

std::vector<Operation> Optimizer::Finish(const Scope&, const std::vector<Operation>& updates) {
  return updates;
}

const NumberOrOutput& Optimizer::given(absl::string_view name) const {
  static const NumberOrOutput* const none = new NumberOrOutput(Output());
  for (const auto& [option, value] : spec_.hyperparameters) {
    if (option == name) return value;
  }
  return *none;
}

Output Optimizer::Hyperparameter(const Scope& scope, absl::string_view name,
                                 const Variable& variable) {
  const NumberOrOutput& value = given(name);
  if (!value.is_number() && !value.output().valid()) {
    scope.UpdateStatus(Internal(spec_.name, ": must have the hyperparameter '", name, "'"),
                       ScopeAt(scope).where);
    return Output();
  }
  if (value.is_number() && value.number() != 0) {
    const StatusOr<Tensor> size = ScalarTensor(variable.dtype, std::abs(value.number()));
    const StatusOr<Tensor> zero = ScalarTensor(variable.dtype, 0.0);
    const bool is_zero = size.ok() && zero.ok() && size->bytes() == zero->bytes();
    if (is_zero && made_->warned.emplace(name, variable.dtype).second) {
      LogWarning(spec_.name, ": ", name, " ", value.number(), " is too small for ",
                 DTypeName(variable.dtype), " and is 0 there (first for '", variable.name,
                 "'); give a larger one");
    }
  }
  return ScalarIn(scope.WithName(name), value, variable.value);
}

// --- Variables -----------------------------------------------------------------------------------

Variable Optimizer::GetSlot(const Variable& variable, absl::string_view slot) const {
  if (!variable.valid()) return Variable();
  return made_->Find({variable.handle.node()->graph(), variable.name, std::string(slot)});
}

std::vector<std::string> Optimizer::GetSlotNames() const {
  std::vector<std::string> names;
  for (const OptimizerSpec::Slot& slot : spec_.slots) names.push_back(slot.name);
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<Variable> Optimizer::Variables(const Scope& scope) const {
  std::vector<Variable> result;
  for (const auto& [key, variable] : made_->variables) {
    if (std::get<0>(key) == scope.graph() && variable.valid()) result.push_back(variable);
  }
  std::sort(result.begin(), result.end(),
            [](const Variable& a, const Variable& b) { return a.name < b.name; });
  return result;
}

Variable Optimizer::MakeNonSlot(const Scope& scope, const std::string& name, const Variable& beside,
                                const NumberOrOutput& initial_value) {
  Variable& made = made_->variables[{scope.graph(), "", name}];
  if (made.valid()) return made;
  const Scope near = NextTo(scope, beside);
  VariableAttrs attrs;
  attrs.trainable = false;
  attrs.use_resource = !beside.is_reference();
  made = MakeVariable(near.WithName(name),
                      ScalarIn(near.WithName(name + "/initial_value"), initial_value, beside.value),
                      attrs);
  return made;
}

Variable Optimizer::GetNonSlot(const Scope& scope, absl::string_view name) const {
  return made_->Find({scope.graph(), "", std::string(name)});
}

Variable Optimizer::MakeSlot(const Scope& scope, const Variable& variable, double value) {
  // Slots ignore name scopes: "<variable>/<optimizer>", "_1", ... (checkpoints depend on it).
  const Scope root = NextTo(scope.WithRootPrefix(), variable);
  const StatusOr<Shape> shape = KnownShape(variable);
  if (!shape.ok()) {
    scope.UpdateStatus(Prefixed(name(), shape.status()), ScopeAt(scope).where);
    return Variable();
  }
  // A second slot of that name is "<optimizer>_1", in checkpoints, too.
  std::string own = name();
  for (int i = 1; scope.graph()->FindNode(variable.name + "/" + own) != nullptr; ++i) {
    own = absl::StrCat(name(), "_", i);
  }
  const std::string full_name = absl::StrCat(variable.name, "/", own);
  const Scope initializer = root.WithSubScope(full_name + "/Initializer");
  const Output fill = Fill(initializer, FillDims(initializer, *shape),
                           ScalarIn(initializer, value, variable.value));
  VariableAttrs attrs;
  attrs.trainable = false;
  attrs.use_resource = !variable.is_reference();  // as in TensorFlow; the ops ask for it
  if (!variable.slice.full_name.empty()) {
    // The slot of a part is the same part of the slot of the whole.
    attrs.slice = variable.slice;
    attrs.slice.full_name += "/" + own;
  }
  return MakeVariable(root.WithName(full_name), fill, attrs);
}

// --- The step ------------------------------------------------------------------------------------

Output StepAfter(ScopeAt at, Operation train, const Variable& global_step) {
  if (!at.scope.ok()) return Output();
  if (!train.valid() || !global_step.valid()) {
    at.scope.UpdateStatus(InvalidArgument("StepAfter: train and global_step must belong to the "
                                          "graph, got an invalid ",
                                          train.valid() ? "global_step" : "train"),
                          at.where);
    return Output();
  }
  const Scope after = NextTo(at.scope, global_step).WithControlDependencies({train});
  return ReadVariable(ScopeAt(after, at.where), global_step);
}

}  // namespace millrace
