// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_ARRAY_ARRAY_H_
#define MILLRACE_OPS_ARRAY_ARRAY_H_

// The builders of this drawer: tensors made, cut, joined and rearranged.

#include "ops/array/concat.h"             // IWYU pragma: export
#include "ops/array/constant.h"           // IWYU pragma: export
#include "ops/array/dynamic_partition.h"  // IWYU pragma: export
#include "ops/array/gather.h"             // IWYU pragma: export
#include "ops/array/identity.h"           // IWYU pragma: export
#include "ops/array/indices.h"            // IWYU pragma: export
#include "ops/array/pad.h"                // IWYU pragma: export
#include "ops/array/placeholder.h"        // IWYU pragma: export
#include "ops/array/reshape.h"            // IWYU pragma: export
#include "ops/array/reverse.h"            // IWYU pragma: export
#include "ops/array/slice.h"              // IWYU pragma: export
#include "ops/array/tile.h"               // IWYU pragma: export
#include "ops/array/transpose.h"          // IWYU pragma: export

#endif  // MILLRACE_OPS_ARRAY_ARRAY_H_
