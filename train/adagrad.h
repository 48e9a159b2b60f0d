// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_ADAGRAD_H_
#define MILLRACE_TRAIN_ADAGRAD_H_

// AdagradOptimizer: Adagrad (Duchi et al., 2011): accumulator += gradient^2,
// variable -= learning_rate * gradient / sqrt(accumulator).

#include <string>

#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/array/number_or_output.h"
#include "train/optimizer.h"

namespace millrace {

struct AdagradOptions {
  NumberOrOutput learning_rate = 0.01;
  double initial_accumulator_value = 0.1;
  bool use_locking = false;
  std::string name = "Adagrad";
};

class AdagradOptimizer : public Optimizer {
 public:
  explicit AdagradOptimizer(const AdagradOptions& options = {});

 protected:
  Status CheckOptions(const Scope&) const override;
  Operation ApplyDense(const Scope&, const Variable&, Output) override;
  Operation ApplySparse(const Scope&, const Variable&, Output, Output) override;

 private:
  const double initial_accumulator_value_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_ADAGRAD_H_
