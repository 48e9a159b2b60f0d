// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_SCALING_LEARNER_H_
#define MILLRACE_TESTS_SCALING_LEARNER_H_

// Learner: the variables of a Problem's model, in a session of this process, whose gradients are
// computed by one run and applied by another.
//
//   MR_ASSIGN_OR_RETURN(const auto learner, Learner::Make(problem, {.learning_rate = 0.1}));
//   MR_ASSIGN_OR_RETURN(const WorkerGradient gradient, learner->Compute(batch));
//   ... updates of others ...
//   MR_RETURN_IF_ERROR(learner->Apply(gradient));
//
// A gradient is that of the variables when it was computed, whatever has changed until it is
// applied. So gradients that wait stand for workers that compute, and no variable is copied.
//
// The graph is that of a training job: the layers, an optimizer's ComputeGradients and
// ApplyGradients, around it StalenessAwareOptimizer where its options are on (it gets the global
// step that came with the gradient). Between the two the gradients are fetched and fed, tables' as
// rows. Kernels run in the caller's thread alone: equal calls give equal bits.
//
// Thread-safety: thread-compatible. Lifetime: nothing of the Problem is kept.
// Failure: InvalidArgument for options that are none; what building and running say.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "runtime/session.h"
#include "tests/scaling/problem.h"
#include "train/staleness_aware.h"

namespace millrace::scaling {

struct LearnerOptions {
  std::string optimizer = "adagrad";  // "adagrad", "sgd" or "momentum" (of 0.9)
  double learning_rate = 0.05;
  // Of Adagrad, whose first steps of a row are large where it is small beside the row's gradient.
  double initial_accumulator = 0.1;
  StalenessAwareOptions staleness = {};
  uint64_t seed = 1;  // of initial values
};

struct WorkerGradient {
  std::vector<Tensor> tensors;  // dense ones, and values and rows of others, in the learner's order
  Tensor read_step;             // the global step that was read with the variables
};

class Learner {
 public:
  static StatusOr<std::unique_ptr<Learner>> Make(const Problem& problem,
                                                 const LearnerOptions& options);

  StatusOr<WorkerGradient> Compute(const ExampleBatch& batch);
  // As synchronous training takes it: the sum over their number, of rows, too. One gradient is its
  // own mean, bit by bit. There is at least one.
  StatusOr<WorkerGradient> Mean(const std::vector<WorkerGradient>& gradients) const;
  // One update. A staleness above StalenessAwareOptions::drop_above makes it none.
  Status Apply(const WorkerGradient& gradient);

  // Of the examples that the problem holds out.
  StatusOr<double> HeldOutAuc();
  // Updates that were none.
  StatusOr<int64_t> NumDropped();
  // The trainable variables, in the order in which the model made them. Slots are not among them.
  StatusOr<std::vector<Tensor>> Weights();
  Status SetWeights(const std::vector<Tensor>& weights);

 private:
  Learner() = default;
  Status Build(const Problem& problem, const LearnerOptions& options);

  Scope root_;
  std::unique_ptr<Session> session_;
  std::unique_ptr<PreparedStep> compute_, apply_, evaluate_, weights_, set_weights_;
  std::unique_ptr<PreparedStep> dropped_;  // null: nothing is ever dropped
  std::vector<bool> is_rows_;              // of each variable's gradient
  bool applies_read_step_ = false;         // Apply is fed with it, too
  ExampleBatch held_out_features_;
  Tensor held_out_labels_;
};

}  // namespace millrace::scaling

#endif  // MILLRACE_TESTS_SCALING_LEARNER_H_
