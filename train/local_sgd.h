// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_LOCAL_SGD_H_
#define MILLRACE_TRAIN_LOCAL_SGD_H_

// LocalSgdOptimizer: workers train copies of the variables and average them every k steps.
//
//   LocalSgdOptimizer optimizer(
//       std::make_unique<AdamOptimizer>(),                      // of a worker's copies
//       std::make_unique<SyncReplicasOptimizer>(                // of the shared variables
//           std::make_unique<MomentumOptimizer>(
//               MomentumOptions{.learning_rate = 1, .momentum = 0.9}),
//           SyncReplicasOptions{.replicas_to_aggregate = 4}),
//       {.average_every = 16});
//   Operation train = optimizer.Minimize(model, loss, {.global_step = step});
//
// With copies c of the shared variables w, a step of a worker is
//
//   inner(c, gradient)               each step, on the worker
//   outer(w, w - c); c = w           after every k-th step
//
// so with gradient descent of rate 1 as the outer optimizer, inside of a SyncReplicasOptimizer, w
// becomes the mean of the copies; with momentum the outer steps have it. With k = 1 and gradient
// descent inside this is synchronous gradient descent. Without a SyncReplicasOptimizer each worker
// moves the shared variables when its own k steps are done (at a rate of about 1 / workers).
//
// The model is built on the shared variables, as always. Minimize makes the copies (local variables
// on the worker, which begin with the shared values) and lets the nodes that the loss needs read
// them in place of the shared ones. These nodes read the copies for everybody: evaluate and export
// with a graph of its own, as an Estimator does. A loss may read variables as a whole only; for
// rows of a table build the look-up on Copy(scope, table).
//
// The global step counts updates of the shared variables (of a round all workers together one), not
// steps of workers. Slots of the inner optimizer are local variables of each worker, those of the
// outer one are shared and in checkpoints. Copies, and steps since the last average, are not in
// checkpoints and end with the session: a new one begins with the shared values.
//
// Messages: the operation sends the copies to the parameter servers and gets the shared values in
// every k-th step, and no values in the others; but the servers are part of each of its steps. What
// runs on the worker alone is local_step(): a loop of one's own that runs it k - 1 times, and then
// the operation, sends no message in between.
//
//   session->Run(feeds, {}, {i % k == k - 1 ? train : optimizer.local_step()});
//
// Thread-safety, lifetime: as Optimizer. One Minimize for each object.
// Errors go into the scope: a missing optimizer, average_every < 1, a variable that the loss does
// not read as a whole.
// Source: Stich, "Local SGD Converges Fast and Communicates Little"; with outer momentum Wang et
// al., "SlowMo".

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "train/optimizer.h"

namespace millrace {

struct LocalSgdOptions {
  int64_t average_every = 16;  // steps of a worker
  std::string name = "LocalSgd";
};

class LocalSgdOptimizer : public Optimizer {
 public:
  LocalSgdOptimizer(std::unique_ptr<Optimizer> inner, std::unique_ptr<Optimizer> outer,
                    const LocalSgdOptions& options = {});

  // Lets the loss read the copies. The pairs have the shared variables, for ApplyGradients.
  std::vector<GradientAndVariable> ComputeGradients(ScopeAt at, Output loss,
                                                    const MinimizeOptions& options = {}) override;
  // Clips are of a worker's gradients.
  Operation ApplyGradients(ScopeAt at, const std::vector<GradientAndVariable>& gradients,
                           const MinimizeOptions& options = {}) override;

  // The worker's copy of a shared variable, "<variable>/LocalCopy", made once: for what reads rows
  // of it. The scope places it as it places other nodes of the model.
  Variable Copy(ScopeAt at, const Variable& shared);
  // Of ApplyGradients, invalid before: one step of the worker alone, which counts as one of the k.
  const Operation& local_step() const { return local_step_; }

  // Of the inner optimizer, by the shared variable.
  Variable GetSlot(const Variable& variable, absl::string_view slot) const override;
  std::vector<std::string> GetSlotNames() const override;
  // Those of both, the copies and the count of steps.
  std::vector<Variable> Variables(const Scope& scope) const override;

 protected:
  Status CheckOptions(const Scope& scope) const override;

 private:
  Variable CopyOf(const Variable& shared) const;

  const std::unique_ptr<Optimizer> inner_, outer_;
  const LocalSgdOptions options_;
  std::map<std::string, Variable> copies_;  // by the shared variable's name
  Variable steps_;
  Operation local_step_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_LOCAL_SGD_H_
