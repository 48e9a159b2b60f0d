// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_CONTROL_CONTROL_H_
#define MILLRACE_OPS_CONTROL_CONTROL_H_

// The builders of this drawer: the order of nodes: branches, loops, calls of functions, assertions,
// queues; what loops keep tensors in: tensor arrays, lists, stacks.

#include "ops/control/asserts.h"       // IWYU pragma: export
#include "ops/control/control_flow.h"  // IWYU pragma: export
#include "ops/control/functional.h"    // IWYU pragma: export
#include "ops/control/queue.h"         // IWYU pragma: export
#include "ops/control/stack.h"         // IWYU pragma: export
#include "ops/control/tensor_array.h"  // IWYU pragma: export
#include "ops/control/tensor_list.h"   // IWYU pragma: export

#endif  // MILLRACE_OPS_CONTROL_CONTROL_H_
