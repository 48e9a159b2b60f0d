// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_LOOP_CREW_H_
#define MILLRACE_RUNTIME_ENGINE_LOOP_CREW_H_

// LoopCrew: the loops that work for one step, on several threads.
//
// A loop that has more to do than it should keep to itself shares nodes and asks for another loop:
// of the host thread when it waits, else of the network thread whose message made them ready
// (core/visit.h), else of an arena thread. A loop that finds nothing leaves.
//
// Some thread always sees to what is shared: a loop that leaves first counts itself out and then
// looks at what is shared; who shares first shares and then looks at the count; all four are
// seq_cst, so one of them sees the other.
//
// Threads: Begin before the step's loops; the rest by holders of an active part (step_life.h).
// Lifetime: a member of the step. Failure: a loop that the arena has no memory for is not there;
// when nobody else is, the step fails.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/arena.h"
#include "core/visit.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/step.h"
#include "runtime/engine/step_life.h"
#include "runtime/kernel.h"

namespace millrace {

class LoopCrew final : private Visit::Work {
 public:
  // What the loops work on.
  class Job {
   public:
    virtual ~Job() = default;
    // A loop of an arena thread. `outputs`: room for those of any node, empty and left empty.
    virtual void WorkWith(EdgeValue* outputs) noexcept = 0;
    // Whether nodes wait for any loop to take them (seq_cst).
    virtual bool IsShared() const = 0;
  };

  // All are the step's and outlive the crew.
  LoopCrew(Engine* engine, StepLife* life, Step* step, Job* job, uint32_t max_outputs)
      : engine_(engine), life_(life), step_(step), job_(job), max_outputs_(max_outputs) {}
  ~LoopCrew();
  LoopCrew(const LoopCrew&) = delete;
  LoopCrew& operator=(const LoopCrew&) = delete;

  // With the loop that begins the step.
  void Begin(Arena* arena);
  int num_threads() const { return num_threads_; }

  // After something was shared by a loop: one loop more, unless all threads have one.
  void AskForLoop() {
    if (loops_.load(std::memory_order_relaxed) < num_threads_) Request(/*expensive=*/true);
  }
  // After a thread that is no loop has shared something.
  void SeeToShared(bool expensive);
  // By a loop that has found nothing. True: it is over; false: something was shared meanwhile.
  [[nodiscard]] bool Leave();

  // Around an expensive kernel, while there are several loops.
  void BeginBusy() { busy_.fetch_add(1, std::memory_order_relaxed); }
  void EndBusy() { busy_.fetch_sub(1, std::memory_order_relaxed); }

 private:
  void Request(bool expensive);
  // A loop of a thread that is not the host.
  void RunVisit() noexcept override;
  EdgeValue* TakeOutputs();
  void GiveOutputsBack(EdgeValue* outputs);

  Engine* const engine_;
  StepLife* const life_;
  Step* const step_;
  Job* const job_;
  const uint32_t max_outputs_;
  Arena* arena_ = nullptr;
  int num_threads_ = 1;

  // Written by several threads.
  alignas(64) std::atomic<int> loops_{1};  // seq_cst: see above
  std::atomic<int> busy_{0};               // loops inside an expensive kernel; relaxed: a hint
  // Outputs for loops of arena threads, empty, kept from step to step. Release by who puts them in,
  // acquire when taken out.
  static constexpr size_t kKeptOutputs = 8;
  std::array<std::atomic<EdgeValue*>, kKeptOutputs> outputs_ = {};
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_LOOP_CREW_H_
