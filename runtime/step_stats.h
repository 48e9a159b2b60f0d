// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_STEP_STATS_H_
#define MILLRACE_RUNTIME_STEP_STATS_H_

// StepStatsCollector: gathers what the nodes of one traced step did, per device, in TensorFlow's
// StepStats form. WriteChromeTrace: the same for chrome://tracing and Perfetto.
//
// A step that is not traced has no collector and pays one branch per node.
//
// Thread-safety: Add from any thread; TakeInto once, when the step is over.
// Failure: none; a trace of nonsense times is a trace of nonsense.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/mutex.h"
#include "core/tensor.h"
#include "proto/step_stats.pb.h"

namespace millrace {

class StepStatsCollector {
 public:
  void Add(const std::string& device, tensorflow::NodeExecStats stats);
  // Appends the devices, sorted by name, to `stats`; nodes in the order they started.
  void TakeInto(tensorflow::StepStats* stats);

 private:
  Mutex mu_;
  std::map<std::string, std::vector<tensorflow::NodeExecStats>> devices_ ABSL_GUARDED_BY(mu_);
};

// Nanoseconds since the epoch of the moments of a node.
struct NodeTimes {
  int64_t scheduled = 0;
  int64_t start = 0;     // the executor took it up
  int64_t op_start = 0;  // the kernel began ...
  int64_t op_end = 0;    // ... and ended
  int64_t end = 0;       // its outputs were passed on
};
void SetTimes(const NodeTimes& times, tensorflow::NodeExecStats* stats);
// One entry of `output`.
void AddOutput(int slot, const Tensor& tensor, tensorflow::NodeExecStats* stats);

// A small number that stands for the calling thread in traces.
uint32_t TraceThreadId();

// JSON of the Trace Event format: a process per device, rows without overlap, one slice per node
// with its op and inputs, and arrows from producers to consumers.
std::string WriteChromeTrace(const tensorflow::StepStats& stats);

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_STEP_STATS_H_
