// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_FLAT_STEP_H_
#define MILLRACE_RUNTIME_FLAT_STEP_H_

// FlatStep: one step of a plan without frames: its state, and the loops that run its nodes.
//
// A loop takes ready nodes from its lane until none is left (flat_step.cc). Others help only with
// expensive nodes and with what asynchronous kernels leave behind (flat_step_sharing.cc,
// flat_step_async.cc). Beginning, errors and end are in flat_step_end.cc.
//
// References: every loop and every asynchronous kernel that has not finished holds one; whoever
// drops the last finishes the step. Nodes on the shared stack need none: the loop that pushed them
// looks there again before it leaves, and who pushes without being a loop makes sure that
// there is one.
//
// Solo: while the step has one loop and nothing else under way, counters are changed without
// read-modify-write operations. The loop leaves solo before it hands anything to another thread
// and may return to it when its reference is the only one.
//
// Threads: Begin and WorkFromRoots on the thread that runs the step, the rest on any loop's.
// Lifetime: made and kept by the FlatEngine; the context outlives the step.
// Failure: the first error is the step's; no kernel is started after it (see executor.h).

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/mutex.h"
#include "runtime/flat_engine.h"
#include "runtime/kernel.h"
#include "runtime/pending_words.h"
#include "runtime/plan.h"
#include "runtime/ready_list.h"
#include "runtime/step_context.h"
#include "runtime/step_host.h"
#include "runtime/step_stats.h"

namespace millrace {

// Frees what `v` holds. Rebuilding is cheaper than assigning member by member.
inline void Reset(EdgeValue& v) {
  std::destroy_at(&v);
  std::construct_at(&v);
}

// "Timed out waiting for notification": the step's deadline has passed.
Status StepTimedOut();

// A kernel that throws has failed like one that returns an error.
template <typename Call>
inline Status WithoutException(const Call& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("out of memory in the kernel");
  } catch (const std::exception& e) {
    return absl::InternalError(absl::StrCat("the kernel threw: ", e.what()));
  } catch (...) {
    return absl::InternalError("the kernel threw something that is no std::exception");
  }
}

class FlatStep {
 public:
  explicit FlatStep(FlatEngine* engine);

  using StepDone = absl::AnyInvocable<void(Status)>;

  // The step's end is told to `host`, or to `done` when there is none. `stats` may be null.
  void Begin(const StepContext& context, StepStatsCollector* stats, absl::Time deadline,
             StepHost* host, StepDone done);
  // The loop of the thread that began the step. After it: DropRef.
  void WorkFromRoots();
  // A further loop of the host thread. After it: DropRef.
  void WorkAsHost();
  // True when the step is over and the caller has to finish it.
  bool DropRef() { return solo_ || refs_.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  // The result; gives the state back.
  Status TakeResult();
  // The result goes where Begin said.
  void Finish();

 private:
  struct AsyncRun {
    FlatStep* step = nullptr;
    uint32_t entry = 0;
    std::vector<EdgeValue> outputs;
    KernelFrame frame;
    KernelContext context{&frame};
    Status status;
    NodeTimes times;
    bool done_called = false;  // by the thread that calls done, before its exchange of `phase`
    // 0 running; 1 ComputeAsync has returned; 2 done was called. Who comes second goes on.
    std::atomic<int> phase{0};
  };

  // --- Loops and nodes (flat_step.cc)

  void Loop(Lane& lane);
  void RunEntry(Lane& lane, uint32_t entry);
  Status ReadReferences(const Plan::Node& node);
  Status CheckOutputs(const Plan::Node& node, const EdgeValue* outputs) const;
  void ResetInputs(const Plan::Node& node);
  // Hands `outputs` on and leaves them empty; nodes that became ready go into `lane`.
  void Propagate(Lane& lane, const Plan::Node& node, EdgeValue* outputs, bool dead);
  // Returns the first edge that is left to do: `end`, or earlier when the step has left solo.
  template <bool kSolo>
  const Plan::Edge* PropagateAs(Lane& lane, const Plan::Edge* edge, const Plan::Edge* end,
                                EdgeValue* outputs, bool dead);
  template <bool kSolo>
  void ArriveAtMerge(Lane& lane, const Plan::Edge& edge, EdgeValue* value, bool dead);
  void PushReady(Lane& lane, uint32_t entry);
  // What a kernel sees of the step.
  KernelFrame FrameOf(const Plan::Node& node, EdgeValue* outputs, bool dead);
  void CountNodes(const Lane& lane) {
    nodes_run_.fetch_add(lane.nodes_run, std::memory_order_relaxed);
  }

  // --- Several threads (flat_step_sharing.cc)

  // By a loop that has another expensive node to run.
  void Publish(uint32_t entry);
  // By a holder of a reference: one loop more, of the host thread or of an arena thread.
  void RequestLoop(bool expensive);
  void ArenaTask();
  // Others read the flag: it is written only while nobody does.
  void LeaveSolo() {
    if (solo_) solo_ = false;
  }

  // --- Asynchronous kernels (flat_step_async.cc)

  void StartAsync(Lane& lane, uint32_t entry);
  void AsyncDone(AsyncRun* run, Status status);
  void FinishAsync(Lane& lane, AsyncRun* run);

  // --- Errors (flat_step_end.cc)

  // The first one counts.
  void Fail(Status status);
  void FailNode(const Plan::Node& node, const Status& status);
  void FailCancelled();
  void FailTimedOut();
  bool Stopped() {
    if (failed_.load(std::memory_order_relaxed)) return true;
    if (cancellation_ != nullptr && cancellation_->IsCancelled()) {
      FailCancelled();
      return true;
    }
    if (has_deadline_ && absl::Now() > deadline_) {
      FailTimedOut();
      return true;
    }
    return false;
  }

  FlatEngine* const engine_;
  const Plan& plan_;
  PendingWords pending_;
  ReadyLinks links_;
  std::vector<EdgeValue> slots_;    // empty between steps
  std::vector<EdgeValue> outputs_;  // of the host's lane
  std::vector<AsyncRun> async_;
  uint32_t uses_ = 0;  // shifts which nodes are sampled

  // Of this step.
  const StepContext* context_ = nullptr;
  CancellationManager* cancellation_ = nullptr;
  StepStatsCollector* stats_ = nullptr;
  std::vector<int64_t> scheduled_;  // by node, when traced; written by who makes it ready
  absl::Time deadline_;
  bool has_deadline_ = false;
  StepHost* host_ = nullptr;
  StepDone done_;
  int num_threads_ = 1;
  bool parallel_ = false;
  bool solo_ = true;  // written only while one thread knows the step

  // Below: written by several threads.
  alignas(64) SharedStack shared_;
  std::atomic<int> refs_{1};            // release on drop, acquire by the last
  std::atomic<int> loops_{1};           // seq_cst: see RequestLoop
  std::atomic<int> busy_{0};            // loops inside an expensive kernel; relaxed: a hint
  std::atomic<uint64_t> nodes_run_{0};  // relaxed: ordered by refs_
  std::atomic<bool> failed_{false};     // relaxed: only stops; the status is under mu_
  Mutex mu_;
  Status status_ ABSL_GUARDED_BY(mu_);
};

inline void FlatStep::ResetInputs(const Plan::Node& node) {
  for (uint32_t i = 0; i < node.num_inputs; ++i) Reset(slots_[node.first_input + i]);
}

inline KernelFrame FlatStep::FrameOf(const Plan::Node& node, EdgeValue* outputs, bool dead) {
  return KernelFrame{
      .step = context_,
      .node_name = node.name,
      .inputs = slots_.data() + node.first_input,
      .outputs = outputs,
      .output_types = plan_.output_types(node).data(),
      .num_inputs = node.num_inputs,
      .num_outputs = node.num_outputs,
      .is_input_dead = dead,
  };
}

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_FLAT_STEP_H_
