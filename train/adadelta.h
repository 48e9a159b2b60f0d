// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_ADADELTA_H_
#define MILLRACE_TRAIN_ADADELTA_H_

// AdadeltaOptimizer: Adadelta (Zeiler, 2012): gradients scaled by the root of the mean square of
// earlier updates over that of the gradients:
//
//   accum = rho * accum + (1 - rho) * gradient^2
//   update = sqrt(accum_update + epsilon) / sqrt(accum + epsilon) * gradient
//   accum_update = rho * accum_update + (1 - rho) * update^2
//   variable -= learning_rate * update
//
// Slots, as TensorFlow's: `<variable>/Adadelta` (accum) and `<variable>/Adadelta_1` (accum_update),
// both begin at 0. Sparse gradients change the touched rows alone.

#include <string>

#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/array/number_or_output.h"
#include "train/optimizer.h"

namespace millrace {

struct AdadeltaOptions {
  NumberOrOutput learning_rate = 0.001;
  NumberOrOutput rho = 0.95;
  NumberOrOutput epsilon = 1e-8;
  bool use_locking = false;
  std::string name = "Adadelta";
};

class AdadeltaOptimizer : public Optimizer {
 public:
  explicit AdadeltaOptimizer(const AdadeltaOptions& options = {});

 protected:
  Operation ApplyDense(const Scope&, const Variable&, Output) override;
  Operation ApplySparse(const Scope&, const Variable&, Output, Output) override;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_ADADELTA_H_
