// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_FORMATS_JSON_NESTING_H_
#define MILLRACE_FORMATS_JSON_NESTING_H_

// JsonNesting: how deep the arrays and objects of a JSON text lie in each other, before it is
// parsed. JSON libraries walk values by recursion: a few kilobytes of "[" would take the stack.
//
// Thread-safety: a function of its argument. Failure: none; for a text that is no JSON it is at
// least what a parser could reach before it says so.

#include <algorithm>

#include "absl/strings/string_view.h"

namespace millrace {

// What our own files and variables are allowed; they need four.
inline constexpr int kMaxJsonNesting = 64;

inline int JsonNesting(absl::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      deepest = std::max(deepest, ++depth);
    } else if (c == ']' || c == '}') {
      depth = std::max(depth - 1, 0);
    }
  }
  return deepest;
}

}  // namespace millrace

#endif  // MILLRACE_FORMATS_JSON_NESTING_H_
