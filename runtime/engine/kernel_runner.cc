// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/kernel_runner.h"

#include <exception>
#include <memory>
#include <new>
#include <utility>

#include "runtime/engine/node_trace.h"
#include "runtime/engine/step_life.h"
#include "runtime/uninitialized.h"
#include "runtime/variable_storage.h"

namespace millrace {

Status StatusOfException() {
  try {
    try {
      throw;
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError("out of memory in the kernel");
    } catch (const std::exception& e) {
      return Internal("the kernel threw: ", e.what());
    } catch (...) {
      return absl::InternalError("the kernel threw something that is no std::exception");
    }
  } catch (...) {
    return NoMemory();
  }
}

Status KernelRuns::ReadReferences(const Plan::Node& node, EdgeValue* inputs) const {
  const absl::Span<const DType> types = plan->input_types(node);
  const bool may_be_uninitialized = (node.flags & Plan::kAllowsUninitialized) != 0;
  for (uint32_t i = 0; i < node.num_inputs; ++i) {
    EdgeValue& in = inputs[i];
    if (!in.is_reference()) continue;
    const auto variable = std::static_pointer_cast<VariableStorage>(in.reference());
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
    return UninitializedVariable(plan->InputName(node, i));
  }
  return absl::OkStatus();
}

Status KernelRuns::CheckOutputs(const Plan::Node& node, const EdgeValue* outputs) const {
  const absl::Span<const DType> types = plan->output_types(node);
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    const EdgeValue& out = outputs[i];
    if (!out.has_value()) {
      if ((node.flags & Plan::kMayLeaveOutputsDead) != 0) continue;
      return Internal("Missing ", i, "-th output from '", *node.name, "'");
    }
    if (out.dtype() != types[i]) {
      return Internal("output ", i, " must be of type ", DTypeName(types[i]), ", got ",
                      DTypeName(out.dtype()));
    }
  }
  return absl::OkStatus();
}

Status KernelRuns::CheckAnswer(const Plan::Node& node, const RunPlace& place, EdgeValue* inputs,
                               AsyncRun* run, Status status) const noexcept {
  try {
    if (stats != nullptr) run->times.op_end = absl::GetCurrentTimeNanos();
    if (status.ok()) status = CheckOutputs(node, run->outputs);
    Reset(inputs, node.num_inputs);
    if (status.ok() && stats != nullptr) {
      run->times.end = absl::GetCurrentTimeNanos();
      RecordNode(*plan, node, place, run->times, run->outputs, stats);
    }
  } catch (...) {
    status = StatusOfException();
  }
  if (!status.ok()) Reset(run->outputs, node.num_outputs);
  return status;
}

bool KernelRunner::Prepare(const Plan::Node& node, EdgeValue* inputs, bool dead, AsyncRun* run) {
  current_ = &node;
  run->dead = dead;
  if (runs_.stats != nullptr) {
    run->times.scheduled = place_.scheduled_ns[&node - place_.first_node];
    run->times.start = run->times.op_start = absl::GetCurrentTimeNanos();
  }
  if ((node.flags & Plan::kRefInputs) != 0) {
    error_ = runs_.ReadReferences(node, inputs);
    if (!error_.ok()) return false;
  }
  run->frame = {.step = runs_.context,
                .node_name = node.name,
                .inputs = inputs,
                .outputs = run->outputs,
                .output_types = output_types_ + node.first_output,
                .num_inputs = node.num_inputs,
                .num_outputs = node.num_outputs,
                .is_input_dead = dead,
                .frame_id = place_.frame_id,
                .iteration = place_.iteration};
  return true;
}

bool KernelRunner::Settle(const Plan::Node& node, const Status& status) {
  error_ = status.ok() ? runs_.CheckOutputs(node, frame_.outputs) : status;
  EmptyInputs(node, frame_.inputs);
  if (error_.ok()) return true;
  Reset(frame_.outputs, node.num_outputs);
  return false;
}

Status KernelRunner::Compute(const Plan::Node& node) {
  if (!runs_.parallel || (node.flags & Plan::kMayBeExpensive) == 0) {
    return node.kernel->Compute(&context_);
  }
  const auto index = static_cast<uint32_t>(&node - runs_.plan->nodes().data());
  if (!runs_.costs->IsExpensive(index) && !NodeCosts::IsSampled(++tick_)) {
    return node.kernel->Compute(&context_);
  }
  const uint64_t begin = __rdtsc();
  Status status = node.kernel->Compute(&context_);
  runs_.costs->AddSample(index, __rdtsc() - begin);
  return status;
}

bool KernelRunner::RunSpecial(const Plan::Node& node, EdgeValue* inputs, bool dead) {
  NodeTimes times;
  const bool traced = runs_.stats != nullptr;
  if (traced) {
    times.scheduled = place_.scheduled_ns[&node - place_.first_node];
    times.start = absl::GetCurrentTimeNanos();
  }
  if ((node.flags & Plan::kRefInputs) != 0) {
    error_ = runs_.ReadReferences(node, inputs);
    if (!error_.ok()) {
      EmptyInputs(node, inputs);
      return false;
    }
  }
  frame_.is_input_dead = dead;
  if (traced) times.op_start = absl::GetCurrentTimeNanos();
  const Status status = Compute(node);
  if (traced) times.op_end = absl::GetCurrentTimeNanos();
  frame_.is_input_dead = false;
  if (!status.ok() || !OutputsAreOfTheirTypes(node)) {
    if (!Settle(node, status)) return false;
  } else {
    EmptyInputs(node, inputs);
  }
  if (traced) {
    times.end = absl::GetCurrentTimeNanos();
    RecordNode(*runs_.plan, node, place_, times, frame_.outputs, runs_.stats);
  }
  return true;
}

const Plan::Node& KernelRunner::Caught() {
  error_ = StatusOfException();
  frame_.is_input_dead = false;
  Reset(frame_.outputs, runs_.plan->max_outputs());
  return *current_;
}

}  // namespace millrace
