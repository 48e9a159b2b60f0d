// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_CANNED_CANNED_H_
#define MILLRACE_ESTIMATOR_CANNED_CANNED_H_

// All pre-made Estimators.

#include "estimator/canned/baseline.h"             // IWYU pragma: export
#include "estimator/canned/dnn.h"                  // IWYU pragma: export
#include "estimator/canned/dnn_linear_combined.h"  // IWYU pragma: export
#include "estimator/canned/linear.h"               // IWYU pragma: export
#include "estimator/canned/logits.h"               // IWYU pragma: export
#include "estimator/canned/optimizer_choice.h"     // IWYU pragma: export

#endif  // MILLRACE_ESTIMATOR_CANNED_CANNED_H_
