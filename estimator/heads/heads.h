// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_ESTIMATOR_HEADS_HEADS_H_
#define MILLRACE_ESTIMATOR_HEADS_HEADS_H_

// All heads.

#include "estimator/heads/binary_head.h"       // IWYU pragma: export
#include "estimator/heads/head.h"              // IWYU pragma: export
#include "estimator/heads/keys.h"              // IWYU pragma: export
#include "estimator/heads/multi_class_head.h"  // IWYU pragma: export
#include "estimator/heads/multi_head.h"        // IWYU pragma: export
#include "estimator/heads/multi_label_head.h"  // IWYU pragma: export
#include "estimator/heads/regression_head.h"   // IWYU pragma: export

#endif  // MILLRACE_ESTIMATOR_HEADS_HEADS_H_
