// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous kernels of a step: queues, receives, files. One that has finished when ComputeAsync
// returns goes on in the same loop (the stack stays flat, nobody is woken). One that finishes later
// hands its outputs on from the thread that finished it, which is no loop of the step: what became
// ready goes onto the shared stack.
#include <utility>

#include "runtime/flat_step.h"
#include "runtime/node_trace.h"

namespace millrace {

void FlatStep::StartAsync(Lane& lane, uint32_t entry) {
  const Plan::Node& node = plan_.nodes()[NodeOfEntry(entry)];
  AsyncRun& run = async_[node.async_index];
  run.step = this;
  run.entry = entry;
  run.outputs.resize(node.num_outputs);
  run.done_called = false;
  run.phase.store(0, std::memory_order_relaxed);
  if (stats_ != nullptr) {
    run.times.scheduled = scheduled_[NodeOfEntry(entry)];
    run.times.start = run.times.op_start = absl::GetCurrentTimeNanos();
  }
  if ((node.flags & Plan::kRefInputs) != 0) {
    if (Status status = ReadReferences(node); !status.ok()) return FailNode(node, status);
  }
  run.frame = FrameOf(node, run.outputs.data(), (entry & kDeadEntry) != 0);

  refs_.fetch_add(1, std::memory_order_relaxed);
  LeaveSolo();
  AsyncRun* const pointer = &run;
  Status thrown = WithoutException([&]() -> Status {
    node.async->ComputeAsync(&run.context, [pointer](Status status) {
      pointer->step->AsyncDone(pointer, std::move(status));
    });
    return absl::OkStatus();
  });
  // A kernel that throws has let go of `done`, or has called it here.
  if (!thrown.ok()) {
    if (!run.done_called) {
      AsyncDone(pointer, std::move(thrown));
    } else if (AsyncKernel::DoneCallback::WasDropped(run.status)) {
      run.status = std::move(thrown);  // why it was dropped
    }
  }
  if (run.phase.exchange(1, std::memory_order_acq_rel) == 0) return;
  // Done already: go on here.
  FinishAsync(lane, pointer);
  if (refs_.fetch_sub(1, std::memory_order_acq_rel) == 2) {
    // The reference that is left is this loop's.
    if (shared_.IsEmpty()) solo_ = true;
  }
}

// By the kernel, on any thread.
void FlatStep::AsyncDone(AsyncRun* run, Status status) {
  run->done_called = true;
  run->status = std::move(status);
  if (run->phase.exchange(2, std::memory_order_acq_rel) == 0) return;
  Lane lane;
  lane.collects = true;
  FinishAsync(lane, run);
  if (lane.head != kNoEntry) {
    do {
      shared_.Push(links_, lane.Pop(links_));
    } while (lane.head != kNoEntry);
    const int loops = loops_.load(std::memory_order_seq_cst);
    const bool all_busy = busy_.load(std::memory_order_relaxed) >= loops;
    if (loops == 0 || (loops < num_threads_ && (lane.collected_expensive || all_busy))) {
      RequestLoop(lane.collected_expensive);
    }
  }
  if (DropRef()) Finish();
}

void FlatStep::FinishAsync(Lane& lane, AsyncRun* run) {
  const Plan::Node& node = plan_.nodes()[NodeOfEntry(run->entry)];
  EdgeValue* const outputs = run->outputs.data();
  Status status = std::exchange(run->status, absl::OkStatus());
  if (stats_ != nullptr) run->times.op_end = absl::GetCurrentTimeNanos();
  if (status.ok()) status = CheckOutputs(node, outputs);
  run->frame = KernelFrame();
  ResetInputs(node);
  if (!status.ok()) {
    for (EdgeValue& out : run->outputs) Reset(out);
    return FailNode(node, status);
  }
  if (stats_ != nullptr) {
    run->times.end = absl::GetCurrentTimeNanos();
    RecordNode(plan_, node, run->times, outputs, stats_);
  }
  Propagate(lane, node, outputs, (run->entry & kDeadEntry) != 0);
}

}  // namespace millrace
