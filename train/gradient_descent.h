// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_GRADIENT_DESCENT_H_
#define MILLRACE_TRAIN_GRADIENT_DESCENT_H_

// GradientDescentOptimizer: variable -= learning_rate * gradient.

#include <string>

#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/array/number_or_output.h"
#include "train/optimizer.h"

namespace millrace {

struct GradientDescentOptions {
  NumberOrOutput learning_rate = 0.01;
  bool use_locking = false;
  std::string name = "GradientDescent";
};

class GradientDescentOptimizer : public Optimizer {
 public:
  explicit GradientDescentOptimizer(const GradientDescentOptions& options = {});

 protected:
  Operation ApplyDense(const Scope&, const Variable&, Output) override;
  Operation ApplySparse(const Scope&, const Variable&, Output, Output) override;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_GRADIENT_DESCENT_H_
