// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STRINGS_STRINGS_H_
#define MILLRACE_OPS_STRINGS_STRINGS_H_

// The builders of this drawer: strings, and files as strings.

#include "ops/strings/as_string.h"         // IWYU pragma: export
#include "ops/strings/base64.h"            // IWYU pragma: export
#include "ops/strings/files.h"             // IWYU pragma: export
#include "ops/strings/hash_bucket.h"       // IWYU pragma: export
#include "ops/strings/regex.h"             // IWYU pragma: export
#include "ops/strings/serialize_tensor.h"  // IWYU pragma: export
#include "ops/strings/string_case.h"       // IWYU pragma: export
#include "ops/strings/string_join.h"       // IWYU pragma: export
#include "ops/strings/string_split.h"      // IWYU pragma: export
#include "ops/strings/substr.h"            // IWYU pragma: export

#endif  // MILLRACE_OPS_STRINGS_STRINGS_H_
