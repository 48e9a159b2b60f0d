// SPDX-License-Identifier: Apache-2.0
#include "runtime/transfer_trace.h"

#include <cstdint>
#include <optional>
#include <string>

#include "gtest/gtest.h"
#include "runtime/step_stats.h"

namespace millrace {
namespace {

constexpr char kPs[] = "/job:ps/replica:0/task:0/device:CPU:0";
constexpr char kWorker[] = "/job:worker/replica:0/task:0/device:CPU:0";

TEST(TransferTraceTest, ALabelNamesTheTensorAndBothDevices) {
  const std::string label = TransferLabel("edge_3_from a to b", 12, kPs, kWorker);
  EXPECT_EQ(label, std::string("[12B] edge_3_from a to b from ") + kPs + " to " + kWorker);
  const TransferParts parts = ParseTransferLabel(label);
  EXPECT_EQ(parts.tensor, "edge_3_from a to b");
  EXPECT_EQ(parts.from, kPs);
  EXPECT_EQ(parts.to, kWorker);
}

TEST(TransferTraceTest, OfOtherLabelsThePartsAreEmpty) {
  for (const char* label : {"", "[", "] ", "x", "[4B] x", "[4B] x to y", " from  to ",
                            "[4B] from a", " from a to b] ", "y = Add(a, b)"}) {
    const TransferParts parts = ParseTransferLabel(label);
    EXPECT_EQ(parts.tensor, "") << label;
    EXPECT_EQ(parts.from, "") << label;
    EXPECT_EQ(parts.to, "") << label;
  }
}

TEST(TransferTraceTest, NodesOfTheSameNamesAreNoTransfers) {
  tensorflow::NodeExecStats node;
  for (const char* name : {"SendTensor", "RecvTensor", "ClockOffset"}) {
    node.set_node_name(name);
    node.set_timeline_label(std::string(name) + " = Add(a, b)");
    EXPECT_FALSE(TransferSideOf(node).has_value());
    EXPECT_FALSE(IsClockStats(node));
  }
}

TEST(TransferTraceTest, MicrosecondsOfTheEndAreTheEndRoundedDown) {
  const auto line = TransferStats(TransferSide::kSender, "[4B] x from a to b", 4, 10'900, 12'100);
  EXPECT_EQ(TransferSideOf(line), TransferSide::kSender);
  EXPECT_EQ(TransferBytes(line), 4);
  EXPECT_EQ(line.all_start_micros(), 10);
  EXPECT_EQ(line.all_end_rel_micros(), 2);
  EXPECT_EQ(line.all_end_rel_nanos(), 1'200);
  const auto back = TransferStats(TransferSide::kReceiver, "[4B] x from a to b", 4, 10'900, 10'000);
  EXPECT_EQ(back.all_end_rel_nanos(), 0);
}

TEST(TransferTraceTest, AClockOffsetIsReadAsItWasWritten) {
  for (const int64_t ahead : {int64_t{1'234'567}, int64_t{0}, int64_t{-5}}) {
    const auto line = ClockStats("/job:ps/replica:0/task:0", ClockOffset{ahead, 89}, 7'000);
    EXPECT_EQ(line.all_start_nanos(), 7'000);
    const auto offset = ClockOffsetOf(line);
    ASSERT_TRUE(offset.has_value()) << line.timeline_label();
    EXPECT_EQ(offset->ahead_ns, ahead);
    EXPECT_EQ(offset->bound_ns, 89);
  }
  const auto none = ClockStats("/job:ps/replica:0/task:0", std::nullopt, 7'000);
  EXPECT_TRUE(IsClockStats(none));
  EXPECT_FALSE(ClockOffsetOf(none).has_value());
}

// The sender's slice [100, 150), the receiver's [90, 170).
TEST(TransferTraceTest, AnArrowJoinsTheSlicesOfATensor) {
  tensorflow::StepStats stats;
  auto* const ps = stats.add_dev_stats();
  ps->set_device(kPs);
  auto* const worker = stats.add_dev_stats();
  worker->set_device(kWorker);
  const std::string label = TransferLabel("edge_3_w", 12, kPs, kWorker);
  *ps->add_node_stats() = TransferStats(TransferSide::kSender, label, 12, 100'000, 150'000);
  *ps->add_node_stats() =
      ClockStats("/job:ps/replica:0/task:0", ClockOffset{.ahead_ns = 5, .bound_ns = 2}, 100'000);
  *worker->add_node_stats() = TransferStats(TransferSide::kReceiver, label, 12, 90'000, 170'000);
  // Without its sender: no arrow.
  *worker->add_node_stats() = TransferStats(
      TransferSide::kReceiver, TransferLabel("edge_4_v", 8, kPs, kWorker), 8, 95'000, 95'000);
  EXPECT_EQ(WriteChromeTrace(stats), R"({
 "traceEvents": [
  {
   "name": "process_name",
   "ph": "M",
   "pid": 0,
   "args": {
    "name": "/job:ps/replica:0/task:0/device:CPU:0 Compute"
   }
  },
  {
   "name": "process_labels",
   "ph": "M",
   "pid": 0,
   "args": {
    "labels": "[clock] of /job:ps/replica:0/task:0 minus the master's: 5 ns, within 2 ns; taken off the times here"
   }
  },
  {
   "name": "process_name",
   "ph": "M",
   "pid": 1,
   "args": {
    "name": "/job:ps/replica:0/task:0/device:CPU:0 Transfers"
   }
  },
  {
   "name": "SendTensor",
   "cat": "Transfer",
   "ph": "X",
   "pid": 1,
   "tid": 0,
   "ts": 100,
   "dur": 50,
   "args": {
    "name": "edge_3_w",
    "op": "SendTensor",
    "bytes": 12,
    "peer": "/job:worker/replica:0/task:0/device:CPU:0"
   }
  },
  {
   "name": "process_name",
   "ph": "M",
   "pid": 2,
   "args": {
    "name": "/job:worker/replica:0/task:0/device:CPU:0 Compute"
   }
  },
  {
   "name": "process_name",
   "ph": "M",
   "pid": 3,
   "args": {
    "name": "/job:worker/replica:0/task:0/device:CPU:0 Transfers"
   }
  },
  {
   "name": "RecvTensor",
   "cat": "Transfer",
   "ph": "X",
   "pid": 3,
   "tid": 0,
   "ts": 90,
   "dur": 80,
   "args": {
    "name": "edge_3_w",
    "op": "RecvTensor",
    "bytes": 12,
    "peer": "/job:ps/replica:0/task:0/device:CPU:0"
   }
  },
  {
   "name": "RecvTensor",
   "cat": "Transfer",
   "ph": "X",
   "pid": 3,
   "tid": 1,
   "ts": 95,
   "dur": 1,
   "args": {
    "name": "edge_4_v",
    "op": "RecvTensor",
    "bytes": 8,
    "peer": "/job:ps/replica:0/task:0/device:CPU:0"
   }
  },
  {
   "name": "edge_3_w",
   "cat": "Transfer",
   "ph": "s",
   "id": 0,
   "pid": 1,
   "tid": 0,
   "ts": 149
  },
  {
   "name": "edge_3_w",
   "cat": "Transfer",
   "ph": "f",
   "id": 0,
   "pid": 3,
   "tid": 0,
   "ts": 169,
   "bp": "e"
  }
 ]
})");
}

}  // namespace
}  // namespace millrace
