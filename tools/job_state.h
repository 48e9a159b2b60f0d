// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_JOB_STATE_H_
#define MILLRACE_TOOLS_JOB_STATE_H_

// JobState: what is known of a submitted job. It is a file in the job's directory, so that each
// machine that sees the directory can read it:
//
//   <job directory>/job/state.json     the state, replaced as a whole
//   <job directory>/job/lock           locked by the job's supervisor while it lives
//   <job directory>/job/stop-<id>      asks the supervisor to end the job
//   <job directory>/job/kill-<id>      asks it to kill the tasks
//   <log directory>/all.log            the lines of all tasks, each after its task's name
//   <log directory>/worker-1.log       those of one task
//
//   PREPARING -> RUNNING -> SUCCEEDED | FAILED       by the supervisor (local)
//   PREPARING | RUNNING -> STOPPING -> STOPPED | SUCCEEDED
//   QUEUED -> RUNNING -> SUCCEEDED | FAILED          by the batch script (slurm)
//   LOST: never in the file; what a reader sees when the supervisor is gone and had not said so
//
// The supervisor writes the file at each change and every kJobHeartbeat. A reader of its machine
// knows whether the process lives; one of another machine only when it was heard of last.
//
// A value; thread-compatible. Failure: the file system's; DataLoss for a file that is no state.

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/status.h"
#include "nlohmann/json.hpp"
#include "tools/task_record.h"

namespace millrace {

inline constexpr absl::Duration kJobHeartbeat = absl::Seconds(10);
// Of a supervisor of another machine: after so long it is probably gone.
inline constexpr absl::Duration kJobSilence = absl::Seconds(60);

// A process of a machine, also after its number was given to another.
struct ProcessIdentity {
  std::string host = {};
  std::string boot_id = {};  // of the machine's kernel, since it started
  int pid = 0;
  int64_t start_ticks = 0;  // since then

  static ProcessIdentity OfThisProcess();
  bool is_of_this_machine() const;
  // Of a process of this machine.
  bool is_alive() const;
};

struct JobState {
  enum class Phase {
    kPreparing,
    kQueued,
    kRunning,
    kStopping,
    kSucceeded,
    kFailed,
    kStopped,
    kLost
  };

  std::string name;
  std::string id;   // of this attempt; random
  int attempt = 1;  // in this directory
  Phase phase = Phase::kPreparing;
  std::string why = {};         // of an end
  std::string backend = {};     // "local", "slurm"
  std::string backend_id = {};  // of Slurm's job
  std::string tier = {};
  std::vector<std::string> command = {};
  std::string job_dir = {};
  std::string log_dir = {};
  ProcessIdentity supervisor = {};
  std::optional<absl::Time> submitted = {}, started = {}, updated = {}, ended = {};
  std::optional<int> exit_code = {};
  std::vector<TaskRecord> tasks = {};

  bool is_over() const {
    return phase == Phase::kSucceeded || phase == Phase::kFailed || phase == Phase::kStopped ||
           phase == Phase::kLost;
  }
  // As a reader sees it: kLost when its supervisor was on this machine and is gone.
  Phase seen_phase() const;
  // "RUNNING on n1, pid 4711": for messages.
  std::string text() const;
};

absl::string_view PhaseName(JobState::Phase phase);  // "RUNNING"

nlohmann::ordered_json ToJson(const JobState& state);
StatusOr<JobState> JobStateFromJson(absl::string_view text, const std::string& where);

// The folder of a job in its directory, and what is there.
std::string JobFolder(const std::string& job_dir);
std::string JobStatePath(const std::string& job_dir);
std::string JobStopPath(const std::string& job_dir, const std::string& id);
std::string JobKillPath(const std::string& job_dir, const std::string& id);

// NotFound when the directory is that of no job.
StatusOr<JobState> ReadJobState(FileSystem* files, const std::string& job_dir);
Status WriteJobState(FileSystem* files, const JobState& state);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_JOB_STATE_H_
