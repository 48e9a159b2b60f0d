// SPDX-License-Identifier: Apache-2.0
#include "graph/place/waves.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "google/protobuf/text_format.h"
#include "graph/attr.h"
#include "graph/function_library.h"
#include "graph/node_builder.h"
#include "graph/op_registry.h"
#include "graph/place/partition.h"
#include "graph/scope.h"
#include "graph/shape_inference.h"
#include "graph/testing/tiny_ops.h"
#include "proto/function.pb.h"
#include "proto/node_def.pb.h"

// covers: clusters: what a step sends to a task in one wave leaves together, whatever of it is dead
//   or large; what may wait for another step, in a function too, and what is in a loop holds
//   nothing back

namespace millrace {
namespace {

using testing::Call;
using ::testing::ElementsAre;
using testing::Input;
using testing::NoOp;
using ::testing::Pair;
using testing::Read;
using testing::Variable;

const char kPs[] = "/job:ps/replica:0/task:0/device:CPU:0";
const char kPs1[] = "/job:ps/replica:0/task:1/device:CPU:0";
const char kWorker[] = "/job:worker/replica:0/task:0/device:CPU:0";

OpSpec OneToOne(const char* name) {
  return OpSpec(name, "x: float -> y: float").Shape([](InferenceContext* c) {
    c->set_output(0, PartialShape());
    return absl::OkStatus();
  });
}
const OpRegistration kWaiting = OneToOne("WaitsForTest").WaitsForSteps(WaitsForSteps::kMay);
const OpRegistration kRunning =
    OneToOne("RunsFunctionsForTest").WaitsForSteps(WaitsForSteps::kInFunctions);
const OpRegistration kCalling =
    OpSpec("CallsForTest", "x: float -> y: float", "f: func").Shape([](InferenceContext* c) {
      c->set_output(0, PartialShape());
      return absl::OkStatus();
    });

Output On(const char* device, Output output) {
  output.node()->set_assigned_device(device);
  return output;
}
Operation On(const char* device, Operation operation) {
  operation.node()->set_assigned_device(device);
  return operation;
}

class WavesTest : public ::testing::Test {
 protected:
  Output Source(const char* device, const char* name) {
    return On(device, Input(root_.WithName(name), DT_FLOAT, {3}));
  }
  Output Floor(const char* device, const char* name, Output x) {
    return On(device, Call(root_.WithName(name), "Floor", {x}));
  }
  Output Sum(const char* device, const char* name, Output x, Output y) {
    return On(device, Call(root_.WithName(name), "Add", {x, y}));
  }
  // Of a node; -2 when there is none of this name.
  int Wave(const char* name) {
    EXPECT_TRUE(root_.ok()) << root_.status();
    const StatusOr<std::vector<int>> waves = WavesOf(*root_.graph(), [](const Node& node) {
      return node.assigned_device() == kPs ? 0 : node.assigned_device() == kPs1 ? 1 : 2;
    });
    EXPECT_TRUE(waves.ok()) << waves.status();
    const Node* const node = root_.graph()->FindNode(name);
    return node == nullptr || !waves.ok() ? -2 : (*waves)[static_cast<size_t>(node->id())];
  }
  // The functions of a text-format library.
  void AddFunctions(const char* text) {
    tensorflow::FunctionDefLibrary functions;
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &functions));
    const auto library = root_.graph()->library().With(functions);
    ASSERT_TRUE(library.ok()) << library.status();
    root_.graph()->set_library(*library);
  }
  // A call on the worker: by the op's name, or by the attr of an op.
  Output CallOf(const char* name, const char* function, Output x) {
    tensorflow::NameAttrList f;
    f.set_name(function);
    return On(
        kWorker,
        NodeBuilder(root_.WithName(name), "CallsForTest").Input(x).Attr("f", f).Finish().output(0));
  }

  Scope root_;
};

// A linear model: weights are read, gradients go back, the step is told of.
TEST_F(WavesTest, AreTheCrossingsBeforeANode) {
  const Output handle = On(kPs, Variable(root_.WithName("handle"), DT_FLOAT, {3}));
  const Output w = On(kPs, Read(root_.WithName("w"), handle, DT_FLOAT));
  const Output x = Source(kWorker, "x");
  const Output y = On(kWorker, Call(root_.WithName("y"), "Mul", {w, x}));
  const Output gradient = Floor(kWorker, "gradient", y);
  const Output applied = Floor(kPs, "applied", gradient);
  On(kWorker, NoOp(root_.WithControlDependencies({applied.op()}).WithName("train")));
  EXPECT_EQ(Wave("w"), 0);
  EXPECT_EQ(Wave("x"), 0);
  EXPECT_EQ(Wave("y"), 1);
  EXPECT_EQ(Wave("gradient"), 1);
  EXPECT_EQ(Wave("applied"), 2);
  EXPECT_EQ(Wave("train"), 3);
}

TEST_F(WavesTest, GrowWithEachCrossingAndTakeTheLargestOfTheInputs) {
  const Output a = Source(kPs, "a");
  const Output b = Floor(kWorker, "b", a);
  const Output c = Floor(kPs1, "c", b);
  const Output d = Floor(kPs, "d", c);
  Sum(kPs, "late", a, d);
  Sum(kWorker, "short_way", a, b);
  Sum(kWorker, "long_way", a, d);
  EXPECT_EQ(Wave("a"), 0);
  EXPECT_EQ(Wave("b"), 1);
  EXPECT_EQ(Wave("c"), 2);
  EXPECT_EQ(Wave("d"), 3);
  EXPECT_EQ(Wave("late"), 3);
  EXPECT_EQ(Wave("short_way"), 1);
  EXPECT_EQ(Wave("long_way"), 4);
}

TEST_F(WavesTest, CountControlEdges) {
  const Output a = Source(kPs, "a");
  const Output b = Floor(kWorker, "b", a);
  On(kPs, NoOp(root_.WithControlDependencies({b.op()}).WithName("after")));
  On(kWorker, NoOp(root_.WithControlDependencies({b.op()}).WithName("here")));
  EXPECT_EQ(Wave("after"), 2);
  EXPECT_EQ(Wave("here"), 1);
}

// Each branch has waves: what is not taken sends that it is dead.
TEST_F(WavesTest, GoThroughConditionals) {
  const Output x = Source(kPs, "x");
  const Output p = On(kPs, Input(root_.WithName("p"), DT_BOOL, {}));
  const Output on_false = On(kPs, Call(root_.WithName("switch"), "Switch", {x, p}));
  const Output on_true(on_false.node(), 1);
  const Output taken = Floor(kWorker, "branch", on_true);
  On(kWorker, NodeBuilder(root_.WithName("merge"), "Merge")
                  .Input(std::vector<Output>{taken, on_false})
                  .Finish()
                  .output(0));
  EXPECT_EQ(Wave("switch"), 0);
  EXPECT_EQ(Wave("branch"), 1);
  EXPECT_EQ(Wave("merge"), 1);
}

TEST_F(WavesTest, NothingBehindAnOpThatMayWaitForAnotherStepHasOne) {
  const Output a = Source(kPs, "a");
  const Output waits = On(kPs, Call(root_.WithName("waits"), "WaitsForTest", {a}));
  const Output behind = Floor(kWorker, "behind", waits);
  Sum(kWorker, "both", behind, Source(kWorker, "x"));
  On(kWorker, NoOp(root_.WithControlDependencies({waits.op()}).WithName("told")));
  Floor(kWorker, "beside", a);
  EXPECT_EQ(Wave("a"), 0);
  for (const char* name : {"waits", "behind", "both", "told"}) {
    EXPECT_EQ(Wave(name), kNoWave) << name;
  }
  EXPECT_EQ(Wave("beside"), 1);
}

TEST_F(WavesTest, AnUnknownOpMayWait) {
  tensorflow::NodeDef def;
  def.set_name("unknown");
  def.set_op("NobodyKnowsThis");
  const StatusOr<Node*> node = root_.graph()->AddNode(def);
  ASSERT_TRUE(node.ok()) << node.status();
  (*node)->set_assigned_device(kPs);
  EXPECT_EQ(Wave("unknown"), kNoWave);
}

TEST_F(WavesTest, NothingInALoopOrBehindItHasOne) {
  const Output x = Source(kWorker, "x");
  const Output p = On(kWorker, Input(root_.WithName("p"), DT_BOOL, {}));
  const auto enter = [&](const char* name, Output value) {
    return On(kWorker, NodeBuilder(root_.WithName(name), "Enter")
                           .Input(value)
                           .Attr("frame_name", "loop")
                           .Finish()
                           .output(0));
  };
  const Output entered = enter("enter", x);
  const Output merge = On(kWorker, NodeBuilder(root_.WithName("merge"), "Merge")
                                       .Input(std::vector<Output>{entered, entered})
                                       .Finish()
                                       .output(0));
  const Output cond = On(kWorker, Call(root_.WithName("cond"), "LoopCond", {enter("enter_p", p)}));
  const Output ends = On(kWorker, Call(root_.WithName("switch"), "Switch", {merge, cond}));
  const Output body = Floor(kPs, "body", Output(ends.node(), 1));
  const Output next = On(kWorker, Call(root_.WithName("next"), "NextIteration", {body}));
  ASSERT_TRUE(root_.graph()->UpdateInput(merge.node(), 1, next.node(), 0).ok());
  const Output exit = On(kWorker, Call(root_.WithName("exit"), "Exit", {ends}));
  Floor(kPs, "behind", exit);
  Floor(kPs, "beside", x);
  for (const char* name : {"enter", "merge", "cond", "switch", "body", "next", "exit", "behind"}) {
    EXPECT_EQ(Wave(name), kNoWave) << name;
  }
  EXPECT_EQ(Wave("x"), 0);
  EXPECT_EQ(Wave("beside"), 1);
}

constexpr char kFunctions[] = R"pb(
  function {
    signature {
      name: "calm"
      input_arg { name: "x" type: DT_FLOAT }
      output_arg { name: "y" type: DT_FLOAT }
    }
    node_def {
      name: "n"
      op: "Floor"
      input: "x"
      attr {
        key: "T"
        value { type: DT_FLOAT }
      }
    }
    ret { key: "y" value: "n:y:0" }
  }
)pb";
constexpr char kWaitingFunctions[] = R"pb(
  function {
    signature {
      name: "waits"
      input_arg { name: "x" type: DT_FLOAT }
      output_arg { name: "y" type: DT_FLOAT }
    }
    node_def { name: "n" op: "WaitsForTest" input: "x" }
    ret { key: "y" value: "n:y:0" }
  }
  function {
    signature {
      name: "calls"
      input_arg { name: "x" type: DT_FLOAT }
      output_arg { name: "y" type: DT_FLOAT }
    }
    node_def { name: "n" op: "waits" input: "x" }
    ret { key: "y" value: "n:y:0" }
  }
)pb";

TEST_F(WavesTest, ACallMayWaitWhenAFunctionThatItReachesMay) {
  AddFunctions(kFunctions);
  AddFunctions(kWaitingFunctions);
  const Output x = Source(kWorker, "x");
  CallOf("call_calm", "calm", x);
  CallOf("call_waits", "waits", x);
  CallOf("call_calls", "calls", x);
  EXPECT_EQ(Wave("call_calm"), 0);
  EXPECT_EQ(Wave("call_waits"), kNoWave);
  EXPECT_EQ(Wave("call_calls"), kNoWave);
  for (const auto& [function, wave] :
       std::map<std::string, int>{{"calm", 0}, {"waits", kNoWave}, {"calls", kNoWave}}) {
    tensorflow::NodeDef def;
    def.set_name("direct_" + function);
    def.set_op(function);
    const StatusOr<Node*> node = root_.graph()->AddNode(def);
    ASSERT_TRUE(node.ok()) << node.status();
    (*node)->set_assigned_device(kWorker);
    EXPECT_EQ(Wave(("direct_" + function).c_str()), wave) << function;
  }
}

// As an iterator does, whose functions another step has given to it.
TEST_F(WavesTest, WhatRunsFunctionsOfOtherStepsMayWaitWhenAnyFunctionMay) {
  const Output x = Source(kWorker, "x");
  On(kWorker, Call(root_.WithName("runs"), "RunsFunctionsForTest", {x}));
  EXPECT_EQ(Wave("runs"), 0);
  AddFunctions(kFunctions);
  EXPECT_EQ(Wave("runs"), 0);
  AddFunctions(kWaitingFunctions);
  EXPECT_EQ(Wave("runs"), kNoWave);
}

// --- On what is sent -----------------------------------------------------------------------------

// The waves of _Send or _Recv nodes, by the node that makes the tensor; kNoWave without the attr.
std::map<std::string, int> Sent(const Graph& part, const std::string& op) {
  std::map<std::string, int> waves;
  for (const auto& node : part.nodes()) {
    if (node == nullptr || node->op() != op) continue;
    std::string edge = *GetAttr<std::string>(*node, "tensor_name");  // "edge_<id>_<node>"
    edge = edge.substr(edge.find('_', edge.find('_') + 1) + 1);
    const StatusOr<int64_t> wave = GetAttr<int64_t>(*node, kWaveAttr);
    waves[edge] = wave.ok() ? static_cast<int>(*wave) : kNoWave;
  }
  return waves;
}

TEST_F(WavesTest, StandOnBothEndsOfAnEdgeThatIsCut) {
  const Output a = Source(kPs, "a");
  const Output b = Floor(kWorker, "b", a);
  const Output c = On(kWorker, Call(root_.WithName("c"), "WaitsForTest", {a}));
  Floor(kPs, "d", b);
  Floor(kPs, "e", c);
  PartitionOptions options;
  options.marks_waves = true;
  const StatusOr<GraphPartitions> parts = PartitionGraph(*root_.graph(), options);
  ASSERT_TRUE(parts.ok()) << parts.status();
  for (const auto& [sender, receiver] : {std::pair(kPs, kWorker), std::pair(kWorker, kPs)}) {
    EXPECT_EQ(Sent(*parts->at(sender), "_Send"), Sent(*parts->at(receiver), "_Recv"));
  }
  EXPECT_THAT(Sent(*parts->at(kPs), "_Send"), ElementsAre(Pair("a", 0)));
  EXPECT_THAT(Sent(*parts->at(kWorker), "_Send"), ElementsAre(Pair("b", 1), Pair("c", kNoWave)));
}

// One token for several control edges: it is as late as the last of them.
TEST_F(WavesTest, ATokenHasTheLargestWaveOfWhatItWaitsFor) {
  for (const bool waits : {false, true}) {
    root_ = Scope();
    const Output a = Source(kPs, "a");
    const Output x = Source(kWorker, "x");
    const Output b = Floor(kWorker, "b", a);
    const Output c = On(kWorker, Call(root_.WithName("c"), waits ? "WaitsForTest" : "Opaque", {x}));
    On(kPs, NoOp(root_.WithControlDependencies({x.op(), b.op(), c.op()}).WithName("after")));
    PartitionOptions options;
    options.marks_waves = true;
    const StatusOr<GraphPartitions> parts = PartitionGraph(*root_.graph(), options);
    ASSERT_TRUE(parts.ok()) << parts.status();
    EXPECT_THAT(Sent(*parts->at(kWorker), "_Send"), ElementsAre(Pair("x", waits ? kNoWave : 1)));
  }
}

TEST_F(WavesTest, AreNotMarkedUnlessAskedFor) {
  Floor(kWorker, "b", Source(kPs, "a"));
  const StatusOr<GraphPartitions> parts = PartitionGraph(*root_.graph());
  ASSERT_TRUE(parts.ok()) << parts.status();
  EXPECT_THAT(Sent(*parts->at(kPs), "_Send"), ElementsAre(Pair("a", kNoWave)));
}

}  // namespace
}  // namespace millrace
