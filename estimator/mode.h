// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_MODE_H_
#define MILLRACE_ESTIMATOR_MODE_H_

// Mode: what a graph is built for. TensorFlow's ModeKeys.

#include "absl/strings/string_view.h"

namespace millrace {

enum class Mode { kTrain, kEval, kPredict };

// "train", "eval", "infer".
absl::string_view ModeName(Mode mode);

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_MODE_H_
