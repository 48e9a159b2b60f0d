// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_JOB_SUPERVISOR_H_
#define MILLRACE_TOOLS_JOB_SUPERVISOR_H_

// A job of this machine that lives without the terminal it was submitted from.
//
// StartJob makes a process of its own session, the job's supervisor, that runs the cluster
// (tools/local_cluster.h) and keeps the job's state file (tools/job_state.h). It returns when the
// supervisor has the name and the directory, or says why it has not:
//
//   * a name or a directory is one job's at a time: while that job runs, another one is refused and
//     the first is named;
//   * when that job is over, or lost, `again` is needed: the next attempt goes on in the directory,
//     and has logs of its own ("logs.2").
//
// The supervisor holds the directory's lock, has no terminal and no open file of its parent's, and
// dies of SIGKILL only; its tasks die with it. A file "stop-<id>" in the job's folder, or SIGTERM,
// ends the job as Ctrl-C ends launch; "kill-<id>", or a second signal, kills the tasks. What asks
// it to stop before the first task starts, starts none.
//
// A disk that is full, or hangs, ends no job: the state is written by a thread of its own, which
// tries again; a log that cannot be written ends where it is, and a line says so.
//
// Thread-safety: StartJob forks; call it before threads are started.
// Failure: AlreadyExists and FailedPrecondition name the other job; the file system's.

#include <string>

#include "core/status.h"
#include "tools/job_names.h"
#include "tools/job_state.h"
#include "tools/local_cluster.h"

namespace millrace {

struct JobOrder {
  // name, tier, command and job_dir are given.
  JobState job;
  // The tasks and the command; logs, environment and output are the supervisor's.
  LocalClusterOptions cluster;
  // Over a job that has ended.
  bool again = false;
};

// The state as the supervisor has written it first.
StatusOr<JobState> StartJob(const JobNames& names, const JobOrder& order);

// The part of it that other backends share. Takes name and directory for `job`, as above, and
// writes its first state, which it returns: `phase` of `job`, next attempt, a random id.
StatusOr<JobState> RegisterJob(const JobNames& names, const JobState& job, bool again);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_JOB_SUPERVISOR_H_
