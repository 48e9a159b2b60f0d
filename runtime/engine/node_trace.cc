// SPDX-License-Identifier: Apache-2.0
#include "runtime/engine/node_trace.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace millrace {

void RecordNode(const Plan& plan, const Plan::Node& node, const NodeTimes& times,
                const EdgeValue* outputs, StepStatsCollector* stats) {
  tensorflow::NodeExecStats run;
  run.set_node_name(*node.name);
  run.set_thread_id(TraceThreadId());
  SetTimes(times, &run);
  if ((node.flags & (Plan::kSend | Plan::kRecv)) != 0) {
    run.set_timeline_label(
        absl::StrCat(*node.name, " = ", plan.op(node), "(", plan.TransferLabel(node), ")"));
  } else {
    std::vector<std::string> inputs;
    for (uint32_t i = 0; i < node.num_inputs; ++i) inputs.push_back(plan.InputName(node, i));
    run.set_timeline_label(
        absl::StrCat(*node.name, " = ", plan.op(node), "(", absl::StrJoin(inputs, ", "), ")"));
  }
  for (uint32_t i = 0; i < node.num_outputs; ++i) {
    if (outputs[i].has_value() && !outputs[i].is_reference()) {
      AddOutput(static_cast<int>(i), outputs[i], &run);
    }
  }
  stats->Add(plan.device_name(), std::move(run));
}

}  // namespace millrace
