// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_SESSION_H_
#define MILLRACE_DISTRIBUTED_MASTER_SESSION_H_

// MasterSession: a client's graph on the tasks that it needs, and the steps that run there.
//
//   open -> closed                by Close: running steps end, the tasks forget the session
//        -> broken -> closed      by a task that restarted: every later step is Aborted
//
// The tasks: the master's own, those that the device filters admit (without filters: the parameter
// servers), and those that nodes name; the first two from Create on, the last when Extend brings
// such nodes. Signatures are compiled once and kept, the least recently used go first; callables
// keep theirs until they are removed.
//
// Thread-safety: all methods, from any thread. Create, Extend, Compile and Close wait for other
// tasks; never on a poller.
// Lifetime: `options` outlives the session. Steps keep the session; Close before the last owner
// goes, else its tasks keep theirs.
// Failure: Cancelled after Close, Aborted when broken.

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/cancellation.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/compiled_step.h"
#include "distributed/master_options.h"
#include "distributed/master_step.h"
#include "distributed/task_connector.h"
#include "graph/graph.h"
#include "graph/placer.h"
#include "proto/master.pb.h"

namespace millrace {

class MasterSession : public MasterStepOwner, public std::enable_shared_from_this<MasterSession> {
 public:
  // A signature that a client refers to by number, and its own RunOptions.
  struct Callable {
    std::shared_ptr<CompiledStep> compiled;
    tensorflow::RunOptions options;
  };

  // `timeout` bounds each wait for tasks.
  MasterSession(const MasterOptions* options, std::string handle, tensorflow::ConfigProto config,
                absl::Duration timeout, int max_cached_plans);

  const std::string& handle() const { return handle_; }

  // What ends a wait for tasks early: the server stops, or the client has gone (may be null).
  struct WaitEnds {
    CancellationManager* shutdown;
    CancellationManager* caller = nullptr;
  };
  // Connects to the tasks that the session needs from the start.
  Status Create(const WaitEnds& ends);
  // Aborted unless the graph has `version`; gives it the next one.
  Status Extend(const tensorflow::GraphDef& graph, int64_t version, const WaitEnds& ends,
                int64_t* new_version);
  StatusOr<std::shared_ptr<CompiledStep>> Compile(const RunSignature& signature);
  // `done` gets the result. With options.block it has been called when this returns.
  void Run(std::shared_ptr<CompiledStep> compiled, absl::Span<const Tensor> feeds,
           const MasterStepOptions& options, StepDone done);
  StatusOr<StepResult> RunAndWait(std::shared_ptr<CompiledStep> compiled,
                                  absl::Span<const Tensor> feeds,
                                  const tensorflow::RunOptions& options);
  int64_t AddCallable(std::shared_ptr<CompiledStep> compiled,
                      const tensorflow::RunOptions& options);
  // InvalidArgument for a number that is none.
  StatusOr<Callable> FindCallable(int64_t id) const;
  Status RemoveCallable(int64_t id);
  void ListDevices(tensorflow::ListDevicesResponse* response) const;
  // Ends all steps with `status`, waits for them, closes the session on all tasks.
  void Close(const Status& status);

  void ExplainRestart(std::shared_ptr<Transport> task, int64_t step_id, const Status& error,
                      absl::AnyInvocable<void(Status)> done) override;
  void StepEnded(MasterStep* step) override;

 private:
  StatusOr<std::vector<std::string>> TasksFromTheStart() const;
  StatusOr<std::vector<std::string>> TasksNamedBy(const tensorflow::GraphDef& graph) const;
  // Those of `tasks` that are not connected yet.
  Status Connect(const std::vector<std::string>& tasks, const WaitEnds& ends);
  bool IsOwn(const tensorflow::DeviceAttributes& device) const;
  // Of the master's task, which is in `reached` or connected.
  std::vector<tensorflow::DeviceAttributes> OwnDevices(absl::Span<const ReachedTask> reached) const;
  Status Usable() const;
  Status Closed() const;
  CompileTarget Target() ABSL_EXCLUSIVE_LOCKS_REQUIRED(graph_mu_);
  std::shared_ptr<CompiledStep> FindCompiled(const std::string& key);

  const MasterOptions* const options_;
  const std::string handle_;
  const tensorflow::ConfigProto config_;
  const absl::Duration timeout_;
  const size_t max_cached_plans_;

  // Compiling and extending, one at a time. Taken before mu_.
  Mutex graph_mu_;
  Graph graph_ ABSL_GUARDED_BY(graph_mu_);
  int64_t version_ ABSL_GUARDED_BY(graph_mu_) = 0;
  StatefulPlacements placements_ ABSL_GUARDED_BY(graph_mu_);

  mutable Mutex mu_;
  CondVar step_ended_;
  Status closed_ ABSL_GUARDED_BY(mu_);
  Status broken_ ABSL_GUARDED_BY(mu_);  // a task restarted
  std::map<std::string, std::shared_ptr<Transport>> tasks_ ABSL_GUARDED_BY(mu_);
  std::vector<tensorflow::DeviceAttributes> devices_ ABSL_GUARDED_BY(mu_);  // own first
  using Recent = std::list<std::pair<std::string, std::shared_ptr<CompiledStep>>>;
  Recent recent_ ABSL_GUARDED_BY(mu_);  // most recently used first
  absl::flat_hash_map<std::string, Recent::iterator> compiled_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, Callable> callables_ ABSL_GUARDED_BY(mu_);
  int64_t next_callable_ ABSL_GUARDED_BY(mu_) = 1;
  absl::flat_hash_set<MasterStep*> running_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_SESSION_H_
