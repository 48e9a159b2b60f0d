// SPDX-License-Identifier: Apache-2.0
//
// What a step computes: order and values, dead tensors, references, memory, traces. How steps fail,
// wait, end early and share work: executor_*_test.cc.
#include "runtime/engine/executor.h"

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/buffer.h"
#include "core/cancellation.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "proto/step_stats.pb.h"
#include "runtime/testing/executor_fixture.h"
#include "runtime/testing/run_once.h"
#include "runtime/testing/step_ops.h"
#include "runtime/variable_storage.h"

namespace millrace {
namespace {

using testing::AttrOf;
using testing::ExecutorTest;
using testing::SetHook;
using testing::TestGraph;
using testing::TestStep;

// --- Order and values ----------------------------------------------------------------------------

TEST_F(ExecutorTest, EveryNodeRunsOnceAfterItsInputs) {
  for (const int threads : {1, 2, 4}) {
    SCOPED_TRACE(threads);
    journal_.Clear();
    TestGraph graph;
    std::vector<Node*> nodes;
    std::map<std::string, std::vector<std::string>> inputs_of;
    uint64_t seed = 88172645463325252u;
    const auto next = [&seed] {
      seed ^= seed << 13;
      seed ^= seed >> 7;
      return seed ^= seed << 17;
    };
    for (int i = 0; i < 300; ++i) {
      std::vector<TestGraph::In> inputs;
      std::vector<Node*> controls;
      const std::string name = absl::StrCat("n", i);
      for (uint64_t k = 0; i > 0 && k <= next() % 3; ++k) {
        Node* from = nodes[next() % nodes.size()];
        if (k == 0) {
          controls.push_back(from);
        } else {
          inputs.push_back(from);
        }
        inputs_of[name].push_back(from->name());
      }
      nodes.push_back(graph.Probe(name, inputs, 1, "sum", controls));
    }
    TestStep step(threads);
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    for (int run = 0; run < 20; ++run) {
      journal_.Clear();
      ASSERT_TRUE(executor->Run(step.context).ok());
      const std::vector<std::string> order = journal_.order();
      ASSERT_EQ(order.size(), 300u);
      std::set<std::string> seen;
      for (const std::string& name : order) {
        for (const std::string& input : inputs_of[name]) EXPECT_TRUE(seen.count(input)) << name;
        EXPECT_TRUE(seen.insert(name).second) << name << " ran twice";
      }
    }
  }
}

TEST_F(ExecutorTest, ValuesFollowTheirEdges) {
  TestGraph graph;
  Node* a = graph.Source("a", 2);
  Node* b = graph.Source("b", 3);
  Node* c = graph.Probe("c", {a, b, a}, 2, "sum");
  graph.Probe("d", {{c, 0}, {c, 1}, b}, 0, "sum");
  ASSERT_TRUE(RunOnce(graph).ok());
  EXPECT_EQ(last_, 7 + 7 + 3);
}

TEST_F(ExecutorTest, AnEmptyGraphIsDoneAtOnce) {
  TestGraph graph;
  EXPECT_TRUE(RunOnce(graph).ok());
}

TEST_F(ExecutorTest, AnyNumberOfInputsIsCounted) {
  TestGraph graph;
  std::vector<Node*> controls;
  for (int i = 0; i < 70'000; ++i) controls.push_back(graph.NoOp(absl::StrCat("n", i)));
  graph.Probe("all", {}, 0, "sum", controls);
  ASSERT_TRUE(RunOnce(graph).ok());
  EXPECT_EQ(journal_.order().size(), 1u);
}

TEST_F(ExecutorTest, StepsRunAtTheSameTimeWithoutSeeingEachOther) {
  TestGraph graph;
  SetHook("id", [](KernelContext* ctx) -> Status {
    ctx->set_output(0, Tensor::Scalar<float>(static_cast<float>(ctx->step_id())));
    return absl::OkStatus();
  });
  SetHook("check", [](KernelContext* ctx) -> Status {
    for (int i = 0; i < ctx->num_inputs(); ++i) {
      if (ctx->input(i).scalar<float>() != static_cast<float>(ctx->step_id())) {
        return absl::InternalError("a value of another step");
      }
    }
    return absl::OkStatus();
  });
  Node* id = graph.Probe("id", {}, 1, "id");
  std::vector<TestGraph::In> ids;
  for (int i = 0; i < 20; ++i) ids.push_back(graph.Identity(absl::StrCat("i", i), id));
  graph.Probe("check", ids, 0, "check");
  TestStep shared(2);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, shared);
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        CancellationManager cancellation;
        StepContext context = shared.context;
        context.step_id = t * 1000 + i;
        context.cancellation = &cancellation;
        if (!executor->Run(context).ok()) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
}

// --- Dead tensors --------------------------------------------------------------------------------

struct DeadCase {
  const char* name;
  bool pred;
  std::vector<std::string> run;      // probes that run
  std::vector<std::string> not_run;  // probes that do not
};

TEST_F(ExecutorTest, DeadnessFollowsDataAndControlEdges) {
  const std::vector<DeadCase> cases = {
      {"true", true, {"t", "t_child", "t_control", "trigger_child"}, {"f", "f_child", "both"}},
      {"false", false, {"f", "f_child", "trigger_child"}, {"t", "t_child", "t_control", "both"}},
  };
  for (const int threads : {1, 2}) {
    for (const DeadCase& c : cases) {
      SCOPED_TRACE(c.name);
      journal_.Clear();
      TestGraph graph;
      Node* data = graph.Source("data", 1);
      Node* pred = graph.Bool("pred", c.pred);
      Node* sw = graph.Switch("switch", data, pred);
      Node* f = graph.Probe("f", {{sw, 0}}, 1, "sum");
      Node* t = graph.Probe("t", {{sw, 1}}, 1, "sum");
      graph.Probe("f_child", {f}, 1, "sum");
      graph.Probe("t_child", {t}, 1, "sum");
      graph.Probe("t_control", {data}, 1, "sum", {t});
      graph.Probe("both", {f, t}, 1, "sum");
      Node* trigger = graph.Add("ControlTrigger", "trigger", {}, {}, {f, t});
      graph.Probe("trigger_child", {}, 1, "sum", {trigger});
      ASSERT_TRUE(RunOnce(graph, threads).ok());
      for (const std::string& name : c.run) EXPECT_EQ(journal_.counts()[name], 1) << name;
      for (const std::string& name : c.not_run) EXPECT_FALSE(journal_.Has(name)) << name;
    }
  }
}

struct MergeCase {
  const char* name;
  bool first, second;               // which of the two Switches lets its value through
  bool dead_control, live_control;  // control inputs of the Merge
  int value_index;                  // -1: the Merge is dead
};

TEST_F(ExecutorTest, MergeTakesTheFirstLiveInput) {
  const std::vector<MergeCase> cases = {
      {"first live", true, false, false, false, 0},
      {"second live", false, true, false, false, 1},
      {"all dead", false, false, false, false, -1},
      {"a dead control input does not kill it", true, false, true, false, 0},
      {"live and dead control inputs", false, true, true, true, 1},
      {"all dead, live control input", false, false, false, true, -1},
      {"all dead, dead control input", false, false, true, false, -1},
  };
  for (const int threads : {1, 2}) {
    for (const MergeCase& c : cases) {
      SCOPED_TRACE(c.name);
      TestGraph graph;
      Node* a = graph.Source("a", 10);
      Node* b = graph.Source("b", 20);
      Node* sa = graph.Switch("sa", a, graph.Bool("pa", c.first));
      Node* sb = graph.Switch("sb", b, graph.Bool("pb", c.second));
      std::vector<Node*> controls;
      if (c.dead_control) {
        Node* sc = graph.Switch("sc", a, graph.Bool("pc", false));
        controls.push_back(graph.Identity("dead", {sc, 1}));
      }
      if (c.live_control) controls.push_back(graph.NoOp("live"));
      Node* merge = graph.Merge("merge", {{sa, 1}, {sb, 1}}, controls);
      int index = -1;
      float value = 0;
      SetHook("got", [&](KernelContext* ctx) -> Status {
        value = ctx->input(0).scalar<float>();
        return absl::OkStatus();
      });
      graph.Probe("got", {{merge, 0}}, 0, "got");
      Node* same = graph.Identity("same", {merge, 1});
      Node* child = graph.NoOp("child", {same});
      static_cast<void>(child);
      SetHook("alive", [&](KernelContext*) -> Status {
        index = 0;
        return absl::OkStatus();
      });
      graph.Probe("alive", {}, 0, "alive", {same});
      ASSERT_TRUE(RunOnce(graph, threads).ok());
      EXPECT_EQ(index, c.value_index < 0 ? -1 : 0);
      EXPECT_EQ(value, c.value_index < 0 ? 0 : c.value_index == 0 ? 10 : 20);
    }
  }
}

TEST_F(ExecutorTest, ASecondLiveInputOfAMergeIsDroppedAndItRunsOnce) {
  for (const int threads : {1, 2}) {
    journal_.Clear();
    TestGraph graph;
    Node* a = graph.Source("a", 10);
    Node* b = graph.Source("b", 20);
    Node* merge = graph.Merge("merge", {a, b});
    graph.Probe("got", {{merge, 0}}, 0, "sum");
    // If the Merge ran twice, its reader would run once too often, which the executor refuses.
    const Status status = RunOnce(graph, threads);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(journal_.counts()["got"], 1);
    EXPECT_TRUE(last_ == 10 || last_ == 20) << last_;
  }
}

TEST_F(ExecutorTest, ConditionalsInsideOfConditionals) {
  // cond(p, cond(q, 1, 2), 3)
  for (const bool p : {false, true}) {
    for (const bool q : {false, true}) {
      TestGraph graph;
      Node* pred_p = graph.Bool("p", p);
      Node* pred_q = graph.Bool("q", q);
      Node* one = graph.Source("one", 1);
      Node* two = graph.Source("two", 2);
      Node* three = graph.Source("three", 3);
      Node* s1 = graph.Switch("s1", one, pred_p);
      Node* s2 = graph.Switch("s2", two, pred_p);
      Node* s3 = graph.Switch("s3", three, pred_p);
      Node* inner1 = graph.Switch("inner1", {s1, 1}, pred_q);
      Node* inner2 = graph.Switch("inner2", {s2, 1}, pred_q);
      Node* inner = graph.Merge("inner", {{inner2, 0}, {inner1, 1}});
      Node* outer = graph.Merge("outer", {{s3, 0}, {inner, 0}});
      graph.Probe("got", {{outer, 0}}, 0, "sum");
      ASSERT_TRUE(RunOnce(graph).ok());
      EXPECT_EQ(last_, p ? (q ? 1 : 2) : 3);
    }
  }
}

TEST_F(ExecutorTest, DeadValuesTravelThroughSendAndRecv) {
  for (const bool live : {false, true}) {
    SCOPED_TRACE(live);
    journal_.Clear();
    TestGraph graph;
    Node* sw = graph.Switch("switch", graph.Source("data", 5), graph.Bool("pred", live));
    const std::string device = "/job:localhost/replica:0/task:0/device:CPU:0";
    const auto ends = [&](const char* type) {
      return std::vector<std::pair<std::string, tensorflow::AttrValue>>{
          {type, AttrOf(DT_FLOAT)},
          {"tensor_name", AttrOf("edge_1_switch")},
          {"send_device", AttrOf(device)},
          {"send_device_incarnation", AttrOf(int64_t{1})},
          {"recv_device", AttrOf(device)}};
    };
    graph.Add("_Send", "send", {{sw, 1}}, ends("T"));
    Node* recv = graph.Add("_Recv", "recv", {}, ends("tensor_type"));
    graph.Probe("reader", {recv}, 0, "sum");
    // The Recv itself has run: only its value is dead.
    graph.Probe("after", {}, 0, "sum", {recv});
    ASSERT_TRUE(RunOnce(graph).ok());
    EXPECT_EQ(journal_.Has("reader"), live);
    EXPECT_TRUE(journal_.Has("after"));
  }
}

// --- References ----------------------------------------------------------------------------------

TEST_F(ExecutorTest, ReferencesAreReadWhenAKernelStarts) {
  auto variable = std::make_shared<VariableStorage>("v", DT_FLOAT, PartialShape(Shape()));
  testing::SetTestVariable("v", variable);
  TestGraph graph;
  Node* v = graph.Add("TestVariable", "scope/v", {}, {{"name", AttrOf("v")}});
  Node* assign = graph.Add("TestAssign", "assign", {v, graph.Source("value", 7)});
  Node* read = graph.Identity("read", v, {assign});
  Node* through = graph.Identity("through", assign);
  graph.Probe("sum", {read, through}, 0, "sum");
  ASSERT_TRUE(RunOnce(graph).ok());
  EXPECT_EQ(last_, 14);
}

TEST_F(ExecutorTest, AnUninitializedReferenceIsNamedByItsNode) {
  auto variable = std::make_shared<VariableStorage>("v", DT_FLOAT, PartialShape(Shape()));
  testing::SetTestVariable("v", variable);
  for (const char* reader : {"Identity", "TestUseRef"}) {
    TestGraph graph;
    Node* v = graph.Add("TestVariable", "scope/v", {}, {{"name", AttrOf("v")}});
    if (std::string(reader) == "Identity") {
      graph.Identity("reader", v);
    } else {
      graph.Add(reader, "reader", {v});
    }
    const Status status = RunOnce(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(status.message(),
              absl::StrCat(reader,
                           " 'reader': Attempting to use uninitialized value scope/v; first run "
                           "the operation of GlobalVariablesInitializer (and of "
                           "LocalVariablesInitializer), or restore a checkpoint"
                           "\n\t [[{{node reader}}]]"));
  }
}

// --- Memory --------------------------------------------------------------------------------------

TEST_F(ExecutorTest, TheOnlyReaderOwnsItsInput) {
  std::vector<const void*> places;
  SetHook("in place", [&](KernelContext* ctx) -> Status {
    EXPECT_TRUE(ctx->input(0).BufferIsUnique()) << ctx->node_name();
    MR_ASSIGN_OR_RETURN(Tensor * out, ctx->ForwardInputOrAllocateOutput({0}, 0, Shape()));
    out->mutable_raw<float>()[0] += 1;
    places.push_back(out->raw_data());
    return absl::OkStatus();
  });
  TestGraph graph;
  Node* node = graph.Source("a", 0);
  for (int i = 0; i < 5; ++i) node = graph.Probe(absl::StrCat("n", i), {node}, 1, "in place");
  graph.Probe("sum", {node}, 0, "sum");
  ASSERT_TRUE(RunOnce(graph).ok());
  EXPECT_EQ(last_, 5);
  EXPECT_EQ(std::set<const void*>(places.begin(), places.end()).size(), 1u);
}

TEST_F(ExecutorTest, TheLastOfSeveralReadersOwnsItsInput) {
  std::vector<bool> unique;
  SetHook("read", [&](KernelContext* ctx) -> Status {
    unique.push_back(ctx->input(0).BufferIsUnique());
    EXPECT_EQ(ctx->input(0).scalar<float>(), 4);
    return absl::OkStatus();
  });
  TestGraph graph;
  Node* a = graph.Source("a", 4);
  for (int i = 0; i < 4; ++i) graph.Probe(absl::StrCat("r", i), {a}, 0, "read");
  ASSERT_TRUE(RunOnce(graph).ok());
  EXPECT_EQ(unique, (std::vector<bool>{false, false, false, true}));
}

TEST_F(ExecutorTest, ValuesAreFreedWhenTheirLastReaderIsDone) {
  std::atomic<bool> freed{false};
  SetHook("make", [&](KernelContext* ctx) -> Status {
    static float memory[16];
    BufferRef buffer = Buffer::External(memory, sizeof(memory), [&freed] { freed = true; });
    MR_ASSIGN_OR_RETURN(Tensor t, Tensor::FromBuffer(DT_FLOAT, Shape(), std::move(buffer), 0));
    ctx->set_output(0, std::move(t));
    return absl::OkStatus();
  });
  bool freed_at_check = false;
  SetHook("check", [&](KernelContext*) -> Status {
    freed_at_check = freed;
    return absl::OkStatus();
  });
  TestGraph graph;
  Node* made = graph.Probe("make", {}, 1, "make");
  Node* reader = graph.Probe("reader", {made}, 0, "sum");
  graph.Probe("check", {}, 0, "check", {reader});
  ASSERT_TRUE(RunOnce(graph).ok());
  EXPECT_TRUE(freed_at_check);
}

TEST_F(ExecutorTest, ValuesOfAFailedStepAreFreedBeforeItsEnd) {
  std::atomic<int> alive{0};
  SetHook("make", [&](KernelContext* ctx) -> Status {
    static float memory[16];
    ++alive;
    BufferRef buffer = Buffer::External(memory, sizeof(memory), [&alive] { --alive; });
    MR_ASSIGN_OR_RETURN(Tensor t, Tensor::FromBuffer(DT_FLOAT, Shape(), std::move(buffer), 0));
    ctx->set_output(0, std::move(t));
    return absl::OkStatus();
  });
  TestGraph graph;
  Node* made = graph.Probe("make", {}, 1, "make");
  Node* bad = graph.Probe("bad", {}, 1, "fail", {made});
  graph.Probe("reader", {made, bad}, 0, "sum");
  TestStep step;
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  EXPECT_FALSE(executor->Run(step.context).ok());
  EXPECT_EQ(alive, 0);
}

// --- Traces --------------------------------------------------------------------------------------

TEST_F(ExecutorTest, ATracedStepTellsWhatEveryNodeDid) {
  TestGraph graph;
  Node* a = graph.Source("a", 2);
  Node* b = graph.Probe("b", {a, a}, 2, "sum");
  graph.Probe("c", {{b, 1}}, 0, "sum");
  TestStep step;
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  StepStatsCollector collector;
  ASSERT_TRUE(executor->Run(step.context, {.stats = &collector}).ok());
  tensorflow::StepStats stats;
  collector.TakeInto(&stats);
  ASSERT_EQ(stats.dev_stats_size(), 1);
  EXPECT_EQ(stats.dev_stats(0).device(), step.device.name);
  std::map<std::string, tensorflow::NodeExecStats> nodes;
  for (const auto& node : stats.dev_stats(0).node_stats()) nodes[node.node_name()] = node;
  ASSERT_EQ(nodes.size(), 3u);
  EXPECT_EQ(nodes["b"].timeline_label(), "b = TestProbe(a, a)");
  EXPECT_EQ(nodes["c"].timeline_label(), "c = TestProbe(b:1)");
  EXPECT_EQ(nodes["b"].output_size(), 2);
  EXPECT_EQ(nodes["a"].output(0).tensor_description().dtype(), tensorflow::DT_FLOAT);
  for (const auto& [name, node] : nodes) {
    EXPECT_GT(node.scheduled_nanos(), 0) << name;
    EXPECT_GE(node.all_start_nanos(), node.scheduled_nanos()) << name;
    EXPECT_GE(node.op_end_rel_nanos(), node.op_start_rel_nanos()) << name;
    EXPECT_GE(node.all_end_rel_nanos(), node.op_end_rel_nanos()) << name;
  }
}

}  // namespace
}  // namespace millrace
