// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_JOB_COMMANDS_H_
#define MILLRACE_TOOLS_JOB_COMMANDS_H_

// What submit does with jobs that were submitted: list, describe, logs, stop, wait.
//
// A job is named, or found in its directory (--job-dir), which any machine may read.
//
// Thread-safety: none; they write to stdout. Failure: one sentence; NotFound for a job that nobody
// has submitted.

#include <string>

#include "core/program.h"
#include "core/status.h"
#include "tools/command_line.h"
#include "tools/job_state.h"

namespace millrace {

// The flags of a command of SubmitCommands().
ProgramHelp HelpOfJobCommand(const std::string& command);

// Runs it; `name` may be "" where --job-dir is given. The exit code.
StatusOr<int> RunJobCommand(const std::string& command, const std::string& name,
                            const CommandLine& flags);

// Waits until a job is over, and returns its exit code: 0 when it has succeeded, kExitRetryable
// when it is lost.
StatusOr<int> AwaitJob(const std::string& job_dir, absl::Duration timeout);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_JOB_COMMANDS_H_
