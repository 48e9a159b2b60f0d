// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_COLUMNS_COLUMN_LOWERING_H_
#define MILLRACE_ESTIMATOR_COLUMNS_COLUMN_LOWERING_H_

// ColumnLowering: of which nodes a layer of columns is made. Variables, values, gradients and
// checkpoints are the same.

namespace millrace {

enum class ColumnLowering {
  kPortable,  // those of TensorFlow 1.15: a model that leaves the program
  kFused,     // few of our own, for speed: a model that trains or is evaluated here
};

}  // namespace millrace

#endif  // MILLRACE_ESTIMATOR_COLUMNS_COLUMN_LOWERING_H_
