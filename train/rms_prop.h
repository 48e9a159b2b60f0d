// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_RMS_PROP_H_
#define MILLRACE_TRAIN_RMS_PROP_H_

// RMSPropOptimizer: RMSProp (Hinton, 2012): gradients divided by the root of a moving mean of their
// squares:
//
//   rms = decay * rms + (1 - decay) * gradient^2
//   step = momentum * step + learning_rate * gradient / sqrt(rms + epsilon)
//   variable -= step
//
// centered: sqrt(rms - mean^2 + epsilon) with a moving mean of the gradients. Slots, as
// TensorFlow's:
// `<variable>/RMSProp` (rms, begins at 1), then (centered) the mean, then the step. Sparse
// gradients change the touched rows alone, the slots', too.

#include <string>

#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/array/number_or_output.h"
#include "train/optimizer.h"

namespace millrace {

struct RMSPropOptions {
  NumberOrOutput learning_rate = 0.001;
  NumberOrOutput decay = 0.9;
  NumberOrOutput momentum = 0.0;
  NumberOrOutput epsilon = 1e-10;
  bool centered = false;
  bool use_locking = false;
  std::string name = "RMSProp";
};

class RMSPropOptimizer : public Optimizer {
 public:
  explicit RMSPropOptimizer(const RMSPropOptions& options = {});

 protected:
  Operation ApplyDense(const Scope&, const Variable&, Output) override;
  Operation ApplySparse(const Scope&, const Variable&, Output, Output) override;

 private:
  const bool centered_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_RMS_PROP_H_
