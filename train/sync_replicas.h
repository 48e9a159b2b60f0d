// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_SYNC_REPLICAS_H_
#define MILLRACE_TRAIN_SYNC_REPLICAS_H_

// SyncReplicasOptimizer: synchronous training with parameter servers. Each global step applies the
// mean of the gradients of several workers, all of the same variables.
//
//   SyncReplicasOptimizer optimizer(std::make_unique<AdamOptimizer>(), {.replicas_to_aggregate =
//   4}); const Operation train = optimizer.Minimize(model, loss, {.global_step =
//   GlobalStep(model)});
//
// With N workers and batches of b rows this is training of one process with batches of N * b rows.
// There is nothing to start by hand: no queue runner, no initial tokens. A session joins when its
// local initialisers run (Train, Supervisor, MonitoredSession, or the hook); then each run of the
// operation is one gradient, and one global step of all.
//
//   worker                         parameter servers
//   gradients              ->      accumulators beside the variables
//                                  the gradient is given: the step waits until the round is over
//                                  the last one's step leads: means are taken, the optimizer's
//                                  updates run, the global step is counted
//                          <-      the end, for all
//
// With one parameter server a step has the messages of an asynchronous one; each further server
// gets one more, and tells and is told once, for each worker's step.
//
// Who is waited for: min(replicas_to_aggregate, trainers), where the trainers are the sessions that
// have joined and live. So a worker that dies (its session ends when its connection is closed, or
// its lease is over), leaves, or has no more data (also a chief that stays for the others' data),
// is not waited for; one that comes later joins the next round. Before the first round there is a
// wait for replicas_to_aggregate of them, at most `start_wait` long. The log of the global step's
// server says who joins and leaves, and every 10 s what a round waits for.
//
// backup_workers: so many workers more may be started; each round takes the first
// replicas_to_aggregate gradients, later ones are dropped and counted (Counts). Like all gradients
// of rounds that are over they never come into a mean. (A gradient that arrives while its round is
// taken may be in the means of some variables.)
//
// When the worker that leads dies in its update, its round is given up: variables that it has
// updated keep that, the others miss it; all go on with the next round. Chief or not makes no
// difference.
//
// A gradient that is infinite or NaN, or does not fit, is refused: InvalidArgument, which names the
// worker, out of its own step; the others go on. Of a step with a gradient that is not finite
// nothing is given, also not for other variables: the worker looks at all of them before it gives
// the first. (Of one that does not fit, what was given for other variables before stays.)
//
// A LocalSgdOptimizer cannot be inside, only around it: its error says so.
//
// A session runs one such step at a time: one that begins gives up the update that it led before.
//
// It wraps any optimizer: slots, GetSlot and checkpoints are those of the inner one. Clips of
// MinimizeOptions are of each worker's gradient; those of the mean are the inner optimizer's
// matter. Updates of the collection "update_ops" are each worker's own, as in asynchronous
// training. With read-ahead (train/read_ahead.h) the variables of the next round come with the end
// of a step.
//
// Thread-safety: as Optimizer. Errors go into the scope: no inner optimizer, no global step,
// numbers below 1, a variable of unknown shape.
//
// Several optimizers in one step: put them into a CompositeOptimizer (train/composite_optimizer.h)
// and wrap that: one round, and the global step is counted once. Two that are each wrapped have two
// rounds, and a step waits for both; neither needs the other one to be over, so they do not block
// each other as long as each step of each trainer gives to both. Each counts its global step.
// Source: TensorFlow's SyncReplicasOptimizer (python/training/sync_replicas_optimizer.py), whose
// names these are; Chen et al., "Revisiting Distributed Synchronous SGD", for the backups.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/status.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "train/optimizer.h"
#include "train/session_run_hook.h"

namespace millrace {

struct SyncReplicasOptions {
  // Gradients of a round. 0: total_num_replicas - backup_workers.
  int64_t replicas_to_aggregate = 0;
  // Workers, the chief among them; 0: replicas_to_aggregate + backup_workers.
  int64_t total_num_replicas = 0;
  int64_t backup_workers = 0;
  absl::Duration start_wait = absl::Seconds(30);
  std::string name = "sync_replicas";
};

class SyncReplicasOptimizer : public Optimizer {
 public:
  SyncReplicasOptimizer(std::shared_ptr<Optimizer> inner, const SyncReplicasOptions& options);

  std::vector<GradientAndVariable> ComputeGradients(ScopeAt at, Output loss,
                                                    const MinimizeOptions& options = {}) override;
  Operation ApplyGradients(ScopeAt at, const std::vector<GradientAndVariable>& gradients,
                           const MinimizeOptions& options = {}) override;
  Variable GetSlot(const Variable& variable, absl::string_view slot) const override;
  std::vector<std::string> GetSlotNames() const override;
  std::vector<Variable> Variables(const Scope& scope) const override;

  // int64 [4], of the last ApplyGradients: rounds that are over, rounds given up, gradients that
  // came too late, trainers now. Invalid before.
  Output Counts(ScopeAt at) const;
  // Joins when a session is made: for sessions whose local initialisers nobody runs. Harmless
  // where they are run. (In TensorFlow the hook starts the chief's queue runner.) After
  // ApplyGradients; lives no longer than the optimizer.
  std::unique_ptr<SessionRunHook> MakeSessionRunHook() const;

 protected:
  Status CheckOptions(const Scope& scope) const override;

 private:
  int64_t replicas() const;

  const std::shared_ptr<Optimizer> inner_;
  const SyncReplicasOptions options_;
  Output rounds_;  // of the last ApplyGradients
  Operation join_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_SYNC_REPLICAS_H_
