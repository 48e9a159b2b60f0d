// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_UNINITIALIZED_H_
#define MILLRACE_RUNTIME_UNINITIALIZED_H_

// The error of a variable that a step reads before it has a value. The word "uninitialized" is part
// of the Supervisor's protocol.

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

inline Status UninitializedVariable(absl::string_view name) {
  return FailedPrecondition("Attempting to use uninitialized value ", name,
                            "; first run the operation of GlobalVariablesInitializer (and of "
                            "LocalVariablesInitializer), or restore a checkpoint");
}

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_UNINITIALIZED_H_
