// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_OPS_H_
#define MILLRACE_OPS_OPS_H_

// The builders of all ops. Link //ops, or the families that the program uses.

#include "ops/array/array.h"        // IWYU pragma: export
#include "ops/control/control.h"    // IWYU pragma: export
#include "ops/linalg/linalg.h"      // IWYU pragma: export
#include "ops/lookup/lookup.h"      // IWYU pragma: export
#include "ops/math/math.h"          // IWYU pragma: export
#include "ops/nn/nn.h"              // IWYU pragma: export
#include "ops/operators.h"          // IWYU pragma: export
#include "ops/random/random.h"      // IWYU pragma: export
#include "ops/sparse/sparse.h"      // IWYU pragma: export
#include "ops/state/state.h"        // IWYU pragma: export
#include "ops/strings/strings.h"    // IWYU pragma: export
#include "ops/summary/summary.h"    // IWYU pragma: export
#include "ops/training/training.h"  // IWYU pragma: export

#endif  // MILLRACE_OPS_OPS_H_
