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

#include <atomic>
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
  // Runs of nodes that a trace has at most, the first ones: a loop has no bound of its own.
  static constexpr int64_t kMaxNodes = int64_t{1} << 20;

  // Beyond kMaxNodes nothing is kept.
  void Add(const std::string& device, tensorflow::NodeExecStats stats);
  bool is_full() const { return num_nodes_.load(std::memory_order_relaxed) >= kMaxNodes; }
  // Appends the devices, sorted by name, to `stats`; nodes in the order they started.
  void TakeInto(tensorflow::StepStats* stats);

 private:
  std::atomic<int64_t> num_nodes_{0};  // relaxed: a bound, not a protocol
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

// JSON of the Trace Event format: a process per device, rows without overlap, one slice per run of
// a node with its op, inputs and, in a loop, iteration, and arrows from producers to consumers (in
// a loop from the latest run of the producer that had ended). Tensors that crossed tasks
// (transfer_trace.h) have a process of their own per device, and an arrow from the sender's slice
// to the receiver's; how a task's clock was compared stands next to the name of its processes.
std::string WriteChromeTrace(const tensorflow::StepStats& stats);

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_STEP_STATS_H_
