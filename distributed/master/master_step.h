// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_MASTER_MASTER_STEP_H_
#define MILLRACE_DISTRIBUTED_MASTER_MASTER_STEP_H_

// MasterStep: one run of a compiled signature: a RUN to each other task by its link, a call of the
// own worker, and one result or error.
//
//   started -> (all parts have ended) -> [a restart is explained] -> owner told -> `done`
//
// The first real error wins; it cancels the other parts, and they are waited for. An error that a
// part only passed on (derived) gives the part that had it one second to tell its own before
// everything is cancelled. Each part has the step's time limit and says what it waited for; parts
// that do not say so in time are cancelled.
//
// Invariants: `done` is called exactly once, after the last part has ended; the owner is told
// before.
// Threads: Start and Wait by the thread that runs the step; Fail from any thread. `done` comes in
// whichever thread ends the last part.
// Lifetime: callbacks keep the step until it has ended; the step keeps its owner. `cancellation` of
// the options outlives `done`.
// Failure: "From <task>:\n<error>" of a task; TimedOutWaitingFor (runtime/plan.h) the kernels of
// all parts, which are followed by " on <task>" unless it is the own one; Cancelled by the caller;
// what Fail was given.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/cancellation.h"
#include "core/mutex.h"
#include "core/network_seat.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/master/compiled_step.h"
#include "distributed/master/master_interface.h"
#include "distributed/master/trace_clocks.h"
#include "distributed/transport/named_tensor.h"
#include "distributed/transport/worker_control.h"
#include "net/timers.h"
#include "runtime/session/signature_compiler.h"

namespace millrace {

class MasterStep;

// What the step needs of its session.
class MasterStepOwner {
 public:
  virtual ~MasterStepOwner() = default;
  // Asks a task whose `error` tells of a restart who it is now; `done` gets the step's error.
  virtual void ExplainRestart(std::shared_ptr<WorkerControl> task, int64_t step_id,
                              const Status& error, absl::AnyInvocable<void(Status)> done) = 0;
  // What the session's traced steps have learned of its tasks' clocks; lives as long as the owner.
  virtual TraceClocks* trace_clocks() = 0;
  // The step runs no more; its `done` is called next.
  virtual void StepEnded(MasterStep* step) = 0;
};

struct MasterStepOptions {
  tensorflow::RunOptions run;
  absl::Time deadline = absl::InfiniteFuture();
  // The starting thread runs the own part to its end, and calls Wait.
  bool block = true;
  CancellationManager* cancellation = nullptr;  // may be null
};

class MasterStep : public std::enable_shared_from_this<MasterStep> {
 public:
  // `binding` has something to run. `timers` outlive the step.
  MasterStep(std::shared_ptr<MasterStepOwner> owner,
             std::shared_ptr<const SignatureBinding<CompiledStep>> binding, absl::Time now,
             Timers* timers);

  // `feeds` as CheckFeeds accepts them, in the caller's order. Once.
  void Start(absl::Span<const Tensor> feeds, const MasterStepOptions& options, StepDone done);
  // The step ends with `status`, unless it has failed before.
  void Fail(const Status& status);
  // Until `done` has been called. For a blocking step.
  void Wait();
  // When it began, and the tasks that have not answered since, for messages.
  absl::Time begun() const { return begun_; }
  int64_t id() const { return step_id_; }
  std::string WaitsFor();

 private:
  // Counts the parts whose PartDone will be called.
  void StartOrThrow(absl::Span<const Tensor> feeds, const MasterStepOptions& options,
                    size_t* begun);
  void PartDone(size_t part, const Status& status);
  void Record(const Status& status, int part);
  void RecordTimedOut(size_t part, const Status& status);
  void Drop();
  void End();
  void Complete(Status status);
  StatusOr<StepResult> TakeResult();
  void TakeTrace(tensorflow::StepStats* stats);

  const std::shared_ptr<MasterStepOwner> owner_;
  const std::shared_ptr<const SignatureBinding<CompiledStep>> binding_;
  const CompiledStep* const compiled_;  // the binding's
  Timers* const timers_;
  StepDone done_;
  const int64_t step_id_;
  const absl::Time begun_;
  CancellationManager cancellation_;
  tensorflow::RunGraphRequest request_;  // besides what is the same for all steps
  // By part.
  std::vector<tensorflow::RunGraphResponse> responses_;
  std::vector<NamedTensor> received_;  // from the own part
  std::vector<Tensor> feeds_;          // in the caller's order
  std::vector<NamedTensor> send_;      // by position in the signature
  bool record_graphs_ = false;
  bool trace_ = false;
  absl::Time deadline_ = absl::InfiniteFuture();
  std::shared_ptr<Timer> timer_;
  CancellationManager* outer_ = nullptr;
  CancellationManager::Token outer_token_ = 0;

  Mutex mu_;
  CondVar ended_cv_;      // on a clock that is not real
  SeatedCondVar seated_;  // of Wait
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  int left_ ABSL_GUARDED_BY(mu_);                    // parts, and one for Start
  std::vector<bool> answered_ ABSL_GUARDED_BY(mu_);  // by part
  Status status_ ABSL_GUARDED_BY(mu_);
  int failed_part_ ABSL_GUARDED_BY(mu_) = -1;
  std::map<size_t, std::string> waited_for_ ABSL_GUARDED_BY(mu_);  // by part, when time was over
  std::shared_ptr<Timer> grace_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_MASTER_MASTER_STEP_H_
