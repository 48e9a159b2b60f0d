// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_MATH_MATH_H_
#define MILLRACE_OPS_MATH_MATH_H_

// The builders of this drawer: element-wise arithmetic, reductions, segments.

#include "ops/math/add_n.h"         // IWYU pragma: export
#include "ops/math/bucketize.h"     // IWYU pragma: export
#include "ops/math/cast.h"          // IWYU pragma: export
#include "ops/math/cwise_binary.h"  // IWYU pragma: export
#include "ops/math/cwise_unary.h"   // IWYU pragma: export
#include "ops/math/reduction.h"     // IWYU pragma: export
#include "ops/math/scan.h"          // IWYU pragma: export
#include "ops/math/segment.h"       // IWYU pragma: export
#include "ops/math/select.h"        // IWYU pragma: export

#endif  // MILLRACE_OPS_MATH_MATH_H_
