// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LINALG_LINALG_H_
#define MILLRACE_OPS_LINALG_LINALG_H_

// The builders of this drawer: linear algebra.

#include "ops/linalg/einsum.h"  // IWYU pragma: export
#include "ops/linalg/matmul.h"  // IWYU pragma: export
#include "ops/linalg/qr.h"      // IWYU pragma: export

#endif  // MILLRACE_OPS_LINALG_LINALG_H_
