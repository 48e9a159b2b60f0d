// SPDX-License-Identifier: Apache-2.0
#include "runtime/step_stats.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(ChromeTraceTest, InALoopArrowsBeginAtTheRunThatHadEnded) {
  tensorflow::StepStats stats;
  tensorflow::DeviceStepStats* device = stats.add_dev_stats();
  device->set_device("/cpu:0");
  for (int i = 0; i < 3; ++i) {
    const std::string where = absl::StrCat(" in iteration ", i, " of a (loop)");
    for (const bool reads : {false, true}) {
      tensorflow::NodeExecStats* node = device->add_node_stats();
      node->set_node_name(reads ? "y" : "x");
      node->set_timeline_label(absl::StrCat(reads ? "y = Neg(x)" : "x = Merge()", where));
      node->set_all_start_micros(100 * i + (reads ? 50 : 10));
      node->set_all_end_rel_micros(20);
    }
  }
  const std::string trace = WriteChromeTrace(stats);
  for (int i = 0; i < 3; ++i) {
    const std::string iteration = absl::StrCat(i, " of a (loop)");
    EXPECT_TRUE(absl::StrContains(trace, iteration)) << trace;
    // From the end of x to the beginning of y in the same iteration.
    for (const int at : {30, 50}) {
      const std::string arrow = absl::StrCat("\"id\": ", i, ",\n   \"pid\": 0,\n   \"tid\": 0,\n",
                                             "   \"ts\": ", 100 * i + at);
      EXPECT_TRUE(absl::StrContains(trace, arrow)) << arrow << " in " << trace;
    }
  }
}

TEST(StepStatsCollectorTest, KeepsABoundedNumberOfRuns) {
  StepStatsCollector collector;
  for (int64_t i = 0; i < StepStatsCollector::kMaxNodes; ++i) collector.Add("/cpu:0", {});
  EXPECT_TRUE(collector.is_full());
  collector.Add("/cpu:0", {});
  tensorflow::StepStats stats;
  collector.TakeInto(&stats);
  EXPECT_EQ(stats.dev_stats(0).node_stats_size(), StepStatsCollector::kMaxNodes);
}

TEST(ChromeTraceTest, SlicesDoNotOverlapAndArrowsConnectThem) {
  tensorflow::StepStats stats;
  tensorflow::DeviceStepStats* device = stats.add_dev_stats();
  device->set_device("/cpu:0");
  const auto add = [device](const char* name, const char* label, int64_t start, int64_t length) {
    tensorflow::NodeExecStats* node = device->add_node_stats();
    node->set_node_name(name);
    node->set_timeline_label(label);
    node->set_all_start_micros(start);
    node->set_all_end_rel_micros(length);
  };
  add("a", "a = Const()", 100, 10);
  add("b", "b = Tanh(a)", 105, 10);
  add("c", "c = Add(a, b:1)", 120, 5);
  EXPECT_EQ(WriteChromeTrace(stats), R"({
 "traceEvents": [
  {
   "name": "process_name",
   "ph": "M",
   "pid": 0,
   "args": {
    "name": "/cpu:0 Compute"
   }
  },
  {
   "name": "Const",
   "cat": "Op",
   "ph": "X",
   "pid": 0,
   "tid": 0,
   "ts": 100,
   "dur": 10,
   "args": {
    "name": "a",
    "op": "Const"
   }
  },
  {
   "name": "Tanh",
   "cat": "Op",
   "ph": "X",
   "pid": 0,
   "tid": 1,
   "ts": 105,
   "dur": 10,
   "args": {
    "name": "b",
    "op": "Tanh",
    "input0": "a"
   }
  },
  {
   "name": "Add",
   "cat": "Op",
   "ph": "X",
   "pid": 0,
   "tid": 0,
   "ts": 120,
   "dur": 5,
   "args": {
    "name": "c",
    "op": "Add",
    "input0": "a",
    "input1": "b:1"
   }
  },
  {
   "name": "a",
   "cat": "DataFlow",
   "ph": "s",
   "id": 0,
   "pid": 0,
   "tid": 0,
   "ts": 110
  },
  {
   "name": "a",
   "cat": "DataFlow",
   "ph": "t",
   "id": 0,
   "pid": 0,
   "tid": 1,
   "ts": 105
  },
  {
   "name": "a",
   "cat": "DataFlow",
   "ph": "s",
   "id": 1,
   "pid": 0,
   "tid": 0,
   "ts": 110
  },
  {
   "name": "a",
   "cat": "DataFlow",
   "ph": "t",
   "id": 1,
   "pid": 0,
   "tid": 0,
   "ts": 120
  },
  {
   "name": "b",
   "cat": "DataFlow",
   "ph": "s",
   "id": 2,
   "pid": 0,
   "tid": 1,
   "ts": 115
  },
  {
   "name": "b",
   "cat": "DataFlow",
   "ph": "t",
   "id": 2,
   "pid": 0,
   "tid": 0,
   "ts": 120
  }
 ]
})");
}

}  // namespace
}  // namespace millrace
