// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_SLURM_JOB_H_
#define MILLRACE_TOOLS_SLURM_JOB_H_

// A job of Slurm's: the batch script that runs it, and what is known of it.
//
// The script starts all tasks by one srun. They learn their roles from Slurm's variables
// (distributed/cluster/slurm_environment.h): rank 0 is the chief, then the evaluator, the parameter
// servers, the workers. It does what launch does when a task ends (tools/local_cluster.h):
//
//   * a dead chief or ps: the others get SIGTERM, the job has that task's code;
//   * a dead worker: the job goes on;
//   * all trainers have ended: ps get SIGTERM, when the evaluator has ended, too.
//
// A code >= 128 is worth another try: the script has Slurm requeue the job, `restarts` times in
// all, and the program goes on from its checkpoint. The exit code of the job is Slurm's, too.
//
// In the job's folder (tools/job_state.h) the script keeps
//
//   slurm.state     "<STATE> <exit code or -> <restarts so far> <seconds since the epoch>"
//   ends/<rank>     "<exit code> <seconds since the epoch>" of a task that has ended
//   logs/task-<rank>.log, logs/slurm.log
//
// Thread-safety: pure functions but for the files and programs (squeue, scancel) they use.
// Failure: InvalidArgument for options that would leave their line.

#include <string>
#include <vector>

#include "core/file_system.h"
#include "core/status.h"
#include "tools/job_config.h"
#include "tools/job_state.h"
#include "tools/task_record.h"

namespace millrace {

struct SlurmScriptOptions {
  int restarts = 0;
  int grace_secs = 30;
  // "--partition=long": lines of #SBATCH.
  std::vector<std::string> sbatch = {};
};

// `job` has name, id, command, job_dir and log_dir.
StatusOr<std::string> SlurmScript(const JobState& job, const JobTasks& tasks,
                                  const SlurmScriptOptions& options);

// The tasks in the order of their ranks.
std::vector<TaskRecord> TasksByRank(const JobTasks& tasks);

// Writes the script into the job's folder and hands it to sbatch: Slurm's number of the job.
StatusOr<std::string> SubmitToSlurm(const JobState& job, const std::string& script);

// What script and Slurm say by now; `state` is of the file. Of a job that Slurm does not know any
// more, and whose script has not said its end: kLost, or kStopped if it was asked to stop.
JobState RefreshedFromSlurm(FileSystem* files, JobState state);

// The state of a job of any backend: ReadJobState, and what Slurm says of its own.
StatusOr<JobState> SeenJobState(FileSystem* files, const std::string& job_dir);

// Cancels a job. The script and the tasks get SIGTERM; `kills`: SIGKILL.
Status CancelInSlurm(const JobState& state, bool kills);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_SLURM_JOB_H_
