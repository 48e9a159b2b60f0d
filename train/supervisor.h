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
// The chief initialises variables or restores the latest checkpoint of `logdir`; variables
// that the parameter servers still hold from before are adopted, and the log says which. Other
// tasks wait until all variables are initialised, and say every 10 s what they wait for.
//
// Stop saves the chief's last checkpoint and says where; the destructor only closes: it is what
// ends a program that returned early, with an error that nobody told the Supervisor.
//
// The constructor completes the graph (init, ready and save operations) and finalizes it. On the
// chief it makes `logdir` and tries to write there, so that status() tells before any training
// that no checkpoint could be kept.
//
// Thread-safety: all methods, from any thread; ManagedSession from one at a time. Services run on
// one thread of the Supervisor.
// Failure: ManagedSession returns DeadlineExceeded after max_wait, and after a request to stop its
// reason or Cancelled; Unavailable and Aborted of a session (a task restarted) are the caller's to
// retry with a new ManagedSession.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "runtime/session.h"
#include "saver/saver.h"

namespace millrace {

struct SupervisorOptions {
  bool is_chief = true;
  // Where checkpoints go; "" = no checkpoints, no restore.
  std::string logdir = "";
  std::optional<Variable> global_step = {};  // GlobalStep of the graph otherwise, when there is one
  // Run as a whole unless all variables have values or are restored; otherwise those that have no
  // value are initialised, one by one.
  Operation init_op = {};
  Operation local_init_op = {};  // local variables otherwise
  Saver* saver = nullptr;        // a Saver of all variables otherwise; not owned
  // Seconds between checkpoints of the chief's service; 0 = none.
  absl::Duration save_model_period = absl::Seconds(600);
  // Poll while waiting for the chief.
  absl::Duration recovery_wait = absl::Seconds(1);
  absl::Duration max_wait = absl::Seconds(7200);
  // How long Stop lets a checkpoint that is being written finish before it closes the session.
  absl::Duration stop_grace = absl::Seconds(120);
  std::string checkpoint_basename = "model.ckpt";
  SessionOptions session = {};  // target is set by ManagedSession
  // Called on the chief after a fresh initialisation (not after a restore).
  std::function<Status(Session*)> init_fn = {};
  Clock* clock = Clock::Real();
  FileSystem* file_system = FileSystem::Posix();
};

class Supervisor {
 public:
  // How the variables of a session came to their values; said in the log by the chief.
  enum class Start { kInitialized, kRestored, kAdopted, kWaited };

  Supervisor(const Scope& scope, SupervisorOptions options);
  ~Supervisor();  // stops

  // A session whose variables are ready. May be called again after the former session failed.
  StatusOr<std::shared_ptr<Session>> ManagedSession(const std::string& target);
  // Of the last ManagedSession: how it started, and the checkpoint that was restored ("" if none).
  Start start() const;
  std::string restored_checkpoint() const;

  bool ShouldStop() const;
  void RequestStop(const Status& reason = absl::OkStatus());
  // Stops the services, saves the last checkpoint (SaveLast; unless that was called since the last
  // ManagedSession, or an error says that there is nothing to save: Unavailable and Aborted, the
  // session is lost; that of the NaN guard), closes the session. The first error of RequestStop or
  // of a service, else of the last checkpoint; OutOfRange (end of input) counts as a clean stop.
  Status Stop();
  // Stops the services and writes the chief's last checkpoint to save_path(), unless training has
  // got on to this global step with this session and one of it was written. For a program that
  // goes on to use the session. Its path; "" where none is written: not the chief, no logdir, no
  // session.
  StatusOr<std::string> SaveLast();

  Saver* saver() const;
  // "<logdir>/<checkpoint_basename>".
  std::string save_path() const;
  // Of the scope: an error in completing the graph shows here and in ManagedSession.
  Status status() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Runs `body` in a managed session; when it ends with Unavailable or Aborted (a parameter server
// went away), again in a new one, at most `max_recoveries` times. Training then goes on from the
// checkpoint that the chief restores. Other errors, and the last one, are returned.
Status RunWithRecovery(Supervisor* supervisor, const std::string& target, int max_recoveries,
                       absl::FunctionRef<Status(Session*)> body);

// The NaN guard: InvalidArgument "NaN guard: the loss must be finite, got nan at global step N;
// ..." for a fetched loss (float or double) that is NaN or infinite.
Status CheckLossIsFinite(const Tensor& loss, int64_t step);
// Is it that error, perhaps with more text? Then the variables are not worth saving.
bool IsLossNotFinite(const Status& status);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_SUPERVISOR_H_
