// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_EXIT_CODE_H_
#define MILLRACE_CORE_EXIT_CODE_H_

// Exit codes of programs, for launchers and cluster managers:
//
//   0      done
//   1      the user's or the configuration's error: trying again changes nothing
//   >= 128 worth another try (143: ended by SIGTERM in the middle of a job)

#include "core/status.h"

namespace millrace {

inline constexpr int kExitOk = 0;
inline constexpr int kExitError = 1;
inline constexpr int kExitRetryable = 128;

// Retryable for the statuses that mean that another task went away.
inline int ExitCode(const Status& status) {
  if (status.ok()) return kExitOk;
  return absl::IsUnavailable(status) || absl::IsAborted(status) ? kExitRetryable : kExitError;
}

}  // namespace millrace

#endif  // MILLRACE_CORE_EXIT_CODE_H_
