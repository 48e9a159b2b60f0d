// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_JOB_SESSIONS_H_
#define MILLRACE_TRAIN_JOB_SESSIONS_H_

// JobSessions: the sessions of a training job's task, and its part in the run
// (docs/training_runs.md).
//
//   the chief    makes its directory, takes it and the run over with its first session, unless it
//                is another model's (train/other_model.h), adopts, restores or initialises, saves
//                while the directory is its own, and tells the end; sweeps what killed chiefs have
//                left (train/run_sweep.h), with its first session and after it has told the end
//   the others   wait for the chief
//
// Make completes the graph (save, init and ready operations) and finalizes it. Of two chiefs of one
// directory the newer one has it: the older one's saves and sessions are refused, naming the other.
//
// Thread-safety: Open from one thread at a time, the rest from any.
// Lifetime: it is shared: threads that are left behind in Open or a save hold it. The graph, and
// what the options name, as long as it lives.
// Failure: as SessionManager; FencedError; of the directory, which is made and tried before any
// training, with the exit code of what is worth another try when a disk is full.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "core/mutex.h"
#include "core/status.h"
#include "graph/scope.h"
#include "run/run_directory.h"
#include "run/training_run.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/guarded_saver.h"
#include "train/run_sweep.h"
#include "train/session_manager.h"

namespace millrace {

struct JobSessionsOptions {
  bool is_chief = true;
  std::string target = "";
  // Its name speaks in the log and in errors. The directory of the run is checkpoint_dir, which
  // names the run, too, unless session.run has a name. Without a global_step it is the graph's. Its
  // saver is set by Make.
  SessionManagerOptions manager = {};
  // What the face calls the directory: "logdir".
  std::string directory_option = "logdir";
  // Not owned; otherwise, where may_save says so and the graph has variables, one of them all, of
  // saver_options; its file system and may_commit are the job's.
  Saver* saver = nullptr;
  bool may_save = true;
  SaverOptions saver_options = {};
  // Called after each checkpoint, on the thread that wrote it. `step` -1: it has none.
  std::function<void(int64_t step, const std::string& checkpoint)> on_saved = {};
};

class JobSessions {
 public:
  static StatusOr<std::shared_ptr<JobSessions>> Make(const Scope& scope,
                                                     JobSessionsOptions options);
  ~JobSessions();
  JobSessions(const JobSessions&) = delete;
  JobSessions& operator=(const JobSessions&) = delete;

  // A session whose variables have values.
  StatusOr<SessionManager::Ready> Open(const std::string& target);
  // Ends the wait of an Open that runs, and all later ones at once, with `reason` (not OK).
  void Stop(const Status& reason) { manager_->Stop(reason); }
  // That an Open has made and not returned yet: to close it ends what that waits for, unless it is
  // storage. Null: none.
  std::shared_ptr<Session> opening() const { return manager_->session(); }

  // -1 when there is none.
  StatusOr<int64_t> ReadGlobalStep(Session* session) const {
    return manager_->ReadGlobalStep(session);
  }
  // Refuses to save when another chief has the directory. Null where nothing is saved.
  GuardedSaver* saver() const { return saver_.get(); }
  const std::string& target() const { return options_.target; }
  // Of all variables that a checkpoint has, as far as their shapes say; for people.
  int64_t variable_bytes() const;
  // Tasks that train the run besides this one. Also finds out whether the session is lost.
  StatusOr<RunTrainers> OtherTrainers(Session* session) const;
  // Of a chief that has a run: training is over, for all tasks. What `end` leaves out (the step,
  // the checkpoint) is filled in. The step is that of the checkpoint: what other tasks have counted
  // since it was written is a number of its own in the directory's record, and a line of the log.
  // The directory is told first, as it is what remains; the servers hear of it also when the
  // directory cannot be written, unless another chief has the run.
  Status TellEnd(Session* session, RunEnd end);

 private:
  JobSessions(const Scope& root, JobSessionsOptions options);
  Status Complete();
  Status MakeSaver();
  // What killed chiefs of the run have left, while the directory is this one's. `in_use`: the
  // checkpoint that is needed.
  void Sweep(const std::string& in_use);
  // The global step in a checkpoint, which may be above that of its name; -1: not known.
  int64_t StepInCheckpoint(const std::string& checkpoint) const;
  // Makes the step of `end` that of its checkpoint. How many updates that lacks.
  int64_t SettleStep(RunEnd* end) const;

  const Scope root_;
  JobSessionsOptions options_;
  std::optional<RunDirectory> directory_;  // of a chief that has one
  std::optional<RunSweep> sweep_;          // of it
  bool is_this_model_ = false;             // what the directory holds; of Open
  bool has_swept_ = false;                 // of Open
  std::unique_ptr<GuardedSaver> saver_;
  std::unique_ptr<SessionManager> manager_;
  mutable Mutex mu_;
  std::string restored_ ABSL_GUARDED_BY(mu_);  // the checkpoint, of the last session
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_JOB_SESSIONS_H_
