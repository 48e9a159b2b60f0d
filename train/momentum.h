// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_MOMENTUM_H_
#define MILLRACE_TRAIN_MOMENTUM_H_

// MomentumOptimizer: gradient descent with a velocity: accumulator = momentum * accumulator +
// gradient, variable -= learning_rate * accumulator; with use_nesterov (Sutskever et al., 2013)
// variable -= learning_rate * (gradient + momentum * accumulator). The accumulator is the slot
// `<variable>/Momentum`. Sparse gradients change the touched rows alone, the accumulator's, too.

#include <string>

#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/array/number_or_output.h"
#include "train/optimizer.h"

namespace millrace {

struct MomentumOptions {
  NumberOrOutput learning_rate = 0.01;
  NumberOrOutput momentum = 0.9;
  bool use_nesterov = false;
  bool use_locking = false;
  std::string name = "Momentum";
};

class MomentumOptimizer : public Optimizer {
 public:
  explicit MomentumOptimizer(const MomentumOptions& options = {});

 protected:
  Operation ApplyDense(const Scope&, const Variable&, Output) override;
  Operation ApplySparse(const Scope&, const Variable&, Output, Output) override;

 private:
  const bool use_nesterov_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_MOMENTUM_H_
