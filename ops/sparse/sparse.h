// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_SPARSE_SPARSE_H_
#define MILLRACE_OPS_SPARSE_SPARSE_H_

// The builders of this drawer: sparse tensors.

#include "ops/sparse/serialize_sparse.h"        // IWYU pragma: export
#include "ops/sparse/sparse_add.h"              // IWYU pragma: export
#include "ops/sparse/sparse_concat.h"           // IWYU pragma: export
#include "ops/sparse/sparse_cross.h"            // IWYU pragma: export
#include "ops/sparse/sparse_fill_empty_rows.h"  // IWYU pragma: export
#include "ops/sparse/sparse_matmul.h"           // IWYU pragma: export
#include "ops/sparse/sparse_reduce.h"           // IWYU pragma: export
#include "ops/sparse/sparse_reshape.h"          // IWYU pragma: export
#include "ops/sparse/sparse_segment.h"          // IWYU pragma: export
#include "ops/sparse/sparse_tensor.h"           // IWYU pragma: export
#include "ops/sparse/sparse_to_dense.h"         // IWYU pragma: export

#endif  // MILLRACE_OPS_SPARSE_SPARSE_H_
