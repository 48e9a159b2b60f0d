// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STRINGS_STRING_JOIN_H_
#define MILLRACE_OPS_STRINGS_STRING_JOIN_H_

// Ops on strings.

#include <string>

#include "graph/node_builder.h"

namespace millrace {

struct StringJoinAttrs {
  std::string separator = "";
};
// The strings of all inputs put together, element by element. Inputs are scalars or have one shape,
// which the result has. InvalidArgument for different shapes.
inline Output StringJoin(ScopeAt at, absl::Span<const Output> inputs,
                         const StringJoinAttrs& attrs = {}) {
  return BuildOp(at, "StringJoin", {inputs}, "separator", attrs.separator);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_STRINGS_STRING_JOIN_H_
