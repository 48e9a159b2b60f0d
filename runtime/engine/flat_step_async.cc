// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous kernels of a step: queues, receives, files. One that has finished when ComputeAsync
// returns goes on in the same loop (the stack stays flat, nobody is woken). One that finishes later
// hands its outputs on from the thread that finished it, which is no loop of the step: what became
// ready goes onto the shared stack. One that finishes after its step was abandoned only frees it.
#include <utility>

#include "runtime/engine/flat_step.h"
#include "runtime/engine/kernel_runner.h"
#include "runtime/engine/node_costs.h"
#include "runtime/engine/node_trace.h"
#include "runtime/engine/ready_list.h"
#include "runtime/engine/state_block.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"

namespace millrace {

void FlatStep::StartAsync(Loop& loop, const Plan::Node& node, bool dead) {
  AsyncRun& run = block_.async[node.async_index];
  EdgeValue* const inputs = block_.inputs(node);
  run.dead = dead;
  loop.runner.SetCurrent(node);
  if (runs_.stats != nullptr) {
    run.times.scheduled = scheduled_ns_[run.node];
    run.times.start = run.times.op_start = absl::GetCurrentTimeNanos();
  }
  if ((node.flags & Plan::kRefInputs) != 0) {
    const Status status = runs_.ReadReferences(node, inputs);
    if (!status.ok()) return life_.FailNode(plan_, node, status);
  }
  run.frame = runs_.FrameOf(node, inputs, run.outputs);
  run.frame.is_input_dead = dead;

  life_.AddKernel();
  life_.LeaveSolo();
  run.phase.store(AsyncRun::kStarted, std::memory_order_release);
  AsyncRun* const pointer = &run;
  try {
    node.async->ComputeAsync(&run.context, [pointer](Status status) {
      pointer->step->KernelDone(pointer, std::move(status));
    });
  } catch (...) {
    // The `done` that it had is dropped already, or with somebody who will call or drop it.
    run.thrown = StatusOfException();
  }
  int started = AsyncRun::kStarted;
  if (run.phase.compare_exchange_strong(started, AsyncRun::kReturned, std::memory_order_acq_rel)) {
    return;
  }
  // It has answered already: go on here.
  FinishAsync(loop.lane, pointer);
  // What is on the shared stack is others' work, too.
  if (life_.DropKernel() && shared_.IsEmpty()) life_.EnterSolo();
}

void FlatStep::KernelDone(AsyncRun* run, Status status) noexcept {
  run->status = std::move(status);
  int started = AsyncRun::kStarted;
  if (run->phase.compare_exchange_strong(started, AsyncRun::kAnswered, std::memory_order_acq_rel)) {
    return;  // StartAsync goes on
  }
  if (!life_.TurnActive()) {
    if (life_.DropOrphan()) delete this;
    return;
  }
  Lane lane;
  lane.collects = true;
  FinishAsync(lane, run);
  // Of a step that has failed nothing is run any more.
  if (lane.head != kNoEntry && !life_.failed()) {
    do {
      shared_.Push(block_.links, lane.Pop(block_.links));
    } while (lane.head != kNoEntry);
    const bool expensive = lane.collected_cycles > NodeCosts::kExpensiveCycles;
    const int loops = loops_.load(std::memory_order_seq_cst);
    const bool all_busy = busy_.load(std::memory_order_relaxed) >= loops;
    if (loops == 0 || (loops < num_threads_ && (expensive || all_busy))) RequestLoop(expensive);
  }
  if (life_.DropLoop()) Finish();
}

void FlatStep::FinishAsync(Lane& lane, AsyncRun* run) noexcept {
  const Plan::Node& node = nodes_[run->node];
  Status status = std::exchange(run->status, absl::OkStatus());
  Status thrown = std::exchange(run->thrown, absl::OkStatus());
  if (!thrown.ok() && (status.ok() || AsyncKernel::DoneCallback::WasDropped(status))) {
    status = std::move(thrown);
  }
  run->phase.store(AsyncRun::kIdle, std::memory_order_relaxed);
  try {
    if (runs_.stats != nullptr) run->times.op_end = absl::GetCurrentTimeNanos();
    if (status.ok()) status = runs_.CheckOutputs(node, run->outputs);
    Reset(block_.inputs(node), node.num_inputs);
    if (status.ok()) {
      if (runs_.stats != nullptr) {
        run->times.end = absl::GetCurrentTimeNanos();
        RecordNode(plan_, node, run->times, run->outputs, runs_.stats);
      }
      PropagateAsync(lane, *run);
      return;
    }
  } catch (...) {
    status = StatusOfException();
  }
  Reset(run->outputs, node.num_outputs);
  life_.FailNode(plan_, node, status);
}

}  // namespace millrace
