// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STRINGS_SUBSTR_H_
#define MILLRACE_OPS_STRINGS_SUBSTR_H_

// Parts of strings, and how long strings are, in bytes or in characters of UTF-8.
//
// A character begins at each byte that is no continuation byte; the bytes are not checked beyond.

#include <string>

#include "graph/node_builder.h"

namespace millrace {

struct StringUnitAttrs {
  std::string unit = "BYTE";  // or "UTF8_CHAR"
};

// From place `pos` (negative: counted from the end) `len` bytes or characters, or up to the end.
// pos and len: int32 or int64, of one shape, which is broadcast with that of `input`; a negative
// len reaches to the end (in bytes). InvalidArgument for a pos before the beginning or behind the
// end.
inline Output Substr(ScopeAt at, Output input, Output pos, Output len,
                     const StringUnitAttrs& attrs = {}) {
  return BuildOp(at, "Substr", {input, pos, len}, "unit", attrs.unit);
}

// int32, in the shape of `input`.
inline Output StringLength(ScopeAt at, Output input, const StringUnitAttrs& attrs = {}) {
  return BuildOp(at, "StringLength", {input}, "unit", attrs.unit);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_STRINGS_SUBSTR_H_
