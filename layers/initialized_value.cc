// SPDX-License-Identifier: Apache-2.0
#include "layers/initialized_value.h"

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/hash_table.h"
#include "core/status.h"
#include "graph/graph.h"
#include "graph/shape_inference.h"
#include "layers/control_flow.h"
#include "layers/variable_update.h"

namespace millrace {
namespace {

// The tensor that the variable's initialiser assigns; invalid where there is none.
Output InitialValueOf(const Variable& variable) {
  if (!variable.initializer.valid()) return Output();
  const Node& assign = *variable.initializer.node();
  if (assign.num_inputs() < 2 || assign.input(1).node == nullptr) return Output();
  return Output(assign.input(1).node, assign.input(1).index);
}

// The node that makes the variable whose whole value the tensor is, for an input of type
// `taken_as`: a read of a handle, or a reference that is taken as a value. Null for all others.
const Node* VariableReadBy(const OutputRef& tensor, DType taken_as) {
  const Node& node = *tensor.node;
  if (node.traits().VariableUseOf(0) == VariableUse::kReads) {
    const Node* const made = node.num_inputs() > 0 ? node.input(0).node : nullptr;
    return made != nullptr && made->traits().makes_variable ? made : nullptr;
  }
  const bool is_value =
      node.traits().makes_variable && IsRef(node.output_type(tensor.index)) && !IsRef(taken_as);
  return is_value ? &node : nullptr;
}

bool IsControlFlow(const Node& node) {
  return node.is_switch() || node.is_merge() || node.is_enter() || node.is_exit() ||
         node.is_next_iteration() || node.is_loop_cond();
}

// The nodes that compute `last`, from its variables on: inputs before what takes them, but for the
// way back in a loop.
std::vector<const Node*> NodesBefore(const Node* last) {
  struct Visit {
    const Node* node;
    int next_input = 0;
  };
  std::vector<const Node*> order;
  HashSet<const Node*> seen;
  seen.insert(last);
  std::vector<Visit> path = {{last}};
  while (!path.empty()) {
    Visit& visit = path.back();
    if (visit.next_input == visit.node->num_inputs()) {
      order.push_back(visit.node);
      path.pop_back();
      continue;
    }
    const int i = visit.next_input++;
    const OutputRef& input = visit.node->input(i);
    if (input.node == nullptr || input.node->traits().makes_variable) continue;
    if (VariableReadBy(input, visit.node->input_type(i)) != nullptr) continue;
    if (seen.insert(input.node).second) path.push_back({input.node});
  }
  return order;
}

// Makes the copies for one value.
class InitialValues {
 public:
  InitialValues(const ScopeAt& at, absl::string_view name) : at_(at), name_(name) {}

  Output Of(const Output& value) {
    const OutputRef given = {.node = value.node(), .index = value.index()};
    const DType type = WithoutRef(value.dtype());
    if (const Output* const own = Find(given, type)) return *own;
    if (given.node->traits().makes_variable) return value;
    std::vector<const Node*> copied;  // in their order
    HashSet<const Node*> is_copied;
    for (const Node* const node : NodesBefore(given.node)) {
      bool differs = false;
      for (int i = 0; i < node->num_inputs(); ++i) {
        const OutputRef& input = node->input(i);
        if (input.node == nullptr) continue;
        differs |= is_copied.contains(input.node) || Find(input, node->input_type(i)) != nullptr;
      }
      if (!differs) continue;
      if (IsControlFlow(*node)) return value;
      copied.push_back(node);
      is_copied.insert(node);
    }
    for (const Node* const node : copied) {
      if (const Status s = Copy(*node); !s.ok()) {
        at_.scope.UpdateStatus(Prefixed(absl::StrCat("Variable '", name_, "': initial value"), s),
                               at_.where);
        return Output();
      }
    }
    const auto copy = copies_.find(given.node);
    return copy == copies_.end() ? value : Output(copy->second, value.index());
  }

 private:
  // What stands for a tensor that is the value of a variable; null where it is none, or where the
  // variable has no initial value.
  const Output* Find(const OutputRef& tensor, DType taken_as) {
    const Node* const made = VariableReadBy(tensor, taken_as);
    if (made == nullptr) return nullptr;
    const auto [found, is_new] = values_.try_emplace(made);
    if (is_new) {
      const Variable* const variable = VariableOf(made);
      if (variable != nullptr && InitialValueOf(*variable).valid()) {
        found->second = InitializedValue(at_, *variable);
      }
    }
    return found->second.valid() ? &found->second : nullptr;
  }

  const Variable* VariableOf(const Node* made) {
    if (!variables_) {
      variables_.emplace();
      for (const char* const collection : {"variables", "local_variables"}) {
        for (Variable& variable : VariablesOf(at_.scope, collection)) {
          const Node* const node = variable.handle.node();
          variables_->emplace(node, std::move(variable));
        }
      }
    }
    const auto found = variables_->find(made);
    return found == variables_->end() ? nullptr : &found->second;
  }

  Status Copy(const Node& node) {
    Graph* const graph = at_.scope.graph();
    const std::string name =
        at_.scope.WithRootPrefix().UniqueName(absl::StrCat(node.name(), "_", name_));
    MR_ASSIGN_OR_RETURN(Node* const copy, graph->AddNode(name, node.body()));
    copy->set_requested_device(node.requested_device());
    copy->set_built_at(node.built_at());
    for (int i = 0; i < node.num_inputs(); ++i) {
      const OutputRef& input = node.input(i);
      if (input.node == nullptr) continue;
      const auto copied = copies_.find(input.node);
      const Output* const initial = Find(input, node.input_type(i));
      if (initial != nullptr) {
        MR_RETURN_IF_ERROR(graph->AddEdge(initial->node(), initial->index(), copy, i));
      } else {
        Node* const source = copied == copies_.end() ? input.node : copied->second;
        MR_RETURN_IF_ERROR(graph->AddEdge(source, input.index, copy, i));
      }
    }
    for (Node* const control : node.control_inputs()) graph->AddControlEdge(control, copy);
    // What callers have said of the original's shapes holds here, too.
    ShapeRefiner* const refiner = at_.scope.refiner();
    MR_RETURN_IF_ERROR(refiner->AddNode(*copy));
    for (int i = 0; i < copy->num_outputs(); ++i) {
      MR_RETURN_IF_ERROR(refiner->MergeOutputShape(*copy, i, refiner->OutputShape(node, i)));
    }
    copies_.emplace(&node, copy);
    return absl::OkStatus();
  }

  const ScopeAt& at_;
  const absl::string_view name_;
  std::optional<std::map<const Node*, Variable>> variables_;
  std::map<const Node*, Output> values_;  // of the nodes that make variables
  std::map<const Node*, Node*> copies_;
};

}  // namespace

Output InitializedValue(ScopeAt at, const Variable& variable) {
  if (!at.scope.ok() || !variable.valid()) return Output();
  const Output initial = InitialValueOf(variable);
  if (!initial.valid()) {
    at.scope.UpdateStatus(
        InvalidArgument("InitializedValue: variable '", variable.name,
                        "' must have an initial value, got none; it was adopted from a graph"),
        at.where);
    return Output();
  }
  // Next to the variable, whose handle the branch takes in.
  const Scope beside = at.scope.WithoutControlDependencies()
                           .WithRootPrefix()
                           .ColocatedWith(variable.handle.op())
                           .WithName(absl::StrCat(variable.name, "/initialized_value"));
  const Output has_value = IsInitialized(at, variable);
  const Output value = Cond(
      ScopeAt(beside, at.where), has_value,
      [&](const Scope& then) {
        return ReadVariable({then, at.where}, variable);
      },
      [&](const Scope&) { return initial; });
  if (value.valid()) at.scope.SetShape(value, variable.shape, at.where);
  return value;
}

Output FromInitialValues(ScopeAt at, absl::string_view name, const Output& value) {
  if (!at.scope.ok() || !value.valid()) return Output();
  const Scope outside = at.scope.OutsideControlFlow();
  const ScopeAt here(outside, at.where);
  return InitialValues(here, name).Of(value);
}

}  // namespace millrace
