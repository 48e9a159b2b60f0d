// SPDX-License-Identifier: Apache-2.0
#include "train/moving_average.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "graph/graph.h"
#include "layers/initialized_value.h"
#include "layers/initializers.h"
#include "layers/variable_update.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "train/known_shape.h"

namespace millrace {
namespace {

constexpr char kWhere[] = "ExponentialMovingAverage";
constexpr char kAveraged[] = "moving_average_variables";

// Parts of one variable have one name there.
const std::string& NameInCheckpoint(const Variable& variable) {
  return variable.slice.full_name.empty() ? variable.name : variable.slice.full_name;
}

// The node of `graph` that moves the average of this name; null: none does.
const Node* MoverOf(const Graph& graph, const std::string& average) {
  const Node* const node = graph.FindNode(average);
  if (node == nullptr) return nullptr;
  for (const Edge& edge : node->out_edges()) {
    const std::string& op = edge.dst->op();
    if (edge.dst_input == 0 && (op == "AssignSubVariableOp" || op == "AssignSub")) return edge.dst;
  }
  return nullptr;
}

}  // namespace

ExponentialMovingAverage::ExponentialMovingAverage(const ExponentialMovingAverageOptions& options)
    : options_(options) {}

Status ExponentialMovingAverage::CheckOptions(const Scope& scope) const {
  if (options_.name.empty()) {
    return InvalidArgument(kWhere, ": name must be a part of names of variables, got ''");
  }
  if (options_.decay.is_number()) {
    const double decay = options_.decay.number();
    if (!(decay >= 0 && decay <= 1)) {
      return InvalidArgument(kWhere, ": decay must be in [0, 1], got ", decay);
    }
  }
  MR_RETURN_IF_ERROR(CheckFloatingScalar(scope, kWhere, "decay", options_.decay));
  const Output& count = options_.num_updates;
  if (!count.valid()) return absl::OkStatus();
  if (count.node()->graph() != scope.graph()) {
    return InvalidArgument(kWhere, ": num_updates must be a tensor of the same graph, got '",
                           count.name(), "' of another");
  }
  const DType type = WithoutRef(count.dtype());
  const bool is_number = IsFloating(type) || IsInteger(type);
  if (is_number && scope.shape(count).IsCompatibleWith(Shape())) return absl::OkStatus();
  return InvalidArgument(kWhere, ": num_updates must be a scalar that is a number, got ", type,
                         scope.shape(count), " from '", count.name(), "'");
}

Status ExponentialMovingAverage::CheckVariable(const Scope& scope, const Variable& variable) const {
  if (!variable.valid() || variable.handle.node()->graph() != scope.graph()) {
    return InvalidArgument(
        kWhere, ": a variable must be one of the graph, got ",
        variable.valid() ? absl::StrCat("'", variable.name, "' of another") : "an invalid one");
  }
  if (!IsFloating(variable.dtype)) {
    return InvalidArgument(kWhere, ": variable '", variable.name, "' must be floating, got ",
                           variable.dtype);
  }
  if (Average(variable).valid()) {
    return InvalidArgument(kWhere, ": variable '", variable.name,
                           "' must be averaged once, got a second Apply; make another "
                           "ExponentialMovingAverage with a name of its own");
  }
  const std::string average = absl::StrCat(variable.name, "/", options_.name);
  if (const Node* const mover = MoverOf(*scope.graph(), average)) {
    return InvalidArgument(kWhere, ": the average '", average, "' must be moved by one node, got '",
                           mover->name(),
                           "', which moves it already; run that one, or give this "
                           "ExponentialMovingAverage a name of its own");
  }
  return absl::OkStatus();
}

Operation ExponentialMovingAverage::Apply(ScopeAt at, const std::vector<Variable>& given) {
  at.scope.UpdateStatus(CheckOptions(at.scope), at.where);
  if (!at.scope.ok()) return Operation();
  const std::vector<Variable> variables =
      given.empty() ? VariablesOf(at.scope, "trainable_variables") : given;
  if (variables.empty()) {
    at.scope.UpdateStatus(
        InvalidArgument(kWhere, ": the graph must have trainable variables, got none"), at.where);
    return Operation();
  }
  const Scope scope = at.here().WithSubScope(options_.name);
  std::vector<Operation> updates;
  for (const Variable& variable : variables) {
    at.scope.UpdateStatus(CheckVariable(at.scope, variable), at.where);
    if (!at.scope.ok()) return Operation();
    const Variable average = MakeAverage(at, variable);
    if (!average.valid()) return Operation();
    made_[{at.scope.graph(), variable.name}] = average;

    const Scope update = scope.ColocatedWith(average.handle.op());
    const Output value = ReadVariable({update, at.where}, variable);
    const Output old = ReadVariable({update, at.where}, average);
    const Output step = Mul(update, Sub(update, old, value), Rate(update, variable));
    updates.push_back(AssignSubVariable({update, at.where}, average, step));
  }
  AddToCollection(at.scope, variables, kAveraged);
  return Group(ScopeAt(scope.WithName(scope.prefix()), at.where), updates);
}

Output ExponentialMovingAverage::Rate(const Scope& scope, const Variable& variable) const {
  if (options_.decay.is_number() && !options_.num_updates.valid()) {
    return ScalarIn(scope.WithName("rate"), 1 - options_.decay.number(), variable.value);
  }
  Output decay = options_.decay.is_number() ? Const(scope, options_.decay.number())
                                            : Cast(scope, options_.decay.output(), DT_DOUBLE);
  if (options_.num_updates.valid()) {
    const Output n = Cast(scope, options_.num_updates, DT_DOUBLE);
    const Output at_first =
        RealDiv(scope, Add(scope, Const(scope, 1.0), n), Add(scope, Const(scope, 10.0), n));
    decay = Minimum(scope, decay, at_first);
  }
  return ScalarIn(scope.WithName("rate"), Sub(scope, Const(scope, 1.0), decay), variable.value);
}

Variable ExponentialMovingAverage::MakeAverage(const ScopeAt& at, const Variable& variable) {
  const std::string name = absl::StrCat(variable.name, "/", options_.name);
  // A graph that was read may have it, and nothing that moves it.
  if (at.scope.graph()->FindNode(name) != nullptr) {
    for (Variable& there : VariablesOf(at.scope)) {
      if (there.name == name) return std::move(there);
    }
    // Under another name it would be saved, and looked for in vain.
    at.scope.UpdateStatus(
        InvalidArgument(kWhere, ": the name '", name,
                        "' must be free for the average of a variable, got a node of the graph; "
                        "give this ExponentialMovingAverage a name of its own"),
        at.where);
    return Variable();
  }
  const StatusOr<Shape> shape = KnownShape(variable);
  if (!shape.ok()) {
    at.scope.UpdateStatus(Prefixed(kWhere, shape.status()), at.where);
    return Variable();
  }
  VariableAttrs attrs;
  attrs.trainable = false;
  attrs.use_resource = !variable.is_reference();
  if (!variable.slice.full_name.empty()) {
    attrs.slice = variable.slice;
    absl::StrAppend(&attrs.slice.full_name, "/", options_.name);
  }
  // An adopted variable has no initial value; its value was restored.
  const auto initial_value = [&](const ScopeAt& in, const InitialShape&, DType) {
    return variable.initializer.valid() ? InitializedValue(in, variable) : variable.value;
  };
  const Scope root = at.scope.WithRootPrefix().ColocatedWith(variable.handle.op());
  return MakeVariable({root.WithName(name), at.where}, *shape, variable.dtype, initial_value,
                      attrs);
}

Variable ExponentialMovingAverage::Average(const Variable& variable) const {
  if (!variable.valid()) return Variable();
  const auto found = made_.find({variable.handle.node()->graph(), variable.name});
  return found == made_.end() ? Variable() : found->second;
}

std::string ExponentialMovingAverage::AverageName(const Variable& variable) const {
  return absl::StrCat(NameInCheckpoint(variable), "/", options_.name);
}

std::vector<std::pair<std::string, Variable>> ExponentialMovingAverage::VariablesToRestore(
    const Scope& scope, const std::vector<Variable>& given) const {
  std::vector<Variable> averaged = given.empty() ? VariablesOf(scope, kAveraged) : given;
  if (averaged.empty()) averaged = VariablesOf(scope, "trainable_variables");
  std::vector<std::pair<std::string, Variable>> result;
  std::set<std::string> have_average;  // names of variables
  std::set<std::string> names;         // of averages
  for (Variable& variable : averaged) {
    if (!variable.valid() || !have_average.insert(variable.name).second) continue;
    std::string name = AverageName(variable);
    names.insert(name);
    result.emplace_back(std::move(name), std::move(variable));
  }
  for (Variable& variable : VariablesOf(scope)) {
    if (have_average.count(variable.name) > 0) continue;
    // An average of this graph: its value goes into the variable.
    if (names.count(NameInCheckpoint(variable)) > 0) continue;
    std::string name = NameInCheckpoint(variable);
    result.emplace_back(std::move(name), std::move(variable));
  }
  return result;
}

}  // namespace millrace
