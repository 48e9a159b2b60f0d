// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUN_RUN_DIRECTORY_H_
#define MILLRACE_RUN_RUN_DIRECTORY_H_

// RunDirectory: a chief's hold of the directory of its run (run/run_file.h).
//
//   TakeOver   this process owns the directory; who had it before is fenced
//   Check      OK while it does, for all that can be seen
//   MayCommit  OK while it does; not while it cannot be seen
//   End        says that training is over
//
// The newest chief wins: of two that are started for one directory the older one is refused at its
// next look, by name. Of several that begin at once, in one process or on many hosts, each has an
// epoch of its own, which an exclusive file decides, and the highest wins. A chief that finds
// run.json overwritten by an older chief, which was stopped in the middle, writes that of the
// newest again. A run keeps its id as long as the directory keeps its name: in one that was copied
// or moved another run begins, which restores the checkpoints there and leaves alone what parameter
// servers hold for the first one.
//
// Thread-safety: all methods, from any thread.
// Failure: FencedError (run/training_run.h) naming the newer chief; of the files.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/status.h"
#include "run/run_file.h"
#include "run/training_run.h"

namespace millrace {

// The name of the run of a directory: "run/" and "run" are one.
std::string RunNameOf(absl::string_view directory);

// Of a chief without a directory: the run that it was given a name for gets an id, so that its end
// can be told. It lasts as long as this process and the parameter servers; a chief that is started
// again begins another one. Without a name it is none.
void BeginRunWithoutDirectory(TrainingRun* run);
// Says once in this process what a task of a cluster misses that is of no run.
void WarnOfNoRun(absl::string_view speaker, absl::Duration max_wait);

class RunDirectory {
 public:
  // `speaker`: who speaks in the log and in errors ("Supervisor"). `name`: of the run.
  RunDirectory(FileSystem* fs, Clock* clock, std::string speaker, std::string directory,
               std::string name);

  // The run to open sessions for. After the first call the same as Check. `task`: who this is, for
  // people.
  StatusOr<TrainingRun> TakeOver(const std::string& task);
  // Lists the directory and reads a small file. OK before TakeOver, and while nobody can say who
  // owns the directory.
  Status Check() const;
  // The same before something is changed that another chief may own by now: Unavailable when the
  // directory cannot be listed or the file not be read, to be asked again. A file that is damaged
  // or missing, and a directory that is missing, say nothing against us.
  Status MayCommit() const;
  // `goal`, `updates_after_checkpoint`: see RunEndFile.
  Status End(const RunEnd& end, int64_t goal, int64_t updates_after_checkpoint = 0);

 private:
  // nullopt: another chief came first; to be tried again.
  StatusOr<std::optional<TrainingRun>> TryTakeOver(const std::string& task);
  // Sees to it that run.json is that of the newest chief, which it returns.
  RunFile PutNewest(int64_t newest) const;
  // What a look comes to that an error of the files has prevented.
  enum class Unseen { kPasses, kRefused };
  Status Look(Unseen unseen) const;
  // Refuses when a newer epoch has an owner.
  Status CheckEpoch(Unseen unseen) const;
  Status Judged(Unseen unseen, const Status& error) const;

  FileSystem* const fs_;
  Clock* const clock_;
  const std::string speaker_, directory_, name_;
  mutable Mutex mu_;
  std::optional<RunFile> mine_ ABSL_GUARDED_BY(mu_);
  TrainingRun run_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_RUN_RUN_DIRECTORY_H_
