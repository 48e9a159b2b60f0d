// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_FTRL_H_
#define MILLRACE_TRAIN_FTRL_H_

// FtrlOptimizer: FTRL-Proximal (McMahan et al., 2013), for linear models of many sparse features:
// with p = -learning_rate_power
//
//   new_accum = accum + gradient^2
//   linear += gradient + 2 * l2_shrinkage * variable
//             - (new_accum^p - accum^p) / learning_rate * variable
//   variable = |linear| > l1 ? (sign(linear) * l1 - linear) / (new_accum^p / learning_rate + 2 *
//   l2)
//                            : 0
//
// so that with l1 weights that earn nothing are exactly 0. Slots, as TensorFlow's:
// `<variable>/Ftrl` (accum) and `<variable>/Ftrl_1` (linear, begins at 0). Sparse gradients change
// the touched rows alone.

#include <string>

#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/array/number_or_output.h"
#include "train/optimizer.h"

namespace millrace {

struct FtrlOptions {
  NumberOrOutput learning_rate = 0.001;  // > 0
  double learning_rate_power = -0.5;     // <= 0; 0: a fixed learning rate
  double initial_accumulator_value = 0.1;
  double l1_regularization_strength = 0.0;
  double l2_regularization_strength = 0.0;
  // Added to the gradient, as a penalty on the weights: not a part of the proximal step.
  double l2_shrinkage_regularization_strength = 0.0;
  bool use_locking = false;
  std::string name = "Ftrl";
};

class FtrlOptimizer : public Optimizer {
 public:
  explicit FtrlOptimizer(const FtrlOptions& options = {});

 protected:
  // InvalidArgument for a learning_rate_power above 0 and for negative values of the others.
  Status CheckOptions(const Scope&) const override;
  Operation ApplyDense(const Scope&, const Variable&, Output) override;
  Operation ApplySparse(const Scope&, const Variable&, Output, Output) override;

 private:
  const FtrlOptions options_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_FTRL_H_
