// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_SESSION_MANAGER_H_
#define MILLRACE_TRAIN_SESSION_MANAGER_H_

// SessionManager: opens a session and sees to it that its variables have values.
//
//   SessionManager manager(root, {.checkpoint_dir = "run", .saver = saver.get()});
//   MR_ASSIGN_OR_RETURN(auto prepared, manager.PrepareSession(target));   // the chief
//   MR_ASSIGN_OR_RETURN(auto ready, manager.WaitForSession(target));      // the others
//
// One rule says where the value of a variable comes from, and the log says which it was:
//
//   it has one already (the parameter servers hold it)   adopted
//   it has none, and there is a checkpoint               restored from it
//   it has none, and there is no checkpoint              restored from begin_from, when given, with
//                                                        all others; or initialised
//
// An init_op of the caller's initialises as a whole: with it, and without a checkpoint, nothing is
// adopted unless everything is. init_fn follows an initialisation of all variables, and nothing
// else. Local variables and tables are initialised in each session, by every task.
//
// A session that is lost on the way (IsSessionLost) is opened again until max_wait. A task that
// refuses us for good (core/refusal.h: another CA, a token, TLS where there is none, another
// version of the wire) is not waited for: what it says is the error. A wait is logged every 10 s,
// and says for what, looks each 10 ms at first, then each eighth of the time that it has waited, at
// most recovery_wait (a worker that waited a second joins 125 ms after the chief), and leaves with
// RunEndedError when the run has ended: by what the servers say, and by the files in checkpoint_dir
// (run/run_file.h) when this task sees them. Which end is believed, and when: run/end_belief.h,
// for each of the two by itself; the goal is last_step, the grace end_grace. An end that may be old
// has not stayed when a chief takes checkpoint_dir over, or claims the run at the servers,
// meanwhile. Files of another run (a copied directory) tell of no end.
//
// The constructor adds nodes to the graph; the caller finalizes it.
//
// Thread-safety: Stop and session from any thread, the rest from one at a time.
// Failure: DeadlineExceeded after max_wait, with what was missing and the exit code of what is
// worth another try (core/exit_code.h); FailedPrecondition when init operations leave something
// without a value; DataLoss when no checkpoint of checkpoint_dir is whole; the first error that is
// no loss of the session.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "runtime/session.h"
#include "saver/saver.h"

namespace millrace {

struct TrainingRun;  // run/training_run.h

struct SessionManagerOptions {
  // Who speaks, in the log and in errors.
  std::string name = "SessionManager";
  // A string vector, empty when the model is ready, else the names of what is not: all variables,
  // local ones too, otherwise.
  Output ready_op = {};
  // The same, of what local_init_op needs: the variables otherwise.
  Output ready_for_local_init_op = {};
  // Initialises everything; otherwise those variables that have no value, one by one.
  Operation init_op = {};
  std::vector<Feed> init_feeds = {};
  std::function<Status(Session*)> init_fn = {};
  // Local variables and the operations of the collection "table_initializer" otherwise.
  Operation local_init_op = {};
  Saver* saver = nullptr;           // not owned; none: nothing is restored
  std::string checkpoint_dir = "";  // the latest whole checkpoint in it; "": none
  // The checkpoint to begin from as long as checkpoint_dir has none: all variables are restored
  // from it unless each has a value already. What is trained from it is given up for it again only
  // while checkpoint_dir has no checkpoint and a variable has lost its value. Not taken where
  // wait_for_checkpoint says to wait. Needs `saver`. "": none.
  std::string begin_from = "";
  // Not initialised without a checkpoint: waits for one.
  bool wait_for_checkpoint = false;
  std::optional<Variable> global_step = {};  // for the log
  // The global step at which this task means to end; 0: not known.
  int64_t last_step = 0;
  absl::Duration recovery_wait = absl::Seconds(1);  // between two looks, at most
  // In which a chief that goes on with a run that has ended must come: longer than chiefs of one
  // job start after other tasks.
  absl::Duration end_grace = absl::Seconds(20);
  absl::Duration max_wait = absl::Seconds(7200);
  SessionOptions session = {};  // the target is that of each call
  Clock* clock = Clock::Real();
  FileSystem* file_system = FileSystem::Default();
};

class SessionManager {
 public:
  // kWaited: somebody else saw to the values.
  enum class Start { kInitialized, kRestored, kAdopted, kWaited };
  struct Ready {
    std::shared_ptr<Session> session;
    Start start = Start::kInitialized;
    std::string restored_checkpoint = "";  // "" unless restored
    int64_t global_step = -1;              // -1: there is none
  };

  SessionManager(ScopeAt at, SessionManagerOptions options);
  ~SessionManager();
  SessionManager(const SessionManager&) = delete;
  SessionManager& operator=(const SessionManager&) = delete;

  // An error in completing the graph; every other method returns it, too.
  const Status& status() const;
  // Of the sessions from now on.
  void SetRun(const TrainingRun& run);

  // Adopts, restores or initialises until the model is ready.
  StatusOr<Ready> PrepareSession(const std::string& target);
  // Waits until somebody else has.
  StatusOr<Ready> WaitForSession(const std::string& target);
  // Adopts and restores, never initialises and never waits. `not_ready`: what has no value then;
  // the session is for the caller to use all the same.
  StatusOr<Ready> RecoverSession(const std::string& target, std::vector<std::string>* not_ready);
  // Ends the wait of a call that runs, and all later ones at once, with `reason` (not OK). What the
  // call is at (a restore) ends first; no function of the options is called any more.
  void Stop(const Status& reason);
  // That a call opened and has not returned yet: closing it ends what the call is at, unless
  // that waits for files. Null: none.
  std::shared_ptr<Session> session() const;

  // The global step now; -1 when there is none.
  StatusOr<int64_t> ReadGlobalStep(Session* session) const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

// Is the session lost, or what it held, so that a new one may go on from a checkpoint? Unavailable,
// Aborted, and variables that have lost their values or are gone (a parameter server was reset).
// Not when the run has ended or another chief has it, nor when a task refuses us for good.
bool IsSessionLost(const Status& status);

// "a, b, c": at most eight, and how many more.
std::string SomeNames(const std::vector<std::string>& names);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_SESSION_MANAGER_H_
