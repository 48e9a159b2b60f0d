// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_WORKER_STEP_H_
#define MILLRACE_DISTRIBUTED_WORKER_WORKER_STEP_H_

// WorkerStep: one part of a step on a worker, which a link's RUN or a foreign RunGraph began.
//
//   started -> peers are asked for what they send here, or links to them taken -> the plan's
//              executors run
//           -> results are collected -> the step's rendezvous ends -> `done` -> `ended`
//
// Invariants: `done` is called exactly once, after the last executor has ended (those excepted that
// were left to kernels that do not answer), and then `ended`.
// The first real error wins over those that were only passed on; a step that was told to end says
// what it was told.
// Threads: Start by the thread that got the call; Cancel from any thread. `done` comes in the
// thread that ends the last executor. Lifetime: the executors' callbacks keep the step until the
// last of them has come. Failure: what kernels and peers say; Internal when a result was never
// sent.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/arena.h"
#include "core/cancellation.h"
#include "core/mutex.h"
#include "core/status.h"
#include "distributed/transport/call_options.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/worker/graph_table.h"
#include "distributed/worker/pushed_edges.h"
#include "distributed/worker/session_life.h"
#include "distributed/worker/step_edges.h"
#include "distributed/worker/step_rendezvous.h"
#include "distributed/worker/step_table.h"
#include "distributed/worker/worker_options.h"
#include "graph/graph.h"
#include "net/timers.h"
#include "proto/worker.pb.h"
#include "runtime/device.h"
#include "runtime/engine/detached_parts.h"
#include "runtime/engine/executor.h"
#include "runtime/kernel.h"
#include "runtime/resource_manager.h"
#include "runtime/session/compile_path.h"
#include "runtime/session/function_runtime.h"
#include "runtime/step_context.h"
#include "runtime/step_loans.h"
#include "runtime/step_stats.h"

namespace millrace {

class WorkerStep : public std::enable_shared_from_this<WorkerStep> {
 public:
  // `options` outlives the step's end. `ended` is called last, after `done`. `life`: of the
  // session, as StepTable::Start.
  WorkerStep(const WorkerOptions* options, std::shared_ptr<StepTable> steps,
             std::shared_ptr<const RegisteredGraph> graph, const std::string& session,
             std::shared_ptr<const SessionLife> life, int64_t step_id,
             std::function<void(WorkerStep*)> ended);

  // Once. `response` and `received` outlive `done`; `cancellation` (may be null) too. With `block`
  // the calling thread runs the step to its end. A step that has not ended at `deadline` ends then,
  // kAnswerTime later at most: kernels that do not answer are left behind with what they use.
  void Start(const tensorflow::RunGraphRequest& request, EdgesBy edges_by,
             absl::Span<const NamedTensor> send, bool block, absl::Time deadline,
             CancellationManager* cancellation, tensorflow::RunGraphResponse* response,
             std::vector<NamedTensor>* received, CallDone done);
  // The step ends with `status`, unless it fails by itself, or is about to answer, first.
  void Cancel(const Status& status);
  // What becomes of a step that has been cancelled and does not end, as at a deadline: EndOverdue
  // says for which kernels it waits; LeaveSilent, a while later, leaves those that wait for
  // themselves behind. A kernel that keeps its thread, or one of a step that blocks, stays.
  Status EndOverdue();
  void LeaveSilent();
  // For messages.
  std::string Name() const;

 private:
  Status Begin(const tensorflow::RunGraphRequest& request, EdgesBy edges_by,
               absl::Span<const NamedTensor> send, CancellationManager* cancellation);
  Status Prepare(const tensorflow::RunGraphRequest& request, absl::Span<const NamedTensor> send);
  // What the step makes for peers is pushed to them; what they push comes.
  Status LinkPeers();
  // How a step of a foreign master gets its tensors.
  FetchTensor FetchFor(int64_t step_id);
  void Execute(bool block, absl::Time deadline);
  void MakeTimer();
  void SetTimerIn(absl::Duration pause);
  void TimeIsOver();
  void PartsEnded(const Status& status);
  void Finish();
  // From here on a cancellation changes nothing: what the step has sent, the end of its session
  // finds in the table, and asks its receivers first.
  bool EndAndSeeIfGivenUp();
  // Fills the response; returns what the step ends with.
  Status Answer();
  void CollectResults();
  Status CollectResult(const std::string& wire_key);

  const WorkerOptions* const options_;
  const std::shared_ptr<Arena> own_arena_;
  const std::shared_ptr<StepTable> steps_;
  const std::shared_ptr<const RegisteredGraph> graph_;
  const std::shared_ptr<const SessionLife> life_;
  const std::function<void(WorkerStep*)> ended_;
  std::shared_ptr<StepRendezvous> rendezvous_;  // set once, under mu_, before anything runs
  std::shared_ptr<ArrivingEdges> arriving_;     // null unless the step is by links
  CancellationManager cancellation_;
  ResourceManager step_resources_;
  const std::shared_ptr<StepLoans> loans_ = std::make_shared<StepLoans>();
  absl::InlinedVector<StepContext, 1> contexts_;  // by part
  std::shared_ptr<StepStatsCollector> stats_;     // null unless traced; also what arrives has it
  bool record_graphs_ = false;
  std::vector<std::string> recv_keys_;
  std::vector<Tensor> args_, results_;  // by position
  tensorflow::RunGraphResponse* response_ = nullptr;
  std::vector<NamedTensor>* received_ = nullptr;
  CallDone done_;
  CancellationManager* outer_ = nullptr;
  CancellationManager::Token outer_token_ = 0;
  DetachedParts parts_;  // of a step that does not block
  // Its time has passed, or it was told so. Relaxed: it only says which one is first.
  std::atomic<bool> overdue_{false};
  // parts_ may be told so: release by the thread that started them, when it has left them, acquire
  // by who tells.
  std::atomic<bool> started_{false};

  Mutex mu_;
  std::shared_ptr<Timer> timer_ ABSL_GUARDED_BY(mu_);  // until the step ends, if it has a limit
  Status status_ ABSL_GUARDED_BY(mu_);
  Status cancelled_with_ ABSL_GUARDED_BY(mu_);
  bool is_over_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_WORKER_STEP_H_
