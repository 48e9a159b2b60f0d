// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_MASTER_SESSION_H_
#define MILLRACE_DISTRIBUTED_MASTER_MASTER_SESSION_H_

// MasterSession: a client's graph on the tasks that it needs, and the steps that run there.
//
//   open -> closed                by Close: running steps end, the tasks forget the session
//        -> broken -> closed      by a task that restarted, or has lost the session (its lease has
//                                 expired, the run has another chief): running steps and every
//                                 later one end with the reason, which names the task
//
// A task hears of the session under a handle of its own, another one for each attempt to open it:
// what is late of one attempt harms no other.
//
// The tasks: the master's own, those that the device filters admit (without filters: the parameter
// servers), and those that nodes name; the first two from Create on, the last when Extend brings
// such nodes. Signatures are compiled once and kept (SignatureCompiler); callables keep theirs
// until they are removed.
//
// Thread-safety: all methods, from any thread. Create, Extend, Compile and Close wait for other
// tasks; never on a poller.
// Lifetime: `keeper` and `compiles` are used until Close has ended. Steps, and questions to tasks
// that have not been answered, keep the session, perhaps for longer than its master lives; Close
// before the last other owner goes, else its tasks keep theirs. Failure: Cancelled after Close;
// when broken, what the task said: Aborted, or that its run has ended or has another chief.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/cancellation.h"
#include "core/io_pool.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/cluster/lease_keeper.h"
#include "distributed/master/compiled_step.h"
#include "distributed/master/endable_wait.h"
#include "distributed/master/master_interface.h"
#include "distributed/master/master_options.h"
#include "distributed/master/master_step.h"
#include "distributed/master/task_connector.h"
#include "distributed/master/trace_clocks.h"
#include "distributed/master/wait_watch.h"
#include "distributed/transport/session_terms.h"
#include "distributed/transport/worker_control.h"
#include "graph/place/placer.h"
#include "graph/signature.h"
#include "proto/master.pb.h"
#include "run/training_run.h"
#include "runtime/session/limited_compile.h"
#include "runtime/session/signature_compiler.h"

namespace millrace {

using MasterBinding = SignatureBinding<CompiledStep>;

class MasterSession : public MasterStepOwner, public std::enable_shared_from_this<MasterSession> {
 public:
  // A signature that a client refers to by number, and its own RunOptions.
  struct Callable {
    std::shared_ptr<const MasterBinding> binding;
    tensorflow::RunOptions options;
    int64_t num_bytes = 0;  // of the message that made it
  };

  // `timeout` bounds each wait for tasks. `keeper` keeps the session alive there. `terms`: of which
  // run it is; its lease, if any, is the master's to watch.
  // `compiles` runs what outlasts its deadline.
  MasterSession(std::shared_ptr<const MasterOptions> options, LeaseKeeper* keeper, IoPool* compiles,
                std::string handle, tensorflow::ConfigProto config, SessionTerms terms,
                absl::Duration timeout, int max_cached_plans);

  const std::string& handle() const { return handle_; }
  // With its id, as soon as that is known. Empty: none.
  TrainingRun run() const;

  // Connects to the tasks that the session needs from the start. What ends the wait for them early,
  // besides the end of the session, is `ends`; its `closing` is the session's own.
  Status Create(const WaitEnds& ends);
  // Aborted unless the graph has `version`; gives it the next one. ResourceExhausted beyond
  // ServerLimits::max_graph_bytes.
  Status Extend(const tensorflow::GraphDef& graph, int64_t version, const WaitEnds& ends,
                int64_t* new_version);
  // When a step with these options that is asked for now must have ended: its own limit, else that
  // of the session's config; InfiniteFuture without one.
  absl::Time DeadlineOf(const tensorflow::RunOptions& options) const;
  // A fetch of an operation is an error: clients count the answers by what they fetch. A signature
  // that is not ready at `deadline` is DeadlineExceeded, which says what is done for it; it goes on
  // on a thread of the master, and a later call finds it.
  StatusOr<std::shared_ptr<const MasterBinding>> Bind(const RunSignature& names,
                                                      absl::Time deadline = absl::InfiniteFuture());
  // `feeds` and the result in the order of the names. `done` gets the result. With options.block it
  // has been called when this returns.
  void Run(std::shared_ptr<const MasterBinding> binding, absl::Span<const Tensor> feeds,
           const MasterStepOptions& options, StepDone done);
  StatusOr<StepResult> RunAndWait(std::shared_ptr<const MasterBinding> binding,
                                  absl::Span<const Tensor> feeds,
                                  const tensorflow::RunOptions& options, absl::Time deadline);
  // ResourceExhausted beyond ServerLimits::max_callables, and beyond max_graph_bytes with the
  // messages that made the graph. `num_bytes`: of the message that asks for it.
  StatusOr<int64_t> AddCallable(std::shared_ptr<const MasterBinding> binding,
                                const tensorflow::RunOptions& options, int64_t num_bytes);
  // InvalidArgument for a number that is none.
  StatusOr<Callable> FindCallable(int64_t id) const;
  Status RemoveCallable(int64_t id);
  void ListDevices(tensorflow::ListDevicesResponse* response) const;
  bool has_running_steps() const;
  // What each running step waits for.
  std::vector<WaitWatch::Wait> WaitsOfSteps() const;
  // The first error of a task, after all have been told.
  Status EndRun(const RunEnd& end);
  // RunSession::OtherTrainers, of all of this session's tasks together.
  StatusOr<RunTrainers> FindTrainers();
  // Closing, in three parts, so that many sessions close at once (CloseAll does them all).
  // Ends all steps, and what is compiled, with `status`.
  void BeginClose(const Status& status);
  // Until no step runs; those that still do at `deadline` are named in the log and left behind.
  void AwaitSteps(absl::Time deadline);
  // The same without a word.
  bool StepsEndBefore(absl::Time deadline);
  // Forgets all graphs. What is open of the session on its tasks is the caller's to close.
  std::vector<OpenSession> TakeOpen();

  // Waits for steps MasterOptions::close_bound at most, in all; then for the tasks, which have
  // kCleanupTimeout.
  static void CloseAll(absl::Span<const std::shared_ptr<MasterSession>> sessions,
                       const Status& status, const MasterOptions& options, LeaseKeeper* keeper);
  void Close(const Status& status);

  void ExplainRestart(std::shared_ptr<WorkerControl> task, int64_t step_id, const Status& error,
                      absl::AnyInvocable<void(Status)> done) override;
  TraceClocks* trace_clocks() override { return &trace_clocks_; }
  void StepEnded(MasterStep* step) override;

 private:
  StatusOr<std::vector<std::string>> TasksFromTheStart() const;
  StatusOr<std::vector<std::string>> TasksNamedBy(const tensorflow::GraphDef& graph) const;
  // For a trainer that is not the chief: which id its run has. Nothing as long as none of the tasks
  // can know.
  Status FindRun(absl::Span<const ReachedTask> reached, const AwaitOptions& await);
  // Those of `tasks` that are not connected yet.
  Status Connect(const std::vector<std::string>& tasks, WaitEnds ends);
  // Opens the session on tasks that have answered; its handle there. Waits, within `await`, for a
  // run whose name another chief still has.
  StatusOr<std::string> OpenOn(absl::Span<const ReachedTask> reached, AwaitOptions await);
  // A task does not know the session any more. Asks it why, which breaks the session; closing ends
  // the question.
  void AskWhyLost(const OpenSession& lost);
  void Asked();
  bool is_closed() const;
  // Running steps end with `why`, which is the answer of those to come.
  void Break(const Status& why);
  bool IsOwn(const tensorflow::DeviceAttributes& device) const;
  // Of the master's task, which is in `reached` or connected.
  std::vector<tensorflow::DeviceAttributes> OwnDevices(absl::Span<const ReachedTask> reached) const;
  Status Usable() const;
  Status Runnable(const MasterBinding& binding, absl::Span<const Tensor> feeds,
                  const MasterStepOptions& options) const;
  CompileTarget Target();
  // Counts bytes of a message that the session keeps; `method` asks for it.
  Status Hold(absl::string_view method, int64_t num_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<const MasterOptions> options_;
  LeaseKeeper* const keeper_;
  IoPool* const compiles_;
  const std::string handle_;
  const tensorflow::ConfigProto config_;
  const absl::Duration timeout_;
  TraceClocks trace_clocks_;
  CancellationManager setup_;  // of what is asked of tasks besides steps; ended by closing

  // One extension at a time. Taken before the compiler's locks, as these are before mu_.
  Mutex extend_mu_;
  int64_t version_ ABSL_GUARDED_BY(extend_mu_) = 0;
  // Written by the thread that compiles; there is one at a time.
  StatefulPlacements placements_;
  bool warned_of_missing_gpu_ = false;
  SignatureCompiler<CompiledStep> compiler_;
  LimitedCompile<MasterBinding> compiling_;  // of signatures whose steps have a limit

  mutable Mutex mu_;
  CondVar step_ended_;
  TrainingRun run_ ABSL_GUARDED_BY(mu_);
  bool run_found_ ABSL_GUARDED_BY(mu_) = false;  // the tasks know it
  Status closed_ ABSL_GUARDED_BY(mu_);
  Status broken_ ABSL_GUARDED_BY(mu_);  // a task restarted, or lost the session
  std::string compiles_now_ ABSL_GUARDED_BY(mu_) = "waiting for its turn";
  std::map<std::string, OpenSession> tasks_ ABSL_GUARDED_BY(mu_);  // by name
  int64_t attempts_ ABSL_GUARDED_BY(mu_) = 0;                      // to open sessions on tasks
  std::vector<tensorflow::DeviceAttributes> devices_ ABSL_GUARDED_BY(mu_);  // own first
  std::map<int64_t, Callable> callables_ ABSL_GUARDED_BY(mu_);
  int64_t next_callable_ ABSL_GUARDED_BY(mu_) = 1;
  int64_t held_bytes_ ABSL_GUARDED_BY(mu_);  // of its config, its graph's messages, its callables'
  absl::flat_hash_set<MasterStep*> running_ ABSL_GUARDED_BY(mu_);
  int asking_ ABSL_GUARDED_BY(mu_) = 0;  // tasks why they have lost it
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_MASTER_SESSION_H_
