// SPDX-License-Identifier: Apache-2.0
#include "distributed/master/trace_clocks.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/transfer_trace.h"

// covers: clusters: a trace of all tasks is in the master's time though a clock is ahead
// covers: clusters: clocks of tasks are estimated from RUNs and tensors, within their bounds

namespace millrace {
namespace {

constexpr char kWorker[] = "/job:worker/replica:0/task:0";
constexpr char kPs0[] = "/job:ps/replica:0/task:0";
constexpr char kPs1[] = "/job:ps/replica:0/task:1";
constexpr int64_t kNow = 1'000'000'000;

// A RUN and its END that say: the task is ahead by `low` ns at least and `high` at most.
ClockExchange Exchange(int64_t low, int64_t high) {
  const int64_t asked = 10'000'000;
  const int64_t begun = asked + high;
  const int64_t ended = begun + 1'000'000;
  return {.asked_ns = asked, .begun_ns = begun, .ended_ns = ended, .answered_ns = ended - low};
}

std::string DeviceOf(const char* task) { return std::string(task) + "/device:CPU:0"; }

tensorflow::DeviceStepStats* Device(const char* task, tensorflow::StepStats* stats) {
  for (auto& device : *stats->mutable_dev_stats()) {
    if (device.device() == DeviceOf(task)) return &device;
  }
  tensorflow::DeviceStepStats* const device = stats->add_dev_stats();
  device->set_device(DeviceOf(task));
  return device;
}

// A tensor, by the clocks of its tasks.
void AddTransfer(const char* from, int64_t left_ns, const char* to, int64_t arrived_ns,
                 tensorflow::StepStats* stats) {
  const std::string label = TransferLabel("edge_0_w", 4, DeviceOf(from), DeviceOf(to));
  *Device(from, stats)->add_node_stats() =
      TransferStats(TransferSide::kSender, label, 4, left_ns - 1000, left_ns);
  *Device(to, stats)->add_node_stats() =
      TransferStats(TransferSide::kReceiver, label, 4, arrived_ns - 5000, arrived_ns);
}

std::optional<ClockOffset> OffsetOf(const char* task, tensorflow::StepStats* stats) {
  const tensorflow::DeviceStepStats& device = *Device(task, stats);
  const auto& last = device.node_stats(device.node_stats_size() - 1);
  EXPECT_TRUE(IsClockStats(last)) << last.DebugString();
  return ClockOffsetOf(last);
}

void ExpectOffset(const char* task, int64_t ahead_ns, int64_t bound_ns,
                  tensorflow::StepStats* stats) {
  const auto offset = OffsetOf(task, stats);
  ASSERT_TRUE(offset.has_value());
  EXPECT_EQ(offset->ahead_ns, ahead_ns);
  EXPECT_EQ(offset->bound_ns, bound_ns);
}

int64_t EndOf(const tensorflow::NodeExecStats& line) {
  return line.all_start_nanos() + line.all_end_rel_nanos();
}

// The ps is 1 ms ahead. The request takes 0.3 ms, the answer 0.1 ms.
TEST(TraceClocksTest, ARunBoundsTheClockOfItsTask) {
  tensorflow::StepStats stats;
  tensorflow::NodeExecStats* const node = Device(kPs0, &stats)->add_node_stats();
  node->set_all_start_nanos(11'400'000);
  node->set_all_start_micros(11'400);
  node->set_scheduled_nanos(11'390'000);
  node->set_scheduled_micros(11'390);
  node->set_all_end_rel_nanos(77);
  Device(kWorker, &stats)->add_node_stats()->set_all_start_nanos(10'500'000);
  TraceClocks clocks;
  clocks.Align(std::vector<TracedPart>{{kPs0, false,
                                        ClockExchange{.asked_ns = 10'000'000,
                                                      .begun_ns = 11'300'000,
                                                      .ended_ns = 21'000'000,
                                                      .answered_ns = 20'100'000}},
                                       {kWorker, true, std::nullopt}},
               kNow, &stats);
  // (11.3 - 10.0 + 21.0 - 20.1) / 2 ms.
  ExpectOffset(kPs0, 1'100'000, 200'000, &stats);
  const tensorflow::NodeExecStats& moved = stats.dev_stats(0).node_stats(0);
  EXPECT_EQ(moved.all_start_nanos(), 10'300'000);
  EXPECT_EQ(moved.all_start_micros(), 10'300);
  EXPECT_EQ(moved.scheduled_nanos(), 10'290'000);
  EXPECT_EQ(moved.scheduled_micros(), 10'290);
  EXPECT_EQ(moved.all_end_rel_nanos(), 77);
  ASSERT_EQ(stats.dev_stats(1).node_stats_size(), 1) << "the master's own clock needs no line";
  EXPECT_EQ(stats.dev_stats(1).node_stats(0).all_start_nanos(), 10'500'000);
}

// Tensors take 0.05 and 0.06 ms.
TEST(TraceClocksTest, TensorsBoundItMoreClosely) {
  tensorflow::StepStats stats;
  AddTransfer(kPs0, 13'000'000, kWorker, 12'050'000, &stats);
  AddTransfer(kWorker, 15'000'000, kPs0, 16'060'000, &stats);
  TraceClocks clocks;
  clocks.Align(std::vector<TracedPart>{{kPs0, false, Exchange(900'000, 1'300'000)},
                                       {kWorker, true, std::nullopt}},
               kNow, &stats);
  // Between 950,000 and 1,060,000.
  ExpectOffset(kPs0, 1'005'000, 55'000, &stats);
  const auto& ps = *Device(kPs0, &stats);
  const auto& worker = *Device(kWorker, &stats);
  EXPECT_EQ(EndOf(ps.node_stats(0)), 11'995'000);
  EXPECT_LE(EndOf(ps.node_stats(0)), EndOf(worker.node_stats(0)));
  EXPECT_LE(EndOf(worker.node_stats(1)), EndOf(ps.node_stats(1)));
}

// One task is 1 ms ahead, the other 0.1 ms. A tensor takes 0.02 ms from the one to the other.
TEST(TraceClocksTest, ATensorBetweenTwoOtherTasksBoundsBoth) {
  tensorflow::StepStats stats;
  AddTransfer(kPs0, 16'000'000, kPs1, 15'120'000, &stats);
  TraceClocks clocks;
  clocks.Align(std::vector<TracedPart>{{kPs0, false, Exchange(900'000, 1'300'000)},
                                       {kPs1, false, Exchange(50'000, 400'000)},
                                       {kWorker, true, std::nullopt}},
               kNow, &stats);
  // From 50,000 + 880,000 to 1,300,000.
  ExpectOffset(kPs0, 1'115'000, 185'000, &stats);
  ExpectOffset(kPs1, 225'000, 175'000, &stats);
  EXPECT_LE(EndOf(Device(kPs0, &stats)->node_stats(0)), EndOf(Device(kPs1, &stats)->node_stats(0)));
}

TEST(TraceClocksTest, TheClosestEstimateOfASessionIsKeptAndWidensWithItsAge) {
  TraceClocks clocks;
  tensorflow::StepStats first, second;
  Device(kPs0, &first);
  Device(kPs0, &second);
  clocks.Align(std::vector<TracedPart>{{kPs0, false, Exchange(900'000, 1'300'000)}}, kNow, &first);
  ExpectOffset(kPs0, 1'100'000, 200'000, &first);
  // 10 ms later: 5,000 ns, and 500 for the millisecond that has begun.
  clocks.Align(std::vector<TracedPart>{{kPs0, false, Exchange(0, 5'000'000)}}, kNow + 10'000'000,
               &second);
  ExpectOffset(kPs0, 1'100'000, 205'500, &second);
}

TEST(TraceClocksTest, AClockThatWasSetIsEstimatedAnew) {
  TraceClocks clocks;
  tensorflow::StepStats first, second;
  Device(kPs0, &first);
  Device(kPs0, &second);
  clocks.Align(std::vector<TracedPart>{{kPs0, false, Exchange(900'000, 1'300'000)}}, kNow, &first);
  clocks.Align(std::vector<TracedPart>{{kPs0, false, Exchange(5'000'000, 5'200'000)}},
               kNow + 10'000'000, &second);
  ExpectOffset(kPs0, 5'100'000, 100'000, &second);
}

TEST(TraceClocksTest, AgainstTensorsThatContradictThemRunsCount) {
  tensorflow::StepStats stats;
  AddTransfer(kPs0, 20'000'000, kWorker, 10'000'000, &stats);
  TraceClocks clocks;
  clocks.Align(std::vector<TracedPart>{{kPs0, false, Exchange(900'000, 1'300'000)},
                                       {kWorker, true, std::nullopt}},
               kNow, &stats);
  ExpectOffset(kPs0, 1'100'000, 200'000, &stats);
}

TEST(TraceClocksTest, ATaskThatTellsNoTimesKeepsItsOwn) {
  tensorflow::StepStats stats;
  Device(kPs0, &stats)->add_node_stats()->set_all_start_nanos(11'400'000);
  TraceClocks clocks;
  clocks.Align(std::vector<TracedPart>{{kPs0, false, std::nullopt}}, kNow, &stats);
  EXPECT_FALSE(OffsetOf(kPs0, &stats).has_value());
  EXPECT_EQ(stats.dev_stats(0).node_stats(0).all_start_nanos(), 11'400'000);
}

TEST(TraceClocksTest, TimesInMicrosecondsAloneMoveToo) {
  tensorflow::StepStats stats;
  Device(kPs0, &stats)->add_node_stats()->set_all_start_micros(11'400);
  TraceClocks clocks;
  clocks.Align(std::vector<TracedPart>{{kPs0, false, Exchange(900'000, 1'300'000)}}, kNow, &stats);
  EXPECT_EQ(stats.dev_stats(0).node_stats(0).all_start_micros(), 10'300);
  EXPECT_EQ(stats.dev_stats(0).node_stats(0).all_start_nanos(), 0);
}

TEST(TraceClocksTest, TimesThatAreNoneDoNoHarm) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  for (const int64_t start : {kMin, int64_t{-1}, kMax / 2, kMax}) {
    for (const int64_t length : {kMin, int64_t{-1}, kMax}) {
      tensorflow::StepStats stats;
      AddTransfer(kPs0, 13'000'000, kWorker, 12'050'000, &stats);
      auto* const line = Device(kPs0, &stats)->mutable_node_stats(0);
      line->set_all_start_nanos(start);
      line->set_all_start_micros(start);
      line->set_scheduled_nanos(start);
      line->set_all_end_rel_nanos(length);
      stats.add_dev_stats()->set_device("of no task");
      TraceClocks clocks;
      clocks.Align(std::vector<TracedPart>{{kPs0, false, Exchange(900'000, 1'300'000)},
                                           {kWorker, true, std::nullopt}},
                   kNow, &stats);
      ExpectOffset(kPs0, 1'100'000, 200'000, &stats);
    }
  }
}

}  // namespace
}  // namespace millrace
