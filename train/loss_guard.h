// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_LOSS_GUARD_H_
#define MILLRACE_TRAIN_LOSS_GUARD_H_

// The NaN guard: an error for a loss that is not finite, which says what may help.
//
// Thread-safety: pure functions. Failure: InvalidArgument.

#include <cstdint>

#include "core/status.h"
#include "core/tensor.h"

namespace millrace {

// How many updates of other tasks came between a step's read of the variables and its own update:
// global steps counted in between. 0 where one task trains alone; about the number of the other
// trainers where they are as fast. Gradients that are stale by s are those of a model s updates
// ago: the learning rate that a model stands falls with s.
struct Staleness {
  double mean = 0;
  int64_t max = 0;
};

// The NaN guard: InvalidArgument "NaN guard: the loss must be finite, got nan at global step N;
// ..." for a fetched loss (float or double) that is NaN or infinite. `staleness`, of the caller's
// steps: named with what helps when it is not 0.
//
// The guard ends the task whose loss it was, as TensorFlow's does, and no other: another one's
// batch may be the bad one. Where the variables themselves have become NaN every task meets it with
// its next step.
Status CheckLossIsFinite(const Tensor& loss, int64_t step, const Staleness& staleness = {});
// Is it that error, perhaps with more text? Then the variables are not worth saving.
bool IsLossNotFinite(const Status& status);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_LOSS_GUARD_H_
