// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_TRANSFER_TRACE_H_
#define MILLRACE_RUNTIME_TRANSFER_TRACE_H_

// Transfer trace: the lines of a step's trace that are not runs of nodes.
//
//   SendTensor   on the sending device: from when the tensor was ready to when it left
//   RecvTensor   on the receiving device: from when it was asked for to when it arrived
//   ClockOffset  on each device of another task than the master's: how its clock was compared
//
// The form is that of TensorFlow's own RecvTensor lines, so its tools read them: a NodeExecStats
// with this name and the label "[4B] edge_3_w from <device> to <device>". Both lines of a tensor
// have one label, and no other line of the step has it. The label of a node's run begins otherwise,
// so a node may have any of these names.
//
// Thread-safety: functions of their arguments. Failure: none; of a label that is not of this form
// the parts are empty.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "proto/step_stats.pb.h"

namespace millrace {

enum class TransferSide { kSender, kReceiver };

// "[4B] edge_3_w from /job:ps/... to /job:worker/...".
std::string TransferLabel(absl::string_view tensor, int64_t bytes, absl::string_view from,
                          absl::string_view to);
// Nanoseconds since the epoch; an end before the beginning is taken for the beginning.
tensorflow::NodeExecStats TransferStats(TransferSide side, std::string label, int64_t bytes,
                                        int64_t begin_ns, int64_t end_ns);
// Nothing for the run of a node.
std::optional<TransferSide> TransferSideOf(const tensorflow::NodeExecStats& stats);
int64_t TransferBytes(const tensorflow::NodeExecStats& transfer);

// What a label names; parts of `label`.
struct TransferParts {
  absl::string_view tensor, from, to;
};
TransferParts ParseTransferLabel(absl::string_view label);

// What the clock of a task shows more than the master's at the same moment. The true value is
// within `bound_ns` of it, as long as both clocks ran evenly in the step.
struct ClockOffset {
  int64_t ahead_ns = 0;
  int64_t bound_ns = 0;
};
// That `offset` was taken off all times of `task`; nothing: its clock was not compared, and the
// times are its own. `at_ns`: where the line stands.
tensorflow::NodeExecStats ClockStats(absl::string_view task,
                                     const std::optional<ClockOffset>& offset, int64_t at_ns);
bool IsClockStats(const tensorflow::NodeExecStats& stats);
// Nothing for other lines, and when the clock was not compared.
std::optional<ClockOffset> ClockOffsetOf(const tensorflow::NodeExecStats& stats);

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_TRANSFER_TRACE_H_
