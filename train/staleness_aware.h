// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_STALENESS_AWARE_H_
#define MILLRACE_TRAIN_STALENESS_AWARE_H_

// StalenessAwareOptimizer: asynchronous training whose stale gradients count less, or not at all.
//
//   StalenessAwareOptimizer optimizer(
//       std::make_unique<GradientDescentOptimizer>(GradientDescentOptions{.learning_rate = 0.1}),
//       {.scale_by_staleness = 1, .drop_above = 16});
//   Operation train = optimizer.Minimize(model, loss, {.global_step = step});
//
// The staleness of a step is the number of updates that others have counted between its read of the
// variables and its own update (train/loss_guard.h): the global step when its gradients have
// arrived, minus the global step that it read with the variables. What is counted between this look
// and the end of the update is missed: Train's staleness, which is measured after the update, may
// be larger.
//
//   scaled   gradient * (1 + staleness)^-scale_by_staleness, after the clipping and before the
//   inner
//            optimizer; of sparse gradients the values. An optimizer that divides gradients by
//            their own size (Adam, RMSProp) undoes most of it: use it with gradient descent or
//            momentum.
//   dropped  staleness > drop_above: nothing of the update runs. Variables, slots (momenta) and the
//            global step stay as they are.
//
// A dropped step is not counted by the global step, as in TensorFlow's synchronous mode: the global
// step counts updates, and so do schedules, the goal and the staleness of others. (If it did count,
// a job with more trainers than drop_above could drop every gradient and yet reach its last step.)
// There is always a trainer whose gradients are not dropped: a step is stale only by updates.
//
// Messages: the step that was read goes to the trainer with the variables and comes back with the
// gradients, and everything else is next to the global step: with one parameter server no message
// is added, only one scalar each way. With several, the server of the global step sends its
// decision (a scalar for scaling, one for dropping) to each other one that has variables: one
// message to each of them, and their updates wait for it. With read-ahead (train/read_ahead.h) the
// step that was read is the one that came with the variables.
//
// Both are counted for each task, in a local variable next to the global step (so local variables
// must be initialised, as sessions of this library do): Train says them at its end. Checkpoints are
// those of the inner optimizer: it may be wrapped in the middle of a run.
//
// Off (both options as they are by default) it is the inner optimizer: not a node is added.
//
// Thread-safety, lifetime: as Optimizer.
// Errors go into the scope: no inner optimizer, numbers < 0, no global step.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "train/optimizer.h"

namespace millrace {

class Graph;  // graph/graph.h

struct StalenessAwareOptions {
  // The power by which gradients are made smaller: 1 is 1 / (1 + staleness), 0.5 its root; 0: off.
  double scale_by_staleness = 0;
  // The largest staleness of a gradient that is applied; none: all are.
  std::optional<int64_t> drop_above = {};
  std::string name = "StalenessAware";
};

// The collection of the graph with the variables that count: int64 [2], {scaled, dropped}. Scaled
// are those with a staleness > 0 that were applied.
inline constexpr char kStalenessCounts[] = "staleness_counts";

class StalenessAwareOptimizer : public Optimizer {
 public:
  explicit StalenessAwareOptimizer(std::unique_ptr<Optimizer> inner,
                                   const StalenessAwareOptions& options = {});

  std::vector<GradientAndVariable> ComputeGradients(ScopeAt at, Output loss,
                                                    const MinimizeOptions& options = {}) override;
  // The operation runs whether the update does or not.
  Operation ApplyGradients(ScopeAt at, const std::vector<GradientAndVariable>& gradients,
                           const MinimizeOptions& options = {}) override;

  Variable GetSlot(const Variable& variable, absl::string_view slot) const override;
  std::vector<std::string> GetSlotNames() const override;
  std::vector<Variable> Variables(const Scope& scope) const override;

  // Of the last ApplyGradients, invalid before it and when off: the global step that the step has
  // read, in the trainer; how stale its gradients are (int64 scalar); the variable that counts.
  const Output& read_step() const { return read_step_; }
  const Output& staleness() const { return staleness_; }
  const Variable& counts() const { return counts_; }

 protected:
  Status CheckOptions(const Scope& scope) const override;

 private:
  bool is_on() const { return options_.scale_by_staleness != 0 || options_.drop_above.has_value(); }
  Variable CountsOf(const Scope& scope, const Variable& step);

  const std::unique_ptr<Optimizer> inner_;
  const StalenessAwareOptions options_;
  std::map<const Graph*, Variable> made_;
  Output read_step_, staleness_;
  Variable counts_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_STALENESS_AWARE_H_
