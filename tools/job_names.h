// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_JOB_NAMES_H_
#define MILLRACE_TOOLS_JOB_NAMES_H_

// JobNames: the jobs that a user has submitted from this machine, by name: a file <name>.json for
// each in a directory of the user, which says where the job's own directory is. What is known of
// the job is there (tools/job_state.h).
//
// A name that has a file is taken, until the job's directory is gone.
//
// Thread-safety: thread-compatible. Failure: InvalidArgument for a name, NotFound "no such job",
// the file system's.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/file_system.h"
#include "core/status.h"

namespace millrace {

// A letter, then letters, digits, '_' and '-', 100 at most; none of submit's own commands.
Status CheckJobName(absl::string_view name);
// "list", "describe", ...: these words are no names of jobs.
const std::vector<std::string>& SubmitCommands();

class JobNames {
 public:
  // `directory`: "" for MILLRACE_JOBS_DIR, else XDG_STATE_HOME/millrace/jobs, else
  // ~/.local/state/millrace/jobs. FailedPrecondition without any of these.
  static StatusOr<JobNames> Open(const std::string& directory);

  const std::string& directory() const { return directory_; }
  // Of a job for which the user names none.
  std::string DefaultJobDir(const std::string& name) const;

  // Locks all names of the directory, for as long as the result lives: waits 10 s at most. Null
  // where files cannot be locked.
  StatusOr<std::unique_ptr<FileLock>> Lock(const std::string& holder) const;
  // The directory of a job. NotFound names the nearest name.
  StatusOr<std::string> Find(const std::string& name) const;
  Status Set(const std::string& name, const std::string& job_dir) const;
  // All, by name, with their directories; files that say nothing are left out.
  StatusOr<std::vector<std::pair<std::string, std::string>>> List() const;

 private:
  explicit JobNames(std::string directory) : directory_(std::move(directory)) {}
  std::string PathOf(const std::string& name) const;
  StatusOr<std::string> Read(const std::string& name) const;

  std::string directory_;
};

}  // namespace millrace

#endif  // MILLRACE_TOOLS_JOB_NAMES_H_
