// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_MOVING_AVERAGE_H_
#define MILLRACE_TRAIN_MOVING_AVERAGE_H_

// ExponentialMovingAverage: averages of weights over the steps of training, which often predict
// better than the last weights (Polyak averaging).
//
//   ExponentialMovingAverage average({.decay = 0.999, .num_updates = step.value});
//   const Operation update = optimizer.Minimize(model, loss, {.global_step = step});
//   const Operation train = average.Apply(model.WithControlDependencies({update}));
//
// and, to evaluate and export with the averages in place of the weights:
//
//   const ExponentialMovingAverage average({.decay = 0.999});
//   Saver::Make(model, {.named_variables = average.VariablesToRestore(model)})
//
// Formula, names and collection are those of TensorFlow 1.15's tf.train.ExponentialMovingAverage:
//
//   average -= (1 - decay) * (average - variable)
//
// in a variable `<variable>/ExponentialMovingAverage`, which is not trainable, is saved with the
// others, stands on the variable's device, is sliced as it is, and begins with its initial value.
//
// Thread-safety: thread-compatible, as the Scopes that it is called with.
// Lifetime: it keeps the graphs alive that it has made averages in.
// Errors go into the scope, "ExponentialMovingAverage: ...".

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/array/number_or_output.h"

namespace millrace {

class Graph;  // graph/graph.h

struct ExponentialMovingAverageOptions {
  // In [0, 1]; near 1 averages over many steps. A floating scalar of the graph may stand for it.
  NumberOrOutput decay = 0.999;
  // A scalar of any number type, n: decay is then min(decay, (1 + n) / (10 + n)), so that the
  // averages follow faster at the beginning of training. It is used as it is read: a global step's
  // `.value` may be that before or after the step's update (train/optimizer.h, StepAfter).
  Output num_updates = {};
  std::string name = "ExponentialMovingAverage";  // also the last part of the averages' names
};

class ExponentialMovingAverage {
 public:
  explicit ExponentialMovingAverage(const ExponentialMovingAverageOptions& options = {});

  // Makes the averages of `variables` (empty: the trainable ones), enters the variables into the
  // collection "moving_average_variables", and returns the operation that moves the averages once.
  // It reads the variables after the scope's control dependencies. InvalidArgument for no
  // variables, one that is not floating, is invalid or has an average by this object, or one that
  // another node of the graph moves (steps would move it twice), and for a decay that is out of
  // range or no floating scalar of the graph.
  Operation Apply(ScopeAt at, const std::vector<Variable>& variables = {});

  // The average of `variable`; invalid before Apply has made it.
  Variable Average(const Variable& variable) const;
  // Its name in checkpoints, made or not: "w/ExponentialMovingAverage".
  std::string AverageName(const Variable& variable) const;

  // For SaverOptions::named_variables: the variables that have an average are restored from it, all
  // others of the graph under their own names. Those that have one are `averaged`; empty: those of
  // the collection "moving_average_variables", or the trainable ones in a graph without it (one in
  // which Apply was not called; give the list when not all of them were averaged).
  std::vector<std::pair<std::string, Variable>> VariablesToRestore(
      const Scope& scope, const std::vector<Variable>& averaged = {}) const;

 private:
  Status CheckOptions(const Scope& scope) const;
  Status CheckVariable(const Scope& scope, const Variable& variable) const;
  // 1 - decay; in `scope`, as a scalar of the variable's dtype.
  Output Rate(const Scope& scope, const Variable& variable) const;
  Variable MakeAverage(const ScopeAt& at, const Variable& variable);

  const ExponentialMovingAverageOptions options_;
  std::map<std::pair<const Graph*, std::string>, Variable> made_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_MOVING_AVERAGE_H_
