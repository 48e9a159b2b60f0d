// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_CUT_TEXT_H_
#define MILLRACE_SERVING_CUT_TEXT_H_

// CutText: the first bytes of a text that a client may have sent, with TensorFlow Serving's mark of
// what is missing. No character of UTF-8 is cut in two; other bytes are.
//
// Thread-safety: pure functions. Failure: none.

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/utf8.h"

namespace millrace {

inline constexpr char kCutMark[] = "...TRUNCATED";

// The bytes that stay of a text that is longer than `most`: `most`, or up to three less.
inline size_t CutLength(absl::string_view text, size_t most) {
  for (size_t back = 1; back <= 3 && back <= most; ++back) {
    if (Utf8Length(text.substr(most - back)) > back) return most - back;
  }
  return most;
}

// At most `most` bytes of the text, and the mark when some are missing.
inline std::string CutText(absl::string_view text, size_t most) {
  if (text.size() <= most) return std::string(text);
  return absl::StrCat(text.substr(0, CutLength(text, most)), kCutMark);
}

}  // namespace millrace

#endif  // MILLRACE_SERVING_CUT_TEXT_H_
