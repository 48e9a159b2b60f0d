// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_WORKER_H_
#define MILLRACE_DISTRIBUTED_WORKER_WORKER_H_

// Worker: runs the partitions of steps on the devices of one task.
//
// A master opens a worker session, registers partitions in it (RegisterGraph gives a handle) and
// runs them by handle. The devices' resources (variables, queues) are shared by all sessions of one
// training run, so that sessions of several masters train one model, and by all that are of no run;
// a session that asks for isolation has its own. Which runs there are, and what becomes of their
// resources: run_registry.h. Partitions that are equal but for the names of other tasks share one
// plan. A worker ties together what has a file of its own: task_devices.h, session_table.h,
// graph_table.h, running_steps.h, step_table.h.
//
// The thread that calls RunGraph works until nothing is left to do there; a step that waits for a
// tensor or a queue occupies no thread.
//
// A session ends
//   * when its master says so;
//   * when it was opened with a lease, nobody has renewed it or begun a step in it for so long, and
//     none runs in it;
//   * 4 s after its master's process has closed its link to this task, unless it is renewed: who
//     lives renews at once;
//   * when a master of the same task opens one with another incarnation: at once when the session
//     has no lease, else when a third of its lease has passed and nobody renewed it: its master has
//     died, unless two programs take themselves for the same task;
//   * when a newer chief takes its run over, if it is the older one's, and when a run of the same
//     name supersedes its run.
// Then its steps are cancelled, its graphs dropped, and resources that hold something for it told
// (runtime/holds_for_sessions.h). Later calls hear why; one that opens the session and comes after
// its end is refused.
//
// Thread-safety: all methods, from any thread.
// Lifetime: Shutdown() first; it waits for steps within a bound, the destructor for those that are
// left (kernels that do not return). `peer` is called until then.
// Failure: Aborted for sessions, graphs and incarnations that this process does not know: it has
// restarted, and what its variables held is lost. FencedError and RunEndedError for sessions of
// runs (run/training_run.h).

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/arena.h"
#include "core/cancellation.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/cluster/lease_table.h"
#include "distributed/cluster/server_limits.h"
#include "distributed/transport/call_options.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/peer_counts.h"
#include "distributed/transport/worker_control.h"
#include "distributed/worker/recent_requests.h"
#include "distributed/worker/running_steps.h"
#include "distributed/worker/session_table.h"
#include "distributed/worker/shared_plans.h"
#include "distributed/worker/step_edges.h"
#include "distributed/worker/step_table.h"
#include "distributed/worker/task_devices.h"
#include "distributed/worker/worker_options.h"
#include "distributed/worker/worker_session.h"
#include "proto/worker.pb.h"
#include "run/found_run.h"
#include "run/run_registry.h"
#include "run/training_run.h"

namespace millrace {

class Worker {
 public:
  explicit Worker(WorkerOptions options);
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  const std::string& task() const { return options_.task; }
  std::vector<tensorflow::DeviceAttributes> DeviceAttributes() const {
    return devices_.Attributes();
  }

  // The sessions that its opener opened in an earlier life (with another incarnation) end when
  // nobody renews them. The id of its run is known by now. InvalidArgument for a handle above 256
  // bytes, and for terms that cannot be kept.
  // One that another process asks for without a lease may have to go when it is idle
  // (ServerLimits::max_idle_sessions).
  Status CreateWorkerSession(const SessionOrder& order,
                             SessionFrom from = SessionFrom::kThisProcess);
  Status DeleteWorkerSession(const std::string& session_handle);
  // Those that are not there (any more).
  std::vector<std::string> RenewSessions(absl::Span<const std::string> handles);
  // The process of their master has closed a link that they used. Those with a lease end soon
  // unless they are renewed.
  void DoubtSessions(const std::set<std::string>& handles);
  FoundRun FindRun(absl::string_view name, absl::string_view id) const;
  // Training of the session's run is over; FailedPrecondition unless the session is its chief's.
  Status EndRun(const std::string& session_handle, const RunEnd& end);
  // The same, as a logdir says, for every chief of it.
  void NoteRunEnd(const TrainingRun& run, const RunEnd& end);
  // As RunRegistry; nothing, too, while a session without a run is open.
  std::optional<RunRegistry::Finished> FindFinishedRun() const;
  int64_t num_run_claims() const;
  // Sessions of the run end with RunEndedError.
  void EndSessionsOfRun(const TrainingRun& run, const RunEnd& end);
  // A graph that is no GraphDef is this process's own: its plan is shared with nobody.
  // The bytes of a GraphDef's constants are copied once: into their tensors.
  StatusOr<RegisteredPart> RegisterGraph(PartOrder order);
  Status DeregisterGraph(const std::string& session_handle, const std::string& graph_handle);
  // As LocalPart::Run. `cancellation` (may be null) outlives `done`.
  void RunGraph(const tensorflow::RunGraphRequest& graph, const tensorflow::RunGraphRequest& step,
                EdgesBy edges_by, absl::Span<const NamedTensor> send, bool block,
                absl::Time deadline, CancellationManager* cancellation,
                tensorflow::RunGraphResponse* response, std::vector<NamedTensor>* received,
                CallDone done);
  Status CleanupGraph(int64_t step_id);
  // Whether a caller of `method` that cannot prove to be a member of the cluster may clear these
  // containers (none: the default one). PermissionDenied while a session is open here, or
  // `master_sessions` are in this task's master; for WorkerOptions::run_linger after the last one
  // has ended, whose client may be about to come again; and always for what belongs to a run.
  Status CheckMayClear(absl::string_view method, absl::Span<const std::string> containers,
                       int master_sessions = 0) const;
  // Clears the containers of all devices that are shared; none named: the default one. The id of a
  // run names what belongs to it.
  Status CleanupAll(absl::Span<const std::string> containers);

  // One tensor of a foreign master's step. `cancellation` (may be null) outlives the answer.
  void RecvTensor(const tensorflow::RecvTensorRequest& request, CancellationManager* cancellation,
                  absl::AnyInvocable<void(const Status&, Tensor, bool)> done);

  // Of links to other tasks (link_end.h).
  StepTable* steps() const { return steps_.get(); }
  const ServerLimits& limits() const { return options_.limits; }
  // In which the kernels of its steps compute.
  Arena* arena() const {
    return options_.own_arena != nullptr ? options_.own_arena.get() : Arena::Default();
  }
  // By the clock that ends steps.
  absl::Time Now() const { return options_.timers->Now(); }

  // A session that is open here, and who opened it.
  struct OpenedSession {
    std::string handle;
    std::string master_task;   // "": it did not say
    uint64_t incarnation = 0;  // of the master's task
    int running_steps = 0;
  };
  std::vector<OpenedSession> OpenSessions() const;
  // Refuses new sessions with `status`; those that are open go on, with new graphs and steps.
  void StopOpening(const Status& status);
  // Refuses new sessions, graphs and steps with `status`; what there is goes on.
  void StopTaking(const Status& status);
  // False when some still run at `deadline`.
  bool AwaitSteps(absl::Time deadline) { return running_.Await(deadline); }
  // Until other tasks have taken what steps that ended well have sent them; those of sessions that
  // have ended are not waited for. False when something is left at `deadline`.
  bool AwaitTaken(absl::Time deadline) { return steps_->AwaitTaken(deadline); }
  // Cancels all steps with `status` and waits until they have ended, for
  // WorkerOptions::shutdown_bound at most: then the log names what they wait for, and they are left
  // behind. Idempotent.
  void Shutdown(const Status& status);

  // What has been exchanged with the other tasks; null when it is not counted.
  const PeerCounters* peer_counters() const { return options_.peer_counters.get(); }

  // For tests: sessions, plans that registered graphs use now, and steps that are not forgotten
  // yet.
  int num_sessions() const;
  int num_plans() const { return plans_.size(); }
  int64_t num_steps() const { return steps_->num_steps(); }
  int64_t parked_bytes() const { return steps_->parked_bytes(); }
  // For tests: tasks that the steps of graphs which are registered now have given to the arena.
  // Each is a thread that is woken.
  int64_t num_wakeups() const;

 private:
  StatusOr<std::shared_ptr<WorkerSession>> FindSession(const std::string& handle);
  StatusOr<RegisteredPart> RegisterOrThrow(PartOrder* order);
  // Completes, without the lock, what the sessions' table and the registry have begun: steps are
  // cancelled, graphs dropped, containers freed.
  void FinishEnds();
  void LeaseExpired(const std::string& handle, absl::Duration silent);

  const WorkerOptions options_;
  const TaskDevices devices_;
  const std::shared_ptr<StepTable> steps_;
  SharedPlans plans_;
  RunningSteps running_;
  RecentRequests recv_requests_;

  mutable Mutex mu_;
  Status shut_down_ ABSL_GUARDED_BY(mu_);
  Status opens_ ABSL_GUARDED_BY(mu_);  // OK until StopOpening or StopTaking
  Status takes_ ABSL_GUARDED_BY(mu_);  // OK until StopTaking
  RunRegistry runs_ ABSL_GUARDED_BY(mu_);
  SessionTable sessions_ ABSL_GUARDED_BY(mu_);
  LeaseTable leases_;  // last: its thread uses the rest
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_WORKER_H_
