// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_FRAME_STEP_H_
#define MILLRACE_RUNTIME_ENGINE_FRAME_STEP_H_

// FrameStep: one step of a plan with frames: the loops (of the graph) that run in it, and the loops
// (of threads) that run its nodes.
//
// A lane works on one iteration at a time, as a flat step works on its block (frame_step.cc). What
// a node hands on into another iteration (frame_step_flow.cc) waits in that iteration's pile, and
// the lane turns to it when its own iteration has nothing left: first to where values came in or
// out of loops, then to next iterations, then to an expensive node. So one thread ends an iteration
// before it begins the next, while several find the expensive nodes of as many iterations as
// parallel_iterations allows before they begin with one.
//
// A loop whose nodes need no other thread is run in a fixed order as long as it goes on, in the
// state of one iteration (straight_loop.h, frame_step_straight.cc).
//
// Others help only with expensive nodes, with batches of cheap ones that are worth it together, and
// with what asynchronous kernels leave behind (frame_step_sharing.cc, frame_step_async.cc).
// Beginning and end are in frame_step_end.cc. Parts: as in a flat step.
//
// In the steady state of a loop nothing is allocated, and while one thread works for the step
// nothing is locked.
//
// Threads: Begin and WorkFromRoots on the thread that runs the step, the rest on any loop's.
// Lifetime: made and kept by the FrameEngine, an abandoned one by its kernels; the context outlives
// the step.
// Failure: the first error is the step's; no kernel is started after it (see executor.h), and
// nothing that holds an iteration lets go of it.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/mutex.h"
#include "runtime/engine/async_run.h"
#include "runtime/engine/frame_engine.h"
#include "runtime/engine/iteration.h"
#include "runtime/engine/kernel_runner.h"
#include "runtime/engine/loop_crew.h"
#include "runtime/engine/ready_list.h"
#include "runtime/engine/step.h"
#include "runtime/engine/step_life.h"
#include "runtime/engine/straight_loop.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"

namespace millrace {

class FrameStep final : public Step, private LoopCrew::Job {
 public:
  explicit FrameStep(FrameEngine* engine);
  ~FrameStep() override;

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
  // What one working thread has to do. It holds `current`, what it lists and `expensive_of`.
  struct FrameLane {
    Iteration* current = nullptr;       // whose nodes are in the stacks
    Lane nodes;                         // nodes_run counts those of `current`
    Iteration* expensive_of = nullptr;  // of nodes.expensive
    Iteration* inward = nullptr;        // list of piles that got values into or out of loops
    Iteration* onward = nullptr;        // list of piles of next iterations
  };
  // What one loop works with.
  struct Loop {
    Loop(const FrameStep& step, EdgeValue* outputs) : runner(step.runs_, outputs, step.uses_) {}
    FrameLane lane;
    KernelRunner runner;
  };
  enum class Way { kInward, kOnward };

  // --- Loops and nodes (frame_step.cc)

  void Work(Loop& loop) noexcept;
  template <typename Call>
  bool Guarded(Loop& loop, Call call) noexcept;
  // Works until nothing is left or a kernel throws.
  void RunReady(Loop& loop);
  void RunCurrent(Loop& loop);
  // By a loop without a current iteration: the next one. False: the loop is over.
  bool TurnToNext(Loop& loop);
  void TurnTo(Loop& loop, Iteration* iteration);
  void RunEntry(Loop& loop, Iteration& at, uint32_t entry);
  // Of a node that is asynchronous, dead, leaves its iteration, or is measured while there are
  // several threads.
  void RunOther(Loop& loop, Iteration& at, const Plan::Node& node, bool dead);
  // Hands `outputs` on in the lane's iteration and leaves them empty.
  void Propagate(FrameLane& lane, Iteration& at, const Plan::Node& node, EdgeValue* outputs,
                 bool dead);
  template <bool kSolo>
  const Plan::Edge* PropagateAs(FrameLane& lane, Iteration& at, const Plan::Edge* edge,
                                const Plan::Edge* end, EdgeValue* outputs, bool dead);
  void PropagateShared(FrameLane& lane, Iteration& at, const Plan::Edge* edge,
                       const Plan::Edge* end, EdgeValue* outputs, bool dead);
  template <bool kSolo>
  void ArriveSpecial(FrameLane& lane, Iteration& at, const Plan::Edge& edge, EdgeValue* value,
                     bool dead);
  void PushReady(FrameLane& lane, Iteration& at, uint32_t entry, bool measured);
  void PushMeasured(FrameLane& lane, Iteration& at, uint32_t entry);
  // What a ready node costs as far as that is known; 0 for one that is not measured.
  uint64_t CyclesOf(const Iteration& at, uint32_t entry) const {
    const uint32_t index = NodeOfEntry(entry);
    const bool measured =
        (entry & kDeadEntry) == 0 && (at.nodes[index].flags & Plan::kMayBeExpensive) != 0;
    return measured ? engine_->costs().Cycles(at.of->first_node + index) : 0;
  }
  RunPlace PlaceOf(const Iteration& at) const;
  void NoteScheduled(Iteration& at, uint32_t entry) const;

  // --- Straight loops (frame_step_straight.cc)

  // How the nodes of a loop may be run in their order from `at` on, by the caller, whose lane holds
  // `at`. Null: they have to be run as they become ready.
  const StraightLoop* StraightFrom(const Iteration& at) const;
  // Runs iterations from `at` on, until the loop ends or goes on as others do. All that is ready in
  // `at` is in the lane and becomes meaningless.
  void RunStraight(Loop& loop, Iteration& at, const StraightLoop& straight);
  bool IsCheap(const Iteration& at, const StraightLoop& straight) const;

  // --- Iterations and loops (frame_step_flow.cc)

  // Takes the lock unless the caller's is the only thread of the step.
  class FlowLock;

  // Hands `outputs` of a node on that leaves its iteration, and leaves them empty.
  void LeaveIteration(Loop& loop, Iteration& at, const Plan::Node& node, EdgeValue* outputs,
                      bool dead);
  void EnterLoop(FrameLane& lane, Iteration& at, const Plan::Node& enter, EdgeValue* outputs,
                 bool dead);
  void GoOn(FrameLane& lane, Iteration& at, const Plan::Node& next_iteration, EdgeValue* outputs);
  void ExitLoop(Loop& loop, Iteration& at, const Plan::Node& exit, EdgeValue* outputs);
  // The edges of `node` into `to`; nodes that become ready go onto the pile of `to`. `moves`: the
  // outputs are not needed any more.
  void PassInto(FrameLane& lane, Iteration& to, Way way, const Plan::Node& node, EdgeValue* outputs,
                bool dead, bool moves);
  template <bool kSolo>
  void PassIntoAs(FrameLane& lane, Iteration& to, Way way, const Plan::Node& node,
                  EdgeValue* outputs, bool dead, bool moves);

  void Hold(Iteration& iteration);
  // True: it was the last hold.
  [[nodiscard]] bool Drop(Iteration& iteration);
  // Ends the iteration if nobody holds it any more, and what ends with it.
  void LetGo(FrameLane& lane, Iteration* iteration);
  void End(FrameLane& lane, Iteration* iteration);
  LoopFrame* BeginLoop(Iteration& parent, const Plan::Frame& frame);
  // Behind the last one of `loop`. Held `holds` times.
  Iteration* BeginIteration(LoopFrame* loop, uint32_t holds);
  // What every iteration of its loop gets.
  void PassConstants(FrameLane& lane, Iteration& to);
  void Recycle(Iteration* iteration);
  void Recycle(LoopFrame* loop);

  // --- Several threads (frame_step_sharing.cc)

  // Puts entries of an iteration where any loop may take them. The caller holds the iteration.
  void Share(Iteration& at, const ReadyChain& chain);
  // By a loop that has more to do than it should keep to itself.
  void Publish(Iteration& at, const ReadyChain& chain);
  Iteration* TakeListed();
  // By a loop without anything of its own.
  bool TakeShared(Loop& loop);
  void WorkWith(EdgeValue* outputs) noexcept override;
  bool IsShared() const override { return num_shared_.load(std::memory_order_seq_cst) > 0; }

  // --- Asynchronous kernels (frame_step_async.cc)

  void StartAsync(Loop& loop, Iteration& at, const Plan::Node& node, bool dead);
  void FinishAsync(FrameLane& lane, AsyncRun* run) noexcept;
  void PropagateAsync(FrameLane& lane, const AsyncRun& run);
  // All that is in a lane becomes the loops'.
  void HandOver(FrameLane& lane);

  // --- Beginning and end (frame_step_end.cc)

  Iteration* NewIteration(const Plan::Frame& frame);
  // InvalidArgument: a loop that has not ended.
  Status CheckAllHasRun() const;
  // After a failure: whatever is under way goes.
  void EmptyAll();

  size_t IndexOf(const Plan::Frame& frame) const {
    return static_cast<size_t>(&frame - plan_.frames().data());
  }

  // Of an abandoned step: what it still needs when nobody else is left.
  std::shared_ptr<const void> kept_;
  std::shared_ptr<const Plan> kept_plan_;

  FrameEngine* const engine_;
  const Plan& plan_;
  const Plan::Edge* const edges_;
  const std::unique_ptr<EdgeValue[]> host_outputs_;
  uint32_t uses_ = 0;  // shifts which nodes are sampled

  // All there are; grows only. Locked also by the only loop: others read it for messages.
  mutable Mutex iterations_mu_;
  std::vector<std::unique_ptr<Iteration>> iterations_ ABSL_GUARDED_BY(iterations_mu_);
  Iteration* const root_;
  // Of loops and iterations: see iteration.h.
  Mutex flow_mu_;
  std::vector<std::unique_ptr<LoopFrame>> loops_;  // all there are
  std::vector<Iteration*> free_iterations_;        // lists, by frame
  std::vector<LoopFrame*> free_loops_;             // lists, by frame

  // Of this step.
  KernelRuns runs_;
  uint32_t other_flags_ = 0;    // of nodes for RunOther
  uint32_t special_edges_ = 0;  // flags of edges for ArriveSpecial
  StepLife life_;
  LoopCrew crew_;

  // Piles that any loop may take, oldest first.
  Mutex shared_mu_;
  Iteration* first_shared_ ABSL_GUARDED_BY(shared_mu_) = nullptr;
  Iteration* last_shared_ ABSL_GUARDED_BY(shared_mu_) = nullptr;
  std::atomic<int> num_shared_{0};  // how many are listed; seq_cst: see loop_crew.h
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_FRAME_STEP_H_
