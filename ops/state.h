// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STATE_H_
#define MILLRACE_OPS_STATE_H_

// Operations on variables of both kinds, resource variables (handles) and the reference variables
// of old graphs, in one include. Users make variables with ops/variable.h.

#include "ops/ref_variable.h"       // IWYU pragma: export
#include "ops/resource_rows.h"      // IWYU pragma: export
#include "ops/resource_variable.h"  // IWYU pragma: export

#endif  // MILLRACE_OPS_STATE_H_
