// SPDX-License-Identifier: Apache-2.0
#include "train/local_sgd.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/dtype.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "layers/variable_update.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/control/control_flow.h"
#include "ops/math/cwise_binary.h"
#include "proto/meta_graph.pb.h"
#include "proto/variable.pb.h"
#include "train/conditional_update.h"

namespace millrace {
namespace {

using Gradients = std::vector<GradientAndVariable>;

Scope NextTo(const Scope& scope, const Variable& variable) {
  return scope.ColocatedWith(variable.handle.op());
}

// The nodes that run for `output`, by id.
std::vector<bool> NodesFor(const Graph& graph, const Output& output) {
  std::vector<bool> needed(static_cast<size_t>(graph.num_node_ids()));
  std::vector<const Node*> todo;
  const auto need = [&](const Node* node) {
    if (node == nullptr || needed[static_cast<size_t>(node->id())]) return;
    needed[static_cast<size_t>(node->id())] = true;
    todo.push_back(node);
  };
  need(output.node());
  while (!todo.empty()) {
    const Node* const node = todo.back();
    todo.pop_back();
    for (const OutputRef& input : node->inputs()) need(input.node);
    for (const Node* control : node->control_inputs()) need(control);
  }
  return needed;
}

// Lets what `needed` has read `copy` in place of `shared`. InvalidArgument where it does more with
// it than reading its value.
Status ReadCopy(const std::vector<bool>& needed, const Variable& shared, const Variable& copy,
                Graph* graph) {
  const auto is_needed = [&](const Node* node) {
    return static_cast<size_t>(node->id()) < needed.size() &&
           needed[static_cast<size_t>(node->id())];
  };
  struct Reader {
    Node* node;
    int input;
  };
  std::vector<Reader> readers;
  for (const Edge& edge : shared.handle.node()->out_edges()) {
    if (edge.is_control() || !is_needed(edge.dst)) continue;
    const Node& read = *edge.dst;
    const bool is_read =
        shared.is_reference()
            ? read.traits().hands_on != HandsOn::kNothing && !IsRef(read.output_type(0))
            : read.traits().VariableUseOf(edge.dst_input) == VariableUse::kReads;
    if (!is_read || !read.control_inputs().empty()) {
      return InvalidArgument("the loss must read variable '", shared.name, "' as a whole, got ",
                             read.op(), " '", read.name(), "'; build it on Copy(scope, variable)");
    }
    for (const Edge& value : read.out_edges()) {
      if (!value.is_control() && is_needed(value.dst)) {
        readers.push_back({value.dst, value.dst_input});
      }
    }
  }
  for (const Reader& reader : readers) {
    MR_RETURN_IF_ERROR(
        graph->UpdateInput(reader.node, reader.input, copy.value.node(), copy.value.index()));
  }
  return absl::OkStatus();
}

// An optimizer's variables are shared ones for all it knows: of these collections.
void MakeLocal(const Scope& scope, const std::vector<Variable>& variables) {
  std::set<std::string> names;
  for (const Variable& variable : variables) names.insert(variable.handle.name());
  auto* const collections = scope.collections();
  const auto all = collections->find("variables");
  if (all == collections->end()) return;
  std::vector<std::string> stay, go;
  for (const std::string& bytes : all->second.bytes_list().value()) {
    tensorflow::VariableDef def;
    const bool goes = def.ParseFromString(bytes) && names.count(def.variable_name()) > 0;
    (goes ? go : stay).push_back(bytes);
  }
  if (go.empty()) return;
  auto* const left = all->second.mutable_bytes_list();
  left->clear_value();
  for (std::string& bytes : stay) left->add_value(std::move(bytes));
  for (std::string& bytes : go) scope.AddToBytesCollection("local_variables", std::move(bytes));
}

}  // namespace

LocalSgdOptimizer::LocalSgdOptimizer(std::unique_ptr<Optimizer> inner,
                                     std::unique_ptr<Optimizer> outer,
                                     const LocalSgdOptions& options)
    : Optimizer({.name = options.name}),
      inner_(std::move(inner)),
      outer_(std::move(outer)),
      options_(options) {}

Status LocalSgdOptimizer::CheckOptions(const Scope&) const {
  if (inner_ == nullptr || outer_ == nullptr) {
    return InvalidArgument(name(), ": ", inner_ == nullptr ? "inner" : "outer",
                           " must be an optimizer, got null");
  }
  if (options_.average_every < 1) {
    return InvalidArgument(name(), ": average_every must be >= 1, got ", options_.average_every);
  }
  return absl::OkStatus();
}

Variable LocalSgdOptimizer::CopyOf(const Variable& shared) const {
  const auto found = copies_.find(shared.name);
  return found == copies_.end() ? Variable() : found->second;
}

Variable LocalSgdOptimizer::Copy(ScopeAt at, const Variable& shared) {
  if (!at.scope.ok() || !shared.valid()) return Variable();
  Variable& made = copies_[shared.name];
  if (made.valid() && made.handle.node()->graph() == at.scope.graph()) return made;
  // A device function that puts variables on parameter servers leaves one where it is asked to be:
  // with a node of the model.
  const Scope root = at.scope.OutsideControlFlow().WithRootPrefix();
  const Output value = Identity(root.WithName(shared.name + "/LocalCopy/Shared"), shared.value);
  if (!value.valid()) return Variable();
  made = MakeVariable(
      ScopeAt(
          root.WithDevice(value.node()->requested_device()).WithName(shared.name + "/LocalCopy"),
          at.where),
      value, {.trainable = false, .local = true});
  return made;
}

Gradients LocalSgdOptimizer::ComputeGradients(ScopeAt at, Output loss,
                                              const MinimizeOptions& options) {
  at.scope.UpdateStatus(CheckOptions(at.scope), at.where);
  if (!at.scope.ok() || !loss.valid()) return {};
  const std::vector<Variable> shared =
      options.variables.empty() ? VariablesOf(at.scope, "trainable_variables") : options.variables;
  const Scope scope = at.here().WithoutControlDependencies();
  MinimizeOptions of_copies = options;
  of_copies.variables.clear();
  const std::vector<bool> needed = NodesFor(*scope.graph(), loss);
  for (const Variable& variable : shared) {
    const Variable copy = Copy(ScopeAt(scope.WithName(""), at.where), variable);
    if (!at.scope.ok()) return {};
    at.scope.UpdateStatus(Prefixed(name(), ReadCopy(needed, variable, copy, scope.graph())),
                          at.where);
    if (!at.scope.ok()) return {};
    of_copies.variables.push_back(copy);
  }
  // Without variables: the inner optimizer's error, which says so.
  Gradients gradients = inner_->ComputeGradients(at, std::move(loss), of_copies);
  for (size_t i = 0; i < gradients.size() && i < shared.size(); ++i) {
    gradients[i].variable = shared[i];
  }
  return gradients;
}

Operation LocalSgdOptimizer::ApplyGradients(ScopeAt at, const Gradients& given,
                                            const MinimizeOptions& options) {
  local_step_ = Operation();
  at.scope.UpdateStatus(CheckOptions(at.scope), at.where);
  if (!at.scope.ok()) return Operation();
  Gradients gradients = given;
  struct Averaged {
    Variable shared, copy;
    Output given = {};  // the copy's value on the shared variable's server; dead unless it is time
  };
  std::vector<Averaged> averaged;
  for (GradientAndVariable& pair : gradients) {
    const Variable copy = CopyOf(pair.variable);
    if (!copy.valid() || copy.handle.node()->graph() != at.scope.graph()) {
      at.scope.UpdateStatus(
          InvalidArgument(name(), ": gradients must be those of ComputeGradients, got one of '",
                          pair.variable.name, "', which has no copy"),
          at.where);
      return Operation();
    }
    if (HasGradient(pair.gradient)) averaged.push_back({pair.variable, copy});
    pair.variable = copy;
  }
  const Scope scope = at.here().WithoutControlDependencies();
  const Scope own = scope.WithSubScope(options.name.empty() ? name() : options.name);
  const std::string own_name = own.prefix();

  // The worker's own step.
  MinimizeOptions of_copies = options;
  of_copies.global_step.reset();
  of_copies.name = "";
  const Operation updated = inner_->ApplyGradients(at, gradients, of_copies);
  if (!at.scope.ok()) return Operation();
  MakeLocal(scope, inner_->Variables(scope));
  const Scope beside = NextTo(own, averaged[0].copy);
  if (!steps_.valid() || steps_.handle.node()->graph() != scope.graph()) {
    const Scope root = NextTo(scope.WithRootPrefix(), averaged[0].copy);
    steps_ = MakeVariable(root.WithName(absl::StrCat(name(), "/steps")), Const(root, int64_t{0}),
                          {.trainable = false, .local = true});
  }
  const Scope after = beside.WithControlDependencies({updated});
  local_step_ = AssignAddVariable(after.WithName("local_step"), steps_, Const(after, int64_t{1}));
  if (!at.scope.ok()) return Operation();

  // After every k-th: the outer optimizer's. Nodes that need a dead tensor do not run.
  const Output steps =
      ReadVariable(beside.WithControlDependencies({local_step_}).WithName("steps_now"), steps_);
  const Output is_kth =
      Equal(beside.WithName("averages"),
            FloorMod(beside, steps, Const(beside, int64_t{options_.average_every})),
            Const(beside, int64_t{0}));
  Gradients deltas;
  for (Averaged& a : averaged) {
    const Scope of_one = own.WithSubScope(a.shared.name);
    const Scope here = NextTo(of_one, a.copy), there = NextTo(of_one, a.shared);
    const Output value =
        ReadVariable(here.WithControlDependencies({local_step_}).WithName("trained"), a.copy);
    a.given = Identity(there.WithName("given"),
                       Switch(here.WithName("if_averages"), value, is_kth).output_true);
    if (!at.scope.ok()) return Operation();
    const Output now =
        ReadVariable(there.WithControlDependencies({a.given.op()}).WithName("shared"), a.shared);
    deltas.push_back({Sub(there.WithName("delta"), now, a.given), a.shared});
  }
  if (!at.scope.ok()) return Operation();
  const int first = scope.graph()->num_node_ids();
  const Operation averages = outer_->ApplyGradients(ScopeAt(own.WithName(""), at.where), deltas,
                                                    {.global_step = options.global_step});
  if (!at.scope.ok()) return Operation();
  RunUpdateOnlyIf(own, is_kth, averages, first, outer_->Variables(scope));
  std::vector<Operation> done = {local_step_, averages};
  for (const Averaged& a : averaged) {
    const Output moved = ReadVariable(
        NextTo(own, a.shared).WithControlDependencies({averages, a.given.op()}).WithName("moved"),
        a.shared);
    done.push_back(AssignVariable(NextTo(own, a.copy).WithName("begin_anew"), a.copy, moved));
  }
  if (!at.scope.ok()) return Operation();
  const Operation train =
      ControlTrigger(ScopeAt(beside.WithControlDependencies(done).WithName(own_name), at.where));
  if (train.valid()) at.scope.AddToNodeCollection("train_op", train.name());
  return train;
}

Variable LocalSgdOptimizer::GetSlot(const Variable& variable, absl::string_view slot) const {
  return inner_ == nullptr ? Variable() : inner_->GetSlot(CopyOf(variable), slot);
}

std::vector<std::string> LocalSgdOptimizer::GetSlotNames() const {
  return inner_ == nullptr ? std::vector<std::string>() : inner_->GetSlotNames();
}

std::vector<Variable> LocalSgdOptimizer::Variables(const Scope& scope) const {
  std::vector<Variable> result;
  const auto add = [&](const Variable& variable) {
    if (variable.valid() && variable.handle.node()->graph() == scope.graph()) {
      result.push_back(variable);
    }
  };
  for (const Optimizer* optimizer : {inner_.get(), outer_.get()}) {
    if (optimizer == nullptr) continue;
    for (const Variable& variable : optimizer->Variables(scope)) add(variable);
  }
  for (const auto& [shared, copy] : copies_) add(copy);
  add(steps_);
  std::sort(result.begin(), result.end(),
            [](const Variable& a, const Variable& b) { return a.name < b.name; });
  return result;
}

}  // namespace millrace
