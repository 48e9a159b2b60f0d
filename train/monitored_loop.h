// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_MONITORED_LOOP_H_
#define MILLRACE_TRAIN_MONITORED_LOOP_H_

// MonitoredLoop: what a MonitoredSession does: it joins the engine (train/training_job.h), the
// hooks (train/hooked_session.h) and their threads. Its states are those of
// train/monitored_session.h.
//
// Hooks write the checkpoints, the last one in their End; the job writes the last one where there
// is no End: after an error, and next to a step that hangs after a signal.
//
// Thread-safety, lifetime and failure: as MonitoredSession, which is the only one that uses it.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "run/training_run.h"
#include "runtime/session.h"
#include "train/coordinator.h"
#include "train/hooked_session.h"
#include "train/job_recovery.h"
#include "train/monitored_session.h"
#include "train/session_creator.h"
#include "train/step_trace.h"
#include "train/training_job.h"

namespace millrace {

class MonitoredLoop {
 public:
  MonitoredLoop(const Scope& scope, MonitoredSessionOptions options);

  // Begin of the hooks, the graph completed, the first session.
  Status Open(SessionCreator* creator);
  // Gives `attempt` a session, and another one for as long as it loses them.
  Status Recovering(absl::FunctionRef<Status()> attempt);

  // One run of a step, with the recovery that belongs to it.
  Status Run(size_t step, absl::Span<const Tensor> feeds, absl::Span<Tensor> results);
  // Within a step function, which is called again as a whole.
  StatusOr<std::vector<Tensor>> RunByName(const std::vector<Feed>& feeds,
                                          const std::vector<FetchName>& fetches,
                                          const std::vector<FetchName>& targets, bool recover);

  // What comes from other threads between ShouldStop and Run is no error of the program's.
  Status CheckMayRun() const;

  // See MonitoredSession; those that other threads may call too are the job's.
  bool ShouldStop();
  void RequestStop(absl::string_view reason);
  // `in_order`: with End of the hooks, where nothing went wrong.
  Status Close(const Status& ended_with, bool in_order);
  const std::string& end_reason() const { return end_reason_; }

  TrainingJob* job() { return job_.get(); }
  HookedSession* hooked() { return &hooked_; }
  Session* session() const { return session_.get(); }
  int recoveries() const { return std::max(0, sessions_made_ - 1); }

 private:
  void EndOfData(const Status& status);
  // Of a loop that ends with `status`; `ended_elsewhere`: what that tells of.
  std::string EndReason(const Status& status, const std::optional<RunEnd>& ended_elsewhere) const;

  // --- What other threads ask for ---

  // By any of them, once the loop is to end.
  void StopThreads();
  // Makes what was asked of the job the run's.
  void TakeAsked();
  // What a run that failed with `status` ends with when somebody has asked for the end meanwhile:
  // who ended this task may have ended others, too, and closes the session of a step that hangs.
  std::optional<Status> LeftWith(const Status& status);

  // In synchronous training the others wait no more for this task (train/sync_replicas.h).
  Status LeaveRounds();
  // Until the data of every other trainer of this chief's run has ended, or its lease.
  Status AwaitOtherTrainers();

  // --- Sessions ---

  bool StoppedByThreads() const;
  Status EnsureSession();
  // Ends the session and its threads; another one may follow.
  void DropSession();
  // Notes that the session is lost, and says whether there may be another.
  Status NoteLoss(const Status& why);
  void CloseSession();

  StatusOr<std::unique_ptr<StepTrace>> trace_;  // given to its hook; else why there is none
  MonitoredSessionOptions options_;
  Clock* const clock_;
  const Scope scope_;
  const std::shared_ptr<TrainingJob> job_;
  JobRecovery recovery_;
  int64_t own_steps_ = 0;  // of this task, in all sessions
  HookedSession hooked_;
  Coordinator coordinator_;  // of the session
  std::shared_ptr<Session> session_;
  bool had_session_ = false;  // that all hooks have seen
  int sessions_made_ = 0;
  absl::Time begun_;         // the first one,
  int64_t first_step_ = -1;  // at this global step; -1: there is none
  bool data_ended_ = false;
  std::string end_of_data_ = "the data has ended";
  Status last_error_;  // of the last run; OK when it succeeded
  bool closed_ = false;
  Status closed_with_;
  std::string end_reason_;

  // What the loop's thread shares with others.
  Mutex mu_;
  Coordinator shared_coordinator_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_MONITORED_LOOP_H_
