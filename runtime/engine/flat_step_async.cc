// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous kernels of a step: queues, receives, files. One that has finished when ComputeAsync
// returns goes on in the same loop (the stack stays flat, nobody is woken). One that finishes later
// hands its outputs on from the thread that finished it, which is no loop of the step: what became
// ready goes onto the shared stack. One that finishes after its step was abandoned only frees it.
#include <utility>

#include "runtime/engine/async_run.h"
#include "runtime/engine/flat_step.h"
#include "runtime/engine/kernel_runner.h"
#include "runtime/engine/node_costs.h"
#include "runtime/engine/ready_list.h"
#include "runtime/engine/state_block.h"
#include "runtime/plan.h"

namespace millrace {

void FlatStep::StartAsync(Loop& loop, const Plan::Node& node, bool dead) {
  AsyncRun& run = block_.async[node.async_index];
  if (!loop.runner.Prepare(node, InputsOf(node), dead, &run)) {
    return life_.FailNode(plan_, node, loop.runner.error());
  }
  life_.AddKernel();
  life_.LeaveSolo();
  if (!run.Call(*node.async)) return;
  // It has answered already: go on here.
  FinishAsync(loop.lane, &run);
  // What is on the shared stack is others' work, too.
  if (life_.DropKernel() && shared_.IsEmpty()) life_.EnterSolo();
}

void FlatStep::KernelDone(AsyncRun* run, Status status) noexcept {
  if (!run->Answer(std::move(status))) return;  // StartAsync goes on
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
    crew_.SeeToShared(lane.collected_cycles > NodeCosts::kExpensiveCycles);
  }
  if (life_.DropLoop()) life_.TellEnded(this);
}

void FlatStep::FinishAsync(Lane& lane, AsyncRun* run) noexcept {
  const Plan::Node& node = nodes_[run->node];
  Status status = runs_.CheckAnswer(node, place_, InputsOf(node), run, run->TakeStatus());
  if (status.ok()) {
    try {
      return PropagateAsync(lane, *run);
    } catch (...) {
      status = StatusOfException();
      Reset(run->outputs, node.num_outputs);
    }
  }
  life_.FailNode(plan_, node, status);
}

}  // namespace millrace
