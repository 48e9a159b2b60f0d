// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOKUP_LOOKUP_H_
#define MILLRACE_OPS_LOOKUP_LOOKUP_H_

// The builders of this drawer: tables of values by key.

#include "ops/lookup/hash_table.h"         // IWYU pragma: export
#include "ops/lookup/lookup_table.h"       // IWYU pragma: export
#include "ops/lookup/table_initializer.h"  // IWYU pragma: export

#endif  // MILLRACE_OPS_LOOKUP_LOOKUP_H_
