// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_MOMENTUM_H_
#define MILLRACE_TRAIN_MOMENTUM_H_

// MomentumOptimizer: gradient descent with a velocity: accumulator = momentum * accumulator +
// gradient, variable -= learning_rate * accumulator; with use_nesterov (Sutskever et al., 2013)
// variable -= learning_rate * (gradient + momentum * accumulator). The accumulator is the slot
// `<variable>/Momentum`. Sparse gradients change the touched rows alone, the accumulator's, too.

#include <memory>
#include <string>
#include <vector>

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
  explicit MomentumOptimizer(MomentumOptions options = {});
  ~MomentumOptimizer() override;

 protected:
  Status CheckOptions(const Scope&) const override;
  void Prepare(const Scope&, const std::vector<Variable>&) override;
  Operation ApplyDense(const Scope&, const Variable&, Output) override;
  Operation ApplySparse(const Scope&, const Variable&, Output, Output) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_MOMENTUM_H_
