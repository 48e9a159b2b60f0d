// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_SYNCED_OPTIMIZER_H_
#define MILLRACE_ESTIMATOR_SYNCED_OPTIMIZER_H_

// SyncedOptimizer: an optimizer as RunConfig's `sync` wants it, for model functions.
//
//   EstimatorSpec Line(const Scope& scope, const Features& features, const Labels& labels,
//                      Mode mode, const RunConfig& config) {
//     ...
//     spec.train_op = SyncedOptimizer(std::make_unique<AdamOptimizer>(), config)
//                         ->Minimize(scope, spec.loss, {.global_step = GlobalStep(scope)});
//
// Several optimizers: one CompositeOptimizer of them (train/composite_optimizer.h).
//
// Functions of their arguments. Failure: InvalidArgument; of the optimizer, in the scope.

#include <memory>

#include "core/status.h"
#include "estimator/run_config.h"
#include "graph/scope.h"
#include "train/optimizer.h"

namespace millrace {

// `sync` is given, and the job has several trainers.
bool SyncsTrainers(const RunConfig& config);

// A SyncReplicasOptimizer around `optimizer` where SyncsTrainers; otherwise `optimizer` itself, as
// where it is a SyncReplicasOptimizer already.
std::shared_ptr<Optimizer> SyncedOptimizer(std::shared_ptr<Optimizer> optimizer,
                                           const RunConfig& config);

// InvalidArgument where SyncsTrainers and `train_op` does not run a round: it would train
// asynchronously.
Status CheckIsSynced(const Operation& train_op, const RunConfig& config);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_SYNCED_OPTIMIZER_H_
