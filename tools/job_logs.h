// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_JOB_LOGS_H_
#define MILLRACE_TOOLS_JOB_LOGS_H_

// The log lines of a submitted job (tools/job_state.h), as they are or as they come.
//
// Thread-safety: thread-compatible. Failure: NotFound for tasks that the job has not, and for a job
// without logs; Unavailable when the output takes no more.

#include <string>

#include "core/status.h"
#include "tools/cluster_task.h"
#include "tools/job_state.h"

namespace millrace {

// The file of one task of the job; `position`: the task's in the state.
std::string TaskLogPath(const JobState& state, size_t position);

// Writes the lines of the tasks that `filter` matches to `output_fd`: of all as they came, of some
// task by task, each line after its task's name unless there is one task. With `follow` goes on
// until the job is over; lines of several tasks come as they are found then.
Status PrintJobLogs(const JobState& state, const TaskFilter& filter, bool follow, int output_fd);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_JOB_LOGS_H_
