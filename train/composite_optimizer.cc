// SPDX-License-Identifier: Apache-2.0
#include "train/composite_optimizer.h"

#include <algorithm>
#include <cstdint>
#include <set>

#include "graph/gradient.h"
#include "layers/variable_update.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"

namespace millrace {
namespace {

bool AreSame(const Variable& a, const Variable& b) {
  return a.handle.node() == b.handle.node() && a.handle.index() == b.handle.index();
}

}  // namespace

CompositeOptimizer::CompositeOptimizer(std::vector<Part> parts, const std::string& name)
    : Optimizer({.name = name}), parts_(std::move(parts)) {}

size_t CompositeOptimizer::PartOf(const Variable& variable) const {
  const auto found = std::find_if(parts_.begin(), parts_.end(), [&](const Part& part) {
    return std::any_of(part.variables.begin(), part.variables.end(),
                       [&](const Variable& own) { return AreSame(own, variable); });
  });
  return static_cast<size_t>(found - parts_.begin());
}

Status CompositeOptimizer::NoPartHas(const Variable& variable) const {
  return InvalidArgument(name(), ": each variable must be in a part, got '", variable.name,
                         "' in none of ", parts_.size());
}

Status CompositeOptimizer::CheckOptions(const Scope&) const {
  if (parts_.empty()) return InvalidArgument(name(), ": there must be a part, got none");
  std::set<std::string> seen;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (parts_[i].optimizer == nullptr) {
      return InvalidArgument(name(), ": each part must have an optimizer, got none in part ", i);
    }
    if (parts_[i].variables.empty()) {
      return InvalidArgument(name(), ": each part must have variables, got none in part ", i);
    }
    for (const Variable& variable : parts_[i].variables) {
      if (!variable.valid()) {
        return InvalidArgument(name(), ": variables must be valid, got an invalid one in part ", i);
      }
      if (!seen.insert(variable.handle.name()).second) {
        return InvalidArgument(name(), ": a variable must be in one part once, got '",
                               variable.name, "' again in part ", i);
      }
    }
  }
  return absl::OkStatus();
}

std::vector<GradientAndVariable> CompositeOptimizer::ComputeGradients(
    ScopeAt at, Output loss, const MinimizeOptions& options) {
  at.scope.UpdateStatus(CheckOptions(at.scope), at.where);
  std::vector<GradientAndVariable> all;
  if (!at.scope.ok()) return all;
  std::vector<std::vector<Variable>> wanted(parts_.size());
  for (const Variable& variable : options.variables) {
    const size_t part = PartOf(variable);
    if (part == parts_.size()) {
      at.scope.UpdateStatus(NoPartHas(variable), at.where);
      return all;
    }
    wanted[part].push_back(variable);
  }
  for (size_t i = 0; i < parts_.size(); ++i) {
    MinimizeOptions own = options;
    own.variables = options.variables.empty() ? parts_[i].variables : wanted[i];
    if (own.variables.empty()) continue;
    for (GradientAndVariable& pair : parts_[i].optimizer->ComputeGradients(at, loss, own)) {
      all.push_back(std::move(pair));
    }
    if (!at.scope.ok()) return {};
  }
  return all;
}

Operation CompositeOptimizer::ApplyGradients(ScopeAt at,
                                             const std::vector<GradientAndVariable>& given,
                                             const MinimizeOptions& options) {
  at.scope.UpdateStatus(CheckOptions(at.scope), at.where);
  if (!at.scope.ok()) return Operation();
  const Scope scope = at.here().WithoutControlDependencies();
  const Scope clips = scope.WithName("").BuiltWhereCalled();
  const std::vector<GradientAndVariable> gradients =
      options.clip ? options.clip(ScopeAt(clips, at.where), given) : given;
  if (!at.scope.ok()) return Operation();
  std::vector<std::vector<GradientAndVariable>> of_part(parts_.size());
  for (const GradientAndVariable& pair : gradients) {
    const size_t part = PartOf(pair.variable);
    if (part == parts_.size()) {
      at.scope.UpdateStatus(NoPartHas(pair.variable), at.where);
      return Operation();
    }
    of_part[part].push_back(pair);
  }
  std::vector<Operation> updates;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (of_part[i].empty()) continue;
    updates.push_back(
        parts_[i].optimizer->ApplyGradients(ScopeAt(scope.WithName(""), at.where), of_part[i]));
    if (!at.scope.ok()) return Operation();
  }
  if (updates.empty()) {
    at.scope.UpdateStatus(InvalidArgument(name(), ": No variables provided."), at.where);
    return Operation();
  }

  const Scope inside = scope.WithSubScope(options.name.empty() ? name() : options.name);
  const std::string own_name = inside.prefix();  // of the result: it ends the scope
  Operation train;
  if (options.global_step && options.global_step->valid()) {
    const Variable& step = *options.global_step;
    // On the step's device: what runs there says so without a message.
    const Scope beside = inside.ColocatedWith(step.handle.op());
    const Operation all = Group(ScopeAt(beside.WithName("update"), at.where), updates);
    const Scope after = beside.WithControlDependencies({all});
    const Output one = step.dtype == DT_INT32 ? Const(after, int32_t{1}) : Const(after, int64_t{1});
    train = AssignAddVariable(ScopeAt(after.WithName(own_name), at.where), step, one);
  } else {
    train = Group(ScopeAt(inside.WithName(own_name), at.where), updates);
  }
  if (train.valid()) at.scope.AddToNodeCollection("train_op", train.name());
  return train;
}

Variable CompositeOptimizer::GetSlot(const Variable& variable, absl::string_view slot) const {
  const size_t part = PartOf(variable);
  if (part == parts_.size() || parts_[part].optimizer == nullptr) return Variable();
  return parts_[part].optimizer->GetSlot(variable, slot);
}

std::vector<std::string> CompositeOptimizer::GetSlotNames() const {
  std::set<std::string> names;
  for (const Part& part : parts_) {
    if (part.optimizer == nullptr) continue;
    for (std::string& slot : part.optimizer->GetSlotNames()) names.insert(std::move(slot));
  }
  return {names.begin(), names.end()};
}

std::vector<Variable> CompositeOptimizer::Variables(const Scope& scope) const {
  std::vector<Variable> all;
  for (const Part& part : parts_) {
    if (part.optimizer == nullptr) continue;
    for (Variable& variable : part.optimizer->Variables(scope)) all.push_back(std::move(variable));
  }
  std::sort(all.begin(), all.end(),
            [](const Variable& a, const Variable& b) { return a.name < b.name; });
  return all;
}

}  // namespace millrace
