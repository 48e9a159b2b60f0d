// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_MASTER_H_
#define MILLRACE_DISTRIBUTED_MASTER_MASTER_H_

// Master: runs the steps of clients' graphs over the tasks of a cluster.
//
// Finds the session that a call is for; the session (master_session.h) has the graph and the tasks,
// compiles each signature into one partition per task (compiled_step.h) and runs it as one RUN of
// a link per task (master_step.h).
//
// A step ends with its first real error, after all its tasks have ended. A task that restarted
// makes its sessions Aborted for good: what its variables held is gone, a new session is needed.
//
// A session of a client in another process ends like one that was closed when neither a call nor a
// renewal has come for the time of its lease and none of its steps runs; its sessions on other
// tasks are leases of this master. One whose client asked for no lease is idle when no call has
// come for ServerLimits::idle_session_time. It stays then, until max_idle_sessions others have been
// idle for a shorter time. A session of a client in this process ends when that closes it.
//
// Thread-safety: all methods, from any thread. Those without `done` block; never on a poller.
// Lifetime: Shutdown() first. Steps that do not end within MasterOptions::close_bound are left
// behind; their tasks' workers outlive them.
// Failure: Aborted for sessions that this process does not know.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/cancellation.h"
#include "core/io_pool.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/cluster/aged_map.h"
#include "distributed/cluster/lease_keeper.h"
#include "distributed/cluster/lease_table.h"
#include "distributed/master/master_interface.h"
#include "distributed/master/master_options.h"
#include "distributed/master/wait_watch.h"
#include "distributed/transport/named_tensor.h"
#include "run/training_run.h"

namespace millrace {

class MasterSession;

class Master : public MasterInterface {
 public:
  explicit Master(MasterOptions options);
  ~Master() override;

  Status CreateSession(const tensorflow::CreateSessionRequest& request, absl::Duration timeout,
                       int max_cached_plans, tensorflow::CreateSessionResponse* response) override;
  Status ExtendSession(const tensorflow::ExtendSessionRequest& request,
                       tensorflow::ExtendSessionResponse* response) override;
  StatusOr<StepResult> RunStep(const tensorflow::RunStepRequest& request,
                               absl::Span<const NamedTensor> feeds) override;
  Status MakeCallable(const tensorflow::MakeCallableRequest& request,
                      tensorflow::MakeCallableResponse* response) override;
  StatusOr<StepResult> RunCallable(const tensorflow::RunCallableRequest& request,
                                   absl::Span<const Tensor> feeds,
                                   const tensorflow::RunOptions* options) override;
  Status ReleaseCallable(const tensorflow::ReleaseCallableRequest& request) override;
  Status CloseSession(const tensorflow::CloseSessionRequest& request) override;
  Status ListDevices(const tensorflow::ListDevicesRequest& request,
                     tensorflow::ListDevicesResponse* response) override;
  Status Reset(const tensorflow::ResetRequest& request) override;
  Status EndRun(const std::string& session_handle, const RunEnd& end) override;
  StatusOr<RunTrainers> FindTrainers(const std::string& session_handle) override;

  // Tells all tasks now that the sessions of this master on them live.
  void RenewLeases() { keeper_.RenewNow(); }

  // As CreateSession and ExtendSession, for a client in another process, which may go away: that
  // ends the wait for tasks with Cancelled, and no session is left. Null: a client in this process.
  Status CreateSessionFor(CancellationManager* caller,
                          const tensorflow::CreateSessionRequest& request, absl::Duration timeout,
                          int max_cached_plans, tensorflow::CreateSessionResponse* response);
  Status ExtendSessionFor(CancellationManager* caller,
                          const tensorflow::ExtendSessionRequest& request,
                          tensorflow::ExtendSessionResponse* response);
  // As RunStep and RunCallable, but once the signature is compiled no thread waits. `cancellation`
  // and the options of a callable may be null; the former outlives `done`.
  void RunStepAsync(const tensorflow::RunStepRequest& request, absl::Span<const NamedTensor> feeds,
                    CancellationManager* cancellation, StepDone done);
  void RunCallableAsync(const tensorflow::RunCallableRequest& request,
                        absl::Span<const Tensor> feeds, const tensorflow::RunOptions* options,
                        CancellationManager* cancellation, StepDone done);

  // Those that are not there (any more).
  std::vector<std::string> RenewSessions(absl::Span<const std::string> handles);

  // For tests.
  int num_sessions() const;

  // Refuses new sessions with `status`; those that are open go on, with new graphs and steps.
  void StopOpening(const Status& status);
  // Refuses new sessions, graphs and steps with `status`; what there is goes on.
  void StopTaking(const Status& status);
  // False when some still run at `deadline`.
  bool AwaitSteps(absl::Time deadline);
  // Ends all sessions together: their steps with `status`, waits for tasks too. Idempotent.
  void Shutdown(const Status& status);

 private:
  StatusOr<std::shared_ptr<MasterSession>> FindSession(const std::string& handle,
                                                       absl::string_view hint = "");

  struct Entry {
    std::shared_ptr<MasterSession> session;
    std::shared_ptr<Lease> lease;  // null: its client is in this process
    bool may_be_idle = false;      // its client asked for no lease; this one only says when it is
    bool is_idle = false;
  };
  using Sessions = std::map<std::string, Entry>;
  void LeaseExpired(const std::string& handle, absl::Duration silent);
  // Somebody uses it: renews its lease, or gives it one when it was idle.
  void Use(const std::string& handle, Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The session is idle until it is used. Those that have to end for it, out of the table.
  std::vector<std::shared_ptr<MasterSession>> BeIdle(const std::string& handle, Entry* entry)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends a session that is not in the table any more, and may wait for its tasks.
  void CloseLater(std::shared_ptr<MasterSession> session, const Status& why);
  // As FindSession, for what a server that stops refuses.
  StatusOr<std::shared_ptr<MasterSession>> FindToUse(const std::string& handle);
  std::vector<WaitWatch::Wait> WaitsOfSteps() const;

  // Shared with sessions, which calls that nobody has answered may keep for longer.
  const std::shared_ptr<const MasterOptions> shared_options_;
  const MasterOptions& options_;
  CancellationManager shutdown_;  // ends waits for tasks
  LeaseKeeper keeper_;            // of the sessions on other tasks
  mutable Mutex mu_;
  Status shut_down_ ABSL_GUARDED_BY(mu_);
  Status opens_ ABSL_GUARDED_BY(mu_);  // OK until StopOpening or StopTaking
  Status takes_ ABSL_GUARDED_BY(mu_);  // OK until StopTaking
  Sessions sessions_ ABSL_GUARDED_BY(mu_);
  // Of these, that are idle; the longest first. Bounded by their number.
  AgedMap<std::string, bool> idle_ ABSL_GUARDED_BY(mu_);
  // Compilations that outlast the limits of their steps; ends of sessions that have expired.
  IoPool compiles_{64}, closes_{8};
  WaitWatch long_steps_;
  LeaseTable leases_;  // of clients; last: its thread uses the rest
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_MASTER_H_
