// SPDX-License-Identifier: Apache-2.0
#include "runtime/transfer_trace.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "runtime/step_stats.h"

namespace millrace {
namespace {

constexpr char kSendTensor[] = "SendTensor";
constexpr char kRecvTensor[] = "RecvTensor";
constexpr char kClockOffset[] = "ClockOffset";
// Labels of nodes' runs begin with the name of the node, which has no "[".
constexpr char kClockLabel[] = "[clock] of ";
constexpr char kAhead[] = " minus the master's: ";
constexpr char kWithin[] = " ns, within ";
constexpr char kTakenOff[] = " ns; taken off the times here";
constexpr char kNotCompared[] = ": not compared with the master's, times are its own";

// Times of other tasks may be anything.
constexpr int64_t kMaxNanos = INT64_MAX / 2;

void SetSpan(int64_t begin_ns, int64_t end_ns, tensorflow::NodeExecStats* stats) {
  begin_ns = std::clamp(begin_ns, int64_t{0}, kMaxNanos);
  end_ns = std::clamp(end_ns, begin_ns, kMaxNanos);
  SetTimes({.scheduled = begin_ns,
            .start = begin_ns,
            .op_start = begin_ns,
            .op_end = end_ns,
            .end = end_ns},
           stats);
  // The sum is the end rounded down: arrows between two tasks compare such sums.
  const int64_t rel_micros = end_ns / 1000 - begin_ns / 1000;
  stats->set_op_end_rel_micros(rel_micros);
  stats->set_all_end_rel_micros(rel_micros);
}

}  // namespace

std::string TransferLabel(absl::string_view tensor, int64_t bytes, absl::string_view from,
                          absl::string_view to) {
  return absl::StrCat("[", bytes, "B] ", tensor, " from ", from, " to ", to);
}

tensorflow::NodeExecStats TransferStats(TransferSide side, std::string label, int64_t bytes,
                                        int64_t begin_ns, int64_t end_ns) {
  tensorflow::NodeExecStats stats;
  stats.set_node_name(side == TransferSide::kSender ? kSendTensor : kRecvTensor);
  stats.set_timeline_label(std::move(label));
  SetSpan(begin_ns, end_ns, &stats);
  stats.add_output()
      ->mutable_tensor_description()
      ->mutable_allocation_description()
      ->set_requested_bytes(bytes);
  return stats;
}

std::optional<TransferSide> TransferSideOf(const tensorflow::NodeExecStats& stats) {
  if (!absl::StartsWith(stats.timeline_label(), "[")) return std::nullopt;
  if (stats.node_name() == kSendTensor) return TransferSide::kSender;
  if (stats.node_name() == kRecvTensor) return TransferSide::kReceiver;
  return std::nullopt;
}

int64_t TransferBytes(const tensorflow::NodeExecStats& transfer) {
  if (transfer.output_size() == 0) return 0;
  return transfer.output(0).tensor_description().allocation_description().requested_bytes();
}

TransferParts ParseTransferLabel(absl::string_view label) {
  // From behind: names of devices have no spaces.
  const size_t size = label.find("] ");
  const size_t to = label.rfind(" to ");
  if (size == absl::string_view::npos || to == absl::string_view::npos) return {};
  const size_t from = label.substr(0, to).rfind(" from ");
  if (from == absl::string_view::npos || from < size + 2) return {};
  return {.tensor = label.substr(size + 2, from - size - 2),
          .from = label.substr(from + 6, to - from - 6),
          .to = label.substr(to + 4)};
}

tensorflow::NodeExecStats ClockStats(absl::string_view task,
                                     const std::optional<ClockOffset>& offset, int64_t at_ns) {
  tensorflow::NodeExecStats stats;
  stats.set_node_name(kClockOffset);
  stats.set_timeline_label(offset ? absl::StrCat(kClockLabel, task, kAhead, offset->ahead_ns,
                                                 kWithin, offset->bound_ns, kTakenOff)
                                  : absl::StrCat(kClockLabel, task, kNotCompared));
  SetSpan(at_ns, at_ns, &stats);
  return stats;
}

bool IsClockStats(const tensorflow::NodeExecStats& stats) {
  return stats.node_name() == kClockOffset && absl::StartsWith(stats.timeline_label(), kClockLabel);
}

std::optional<ClockOffset> ClockOffsetOf(const tensorflow::NodeExecStats& stats) {
  if (!IsClockStats(stats)) return std::nullopt;
  absl::string_view text = stats.timeline_label();
  const size_t ahead = text.find(kAhead);
  if (ahead == absl::string_view::npos || !absl::ConsumeSuffix(&text, kTakenOff)) {
    return std::nullopt;
  }
  text.remove_prefix(ahead + sizeof(kAhead) - 1);
  const size_t within = text.find(kWithin);
  ClockOffset offset;
  if (within == absl::string_view::npos ||
      !absl::SimpleAtoi(text.substr(0, within), &offset.ahead_ns) ||
      !absl::SimpleAtoi(text.substr(within + sizeof(kWithin) - 1), &offset.bound_ns)) {
    return std::nullopt;
  }
  return offset;
}

}  // namespace millrace
