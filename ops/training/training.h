// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_TRAINING_TRAINING_H_
#define MILLRACE_OPS_TRAINING_TRAINING_H_

// The builders of this drawer: updates of variables by optimizers, accumulators of
// gradients, work queues.

#include "ops/training/accumulator.h"         // IWYU pragma: export
#include "ops/training/other_training_ops.h"  // IWYU pragma: export
#include "ops/training/training_ops.h"        // IWYU pragma: export
#include "ops/training/work_queue.h"          // IWYU pragma: export

#endif  // MILLRACE_OPS_TRAINING_TRAINING_H_
