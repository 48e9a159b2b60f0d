// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_FLAT_STEP_H_
#define MILLRACE_RUNTIME_ENGINE_FLAT_STEP_H_

// FlatStep: one step of a plan without frames: its state, and the loops that run its nodes.
//
// A loop takes ready nodes from its lane until none is left (flat_step.cc). Others help only with
// expensive nodes, with batches of cheap ones that are worth it together, and with what
// asynchronous kernels leave behind (flat_step_sharing.cc, flat_step_async.cc). Beginning and end
// are in flat_step_end.cc.
//
// Parts (step_life.h): every loop is one and every asynchronous kernel that has not finished;
// the thread that drops the last ends the step. Nodes on the shared stack need none: loop_crew.h
// sees to them.
//
// Threads: Begin and WorkFromRoots on the thread that runs the step, the rest on any loop's.
// Lifetime: made and kept by the FlatEngine, an abandoned one by its kernels; the context outlives
// the step.
// Failure: the first error is the step's; no kernel is started after it (see executor.h).

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/resource_handle.h"
#include "runtime/device.h"
#include "runtime/engine/async_run.h"
#include "runtime/engine/flat_engine.h"
#include "runtime/engine/kernel_runner.h"
#include "runtime/engine/loop_crew.h"
#include "runtime/engine/ready_list.h"
#include "runtime/engine/state_block.h"
#include "runtime/engine/step.h"
#include "runtime/engine/step_life.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"

namespace millrace {

class FlatStep final : public Step, private LoopCrew::Job {
 public:
  explicit FlatStep(FlatEngine* engine);
  ~FlatStep() override;

  void Begin(const StepStart& start);

  bool WorkFromRoots() noexcept override;
  bool WorkAsHost() noexcept override;
  Status TakeResult() override;
  void Fail(const Status& status) noexcept override { life_.Fail(status); }
  void FailOverdue(const Status& status) noexcept override { life_.FailOverdue(status); }
  void AppendSilentKernels(std::vector<std::string>* names) const override;
  bool Abandon(std::shared_ptr<const void> keep, Status* status) override;
  void KernelDone(AsyncRun* run, Status status) noexcept override;

 private:
  // What one loop works with.
  struct Loop {
    Loop(const FlatStep& step, EdgeValue* outputs) : runner(step.runs_, outputs, step.uses_) {
      runner.SetPlace(step.place_);
    }
    Lane lane;
    KernelRunner runner;
  };

  // --- Loops and nodes (flat_step.cc)

  // Works until nothing is left; what kernels throw becomes the step's error.
  void Work(Loop& loop) noexcept;
  // Makes what is thrown in `call` the error of the node that ran; false then.
  template <typename Call>
  bool Guarded(Loop& loop, Call call) noexcept;
  // Works until nothing is left or a kernel throws.
  void RunReady(Loop& loop);
  void RunEntry(Loop& loop, uint32_t entry);
  // Of a node that is asynchronous, dead, or measured while there are several threads.
  void RunOther(Loop& loop, const Plan::Node& node, bool dead);
  // By a loop whose lane is empty: one entry, the rest of a batch in the lane. kNoEntry: the loop
  // is over.
  uint32_t TakeShared(Lane& lane);
  // Hands `outputs` on and leaves them empty; nodes that became ready go into `lane`.
  void Propagate(Lane& lane, const Plan::Node& node, EdgeValue* outputs, bool dead);
  // Returns the first edge that is left to do: `end`, or earlier when the step has left solo.
  template <bool kSolo>
  const Plan::Edge* PropagateAs(Lane& lane, const Plan::Edge* edge, const Plan::Edge* end,
                                EdgeValue* outputs, bool dead);
  void PropagateShared(Lane& lane, const Plan::Edge* edge, const Plan::Edge* end,
                       EdgeValue* outputs, bool dead);
  // Along an edge to a Merge or trigger, or whose node PushReady has to see.
  template <bool kSolo>
  void ArriveSpecial(Lane& lane, const Plan::Edge& edge, EdgeValue* value, bool dead);
  void PushReady(Lane& lane, uint32_t entry, bool measured);
  // A node that may be worth another thread's time.
  void PushMeasured(Lane& lane, uint32_t entry);
  // What a ready node costs as far as that is known; 0 for one that is not measured.
  uint64_t CyclesOf(uint32_t entry) const {
    const uint32_t index = NodeOfEntry(entry);
    const bool measured =
        (entry & kDeadEntry) == 0 && (nodes_[index].flags & Plan::kMayBeExpensive) != 0;
    return measured ? engine_->costs().Cycles(index) : 0;
  }

  // --- Beginning (flat_step_end.cc)

  // Are the outputs of the bound nodes where they are read, and what those nodes would give now?
  // Not of a traced step, which shows them.
  bool IsBoundFilled() const;
  // Runs the bound nodes and puts what they give where it is read.
  void FillBound(Loop& loop) noexcept;

  // --- Several threads (flat_step_sharing.cc)

  // By a loop that has more to do than it should keep to itself.
  void Publish(const ReadyChain& chain);
  void WorkWith(EdgeValue* outputs) noexcept override;
  bool IsShared() const override { return !shared_.IsEmpty(); }

  // --- Asynchronous kernels (flat_step_async.cc)

  void StartAsync(Loop& loop, const Plan::Node& node, bool dead);
  // Takes up what a kernel has answered; nodes that became ready go into `lane`.
  void FinishAsync(Lane& lane, AsyncRun* run) noexcept;
  void PropagateAsync(Lane& lane, const AsyncRun& run);

  // Of an abandoned step: what it still needs when nobody else is left.
  std::shared_ptr<const void> kept_;
  std::shared_ptr<const Plan> kept_plan_;

  FlatEngine* const engine_;
  const Plan& plan_;
  const Plan::Node* const nodes_;
  const Plan::Edge* const edges_;
  EdgeValue* InputsOf(const Plan::Node& node) { return block_.slots.data() + node.first_input; }

  StateBlock block_;
  const std::unique_ptr<EdgeValue[]> host_outputs_;
  uint32_t uses_ = 0;  // shifts which nodes are sampled

  // Of the outputs of bound nodes in the slots: whether they are there, of which device, and the
  // resources that they are handles of.
  bool bound_filled_ = false;
  const Device* bound_device_ = nullptr;
  std::vector<std::shared_ptr<const Resource>> bound_resources_;
  std::atomic<bool> bound_taken_{false};  // one of them (KernelRuns)

  // Of this step.
  KernelRuns runs_;
  RunPlace place_;
  std::vector<int64_t>
      scheduled_ns_;            // by node, when traced; written by the thread that makes it ready
  uint32_t other_flags_ = 0;    // of nodes for RunOther
  uint32_t special_edges_ = 0;  // flags of edges for ArriveSpecial
  StepLife life_;

  LoopCrew crew_;

  // Below: written by several threads.
  alignas(64) SharedStack shared_;
  std::atomic<uint64_t> nodes_run_{0};  // relaxed: ordered by the parts
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_FLAT_STEP_H_
