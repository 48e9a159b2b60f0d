// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_OPTIMIZER_H_
#define MILLRACE_TRAIN_OPTIMIZER_H_

// Optimizers: turn a loss into an operation that changes the variables.
//
//   Operation train = AdamOptimizer({.learning_rate = 1e-4}).Minimize(model, loss,
//                                                                   {.global_step = step});
//
// Minimize = ComputeGradients + ApplyGradients. Slots (`<variable>/Adam`, `<variable>/Adam_1`, ...)
// and beta powers are variables with TensorFlow's names, colocated with the variable they
// belong to. Gradients that are IndexedSlices stay sparse: duplicate rows are summed
// (Unique, UnsortedSegmentSum) and only touched rows change (but
// with Adam, whose moments decay in every row, as in TensorFlow: each step costs the whole table).
//
// An optimizer that makes several updates in a graph has one slot of a kind per variable, which all
// of them change.
//
// Hyperparameters that TensorFlow takes as tensors are a number or a floating scalar Output: a
// schedule (train/learning_rates.h), a placeholder. It is cast to the dtype of each variable.
//
// Errors go into the scope: no trainable variables, no gradient for any of them, a hyperparameter
// that is no such scalar, is infinite or NaN, or is not in a variable's dtype.
// Source of the equations: TensorFlow 1.15's training ops.

#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/gradient.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/array/number_or_output.h"

namespace millrace {

struct GradientAndVariable {
  Gradient gradient;
  Variable variable;
};

// Gradients to be applied in place of those given; see train/clip_gradients.h.
using GradientClip = std::function<std::vector<GradientAndVariable>(
    ScopeAt at, std::vector<GradientAndVariable> gradients)>;

struct MinimizeOptions {
  // Counts the update: one is added after all variables have changed.
  std::optional<Variable> global_step = {};
  // Empty = collection "trainable_variables".
  std::vector<Variable> variables = {};
  std::string name = "";  // of the resulting operation; the optimizer's name otherwise
  // What is done to the gradients before they are applied: ClipByGlobalNorm(1.0).
  GradientClip clip = {};
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // The operation runs one update; it is added to collection "train_op".
  Operation Minimize(ScopeAt at, Output loss, const MinimizeOptions& options);
  Operation Minimize(ScopeAt at, Output loss);
  std::vector<GradientAndVariable> ComputeGradients(ScopeAt at, Output loss,
                                                    const std::vector<Variable>& variables = {});
  Operation ApplyGradients(ScopeAt at, const std::vector<GradientAndVariable>& gradients,
                           const MinimizeOptions& options = {});

  const std::string& name() const { return name_; }

 protected:
  explicit Optimizer(std::string name, bool use_locking)
      : name_(std::move(name)), use_locking_(use_locking) {}
  // The error of the options, if there is one; asked before anything is made.
  virtual Status CheckOptions(const Scope& /*scope*/) const { return absl::OkStatus(); }
  // The error of one option: InvalidArgument "<optimizer>: <option> must ..." for a number that is
  // infinite or NaN and a tensor that is no floating scalar of the scope's graph.
  Status CheckOption(const Scope& scope, absl::string_view option,
                     const NumberOrOutput& value) const {
    if (value.is_number() && !std::isfinite(value.number())) {
      return InvalidArgument(name_, ": ", option, " must be finite, got ", value.number());
    }
    return CheckFloatingScalar(scope, name_, option, value);
  }
  // Makes the slots and powers that there are not yet, before the updates.
  virtual void Prepare(const Scope& scope, const std::vector<Variable>& variables) = 0;
  virtual Operation ApplyDense(const Scope& scope, const Variable& variable, Output gradient) = 0;
  // Rows are unique.
  virtual Operation ApplySparse(const Scope& scope, const Variable& variable, Output values,
                                Output rows) = 0;
  // After all updates (Adam's powers). Invalid = nothing to do.
  virtual std::vector<Operation> Finish(const Scope& /*scope*/,
                                        const std::vector<Operation>& updates) {
    return updates;
  }
  // The slot variable `<variable>/<slot_name>` filled with `value`, colocated with the variable.
  Variable MakeSlot(const Scope& scope, const Variable& variable, double value,
                    const std::string& slot_name);
  bool use_locking() const { return use_locking_; }

 private:
  const std::string name_;
  const bool use_locking_;
};

// The global step with this step's own update in it, as TensorFlow's global_step.assign_add(1)
// yields it: a read beside the variable, after `train`. Fetching it runs `train`. (A plain read,
// `global_step.value`, may come before or after the update; in asynchronous training both may
// have the updates of other workers in them.)
//
//   const Operation train = optimizer.Minimize(model, loss, {.global_step = step});
//   const Output step_after = StepAfter(model, train, step);
//   session->Run(feeds, {loss, step_after});
Output StepAfter(ScopeAt at, Operation train, const Variable& global_step);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_OPTIMIZER_H_
