// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous kernels of a step with frames: as in flat_step_async.cc. What became ready in other
// iterations, because the kernel was the last thing that held its own, is handed over, too.
#include <utility>

#include "runtime/engine/async_run.h"
#include "runtime/engine/frame_step.h"
#include "runtime/engine/iteration.h"
#include "runtime/engine/kernel_runner.h"
#include "runtime/engine/node_costs.h"
#include "runtime/engine/ready_list.h"
#include "runtime/plan.h"

namespace millrace {

void FrameStep::StartAsync(Loop& loop, Iteration& at, const Plan::Node& node, bool dead) {
  AsyncRun& run = at.block.async[node.async_index - at.of->first_async];
  if (!loop.runner.Prepare(node, at.block.inputs(node), dead, &run)) {
    return life_.FailNode(plan_, node, loop.runner.error());
  }
  life_.AddKernel();
  life_.LeaveSolo();
  Hold(at);
  if (!run.Call(*node.async)) return;
  // It has answered already: go on here.
  FinishAsync(loop.lane, &run);
  LetGo(loop.lane, &at);
  // What is shared is others' work, too.
  if (life_.DropKernel() && !IsShared()) life_.EnterSolo();
}

void FrameStep::KernelDone(AsyncRun* run, Status status) noexcept {
  if (!run->Answer(std::move(status))) return;  // StartAsync goes on
  if (!life_.TurnActive()) {
    if (life_.DropOrphan()) delete this;
    return;
  }
  FrameLane lane;
  lane.current = run->iteration;
  lane.nodes.collects = true;
  FinishAsync(lane, run);
  try {
    HandOver(lane);
  } catch (...) {
    life_.Fail(StatusOfException());
  }
  if (life_.DropLoop()) life_.TellEnded(this);
}

void FrameStep::FinishAsync(FrameLane& lane, AsyncRun* run) noexcept {
  Iteration& at = *run->iteration;
  const Plan::Node& node = at.nodes[run->node];
  Status status =
      runs_.CheckAnswer(node, PlaceOf(at), at.block.inputs(node), run, run->TakeStatus());
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

void FrameStep::HandOver(FrameLane& lane) {
  bool shared = false;
  const auto share = [&](Iteration& at, uint32_t first) {
    ReadyChain chain = {first, first};
    while (at.block.links.Below(chain.last) != kNoEntry) {
      chain.last = at.block.links.Below(chain.last);
    }
    Share(at, chain);
    shared = true;
  };
  // Of a step that has failed nothing is run any more.
  if (life_.failed()) return;
  if (lane.nodes.head != kNoEntry) share(*lane.current, lane.nodes.head);
  LetGo(lane, std::exchange(lane.current, nullptr));  // held for the kernel
  for (;;) {
    Iteration** const list = lane.inward != nullptr ? &lane.inward : &lane.onward;
    Iteration* const at = *list;
    if (at == nullptr) break;
    *list = at->below_passed_on;
    share(*at, at->passed_on.TakeAll());
    LetGo(lane, at);  // held for its place in the list
  }
  if (shared) crew_.SeeToShared(lane.nodes.collected_cycles > NodeCosts::kExpensiveCycles);
}

}  // namespace millrace
