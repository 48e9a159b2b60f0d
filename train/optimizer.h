// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_OPTIMIZER_H_
#define MILLRACE_TRAIN_OPTIMIZER_H_

// Optimizers: turn a loss into an operation that changes the variables.
//
//   Operation train = AdamOptimizer({.learning_rate = 1e-4}).Minimize(model, loss,
//                                                                   {.global_step = step});
//
// Minimize = ComputeGradients + ApplyGradients, which a program may call itself, and which an
// optimizer that wraps another one overrides. Slots (`<variable>/Adam`, `<variable>/Adam_1`, ...)
// and beta powers are variables with TensorFlow's names, on the device of the variable they belong
// to and sliced as it is. An optimizer makes each of them once in a graph: several updates change
// the same ones.
//
// Gradients that are IndexedSlices stay sparse: duplicate rows are summed (Unique,
// UnsortedSegmentSum) and only touched rows change (but with Adam, whose moments decay in every
// row, as in TensorFlow: each step costs the whole table).
//
// Updates are grouped on their devices, and the global step is counted where it lives, after all of
// them. Training on one parameter server needs no message that only orders.
//
// Control dependencies of the scope order nothing here: Minimize, ComputeGradients and
// ApplyGradients make their nodes without them (in TensorFlow they order these). What is to run in
// each step, such as the moving averages in collection "update_ops", is run with the training
// operation: by Train (train/train.h), or by TrainWithUpdates (layers/normalization.h) in a loop of
// one's own.
//
// Hyperparameters that TensorFlow takes as tensors are a number or a floating scalar Output: a
// schedule (train/learning_rates.h), a placeholder. It is cast to the dtype of each variable. A
// number that is too small for it is 0 there, as in TensorFlow (Adam's epsilon of 1e-8 in half): a
// warning says so, once for each optimizer, hyperparameter and dtype.
//
// Thread-safety: thread-compatible, as the Scopes that it is called with.
// Lifetime: an optimizer keeps the graphs alive that it has made variables in.
// Errors go into the scope: no trainable variables, no gradient for any of them, a hyperparameter
// that is no such scalar, is infinite or NaN, or is beyond the range of a variable's dtype.
// Source of the equations: TensorFlow 1.15's training ops.

#include <functional>
#include <memory>
#include <optional>
#include <string>
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

// What waits for what, beyond what the values need. Values are the same.
enum class GateGradients {
  kNone,   // nothing; the fastest
  kOp,     // the gradients of one node's inputs wait for each other (graph/gated_gradients.h)
  kGraph,  // all gradients are there before one is applied
};

// Of Minimize. ComputeGradients reads `variables` and the last three, ApplyGradients the others.
struct MinimizeOptions {
  // Counts the update: one is added after all variables have changed.
  std::optional<Variable> global_step = {};
  // Empty = collection "trainable_variables". (TensorFlow's var_list.)
  std::vector<Variable> variables = {};
  std::string name = "";  // of the resulting operation; the optimizer's name otherwise
  // What is done to the gradients before they are applied: ClipByGlobalNorm(1.0).
  GradientClip clip = {};
  // The gradient of the loss, of its dtype and shape; invalid = ones.
  Output grad_loss = {};
  // TensorFlow's default is kOp, for the sake of reference variables.
  GateGradients gate_gradients = GateGradients::kNone;
  // Gradients are computed on the devices of the nodes that they are gradients of.
  bool colocate_gradients_with_ops = false;
};

// What distinguishes most optimizers, as data.
struct OptimizerSpec {
  struct Hyperparameter {
    std::string name;  // also of its node: "Adam/update_w/beta1"
    NumberOrOutput value;
  };
  struct Slot {
    std::string name;  // for GetSlot: "m"; the variable is called `<variable>/<optimizer>`
    double initial_value = 0;
  };
  std::string name;  // "Adam"
  bool use_locking = false;
  std::vector<Hyperparameter> hyperparameters = {};
  std::vector<Slot> slots = {};  // of each variable, in the order in which they are made
};

class Optimizer {
 public:
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;
  virtual ~Optimizer();

  // The operation runs one update; it is added to collection "train_op".
  Operation Minimize(ScopeAt at, Output loss, const MinimizeOptions& options);
  Operation Minimize(ScopeAt at, Output loss);

  // One pair per variable; no gradient (monostate) where the loss does not depend on it. Several
  // contributions to one gradient are added by AddN. Empty after an error.
  virtual std::vector<GradientAndVariable> ComputeGradients(ScopeAt at, Output loss,
                                                            const MinimizeOptions& options = {});
  // The operation changes the variables that have a gradient. Without a global step it is a group,
  // with one the op that counts; either has the name that the options give.
  virtual Operation ApplyGradients(ScopeAt at, const std::vector<GradientAndVariable>& gradients,
                                   const MinimizeOptions& options = {});

  const std::string& name() const { return spec_.name; }

  // The slot of `variable`, by TensorFlow's name ("m", "v", "momentum", "accumulator", "rms"):
  // invalid before an update of the variable has been made, and for other names.
  virtual Variable GetSlot(const Variable& variable, absl::string_view slot) const;
  // Sorted.
  virtual std::vector<std::string> GetSlotNames() const;
  // All variables that this optimizer has made in the scope's graph, slots and others, sorted by
  // name.
  virtual std::vector<Variable> Variables(const Scope& scope) const;

 protected:
  explicit Optimizer(OptimizerSpec spec);

  // The error of the options, if there is one; asked before anything is made. Here: InvalidArgument
  // "<optimizer>: <hyperparameter> must ..." for a number that is infinite or NaN and a tensor that
  // is no floating scalar of the scope's graph.
  virtual Status CheckOptions(const Scope& scope) const;
  // Makes what there is not yet, before the updates. Here: the slots of `variables`.
  virtual void Prepare(const Scope& scope, const std::vector<Variable>& variables);
  // One variable's update, in `scope`, which is on its device. Rows are unique.
  // Here: Unimplemented, for optimizers that override ApplyGradients.
  virtual Operation ApplyDense(const Scope& scope, const Variable& variable, Output gradient);
  virtual Operation ApplySparse(const Scope& scope, const Variable& variable, Output values,
                                Output rows);
  // After all updates (Adam's powers): what the step is to wait for. Here: the updates.
  virtual std::vector<Operation> Finish(const Scope& scope, const std::vector<Operation>& updates);

  // A hyperparameter as it was given, and as a scalar of the variable's dtype, named after it.
  const NumberOrOutput& given(absl::string_view name) const;
  Output Hyperparameter(const Scope& scope, absl::string_view name, const Variable& variable);
  // A scalar variable that belongs to no other one, once in a graph: made by the first call, in the
  // dtype of `beside` and on its device.
  Variable MakeNonSlot(const Scope& scope, const std::string& name, const Variable& beside,
                       const NumberOrOutput& initial_value);
  // Invalid before it is made.
  Variable GetNonSlot(const Scope& scope, absl::string_view name) const;
  bool use_locking() const { return spec_.use_locking; }

 private:
  struct Made;
  Variable MakeSlot(const Scope& scope, const Variable& variable, double value);

  const OptimizerSpec spec_;
  const std::unique_ptr<Made> made_;
};

// The global step with this step's own update in it, as TensorFlow's global_step.assign_add(1)
// yields it: a read on the variable's device, after `train`. Fetching it runs `train`. (A plain
// read, `global_step.value`, may come before or after the update; in asynchronous training both may
// have the updates of other workers in them.)
//
//   const Operation train = optimizer.Minimize(model, loss, {.global_step = step});
//   const Output step_after = StepAfter(model, train, step);
//   session->Run(feeds, {loss, step_after});
Output StepAfter(ScopeAt at, Operation train, const Variable& global_step);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_OPTIMIZER_H_
