// SPDX-License-Identifier: Apache-2.0
#include "graph/place/partition.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/frames.h"
#include "graph/function_library.h"
#include "graph/op_registry.h"
#include "graph/place/waves.h"
#include "graph/scope.h"
#include "graph/shape_inference.h"
#include "graph/testing/tiny_ops.h"
#include "runtime/engine/kernel_runner.h"

// covers: graphs: a loop is cut at any edge: each device receives in the iterations that have what
//   it receives, in loops of loops, and when its part is cut again
// covers: clusters: floats between tasks travel as bfloat16 where a session asks for it, rounded to
//   the nearest; other types, feeds, fetches and what files hold keep their bits

namespace millrace {
namespace {

using testing::Call;
using testing::Constant;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::Input;
using ::testing::IsEmpty;
using testing::NoOp;
using testing::Read;
using ::testing::SizeIs;
using testing::Variable;

const char kPs[] = "/job:ps/replica:0/task:0/device:CPU:0";
const char kPs1[] = "/job:ps/replica:0/task:0/device:CPU:1";
const char kWorker[] = "/job:worker/replica:0/task:0/device:CPU:0";

Output On(const char* device, Output output) {
  output.node()->set_assigned_device(device);
  return output;
}
Operation On(const char* device, Operation operation) {
  operation.node()->set_assigned_device(device);
  return operation;
}

std::vector<const Node*> Ops(const Graph& graph, const std::string& op) {
  std::vector<const Node*> nodes;
  for (const auto& node : graph.nodes()) {
    if (node != nullptr && node->op() == op) nodes.push_back(node.get());
  }
  return nodes;
}

std::string Text(const Node* node, const char* attr) {
  return *GetAttr<std::string>(node->def(), attr);
}

std::vector<std::string> ControlNames(const Node& node) {
  std::vector<std::string> names;
  for (const Node* control : node.control_inputs()) names.push_back(control->name());
  return names;
}

class PartitionTest : public ::testing::Test {
 protected:
  Output X(const Scope& scope, const char* device, const char* name = "x") {
    return On(device, Input(scope.WithName(name), DT_FLOAT, {3}));
  }
  GraphPartitions Cut(const PartitionOptions& options = {}) {
    EXPECT_TRUE(root_.ok()) << root_.status();
    StatusOr<GraphPartitions> parts = PartitionGraph(*root_.graph(), options);
    EXPECT_TRUE(parts.ok()) << parts.status();
    return parts.ok() ? *std::move(parts) : GraphPartitions();
  }
  Scope root_;
};

TEST_F(PartitionTest, OneLocationIsACopy) {
  const Output x = X(root_, kPs);
  On(kPs, Call(root_.WithControlDependencies({x.op()}).WithName("y"), "Mul", {x, x}));
  root_.graph()->mutable_versions()->set_producer(77);
  tensorflow::FunctionDefLibrary functions;
  functions.add_function()->mutable_signature()->set_name("f");
  const auto library = FunctionLibrary::Empty()->With(functions);
  ASSERT_TRUE(library.ok()) << library.status();
  root_.graph()->set_library(*library);
  const GraphPartitions parts = Cut();
  ASSERT_THAT(parts, SizeIs(1));
  const Graph& part = *parts.at(kPs);
  EXPECT_EQ(part.num_nodes(), 2);
  EXPECT_EQ(part.versions().producer(), 77);
  EXPECT_EQ(part.library().functions()[0]->name(), "f");
  EXPECT_THAT(part.NodeToDef(*part.FindNode("y")).input(), ElementsAre("x", "x", "^x"));
}

TEST_F(PartitionTest, AnEdgeBecomesSendAndRecvWithTheSameAttrs) {
  const Output x = X(root_, kPs);
  On(kWorker, Call(root_.WithName("y"), "Floor", {x}));
  PartitionOptions options;
  options.get_incarnation = [](absl::string_view device) {
    return device == kPs ? uint64_t{0xFEDCBA9876543210} : uint64_t{7};
  };
  options.new_name_mark = "_S";
  const GraphPartitions parts = Cut(options);
  ASSERT_THAT(parts, SizeIs(2));
  const std::vector<const Node*> sends = Ops(*parts.at(kPs), "_Send");
  const std::vector<const Node*> recvs = Ops(*parts.at(kWorker), "_Recv");
  ASSERT_THAT(sends, SizeIs(1));
  ASSERT_THAT(recvs, SizeIs(1));
  EXPECT_EQ(sends[0]->name(), "x/_S0");
  EXPECT_EQ(recvs[0]->name(), "x/_S1");
  EXPECT_EQ(*GetAttr<DType>(sends[0]->def(), "T"), DT_FLOAT);
  EXPECT_EQ(*GetAttr<DType>(recvs[0]->def(), "tensor_type"), DT_FLOAT);
  for (const Node* node : {sends[0], recvs[0]}) {
    EXPECT_EQ(Text(node, "tensor_name"), "edge_0_x");
    EXPECT_EQ(Text(node, "send_device"), kPs);
    EXPECT_EQ(Text(node, "recv_device"), kWorker);
    EXPECT_EQ(*GetAttr<int64_t>(node->def(), "send_device_incarnation"),
              static_cast<int64_t>(0xFEDCBA9876543210));
    EXPECT_FALSE(*GetAttr<bool>(node->def(), "client_terminated"));
  }
  EXPECT_EQ(sends[0]->assigned_device(), kPs);
  EXPECT_EQ(recvs[0]->assigned_device(), kWorker);
  EXPECT_EQ(sends[0]->input(0).node->name(), "x");
  EXPECT_EQ(parts.at(kWorker)->FindNode("y")->input(0).node, recvs[0]);
  EXPECT_THAT(recvs[0]->control_inputs(), IsEmpty());
}

TEST_F(PartitionTest, ManyConsumersShareOneSendPerOutputAndPartition) {
  const Output x = X(root_, kPs);
  const Output first = On(kPs, Call(root_.WithName("two"), "TwoOutputs", {x}));
  const Output second(first.node(), 1);
  On(kWorker, Call(root_, "Mul", {first, first}));
  On(kWorker, Call(root_, "Add", {first, second}));
  On(kPs1, Call(root_, "Floor", {first}));
  const GraphPartitions parts = Cut();
  EXPECT_THAT(Ops(*parts.at(kPs), "_Send"), SizeIs(3));
  EXPECT_THAT(Ops(*parts.at(kWorker), "_Recv"), SizeIs(2));
  EXPECT_THAT(Ops(*parts.at(kPs1), "_Recv"), SizeIs(1));
  std::map<std::string, int> names;
  for (const Node* send : Ops(*parts.at(kPs), "_Send")) ++names[Text(send, "tensor_name")];
  EXPECT_THAT(names, SizeIs(3));
}

TEST_F(PartitionTest, TheLocationMayBeATask) {
  const Output x = X(root_, kPs);
  const Output y = On(kPs1, Call(root_, "Floor", {x}));
  On(kWorker, Call(root_, "Mul", {x, y}));
  PartitionOptions options;
  options.node_to_loc = [](const Node& node) {
    return node.assigned_device().substr(0, node.assigned_device().find("/device:"));
  };
  const GraphPartitions parts = Cut(options);
  ASSERT_THAT(parts, SizeIs(2));
  EXPECT_THAT(Ops(*parts.at("/job:ps/replica:0/task:0"), "_Send"), SizeIs(2));
  EXPECT_EQ(Text(Ops(*parts.at("/job:ps/replica:0/task:0"), "_Send")[1], "send_device"), kPs1);
}

TEST_F(PartitionTest, ControlEdgesOfOneNodeArriveTogether) {
  const Output a = X(root_, kPs, "a"), b = X(root_, kPs, "b"), c = X(root_, kWorker, "c");
  On(kWorker, NoOp(root_.WithControlDependencies({b.op(), a.op(), c.op()}).WithName("group")));
  const GraphPartitions parts = Cut();
  const Graph& ps = *parts.at(kPs);
  const Graph& worker = *parts.at(kWorker);
  const std::vector<const Node*> sends = Ops(ps, "_Send");
  ASSERT_THAT(sends, SizeIs(1));
  const Node* token = sends[0]->input(0).node;
  EXPECT_EQ(token->op(), "Const");
  EXPECT_EQ(GetAttr<Tensor>(token->def(), "value")->shape().ToString(), "[0]");
  EXPECT_EQ(token->output_type(0), DT_FLOAT);
  EXPECT_EQ(token->assigned_device(), kPs);
  EXPECT_THAT(ControlNames(*token), ElementsAre("a", "b"));
  const std::vector<const Node*> identities = Ops(worker, "Identity");
  ASSERT_THAT(identities, SizeIs(1));
  EXPECT_EQ(identities[0]->input(0).node, Ops(worker, "_Recv")[0]);
  EXPECT_THAT(ControlNames(*worker.FindNode("group")), ElementsAre("c", identities[0]->name()));
}

TEST_F(PartitionTest, EqualControlEdgesToOnePartitionAreSentOnce) {
  const Output a = X(root_, kPs, "a");
  for (int i = 0; i < 3; ++i) On(kWorker, NoOp(root_.WithControlDependencies({a.op()})));
  On(kPs1, NoOp(root_.WithControlDependencies({a.op()})));
  EXPECT_THAT(Ops(*Cut().at(kPs), "_Send"), SizeIs(2));
}

TEST_F(PartitionTest, ReferencesAreReadLateAndForEachConsumer) {
  const auto variable = [&](const char* name) {
    return On(kPs, NodeBuilder(root_.WithName(name), "VariableV2")
                       .Attr("shape", PartialShape({3}))
                       .Attr("dtype", DT_FLOAT)
                       .Finish()
                       .output(0));
  };
  const Output v = variable("v"), u = variable("u");
  const Output y = X(root_, kWorker, "y"), z = X(root_, kPs, "z");
  On(kWorker, NoOp(root_.WithName("first")));
  const Operation first(root_.graph()->FindNode("first"));
  On(kWorker, Call(root_.WithControlDependencies({first}).WithName("a"), "Mul", {v, y}));
  On(kWorker, Call(root_.WithName("b"), "Mul", {z, v}));
  // Two late reads do not wait for each other.
  On(kWorker, Call(root_.WithName("c"), "Mul", {v, u}));
  const GraphPartitions parts = Cut();
  const Graph& worker = *parts.at(kWorker);
  const Node* late_a = worker.FindNode("a")->input(0).node;
  const Node* late_b = worker.FindNode("b")->input(1).node;
  EXPECT_NE(late_a, late_b);
  EXPECT_EQ(late_a->op(), "_Recv");
  EXPECT_EQ(*GetAttr<DType>(late_a->def(), "tensor_type"), DT_FLOAT);
  EXPECT_THAT(ControlNames(*late_a), ElementsAre("y", "first"));
  EXPECT_THAT(ControlNames(*late_b), ElementsAre(worker.FindNode("b")->input(0).node->name()));
  EXPECT_THAT(worker.FindNode("c")->input(0).node->control_inputs(), IsEmpty());
  EXPECT_THAT(worker.FindNode("c")->input(1).node->control_inputs(), IsEmpty());
}

TEST_F(PartitionTest, GraphsThatDifferInDevicesOnlyAreCutAlike) {
  const char* kWorkers[] = {kWorker, "/job:worker/replica:0/task:1/device:CPU:0"};
  std::string ps[2];
  for (int i = 0; i < 2; ++i) {
    Scope root;
    const Output w = X(root, kPs, "w");
    const Output x = X(root, kWorkers[i], "x");
    const Output y = On(kWorkers[i], Call(root.WithName("y"), "Mul", {x, w}));
    On(kPs, Call(root.WithControlDependencies({x.op()}).WithName("z"), "Add", {y, w}));
    StatusOr<GraphPartitions> parts = PartitionGraph(*root.graph());
    ASSERT_TRUE(parts.ok()) << parts.status();
    tensorflow::GraphDef def;
    parts->at(kPs)->ToGraphDef(&def);
    ps[i] = def.ShortDebugString();
    for (size_t at = 0; (at = ps[i].find(kWorkers[i], at)) != std::string::npos;) {
      ps[i].replace(at, strlen(kWorkers[i]), "WORKER");
    }
  }
  EXPECT_EQ(ps[0], ps[1]);
  EXPECT_THAT(ps[0], HasSubstr("WORKER"));
}

TEST_F(PartitionTest, GraphDefsCarryAssignedDevices) {
  const Output x = X(root_.WithDevice("/job:ps"), kPs);
  On(kWorker, Call(root_.WithName("y"), "Floor", {x}));
  std::map<std::string, tensorflow::GraphDef> defs;
  ASSERT_TRUE(PartitionGraph(*root_.graph(), {}, &defs).ok());
  ASSERT_THAT(defs, SizeIs(2));
  for (const auto& [location, def] : defs) {
    EXPECT_EQ(def.node_size(), 2);
    for (const tensorflow::NodeDef& node : def.node()) EXPECT_EQ(node.device(), location);
  }
}

TEST_F(PartitionTest, UnknownIncarnationsAreFilledInLater) {
  const Output x = X(root_, kPs);
  On(kWorker, Call(root_, "Floor", {x}));
  GraphPartitions parts = Cut();
  for (auto& [location, part] : parts) {
    const Node* node = Ops(*part, location == kPs ? "_Send" : "_Recv")[0];
    EXPECT_EQ(*GetAttr<int64_t>(node->def(), "send_device_incarnation"), 0);
    FillIncarnations(part.get(),
                     [](absl::string_view device) -> uint64_t { return device == kPs ? 42 : 0; });
    EXPECT_EQ(*GetAttr<int64_t>(node->def(), "send_device_incarnation"), 42);
    FillIncarnations(part.get(), [](absl::string_view) -> uint64_t { return 43; });
    EXPECT_EQ(*GetAttr<int64_t>(node->def(), "send_device_incarnation"), 42);
  }
}

TEST_F(PartitionTest, AddedNamesAvoidThoseOfTheGraph) {
  const Output x = X(root_, kPs);
  On(kWorker, Call(root_.WithName("y"), "Floor", {x}));
  tensorflow::NodeDef taken;
  taken.set_name("x/_0");
  taken.set_op("NoOp");
  On(kPs, Operation(*root_.graph()->AddNode(taken)));
  const GraphPartitions parts = Cut();
  EXPECT_EQ(Ops(*parts.at(kPs), "_Send")[0]->name(), "x/_1");
}

PartitionOptions AsBfloat16() {
  PartitionOptions options;
  options.new_name_mark = "_S";
  options.marks_waves = true;
  options.floats_as_bfloat16 = true;
  return options;
}

void ExpectCast(const Node& cast, DType from, DType to, const char* device) {
  SCOPED_TRACE(cast.name());
  EXPECT_EQ(cast.op(), "Cast");
  EXPECT_EQ(*GetAttr<DType>(cast.def(), "SrcT"), from);
  EXPECT_EQ(*GetAttr<DType>(cast.def(), "DstT"), to);
  EXPECT_FALSE(*GetAttr<bool>(cast.def(), "Truncate"));
  EXPECT_EQ(cast.output_type(0), to);
  EXPECT_EQ(cast.assigned_device(), device);
  EXPECT_THAT(cast.control_inputs(), IsEmpty());
}

TEST_F(PartitionTest, AFloatIsCastBeforeItIsSentAndWhenItIsReceivedOncePerPartition) {
  const Output x = X(root_, kPs);
  On(kWorker, Call(root_.WithName("y"), "Floor", {x}));
  On(kWorker, Call(root_.WithName("z"), "Mul", {x, x}));
  On(kPs, Call(root_.WithName("here"), "Floor", {x}));
  On(kPs1, Call(root_.WithName("there"), "Floor", {x}));
  const GraphPartitions parts = Cut(AsBfloat16());
  const Graph& ps = *parts.at(kPs);
  const std::vector<const Node*> casts = Ops(ps, "Cast"), sends = Ops(ps, "_Send");
  ASSERT_THAT(casts, SizeIs(2));
  ASSERT_THAT(sends, SizeIs(2));
  EXPECT_EQ(ps.FindNode("here")->input(0).node, ps.FindNode("x"));
  for (size_t i = 0; i < 2; ++i) {
    ExpectCast(*casts[i], DT_FLOAT, DT_BFLOAT16, kPs);
    EXPECT_EQ(casts[i]->input(0).node, ps.FindNode("x"));
    EXPECT_EQ(sends[i]->input(0).node, casts[i]);
    EXPECT_EQ(*GetAttr<DType>(sends[i]->def(), "T"), DT_BFLOAT16);
    EXPECT_EQ(*GetAttr<int64_t>(sends[i]->def(), kWaveAttr), 0);
  }
  EXPECT_EQ(casts[0]->name(), "x/_S0");
  EXPECT_EQ(sends[0]->name(), "x/_S1");
  EXPECT_EQ(Text(sends[0], "tensor_name"), "edge_0_x");
  for (const char* device : {kWorker, kPs1}) {
    SCOPED_TRACE(device);
    const Graph& part = *parts.at(device);
    const std::vector<const Node*> recvs = Ops(part, "_Recv"), floats = Ops(part, "Cast");
    ASSERT_THAT(recvs, SizeIs(1));
    ASSERT_THAT(floats, SizeIs(1));
    EXPECT_EQ(*GetAttr<DType>(recvs[0]->def(), "tensor_type"), DT_BFLOAT16);
    EXPECT_EQ(*GetAttr<int64_t>(recvs[0]->def(), kWaveAttr), 0);
    ExpectCast(*floats[0], DT_BFLOAT16, DT_FLOAT, device);
    EXPECT_EQ(floats[0]->input(0).node, recvs[0]);
  }
  const Graph& worker = *parts.at(kWorker);
  EXPECT_EQ(worker.FindNode("y")->input(0).node, Ops(worker, "Cast")[0]);
  EXPECT_EQ(worker.FindNode("z")->input(0).node, Ops(worker, "Cast")[0]);
  EXPECT_EQ(worker.FindNode("z")->input(1).node, Ops(worker, "Cast")[0]);
}

TEST_F(PartitionTest, CastsChangeNoWave) {
  const Output x = X(root_, kPs);
  const Output y = On(kWorker, Call(root_.WithName("y"), "Floor", {x}));
  On(kPs, Call(root_.WithName("z"), "Floor", {y}));
  const GraphPartitions parts = Cut(AsBfloat16());
  EXPECT_EQ(*GetAttr<int64_t>(Ops(*parts.at(kPs), "_Send")[0]->def(), kWaveAttr), 0);
  EXPECT_EQ(*GetAttr<int64_t>(Ops(*parts.at(kWorker), "_Send")[0]->def(), kWaveAttr), 1);
}

TEST_F(PartitionTest, FloatsInsideOfALocationAreNotCast) {
  const Output x = X(root_, kPs);
  const Output y = On(kPs1, Call(root_.WithName("y"), "Floor", {x}));
  On(kWorker, Call(root_.WithName("z"), "Floor", {y}));
  PartitionOptions options = AsBfloat16();
  options.node_to_loc = [](const Node& node) {
    return node.assigned_device().substr(0, node.assigned_device().find("/device:"));
  };
  const GraphPartitions parts = Cut(options);
  const Graph& ps = *parts.at("/job:ps/replica:0/task:0");
  EXPECT_EQ(ps.FindNode("y")->input(0).node, ps.FindNode("x"));
  ASSERT_THAT(Ops(ps, "Cast"), SizeIs(1));
  // On the device of what is sent: the cut by device adds no edge.
  ExpectCast(*Ops(ps, "Cast")[0], DT_FLOAT, DT_BFLOAT16, kPs1);
}

TEST_F(PartitionTest, OtherTypesAreNotCast) {
  for (const DType type :
       {DT_DOUBLE, DT_HALF, DT_BFLOAT16, DT_COMPLEX64, DT_INT32, DT_INT64, DT_BOOL, DT_STRING}) {
    SCOPED_TRACE(DTypeName(type));
    const Scope root;
    const Output x = On(kPs, Input(root.WithName("x"), type, {3}));
    On(kWorker, Call(root.WithName("y"), "Floor", {x}));
    const StatusOr<GraphPartitions> parts = PartitionGraph(*root.graph(), AsBfloat16());
    ASSERT_TRUE(parts.ok()) << parts.status();
    EXPECT_THAT(Ops(*parts->at(kPs), "Cast"), IsEmpty());
    EXPECT_THAT(Ops(*parts->at(kWorker), "Cast"), IsEmpty());
    EXPECT_EQ(*GetAttr<DType>(Ops(*parts->at(kPs), "_Send")[0]->def(), "T"), type);
  }
}

TEST_F(PartitionTest, ControlEdgesAndReferencesAreNotCast) {
  const Output x = X(root_, kPs);
  On(kWorker, NoOp(root_.WithControlDependencies({x.op()})));
  const Output v = On(kPs, NodeBuilder(root_.WithName("v"), "VariableV2")
                               .Attr("shape", PartialShape({3}))
                               .Attr("dtype", DT_FLOAT)
                               .Finish()
                               .output(0));
  On(kWorker, Call(root_.WithName("y"), "Floor", {v}));
  const GraphPartitions parts = Cut(AsBfloat16());
  ASSERT_THAT(Ops(*parts.at(kPs), "_Send"), SizeIs(2));
  for (const Node* send : Ops(*parts.at(kPs), "_Send")) {
    EXPECT_EQ(*GetAttr<DType>(send->def(), "T"), DT_FLOAT);
  }
  for (const auto& [device, part] : parts) EXPECT_THAT(Ops(*part, "Cast"), IsEmpty()) << device;
}

const OpRegistration kFile =
    OpSpec("FileForTest", "x: float -> y: float").UsesFiles().Shape([](InferenceContext* c) {
      c->set_output(0, PartialShape());
      return absl::OkStatus();
    });

// An _Arg or a _Retval.
Node* AddBoundary(const Scope& scope, const char* op, const char* name, const char* device) {
  tensorflow::NodeDef def;
  def.set_op(op);
  def.set_name(name);
  SetAttr(DT_FLOAT, &(*def.mutable_attr())["T"]);
  SetAttr(int64_t{0}, &(*def.mutable_attr())["index"]);
  Node* const node = *scope.graph()->AddNode(def);
  node->set_assigned_device(device);
  return node;
}

TEST_F(PartitionTest, WhatAClientFeedsAndFetchesAndWhatFilesHoldIsNotCast) {
  Node* const fed = AddBoundary(root_, "_Arg", "fed", kWorker);
  const Output uses_fed =
      On(kPs, Call(root_.WithName("uses_fed"), "Floor", {X(root_, kPs, "unfed")}));
  ASSERT_TRUE(root_.graph()->UpdateInput(uses_fed.node(), 0, fed, 0).ok());
  const Output x = X(root_, kPs);
  Node* const fetched = AddBoundary(root_, "_Retval", "fetched", kWorker);
  ASSERT_TRUE(root_.graph()->AddEdge(x.node(), 0, fetched, 0).ok());
  On(kWorker, Call(root_.WithName("saved"), "FileForTest", {X(root_, kPs, "variable")}));
  const Output restored =
      On(kWorker, Call(root_.WithName("restored"), "FileForTest", {X(root_, kWorker, "path")}));
  On(kPs, Call(root_.WithName("uses_restored"), "Floor", {restored}));
  const GraphPartitions parts = Cut(AsBfloat16());
  for (const auto& [device, part] : parts) {
    SCOPED_TRACE(device);
    EXPECT_THAT(Ops(*part, "_Send"), SizeIs(2));
    EXPECT_THAT(Ops(*part, "_Recv"), SizeIs(2));
    EXPECT_THAT(Ops(*part, "Cast"), IsEmpty());
  }
}

// Else a step would train differently when its weights are looked at.
TEST_F(PartitionTest, WhatIsFetchedAndUsedIsSentBothWays) {
  const Output x = X(root_, kPs);
  Node* const fetched = AddBoundary(root_, "_Retval", "fetched", kWorker);
  ASSERT_TRUE(root_.graph()->AddEdge(x.node(), 0, fetched, 0).ok());
  On(kWorker, Call(root_.WithName("y"), "Floor", {x}));
  const GraphPartitions parts = Cut(AsBfloat16());
  EXPECT_THAT(Ops(*parts.at(kPs), "_Send"), SizeIs(2));
  EXPECT_THAT(Ops(*parts.at(kPs), "Cast"), SizeIs(1));
  const Graph& worker = *parts.at(kWorker);
  EXPECT_EQ(worker.FindNode("fetched")->input(0).node->op(), "_Recv");
  EXPECT_EQ(worker.FindNode("y")->input(0).node->op(), "Cast");
}

Output Enter(const Scope& scope, Output x) {
  return NodeBuilder(scope.WithName("enter"), "Enter")
      .Input(x)
      .Attr("frame_name", "while/ctx")
      .Finish()
      .output(0);
}

TEST_F(PartitionTest, ALoopOnOneDeviceMayBeFedAndReadFromOthers) {
  const Output x = X(root_, kPs);
  const Output in = On(kWorker, Enter(root_, x));
  const Output body = On(kWorker, Call(root_, "Mul", {in, in}));
  const Output out = On(kWorker, Call(root_, "Exit", {body}));
  On(kPs, Call(root_, "Floor", {out}));
  const GraphPartitions parts = Cut();
  EXPECT_THAT(Ops(*parts.at(kWorker), "_Recv"), SizeIs(1));
  EXPECT_THAT(Ops(*parts.at(kPs), "_Recv"), SizeIs(1));
}

// while (p) x = Floor(x), with everything on kWorker but what `body` puts elsewhere.
struct Loop {
  Output merge, cond, ways, body, next, exit;
};
Output EnterLoop(const Scope& scope, Output x, const char* name, bool is_constant) {
  return On(kWorker, NodeBuilder(scope.WithName(name), "Enter")
                         .Input(x)
                         .Attr("frame_name", "while/ctx")
                         .Attr("is_constant", is_constant)
                         .Attr("parallel_iterations", int64_t{3})
                         .Finish()
                         .output(0));
}
Loop AddLoop(const Scope& scope, const char* body_device) {
  Loop loop;
  const Output x = On(kWorker, Input(scope.WithName("x"), DT_FLOAT, {3}));
  const Output p = On(kWorker, Input(scope.WithName("p"), DT_BOOL, {}));
  const Output enter = EnterLoop(scope, x, "enter", false);
  loop.merge = On(kWorker, NodeBuilder(scope.WithName("merge"), "Merge")
                               .Input(std::vector<Output>{enter, enter})
                               .Finish()
                               .output(0));
  loop.cond =
      On(kWorker, Call(scope.WithName("cond"), "LoopCond", {EnterLoop(scope, p, "enter_p", true)}));
  loop.ways = On(kWorker, Call(scope.WithName("switch"), "Switch", {loop.merge, loop.cond}));
  loop.body = On(body_device, Call(scope.WithName("body"), "Floor", {Output(loop.ways.node(), 1)}));
  loop.next = On(kWorker, Call(scope.WithName("next"), "NextIteration", {loop.body}));
  loop.exit = On(kWorker, Call(scope.WithName("exit"), "Exit", {loop.ways}));
  EXPECT_TRUE(scope.graph()->UpdateInput(loop.merge.node(), 1, loop.next.node(), 0).ok());
  return loop;
}

// "body <- _cloop/while/ctx/Merge_2": what each _Recv is for, and what it waits for.
std::vector<std::string> Waits(const Graph& part) {
  std::vector<std::string> waits;
  for (const Node* recv : Ops(part, "_Recv")) {
    std::string text = Text(recv, "tensor_name");
    text = text.substr(text.find('_', text.find('_') + 1) + 1);
    for (const std::string& control : ControlNames(*recv)) text += " <- " + control;
    waits.push_back(text);
  }
  std::sort(waits.begin(), waits.end());
  return waits;
}

TEST_F(PartitionTest, ALoopOnTwoDevicesHasAControlLoopWhereItReceives) {
  AddLoop(root_, kPs);
  const GraphPartitions parts = Cut();
  // Each receives once in an iteration, kPs also whether the loop goes on.
  EXPECT_THAT(Waits(*parts.at(kPs)), ElementsAre("cond <- _cloop/while/ctx/Merge_2",
                                                 "switch <- _cloop/while/ctx/Merge_2"));
  EXPECT_THAT(Waits(*parts.at(kWorker)), ElementsAre("body <- _cloop/while/ctx/Merge_7"));
  for (const auto& [device, part] : parts) {
    SCOPED_TRACE(device);
    StatusOr<Frames> frames = Frames::Of(*part);
    ASSERT_TRUE(frames.ok()) << frames.status();
    ASSERT_EQ(frames->num_frames(), 2);
    EXPECT_EQ(frames->frame(1).name, "while/ctx");
    EXPECT_EQ(frames->frame(1).parallel_iterations, 3);
    for (const Node* recv : Ops(*part, "_Recv")) EXPECT_EQ(frames->FrameOf(recv->id()), 1);
    EXPECT_THAT(Ops(*part, "NextIteration"), SizeIs(device == kPs ? 1 : 2));
  }
}

TEST_F(PartitionTest, InALoopFloatsAreCastInEachIterationThatHasThem) {
  AddLoop(root_, kPs);
  const GraphPartitions parts = Cut(AsBfloat16());
  EXPECT_THAT(Waits(*parts.at(kPs)), ElementsAre("cond <- _cloop/while/ctx/Merge_2",
                                                 "switch <- _cloop/while/ctx/Merge_2"));
  EXPECT_THAT(Waits(*parts.at(kWorker)), ElementsAre("body <- _cloop/while/ctx/Merge_7"));
  for (const auto& [device, part] : parts) {
    SCOPED_TRACE(device);
    const StatusOr<Frames> frames = Frames::Of(*part);
    ASSERT_TRUE(frames.ok()) << frames.status();
    // What arrives, and what leaves; the condition is no float.
    EXPECT_THAT(Ops(*part, "Cast"), SizeIs(2));
    for (const Node* cast : Ops(*part, "Cast")) EXPECT_EQ(frames->FrameOf(cast->id()), 1);
  }
}

TEST_F(PartitionTest, AControlEdgeInsideOfALoopIsReceivedOnceInAnIteration) {
  const Loop loop = AddLoop(root_, kWorker);
  On(kPs, NoOp(root_.WithControlDependencies({loop.body.op()}).WithName("away")));
  const GraphPartitions parts = Cut();
  EXPECT_THAT(Waits(*parts.at(kPs)),
              ElementsAre("body <- _cloop/while/ctx/Merge_2", "cond <- _cloop/while/ctx/Merge_2"));
  EXPECT_THAT(Ops(*parts.at(kWorker), "_Recv"), IsEmpty());
  EXPECT_TRUE(Frames::Of(*parts.at(kPs)).ok());
}

TEST_F(PartitionTest, WhatEntersALoopOrGoesRoundIsDoubledWhereItIsRead) {
  const Loop loop = AddLoop(root_, kWorker);
  const Output constant =
      EnterLoop(root_, Output(root_.graph()->FindNode("x"), 0), "constant", true);
  On(kPs, Call(root_.WithName("reads_constant"), "Floor", {constant}));
  // The Merge is elsewhere than what comes round to it.
  On(kPs, loop.merge);
  const GraphPartitions parts = Cut();
  const Graph& ps = *parts.at(kPs);
  EXPECT_EQ(ps.FindNode("reads_constant")->input(0).node->op(), "Enter");
  EXPECT_EQ(ps.FindNode("merge")->input(0).node->op(), "Enter");
  EXPECT_EQ(ps.FindNode("merge")->input(1).node->op(), "NextIteration");
  // Nobody is left to read these on the worker.
  EXPECT_EQ(parts.at(kWorker)->FindNode("constant"), nullptr);
  EXPECT_EQ(parts.at(kWorker)->FindNode("next"), nullptr);
  EXPECT_TRUE(Frames::Of(ps).ok());
}

TEST_F(PartitionTest, WhatHasAValueInTheFirstIterationOnlyIsReceivedThere) {
  const Loop loop = AddLoop(root_, kWorker);
  const Output once = EnterLoop(root_, Output(root_.graph()->FindNode("x"), 0), "once", false);
  const Output first = On(kWorker, Call(root_.WithName("first"), "Floor", {once}));
  On(kPs, Call(root_.WithName("away"), "Floor", {first}));
  const GraphPartitions parts = Cut();
  EXPECT_THAT(Waits(*parts.at(kPs)),
              ElementsAre("cond <- _cloop/while/ctx/Merge_2", "first <- _cloop/while/ctx/Enter_1"));
}

TEST_F(PartitionTest, ALoopOnTwoDevicesMustHaveALoopCond) {
  for (const bool control : {false, true}) {
    Scope root;
    const Output x = X(root, kPs);
    const Output in = On(kWorker, Enter(root, x));
    const Output body = On(kWorker, Call(root.WithName("body"), "Floor", {in}));
    if (control) {
      On(kPs, NoOp(root.WithControlDependencies({body.op()}).WithName("away")));
    } else {
      On(kPs, Call(root.WithName("away"), "Floor", {body}));
    }
    const Status status = PartitionGraph(*root.graph()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(),
              std::string("Partition: a loop on several devices must have a LoopCond, got none in "
                          "loop 'while/ctx', where 'body' on ") +
                  kWorker + " feeds 'away' on " + kPs);
  }
}

// A master cuts by task, the tasks cut their parts by device.
TEST_F(PartitionTest, APartOfALoopIsCutAgain) {
  const Loop loop = AddLoop(root_, kPs);
  On(kPs1, Call(root_.WithName("also"), "Floor", {loop.body}));
  PartitionOptions by_task;
  by_task.new_name_mark = "_S";
  by_task.node_to_loc = [](const Node& node) {
    return node.assigned_device().substr(0, node.assigned_device().find("/device"));
  };
  GraphPartitions tasks = Cut(by_task);
  ASSERT_THAT(tasks, SizeIs(2));
  const std::string ps_task = std::string(kPs).substr(0, std::string(kPs).find("/device"));
  PartitionOptions by_device;
  by_device.new_name_mark = "_G";
  by_device.has_control_loops = true;
  StatusOr<GraphPartitions> devices = PartitionGraph(std::move(tasks.at(ps_task)), by_device);
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_THAT(*devices, SizeIs(2));
  for (const auto& [device, part] : *devices) {
    SCOPED_TRACE(device);
    EXPECT_TRUE(Frames::Of(*part).ok()) << Frames::Of(*part).status();
    for (const std::string& wait : Waits(*part))
      EXPECT_THAT(wait, HasSubstr(" <- _cloop/while/ctx/Merge"));
    EXPECT_THAT(Ops(*part, "NextIteration"), SizeIs(1));
  }
}

TEST_F(PartitionTest, HandlesAndMutableReferencesDoNotTravel) {
  const Output w = On(kPs, Variable(root_.WithName("w"), DT_FLOAT, {3}));
  On(kWorker, Read(root_.WithName("read"), w, DT_FLOAT));
  const Status handle = PartitionGraph(*root_.graph()).status();
  EXPECT_EQ(handle.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(handle.message()),
              HasSubstr("a resource handle must be used where it is made, got 'w:0' on "));

  Scope refs;
  const Output v = On(kPs, NodeBuilder(refs.WithName("v"), "VariableV2")
                               .Attr("shape", PartialShape({3}))
                               .Attr("dtype", DT_FLOAT)
                               .Finish()
                               .output(0));
  On(kWorker, Call(refs.WithName("assign"), "Assign", {v, X(refs, kWorker)}));
  const Status reference = PartitionGraph(*refs.graph()).status();
  EXPECT_EQ(reference.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(reference.message()), HasSubstr("a reference must be used where"));
}

TEST_F(PartitionTest, NodesWithoutPlaceAreRefused) {
  Input(root_.WithName("x"), DT_FLOAT, {});
  const Status status = PartitionGraph(*root_.graph()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("node 'x' must have been placed"));
}

}  // namespace
}  // namespace millrace
