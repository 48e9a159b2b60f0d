// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_ADAM_H_
#define MILLRACE_TRAIN_ADAM_H_

// AdamOptimizer: Adam (Kingma and Ba, arXiv:1412.6980), with TensorFlow's epsilon: the paper's
// epsilon hat.

#include <string>
#include <vector>

#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/array/number_or_output.h"
#include "train/optimizer.h"

namespace millrace {

struct AdamOptions {
  NumberOrOutput learning_rate = 0.001;
  // A tensor is read once more when variables are initialised: it is the first of the powers.
  NumberOrOutput beta1 = 0.9;
  NumberOrOutput beta2 = 0.999;
  NumberOrOutput epsilon = 1e-8;
  bool use_locking = false;
  std::string name = "Adam";
};

class AdamOptimizer : public Optimizer {
 public:
  explicit AdamOptimizer(const AdamOptions& options = {});

 protected:
  void Prepare(const Scope&, const std::vector<Variable>&) override;
  Operation ApplyDense(const Scope&, const Variable&, Output) override;
  Operation ApplySparse(const Scope&, const Variable&, Output, Output) override;
  std::vector<Operation> Finish(const Scope&, const std::vector<Operation>&) override;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_ADAM_H_
