// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STRINGS_STRING_CASE_H_
#define MILLRACE_OPS_STRINGS_STRING_CASE_H_

// Strings in lower case, in upper case, and without blanks around them. Any shape; it is kept.

#include <string>

#include "graph/node_builder.h"

namespace millrace {

struct StringCaseAttrs {
  std::string encoding = "";  // "": bytes, of which the ASCII letters change; "utf-8": characters
};
// InvalidArgument for another encoding. What is not UTF-8 becomes the replacement character.
inline Output StringLower(ScopeAt at, Output input, const StringCaseAttrs& attrs = {}) {
  return BuildOp(at, "StringLower", {input}, "encoding", attrs.encoding);
}
inline Output StringUpper(ScopeAt at, Output input, const StringCaseAttrs& attrs = {}) {
  return BuildOp(at, "StringUpper", {input}, "encoding", attrs.encoding);
}

// Without ASCII blanks (spaces, tabs, newlines) at both ends.
inline constexpr UnaryBuilder StringStrip{"StringStrip"};

}  // namespace millrace

#endif  // MILLRACE_OPS_STRINGS_STRING_CASE_H_
