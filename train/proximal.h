// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_PROXIMAL_H_
#define MILLRACE_TRAIN_PROXIMAL_H_

// Proximal optimizers (Duchi and Singer, 2009): a step along the gradient, then one towards 0, so
// that weights that earn less than l1 are exactly 0. With p = variable - rate * gradient
//
//   variable = sign(p) * max(|p| - rate * l1, 0) / (1 + rate * l2)
//
// ProximalGradientDescentOptimizer: rate is the learning rate. ProximalAdagradOptimizer: it is
// learning_rate / sqrt(accumulator), where accumulator += gradient^2; slot
// `<variable>/ProximalAdagrad`, as TensorFlow's. Sparse gradients change the touched rows alone.

#include <string>

#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/array/number_or_output.h"
#include "train/optimizer.h"

namespace millrace {

struct ProximalGradientDescentOptions {
  NumberOrOutput learning_rate = 0.01;
  NumberOrOutput l1_regularization_strength = 0.0;
  NumberOrOutput l2_regularization_strength = 0.0;
  bool use_locking = false;
  std::string name = "ProximalGradientDescent";
};

class ProximalGradientDescentOptimizer : public Optimizer {
 public:
  explicit ProximalGradientDescentOptimizer(const ProximalGradientDescentOptions& options = {});

 protected:
  Operation ApplyDense(const Scope&, const Variable&, Output) override;
  Operation ApplySparse(const Scope&, const Variable&, Output, Output) override;
};

struct ProximalAdagradOptions {
  NumberOrOutput learning_rate = 0.01;
  double initial_accumulator_value = 0.1;  // > 0
  NumberOrOutput l1_regularization_strength = 0.0;
  NumberOrOutput l2_regularization_strength = 0.0;
  bool use_locking = false;
  std::string name = "ProximalAdagrad";
};

class ProximalAdagradOptimizer : public Optimizer {
 public:
  explicit ProximalAdagradOptimizer(const ProximalAdagradOptions& options = {});

 protected:
  Status CheckOptions(const Scope&) const override;
  Operation ApplyDense(const Scope&, const Variable&, Output) override;
  Operation ApplySparse(const Scope&, const Variable&, Output, Output) override;

 private:
  const double initial_accumulator_value_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_PROXIMAL_H_
