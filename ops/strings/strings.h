// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STRINGS_STRINGS_H_
#define MILLRACE_OPS_STRINGS_STRINGS_H_

// The builders of this drawer: strings.

#include "ops/strings/string_join.h"   // IWYU pragma: export
#include "ops/strings/string_split.h"  // IWYU pragma: export

#endif  // MILLRACE_OPS_STRINGS_STRINGS_H_
