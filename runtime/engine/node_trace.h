// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_ENGINE_NODE_TRACE_H_
#define MILLRACE_RUNTIME_ENGINE_NODE_TRACE_H_

// RecordNode: one run of a node, as a line of the step's trace: when, on which thread, what it read
// ("y = Sum(w, x:1)"; in a loop "y = Sum(w, x:1) in iteration 3 of while") and what it made.
//
// Only for steps that are traced. Thread-safety: any thread; the collector locks.

#include "runtime/kernel.h"
#include "runtime/plan.h"
#include "runtime/step_stats.h"

namespace millrace {

struct RunPlace;  // kernel_runner.h

// `outputs`: the node's num_outputs values, before they are handed on.
void RecordNode(const Plan& plan, const Plan::Node& node, const RunPlace& place,
                const NodeTimes& times, const EdgeValue* outputs, StepStatsCollector* stats);

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_ENGINE_NODE_TRACE_H_
