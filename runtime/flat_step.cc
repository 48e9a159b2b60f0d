// SPDX-License-Identifier: Apache-2.0
//
// The hot part of a step: a loop takes a ready node, runs its kernel and hands the outputs on. It
// is all in this file so that it can be inlined: a node with an empty kernel costs some 15 ns
// (executor_benchmark).
#include "runtime/flat_step.h"

#include <x86intrin.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/node_trace.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

// Puts a value into an empty slot.
template <typename Value>
inline void Place(EdgeValue& slot, Value&& value) {
  std::destroy_at(&slot);
  std::construct_at(&slot, std::forward<Value>(value));
}

// Along an edge: moved when the edge is the last reader's.
inline void PlaceAlong(const Plan::Edge& edge, EdgeValue& slot, EdgeValue* value) {
  if ((edge.flags & Plan::kMoves) != 0) {
    Place(slot, std::move(*value));
  } else {
    Place(slot, static_cast<const EdgeValue&>(*value));
  }
}

}  // namespace

// --- Edges ---------------------------------------------------------------------------------------

void FlatStep::PushReady(Lane& lane, uint32_t entry) {
  const uint32_t index = NodeOfEntry(entry);
  if (stats_ != nullptr) scheduled_[index] = absl::GetCurrentTimeNanos();
  const bool expensive = parallel_ && (entry & kDeadEntry) == 0 &&
                         (plan_.nodes()[index].flags & Plan::kMayBeExpensive) != 0 &&
                         engine_->costs().IsExpensive(index);
  if (!expensive) {
    lane.Push(links_, entry);
  } else if (lane.collects) {
    lane.collected_expensive = true;
    lane.Push(links_, entry);
  } else {
    // The newest stays here, its inputs are in this core's cache.
    if (lane.expensive != kNoEntry) Publish(lane.expensive);
    lane.expensive = entry;
  }
}

template <bool kSolo>
inline void FlatStep::ArriveAtMerge(Lane& lane, const Plan::Edge& edge, EdgeValue* value,
                                    bool dead) {
  const uint32_t num_inputs = plan_.nodes()[edge.dst].num_inputs;
  uint32_t ready;
  if (value == nullptr) {
    ready = pending_.ArriveControlAtMerge<kSolo>(edge.dst, num_inputs);
  } else if (dead) {
    ready = pending_.ArriveDeadAtMerge<kSolo>(edge.dst, num_inputs);
  } else {
    if (!pending_.TakeMerge<kSolo>(edge.dst)) return;
    PlaceAlong(edge, slots_[edge.slot], value);
    ready = pending_.ArriveLiveAtMerge<kSolo>(edge.dst);
  }
  if (ready != kNoEntry) PushReady(lane, ready);
}

template <bool kSolo>
inline const Plan::Edge* FlatStep::PropagateAs(Lane& lane, const Plan::Edge* edge,
                                               const Plan::Edge* end, EdgeValue* outputs,
                                               bool dead) {
  for (; edge != end; ++edge) {
    // A node that just became ready may have been handed to another thread.
    if (kSolo && !solo_) return edge;
    EdgeValue* value = nullptr;
    bool edge_dead = dead;
    if ((edge->flags & Plan::kControl) == 0) {
      value = outputs + edge->output;
      edge_dead |= !value->has_value();
    }
    if (ABSL_PREDICT_FALSE((edge->flags & Plan::kToMerge) != 0)) {
      ArriveAtMerge<kSolo>(lane, *edge, value, edge_dead);
      continue;
    }
    if (value != nullptr && !edge_dead) PlaceAlong(*edge, slots_[edge->slot], value);
    if ((edge->flags & Plan::kToTrigger) != 0) edge_dead = false;
    const uint32_t ready = pending_.Arrive<kSolo>(edge->dst, edge_dead);
    if (ready != kNoEntry) PushReady(lane, ready);
  }
  return end;
}

void FlatStep::Propagate(Lane& lane, const Plan::Node& node, EdgeValue* outputs, bool dead) {
  const Plan::Edge* edge = plan_.edges().data() + node.first_edge;
  const Plan::Edge* const end = edge + node.num_edges;
  if (solo_) edge = PropagateAs<true>(lane, edge, end, outputs, dead);
  if (edge != end) PropagateAs<false>(lane, edge, end, outputs, dead);
  for (uint32_t i = 0; i < node.num_outputs; ++i) Reset(outputs[i]);
}

// --- Nodes ---------------------------------------------------------------------------------------

Status FlatStep::ReadReferences(const Plan::Node& node) {
  const absl::Span<const DType> types = plan_.input_types(node);
  for (uint32_t i = 0; i < node.num_inputs; ++i) {
    EdgeValue& in = slots_[node.first_input + i];
    if (!in.is_reference()) continue;
    const auto variable = std::static_pointer_cast<VariableStorage>(in.reference());
    const bool may_be_uninitialized = (node.flags & Plan::kAllowsUninitialized) != 0;
    if (IsRef(types[i])) {
      // The kernel works on the variable itself: nothing is read.
      if (may_be_uninitialized || variable->IsInitialized()) continue;
    } else if (StatusOr<Tensor> value = variable->Read(); value.ok()) {
      in = *std::move(value);
      continue;
    } else if (may_be_uninitialized) {
      in = Tensor();
      continue;
    }
    return absl::FailedPreconditionError(
        absl::StrCat("Attempting to use uninitialized value ", plan_.InputName(node, i)));
  }
  return absl::OkStatus();
}

Status FlatStep::CheckOutputs(const Plan::Node& node, const EdgeValue* outputs) const {
  const absl::Span<const DType> types = plan_.output_types(node);
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    const EdgeValue& out = outputs[i];
    if (ABSL_PREDICT_FALSE(!out.has_value())) {
      if ((node.flags & Plan::kMayLeaveOutputsDead) != 0) continue;
      return absl::InternalError(absl::StrCat("Missing ", i, "-th output from '", *node.name, "'"));
    }
    if (ABSL_PREDICT_FALSE(out.dtype() != types[i])) {
      return absl::InternalError(absl::StrCat("output ", i, " must be of type ",
                                              DTypeName(types[i]), ", got ",
                                              DTypeName(out.dtype())));
    }
  }
  return absl::OkStatus();
}

void FlatStep::RunEntry(Lane& lane, uint32_t entry) {
  ++lane.nodes_run;
  const uint32_t index = NodeOfEntry(entry);
  const bool dead = (entry & kDeadEntry) != 0;
  const Plan::Node& node = plan_.nodes()[index];
  if (ABSL_PREDICT_FALSE(dead) && (node.flags & Plan::kRunsWhenDead) == 0) {
    ResetInputs(node);
    Propagate(lane, node, lane.outputs, /*dead=*/true);
    return;
  }
  if (node.async != nullptr) {
    StartAsync(lane, entry);
    return;
  }
  NodeTimes times;
  if (ABSL_PREDICT_FALSE(stats_ != nullptr)) {
    times.scheduled = scheduled_[index];
    times.start = absl::GetCurrentTimeNanos();
  }
  if (ABSL_PREDICT_FALSE((node.flags & Plan::kRefInputs) != 0)) {
    if (Status status = ReadReferences(node); !status.ok()) return FailNode(node, status);
  }
  const KernelFrame frame = FrameOf(node, lane.outputs, dead);
  KernelContext ctx(&frame);
  const auto compute = [&] { return node.kernel->Compute(&ctx); };

  Status status;
  if (ABSL_PREDICT_FALSE(stats_ != nullptr)) times.op_start = absl::GetCurrentTimeNanos();
  const bool measurable = parallel_ && (node.flags & Plan::kMayBeExpensive) != 0;
  const bool expensive = measurable && engine_->costs().IsExpensive(index);
  if (expensive || (measurable && (++lane.tick & (NodeCosts::kSampleEvery - 1)) == 0)) {
    const bool counted = expensive && !solo_;
    if (counted) busy_.fetch_add(1, std::memory_order_relaxed);
    const uint64_t begin = __rdtsc();
    status = WithoutException(compute);
    engine_->costs().AddSample(index, __rdtsc() - begin);
    if (counted) busy_.fetch_sub(1, std::memory_order_relaxed);
  } else {
    status = WithoutException(compute);
  }
  if (ABSL_PREDICT_FALSE(stats_ != nullptr)) times.op_end = absl::GetCurrentTimeNanos();
  if (status.ok() && node.num_outputs != 0) status = CheckOutputs(node, lane.outputs);
  ResetInputs(node);
  if (ABSL_PREDICT_FALSE(!status.ok())) {
    for (uint32_t i = 0; i < node.num_outputs; ++i) Reset(lane.outputs[i]);
    return FailNode(node, status);
  }
  if (ABSL_PREDICT_FALSE(stats_ != nullptr)) {
    times.end = absl::GetCurrentTimeNanos();
    RecordNode(plan_, node, times, lane.outputs, stats_);
  }
  Propagate(lane, node, lane.outputs, dead);
}

// --- Loops ---------------------------------------------------------------------------------------

void FlatStep::Loop(Lane& lane) {
  for (;;) {
    uint32_t entry;
    if (lane.head != kNoEntry) {
      entry = lane.Pop(links_);
    } else if (lane.expensive != kNoEntry) {
      entry = std::exchange(lane.expensive, kNoEntry);
    } else {
      if (solo_) return;
      entry = shared_.Pop(links_);
      if (entry == kNoEntry) {
        loops_.fetch_sub(1, std::memory_order_seq_cst);
        // Who pushed before this saw a loop and relied on it.
        if (shared_.IsEmpty()) return;
        loops_.fetch_add(1, std::memory_order_seq_cst);
        continue;
      }
    }
    if (!Stopped()) RunEntry(lane, entry);
  }
}

void FlatStep::WorkFromRoots() {
  Lane lane;
  lane.outputs = outputs_.data();
  lane.tick = uses_;
  const absl::Span<const uint32_t> roots = plan_.roots();
  // What comes from elsewhere is asked for before anything else is done.
  for (uint32_t i = 0; i < plan_.num_root_recvs() && !Stopped(); ++i) RunEntry(lane, roots[i]);
  for (size_t i = roots.size(); i-- > plan_.num_root_recvs();) PushReady(lane, roots[i]);
  Loop(lane);
  CountNodes(lane);
}

}  // namespace millrace
