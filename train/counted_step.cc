// SPDX-License-Identifier: Apache-2.0
#include "train/counted_step.h"

#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/logging.h"
#include "graph/graph.h"
#include "layers/normalization.h"
#include "layers/variable_update.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "train/optimizer.h"

namespace millrace {
namespace {

// All nodes that run when `op` runs.
std::set<const Node*> NodesOf(const Node* op) {
  std::set<const Node*> seen = {op};
  std::vector<const Node*> todo = {op};
  while (!todo.empty()) {
    const Node* const node = todo.back();
    todo.pop_back();
    const auto visit = [&](const Node* next) {
      if (next != nullptr && seen.insert(next).second) todo.push_back(next);
    };
    for (const OutputRef& input : node->inputs()) visit(input.node);
    for (const Node* control : node->control_inputs()) visit(control);
  }
  return seen;
}

// Does one of them change `variable`, as an optimizer with a global step does?
bool Write(const std::set<const Node*>& nodes, const Node* variable) {
  for (const Node* node : nodes) {
    // What hands a reference on reads it: the result is no reference.
    if (node->traits().hands_on != HandsOn::kNothing) continue;
    for (int i = 0; i < node->num_inputs(); ++i) {
      if (node->input(i).node == variable &&
          node->traits().VariableUseOf(i) == VariableUse::kMayWrite) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

int64_t StepOf(const Tensor& value) {
  return value.dtype() == DT_INT32 ? int64_t{value.scalar<int32_t>()} : value.scalar<int64_t>();
}

StatusOr<CountedStep> MakeCountedStep(const Scope& model, const Operation& op,
                                      const CountedStepOptions& options) {
  CountedStep made;
  const Scope root = model.WithRootPrefix().WithoutControlDependencies();
  if (options.global_step) {
    made.global_step = *options.global_step;
  } else {
    // Where the variables are, also when `model` has no device function: all tasks share it.
    const std::vector<Variable> variables = VariablesOf(root);
    const std::string device =
        variables.empty() ? "" : variables[0].handle.node()->requested_device();
    made.global_step = GlobalStep(device.empty() ? root : root.WithDevice(device));
  }
  MR_RETURN_IF_ERROR(model.status());
  const std::set<const Node*> run = NodesOf(op.node());
  std::vector<Operation> operations;
  if (options.update_ops) {
    const std::vector<Operation> updates = UpdateOps(root);
    if (!model.ok()) return Suffixed(Prefixed("Train", model.status()), "; or .update_ops off");
    for (const Operation& update : updates) {
      if (run.count(update.node()) == 0) operations.push_back(update);
    }
  }
  Operation counted = op;
  if (!operations.empty()) {
    made.added = absl::StrCat(operations.size(), " operation(s) of 'update_ops', first '",
                              operations[0].name(), "'");
    LogInfo("Train: a step runs ", made.added);
    operations.push_back(op);
    counted = Group(root.WithName("train_with_updates"), operations);
  }
  const Scope beside = root.ColocatedWith(made.global_step.handle.op());
  if (!Write(run, made.global_step.handle.node())) {
    const Scope after = beside.WithControlDependencies({counted});
    const Output one =
        made.global_step.dtype == DT_INT32 ? Const(after, int32_t{1}) : Const(after, int64_t{1});
    counted = AssignAddVariable(after.WithName("count_step"), made.global_step, one);
  }
  made.step_after = StepAfter(root.WithName("step_after"), counted, made.global_step);
  MR_RETURN_IF_ERROR(model.status());
  return made;
}

StatusOr<CountedStep> AmongOthers(const Scope& model, CountedStep step) {
  // In one tensor, which costs no message.
  const Scope beside = model.WithRootPrefix().WithoutControlDependencies().ColocatedWith(
      step.global_step.handle.op());
  step.step_after =
      Pack(beside.WithName("step_after_and_before"), {step.step_after, step.global_step.value});
  MR_RETURN_IF_ERROR(model.status());
  return step;
}

}  // namespace millrace
