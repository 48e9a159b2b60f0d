// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_PYTHON_ERROR_H_
#define MILLRACE_TOOLS_PYTHON_ERROR_H_

// The last line of a Python traceback, "RuntimeError: reason", as a Status: what scripts that
// read saved_model_cli's stderr look for.

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

// `kind` is the exception's class.
inline Status PythonError(absl::string_view kind, absl::string_view message) {
  const std::string text = absl::StrCat(kind, ": ", message);
  return kind == "IOError" ? absl::NotFoundError(text) : absl::InvalidArgumentError(text);
}

// A Status of the runtime as TensorFlow's Python raises it: "InvalidArgumentError: ...". OK stays
// OK.
Status PythonErrorFromStatus(const Status& status);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_PYTHON_ERROR_H_
