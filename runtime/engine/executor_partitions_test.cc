// SPDX-License-Identifier: Apache-2.0
//
// Steps of two parts, which send each other values and have one error.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/status.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "proto/attr_value.pb.h"
#include "runtime/engine/executor.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"
#include "runtime/rendezvous.h"
#include "runtime/testing/executor_fixture.h"
#include "runtime/testing/kernel_gate.h"
#include "runtime/testing/run_once.h"
#include "runtime/testing/step_ops.h"

namespace millrace {
namespace {

using testing::AttrOf;
using testing::ExecutorTest;
using testing::Gate;
using testing::SetAsyncHook;
using testing::TestGraph;
using testing::TestStep;

class PartitionTest : public ExecutorTest {
 protected:
  static constexpr const char* kDevices[2] = {"/job:localhost/replica:0/task:0/device:CPU:0",
                                              "/job:localhost/replica:0/task:0/device:CPU:1"};
  static std::vector<std::pair<std::string, tensorflow::AttrValue>> Ends(const char* type,
                                                                         const std::string& edge,
                                                                         int from) {
    return {{type, AttrOf(DT_FLOAT)},
            {"tensor_name", AttrOf(edge)},
            {"send_device", AttrOf(std::string(kDevices[from]))},
            {"send_device_incarnation", AttrOf(int64_t{1})},
            {"recv_device", AttrOf(std::string(kDevices[1 - from]))}};
  }
};

TEST_F(PartitionTest, AValueThatGoesToAndFroEndsWhereItShould) {
  constexpr int kHops = 200;
  for (const int threads : {1, 2}) {
    SCOPED_TRACE(threads);
    TestGraph graphs[2];
    Node* value = graphs[0].Source("start", 0);
    for (int hop = 0; hop < kHops; ++hop) {
      const int here = hop % 2;
      const std::string edge = absl::StrCat("edge_", hop, "_x");
      graphs[here].Add("_Send", absl::StrCat("send", hop), {value}, Ends("T", edge, here));
      Node* recv = graphs[1 - here].Add("_Recv", absl::StrCat("recv", hop), {},
                                        Ends("tensor_type", edge, here));
      Node* one = graphs[1 - here].Source(absl::StrCat("one", hop), 1);
      value = graphs[1 - here].Probe(absl::StrCat("add", hop), {recv, one}, 1, "sum");
    }
    graphs[kHops % 2].Probe("end", {value}, 0, "sum");
    TestStep steps[2] = {TestStep(threads), TestStep(threads)};
    steps[1].context.rendezvous = steps[0].context.rendezvous;
    steps[1].context.cancellation = steps[0].context.cancellation;
    std::unique_ptr<Executor> executors[2] = {MakeExecutor(graphs[0], steps[0]),
                                              MakeExecutor(graphs[1], steps[1])};
    for (int i = 0; i < 3; ++i) {
      const std::array<PartitionRun, 2> runs = {
          PartitionRun{executors[0].get(), &steps[0].context},
          PartitionRun{executors[1].get(), &steps[1].context}};
      last_ = 0;
      ASSERT_TRUE(RunPartitions(runs).ok());
      EXPECT_EQ(last_, kHops);
    }
  }
}

TEST_F(PartitionTest, ThePlansOfAStepNumberTheirTransfersTogether) {
  TestGraph graphs[2];
  for (const int here : {0, 1}) {
    Node* made = graphs[here].Source("made", 1);
    graphs[here].Add("_Send", "send", {made}, Ends("T", absl::StrCat("edge", here), here));
    graphs[here].Add("_Recv", "recv", {},
                     Ends("tensor_type", absl::StrCat("edge", 1 - here), 1 - here));
  }
  TestStep step;
  const auto table = std::make_shared<TransferTable>();
  uint32_t sends[2], recvs[2];
  for (const int here : {0, 1}) {
    const auto plan = Plan::Build(*graphs[here].graph(), &step.device, nullptr, table);
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ((*plan)->transfer_table(), table);
    ASSERT_EQ((*plan)->transfers().size(), 2u);
    for (const Plan::TransferEnd& end : (*plan)->transfers()) {
      const Plan::Node& node = (*plan)->nodes()[end.node];
      EXPECT_EQ(*node.name, end.is_send ? "send" : "recv");
      EXPECT_EQ(end.key.edge_name, absl::StrCat("edge", end.is_send ? here : 1 - here));
      EXPECT_EQ((*plan)->TransferLabel(node),
                absl::StrCat(end.key.edge_name, " @", kDevices[1 - here]));
      EXPECT_EQ(table->NumberOfKey(end.key.text), end.number);
      (end.is_send ? sends : recvs)[here] = end.number;
    }
    for (const Plan::Node& node : (*plan)->nodes()) {
      if (*node.name == "made") {
        EXPECT_EQ((*plan)->TransferLabel(node), "");
      }
    }
  }
  EXPECT_EQ(table->size(), 2u);
  EXPECT_EQ(sends[0], recvs[1]);
  EXPECT_EQ(sends[1], recvs[0]);
  EXPECT_NE(sends[0], sends[1]);
}

TEST_F(PartitionTest, ASilentPartDoesNotHideTheErrorOfAnother) {
  Gate gate;
  SetAsyncHook("silent", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    gate.Wait(ctx, std::move(done));
  });
  for (const int failing : {0, 1}) {
    TestGraph graphs[2];
    graphs[failing].Probe("bad", {}, 0, "fail");
    graphs[1 - failing].NoOp("after", {graphs[1 - failing].ProbeAsync("silent", {}, 0, "silent")});
    struct Steps {
      TestStep steps[2];
    };
    auto owned = std::make_shared<Steps>();
    TestStep* const steps = owned->steps;
    steps[1].context.rendezvous = steps[0].context.rendezvous;
    steps[1].context.cancellation = steps[0].context.cancellation;
    std::unique_ptr<Executor> executors[2] = {MakeExecutor(graphs[0], steps[0]),
                                              MakeExecutor(graphs[1], steps[1])};
    const std::array<PartitionRun, 2> runs = {PartitionRun{executors[0].get(), &steps[0].context},
                                              PartitionRun{executors[1].get(), &steps[1].context}};
    const Status status =
        RunPartitions(runs, {.deadline = absl::Now() + absl::Milliseconds(20), .keep = owned});
    EXPECT_EQ(status.message(), "TestProbe 'bad': wanted\n\t [[{{node bad}}]]");
    gate.Open();
  }
}

TEST_F(PartitionTest, TheErrorOfThePartThatFailedIsReported) {
  for (const int failing : {0, 1}) {
    TestGraph graphs[2];
    // Both wait for each other's value; one fails instead of sending.
    for (int here : {0, 1}) {
      Node* made = graphs[here].Probe("make", {}, 1, here == failing ? "fail" : "sum");
      graphs[here].Add("_Send", "send", {made}, Ends("T", absl::StrCat("edge", here), here));
      Node* recv = graphs[here].Add("_Recv", "recv", {},
                                    Ends("tensor_type", absl::StrCat("edge", 1 - here), 1 - here));
      graphs[here].Probe("reader", {recv}, 0, "sum");
    }
    TestStep steps[2];
    steps[1].context.rendezvous = steps[0].context.rendezvous;
    steps[1].context.cancellation = steps[0].context.cancellation;
    std::unique_ptr<Executor> executors[2] = {MakeExecutor(graphs[0], steps[0]),
                                              MakeExecutor(graphs[1], steps[1])};
    const std::array<PartitionRun, 2> runs = {PartitionRun{executors[0].get(), &steps[0].context},
                                              PartitionRun{executors[1].get(), &steps[1].context}};
    const Status status = RunPartitions(runs);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(status.message(), "TestProbe 'make': wanted\n\t [[{{node make}}]]");
  }
}

}  // namespace
}  // namespace millrace
