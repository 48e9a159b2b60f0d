// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STRINGS_REGEX_H_
#define MILLRACE_OPS_STRINGS_REGEX_H_

// Regular expressions (RE2's, UTF-8) on strings of any shape, which is kept.
//
// The time is linear in the texts, whatever the pattern. InvalidArgument "Invalid pattern: ...,
// error:
// ..." for a pattern that is none, and for a rewrite that refers to a group that is not there.

#include <string>

#include "graph/node_builder.h"

namespace millrace {

struct RegexReplaceAttrs {
  bool replace_global = true;  // all matches; otherwise the first
};
// Matches of `pattern` become `rewrite`, in which \0 is the match and \1 ... \9 are its groups.
// Both are string scalars.
inline Output RegexReplace(ScopeAt at, Output input, Output pattern, Output rewrite,
                           const RegexReplaceAttrs& attrs = {}) {
  return BuildOp(at, "RegexReplace", {input, pattern, rewrite}, "replace_global",
                 attrs.replace_global);
}
// The same with a pattern that is known when the graph is built: it is compiled once.
inline Output StaticRegexReplace(ScopeAt at, Output input, const std::string& pattern,
                                 const std::string& rewrite, const RegexReplaceAttrs& attrs = {}) {
  return BuildOp(at, "StaticRegexReplace", {input}, "pattern", pattern, "rewrite", rewrite,
                 "replace_global", attrs.replace_global);
}

// bool: whether the whole string matches.
inline Output RegexFullMatch(ScopeAt at, Output input, Output pattern) {
  return BuildOp(at, "RegexFullMatch", {input, pattern});
}
inline Output StaticRegexFullMatch(ScopeAt at, Output input, const std::string& pattern) {
  return BuildOp(at, "StaticRegexFullMatch", {input}, "pattern", pattern);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_STRINGS_REGEX_H_
