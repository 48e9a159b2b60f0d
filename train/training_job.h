// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_TRAINING_JOB_H_
#define MILLRACE_TRAIN_TRAINING_JOB_H_

// TrainingJob: the engine under Supervisor, Train and MonitoredSession: one task's session, its
// checkpoints, its signals and its end.
//
//   idle     -> running   Open and Use: a session that is ready
//   running  -> idle      TakeSession, for another one after a loss; a step that hangs after
//                         a signal
//   any      -> stopping  RequestStop, RequestLeave, RequestEnd, a signal, a checkpoint that
//                         no try can mend: no Open returns a session any more, waits end at
//                         once
//   stopping -> ended     Stop; or EndBegins, TellEnd and Unwatch by a face that ends hooks
//                         between
//
// Which call asks for the stop, and what it says of the run:
//
//   RequestStop     the goal is reached: training is over for all tasks, unless another call
//                   leaves, too
//   RequestLeave    this task leaves with a result, the run is to go on; signals leave so
//   RequestEnd      neither: the face just ends
//
// A request to stop ends Open whatever it is at: a session that is being prepared (a restore from
// storage that hangs) is closed after a second, and after a few more left behind.
//
// Thread-safety: all methods, from any thread; Open from one at a time.
// Lifetime: it is shared with threads that are left behind in storage that hangs. Unwatch before
// what on_stop uses is gone.
// Failure: Open returns the first result of those who leave, or Cancelled, after a request to stop;
// what ends in a bounded time and did not is left behind, and the log says so.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/status.h"
#include "runtime/session.h"
#include "train/checkpoint_service.h"
#include "train/guarded_saver.h"
#include "train/job_sessions.h"
#include "train/job_signals.h"
#include "train/session_manager.h"
#include "train/session_preparation.h"
#include "train/stop_time.h"

namespace millrace {

struct TrainingJobOptions {
  std::string speaker;  // in the log and in errors
  // How long a stop may take, and a stop after a signal.
  absl::Duration stop_grace = absl::Seconds(120);
  absl::Duration signal_grace = absl::Seconds(20);
  bool handle_signals = true;
  Clock* clock = Clock::Real();
  // Ends waits of the face's own, on any thread, with a lock held: it calls no method of the job.
  std::function<void()> on_stop = nullptr;
};

// Of a task that writes checkpoints.
struct JobCheckpointsOptions {
  std::string directory = "";
  // Without "-<step>". "": as the checkpoint before is called; none is written before there is one.
  std::string path = "";
  absl::Duration period = absl::ZeroDuration();  // 0: none by time
  absl::Duration recovery_wait = absl::Seconds(1);
};

class TrainingJob : public std::enable_shared_from_this<TrainingJob> {
 public:
  explicit TrainingJob(TrainingJobOptions options);
  TrainingJob(const TrainingJob&) = delete;
  TrainingJob& operator=(const TrainingJob&) = delete;

  // Where sessions come from; before anything else but RequestStop, which may come at any time.
  void SetSessions(std::shared_ptr<JobSessions> sessions);
  // That this task writes checkpoints, by the sessions' Saver; before the first Open.
  void KeepCheckpoints(const JobCheckpointsOptions& options);
  JobSessions* sessions() const { return sessions_.get(); }
  GuardedSaver* saver() const { return sessions_ != nullptr ? sessions_->saver() : nullptr; }
  // Null: this task writes none.
  CheckpointService* checkpoints() const { return checkpoints_.get(); }

  // --- The request to stop ---

  // The first goal counts.
  void RequestStop(absl::string_view goal);
  // The first error counts; OK: leaves well.
  void RequestLeave(const Status& result);
  void RequestEnd();
  // Takes note of a signal first: no step begins after one.
  bool ShouldStop();
  // Without a look at signals; one load.
  bool stop_requested() const { return stop_requested_.load(std::memory_order_acquire); }
  // False when `until` comes first.
  bool WaitForStop(absl::Time until);
  // What was asked for so far.
  std::optional<std::string> goal() const;
  std::optional<Status> leave() const;  // nullopt: nobody has left
  // Why there is no session any more.
  Status Stopped() const;
  // SIGTERM or SIGINT, when one was noted; else 0.
  int signal() const;

  // --- The session ---

  // Signals are the job's from now on.
  void WatchSignals();
  // A session whose variables are ready; not in use yet.
  StatusOr<SessionManager::Ready> Open(const std::string& target);
  // Begins its checkpoints. After a request to stop it is closed, and the result is Stopped().
  Status Use(const SessionManager::Ready& ready, const std::string& target);
  std::shared_ptr<Session> session() const;
  // Its checkpoints end first, where the face has not ended them; null when there is none.
  std::shared_ptr<Session> TakeSession();
  void Close(std::shared_ptr<Session> session);

  // --- The end ---

  // What a stop may take that begins now: after a signal the time counts from there, but for the
  // part that is the last checkpoint's. A save as slow as the last one is not cut off.
  StopTime TimeToStop() const;
  // False when a save did not end in time and its session was closed.
  bool EndCheckpoints(const StopTime& time);
  // Ends the checkpoints by time and writes the last one; its path, "" where none is written.
  StatusOr<std::string> SaveLast();
  // The same for a loop that ends with `error` and whose hooks write no last one then: unless the
  // error says that there is nothing to save (the session is lost, the NaN guard's, another chief
  // has the run).
  StatusOr<std::string> SaveLastAfter(const Status& error);
  // What is trained since the last Use is not worth a checkpoint.
  void NothingToSave();
  // What the last checkpoint came to that was written next to a step that hung after a signal; ""
  // for none.
  StatusOr<std::string> saved_beside() const;

  // From now on the job ends by itself: signals are left alone, no checkpoint service begins.
  void EndBegins();
  // That training is over, to the directory and the servers, until `deadline`.
  void TellEnd(const std::shared_ptr<Session>& session, const std::string& reason,
               absl::Time deadline);
  void Unwatch() { signals_.Unwatch(); }
  // All of the end, of a face without hooks: the last checkpoint, as SaveLastAfter; the end of the
  // run is told when the goal was reached without an error; the session is closed. The first error
  // of those who left, else of the checkpoints. Later calls return the same.
  Status Stop();

 private:
  void AskLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status StoppedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Duration AskedGrace(bool by_signal) const;
  bool NeedsLastSave(const Status& error) const;
  StatusOr<std::string> SaveLast(bool checkpoints_ended, const StopTime& time)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(stop_mu_);
  // After a signal: the step hangs, or what feeds it does. What is trained is saved next to it, and
  // its session is closed under it.
  void EndStep(absl::Duration time);
  Status SaveAndClose();

  const TrainingJobOptions options_;
  Clock* const clock_;
  std::shared_ptr<JobSessions> sessions_;
  SessionPreparation preparation_;
  std::unique_ptr<CheckpointService> checkpoints_;

  Mutex stop_mu_;  // held by the thread that writes the last checkpoint, before mu_: the others
                   // wait for it
  mutable Mutex mu_;
  CondVar changed_;
  // Written under mu_, and read without it in each step: release, acquire.
  std::atomic<bool> stop_requested_ = false;
  std::optional<std::string> goal_ ABSL_GUARDED_BY(mu_);
  std::optional<Status> leave_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<Session> session_ ABSL_GUARDED_BY(mu_);
  std::string target_ ABSL_GUARDED_BY(mu_);           // of session_
  bool last_save_done_ ABSL_GUARDED_BY(mu_) = false;  // of session_
  StatusOr<std::string> saved_beside_ ABSL_GUARDED_BY(mu_) = std::string();
  JobSignals signals_;  // last: its thread uses the rest; its methods are called without mu_
};

// What a program ends with that leaves with `why`: it says whether what was trained is kept.
// `saved`: the path of the last checkpoint, "" when there is nothing to say of one, or why there is
// none.
Status WithWhatIsKept(const Status& why, const StatusOr<std::string>& saved);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_TRAINING_JOB_H_
