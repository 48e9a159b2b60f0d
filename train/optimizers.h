// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_OPTIMIZERS_H_
#define MILLRACE_TRAIN_OPTIMIZERS_H_

// All optimizers, learning rates, gradient clipping and moving averages.

#include "train/adadelta.h"          // IWYU pragma: export
#include "train/adagrad.h"           // IWYU pragma: export
#include "train/adam.h"              // IWYU pragma: export
#include "train/apply_to.h"          // IWYU pragma: export
#include "train/clip_gradients.h"    // IWYU pragma: export
#include "train/ftrl.h"              // IWYU pragma: export
#include "train/gradient_descent.h"  // IWYU pragma: export
#include "train/learning_rates.h"    // IWYU pragma: export
#include "train/momentum.h"          // IWYU pragma: export
#include "train/moving_average.h"    // IWYU pragma: export
#include "train/proximal.h"          // IWYU pragma: export
#include "train/rms_prop.h"          // IWYU pragma: export

#endif  // MILLRACE_TRAIN_OPTIMIZERS_H_
