// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_EXIT_CODE_H_
#define MILLRACE_CORE_EXIT_CODE_H_

// Exit codes of programs, for launchers and cluster managers:
//
//   0      done
//   1      the user's or the configuration's error: trying again changes nothing
//   >= 128 worth another try (143: ended by SIGTERM in the middle of a job, 130: by Ctrl-C)
//
//   int main(int, char** argv) { return ReportedExitCode(argv[0], Main()); }

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

inline constexpr int kExitOk = 0;
inline constexpr int kExitError = 1;
inline constexpr int kExitRetryable = 128;

// The same status, which says with which code a program should end: 128 + N for signal N.
Status WithExitCode(Status status, int code);

// What the status says, if it says it; else what its kind means (core/status_kind.h); else
// retryable for the statuses that mean that another task went away.
int ExitCode(const Status& status);

// The same, after "<name of the program>: <status>" on stderr unless it is OK.
int ReportedExitCode(absl::string_view program, const Status& status);

}  // namespace millrace

#endif  // MILLRACE_CORE_EXIT_CODE_H_
