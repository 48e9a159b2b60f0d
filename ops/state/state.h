// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STATE_STATE_H_
#define MILLRACE_OPS_STATE_STATE_H_

// The builders of this drawer: variables of both kinds.

#include "ops/state/count_up_to.h"        // IWYU pragma: export
#include "ops/state/ref_variable.h"       // IWYU pragma: export
#include "ops/state/resource_rows.h"      // IWYU pragma: export
#include "ops/state/resource_variable.h"  // IWYU pragma: export

#endif  // MILLRACE_OPS_STATE_STATE_H_
