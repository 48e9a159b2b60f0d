// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_SUPERVISOR_H_
#define MILLRACE_TRAIN_SUPERVISOR_H_

// Supervisor: starts a training session, keeps checkpoints, ends it cleanly.
//
//   Supervisor supervisor(root, {.is_chief = cluster.is_chief(), .logdir = "run"});
//   MR_ASSIGN_OR_RETURN(auto session, supervisor.ManagedSession(server->target()));
//   while (!supervisor.ShouldStop()) { ... session->Run(...) ... }
//   return supervisor.Stop();
//
// What one logdir trains is a run; all tasks are given the same logdir. The chief takes the logdir
// over (run/run_file.h), adopts the variables that the parameter servers hold of this run,
// restores or initialises the others, and the log says which (train/session_manager.h). Other tasks
// wait until all variables are initialised, and say every 10 s what they wait for. Of two chiefs of
// one logdir the newer one has it: the older one's saves and steps are refused, naming the other.
//
// A checkpoint that could not be written (the disk is full, a task was lost) ends no training: the
// log says each time which one and how many bytes it needs, and it is tried again with pauses, of
// recovery_wait at first and a minute at most, until one is written. Stop tries once more, for as
// long as stop_grace allows; what it returns when there is no last checkpoint has the exit code
// of what is worth another try: parameter servers still hold the variables. Only what no try can
// change stops the training: another chief has the logdir, InvalidArgument, Unimplemented.
//
// SIGTERM and Ctrl-C, from the first ManagedSession until Stop has returned (handle_signals), are a
// RequestStop with Cancelled and the exit code 143 or 130: the job is to go on another time. The
// loop ends with the step that runs, Stop of a chief writes the last checkpoint, with what others
// count in the next second in it (they are often asked to end in the same moment), and closes the
// session. A loop that does not get so far is not waited for: after a second (of a chief: half of
// signal_grace, and the last checkpoint is written first) the session is closed under it. Without a
// last checkpoint the exit code is not that of the signal. A second signal ends the process at
// once.
//
// A request to stop, a signal among them, ends ManagedSession whatever it is at: a session that is
// being prepared (a restore from storage that hangs) is closed after a second, and after a few more
// left behind like a save.
//
// Stop saves the chief's last checkpoint and says where; the destructor only closes: it is what
// ends a program that returned early, with an error that nobody told the Supervisor. When the
// program has asked for the stop without an error (RequestStop), training is over: the chief writes
// that into the logdir and tells the parameter servers, and tasks that wait for the chief, or come
// later, leave: ManagedSession returns RunEndedError, with which a program ends with exit code 0
// (core/exit_code.h). A chief that is started again goes on with the run all the same.
//
// The constructor completes the graph (init, ready and save operations) and finalizes it. On the
// chief it makes `logdir` and tries to write there, so that status() tells before any training
// that no checkpoint could be kept.
//
// A wait for a checkpoint that is being written is logged every 10 s.
// Storage that hangs holds up no Stop: after stop_grace (or three times the last save, if that is
// more) and a few seconds it returns, and leaves a thread behind that waits for the storage. That
// thread keeps the graph and the session, and uses the clock, the file system and the Saver of the
// options, if ever it goes on. It calls init_fn no more.
//
// Thread-safety: all methods, from any thread; ManagedSession from one at a time. Services run on
// one thread of the Supervisor.
// Failure: ManagedSession returns DeadlineExceeded after max_wait, after a request to stop its
// reason or Cancelled, RunEndedError when the run has ended (no error of Stop); Unavailable and
// Aborted of a session (a task restarted) are the caller's to retry with a new ManagedSession
// (IsSessionLost).

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "run/training_run.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/loss_guard.h"  // IWYU pragma: export
#include "train/session_manager.h"

namespace millrace {

struct SupervisorOptions {
  bool is_chief = true;
  // Where checkpoints go; "" = no checkpoints, no restore, and no run: the variables are those that
  // the parameter servers hold for everybody, and nobody hears of the end (docs/training_runs.md).
  // With session.run's name there is a run all the same, for as long as its chief lives.
  std::string logdir = "";
  // A checkpoint of another directory to begin from as long as logdir has none (warm start); its
  // variables and its global step are taken as they are.
  std::string begin_from = "";
  std::optional<Variable> global_step = {};  // GlobalStep of the graph otherwise, when there is one
  // The global step at which training is to end, for all tasks the same; 0: not known.
  int64_t last_step = 0;
  // See SessionManagerOptions; local_init_op: local variables and tables otherwise.
  Output ready_op = {};
  Output ready_for_local_init_op = {};
  // Run as a whole unless all variables have values or are restored; otherwise those that have no
  // value are initialised, one by one.
  Operation init_op = {};
  std::vector<Feed> init_feeds = {};
  Operation local_init_op = {};
  // A Saver of all variables otherwise, which asks whether this chief still has the logdir right
  // before it commits a checkpoint, too (SaverOptions::may_commit). Not owned.
  Saver* saver = nullptr;
  // Seconds between checkpoints of the chief's service; 0 = none.
  absl::Duration save_model_period = absl::Seconds(600);
  // The longest time between two looks of a task that waits for the chief, and before a checkpoint
  // is tried again.
  absl::Duration recovery_wait = absl::Seconds(1);
  // How long a task that waits does not believe an end of the run that may be old: one before
  // last_step, or one that was there first (train/session_manager.h). In it the chief must come of
  // a job that is started again.
  absl::Duration end_grace = absl::Seconds(20);
  absl::Duration max_wait = absl::Seconds(7200);
  // How long Stop (and SaveLast) may take: for a checkpoint that is being written, after which the
  // session is closed, and the last one. It bounds storage that is slow but works, too: where the
  // last successful save of this process took long, three times that time counts if it is more.
  // More for models whose only checkpoint takes longer.
  absl::Duration stop_grace = absl::Seconds(120);
  // The same after a signal, from then on, where it is less: the sender kills what goes on for
  // longer (Kubernetes, terminationGracePeriodSeconds, and tools/launch after 30 s), and closing
  // the session and the server takes some seconds of that. Half of it is a chief's for a step that
  // does not end, the rest for the last checkpoint.
  absl::Duration signal_grace = absl::Seconds(20);
  std::string checkpoint_basename = "model.ckpt";
  // The target is set by ManagedSession, the run is that of logdir. A run.name that is given stands
  // for the logdir where tasks see it under different paths.
  SessionOptions session = {};
  // Called on the chief after a fresh initialisation (not after a restore).
  std::function<Status(Session*)> init_fn = {};
  // Called on the chief after each checkpoint, on the thread that wrote it, which waits for it;
  // also on one that was left behind.
  std::function<void(int64_t step, const std::string& checkpoint)> on_checkpoint = {};
  // Off: signals do what they did before.
  bool handle_signals = true;
  Clock* clock = Clock::Real();
  FileSystem* file_system = FileSystem::Default();
};

class Supervisor {
 public:
  // How the variables of a session came to their values; said in the log by the chief.
  using Start = SessionManager::Start;

  Supervisor(ScopeAt at, SupervisorOptions options);
  ~Supervisor();  // stops

  // A session whose variables are ready. May be called again after the former session failed. The
  // options' functions are called on a thread of its own.
  StatusOr<std::shared_ptr<Session>> ManagedSession(const std::string& target);
  // Of the last ManagedSession: how it started, the checkpoint that was restored ("" if none), the
  // global step that it began with (-1 if there is none).
  Start start() const;
  std::string restored_checkpoint() const;
  int64_t first_step() const;
  // How the run ended, once ManagedSession has found that it has.
  std::optional<RunEnd> run_end() const;

  bool ShouldStop() const;
  // SIGTERM or SIGINT, when that is what asked to stop; else 0.
  int signal() const;
  // OK and OutOfRange (end of input): the goal is reached; the text of the latter is told to others
  // as the reason. Any other: the job is to go on another time.
  void RequestStop(const Status& reason = absl::OkStatus());
  // Writes a checkpoint of this global step to save_path() now, and returns its path. "" where that
  // failed and is tried again, as the service does, or nothing is kept. The errors are those that
  // no other try can change, and a lost session's.
  StatusOr<std::string> Save(int64_t step);
  // Nothing was trained since ManagedSession that its checkpoint does not have: Stop writes none.
  void NothingToSave();
  // Stops the services, saves the last checkpoint (SaveLast; unless that was called since the last
  // ManagedSession, or an error says that there is nothing to save: the session is lost, the NaN
  // guard's, another chief has the run), tells the end of the run if this is it, closes the
  // session. The first error of RequestStop or of a service, else of the last checkpoint, else of
  // the last save of the service when no later one succeeded; OutOfRange counts as a clean stop.
  Status Stop();
  // Stops the services and writes the chief's last checkpoint to save_path(), unless training has
  // got on to this global step with this session and one of it was written. For a program that
  // goes on to use the session. Its path; "" where none is written: not the chief, no logdir, no
  // session.
  StatusOr<std::string> SaveLast();

  // Refuses to save when another chief has the logdir.
  Saver* saver() const;
  // Waits until somebody asks to stop, a signal among them; false when `at_most` has passed.
  bool WaitForStop(absl::Duration at_most);
  const SupervisorOptions& options() const;
  // "<logdir>/<checkpoint_basename>".
  std::string save_path() const;
  // Of the scope: an error in completing the graph shows here and in ManagedSession.
  Status status() const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

// Runs `body` in a managed session; when it ends because the session is lost (IsSessionLost: a
// parameter server went away), again in a new one, at most `max_recoveries` times in a row and
// after pauses of recovery_wait at most (train/job_recovery.h). Training then goes on from the
// checkpoint that the chief restores. Other errors, and the last one, are
// returned; OK and one line in the log when the run has ended, OK when a signal ended it (Stop says
// how).
Status RunWithRecovery(Supervisor* supervisor, const std::string& target, int max_recoveries,
                       absl::FunctionRef<Status(Session*)> body);
// The same for a loop: `step` until it returns false or the Supervisor is to stop. After a lost
// session only the step that failed is run again; `begin` is called first for each session. What
// the step had taken (a batch) is its own to keep until it returns; whether its update was applied
// nobody knows (at least once).
Status RunStepsWithRecovery(Supervisor* supervisor, const std::string& target, int max_recoveries,
                            absl::FunctionRef<Status(Session*)> begin,
                            absl::FunctionRef<StatusOr<bool>(Session*)> step);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_SUPERVISOR_H_
