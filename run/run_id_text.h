// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUN_RUN_ID_TEXT_H_
#define MILLRACE_RUN_RUN_ID_TEXT_H_

// RunIdText: the id of a run (run/training_run.h) as logs and errors show it: its first 8 digits,
// which tell the runs that a person has apart. The whole one is in run.json.
//
// Thread-safety: a pure function. Failure: none.

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace millrace {

inline std::string RunIdText(absl::string_view id) {
  constexpr size_t kShown = 8;
  return std::string(id.substr(0, kShown));
}

}  // namespace millrace

#endif  // MILLRACE_RUN_RUN_ID_TEXT_H_
