// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/node_trace.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/engine/kernel_runner.h"

namespace millrace {

void RecordNode(const Plan& plan, const Plan::Node& node, const RunPlace& place,
                const NodeTimes& times, const EdgeValue* outputs, StepStatsCollector* stats) {
  if (stats->is_full()) return;
  tensorflow::NodeExecStats run;
  run.set_node_name(*node.name);
  run.set_thread_id(TraceThreadId());
  SetTimes(times, &run);
  std::string inputs;
  if ((node.flags & (Plan::kSend | Plan::kRecv)) != 0) {
    inputs = plan.TransferLabel(node);
  } else {
    for (uint32_t i = 0; i < node.num_inputs; ++i) {
      absl::StrAppend(&inputs, i == 0 ? "" : ", ", plan.InputName(node, i));
    }
  }
  std::string label = absl::StrCat(*node.name, " = ", plan.op(node), "(", inputs, ")");
  if (place.loop != nullptr) {
    absl::StrAppend(&label, " in iteration ", place.iteration, " of ", *place.loop);
  }
  run.set_timeline_label(std::move(label));
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    if (outputs[i].has_value() && !outputs[i].is_reference()) {
      AddOutput(static_cast<int>(i), outputs[i], &run);
    }
  }
  stats->Add(plan.device_name(), std::move(run));
}

}  // namespace millrace
