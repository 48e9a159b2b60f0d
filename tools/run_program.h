// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_RUN_PROGRAM_H_
#define MILLRACE_TOOLS_RUN_PROGRAM_H_

// Runs another program to its end, without a shell: no character of an argument means anything.
//
// Thread-safety: from any thread. Failure: NotFound for a program that is not there, Internal when
// the system refuses a process, ResourceExhausted for more output than kMaxProgramOutput.

#include <string>
#include <vector>

#include "core/status.h"

namespace millrace {

inline constexpr size_t kMaxProgramOutput = 1 << 20;

struct ProgramEnd {
  int code = 0;           // 128 + n for signal n
  std::string output;     // stdout
  std::string complaint;  // stderr
};

// argv[0] is looked for in PATH, as execvp does. stdin is empty.
StatusOr<ProgramEnd> RunProgram(const std::vector<std::string>& argv);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_RUN_PROGRAM_H_
