// SPDX-License-Identifier: Apache-2.0
#include "graph/node_body.h"

#include <numeric>
#include <string>
#include <vector>

#include "core/deterministic_bytes.h"
#include "core/tensor_proto.h"
#include "core/testing/tensor_testing.h"
#include "graph/copy.h"
#include "graph/graph.h"
#include "graph/graph_extension.h"
#include "graph/import_export.h"
#include "graph/place/partition.h"
#include "graph/place/placer.h"
#include "graph/prune.h"
#include "graph/testing/tiny_ops.h"
#include "graph/verify.h"
#include "gtest/gtest.h"
#include "proto/attr_value.pb.h"
#include "proto/graph.pb.h"
#include "proto/node_def.pb.h"

// covers: graphs: a constant's bytes are copied once from GraphDef to plan, attrs validated once
//   (both counted)

namespace millrace {
namespace {

using tensorflow::GraphDef;
using tensorflow::NodeDef;

constexpr char kCpu[] = "/job:localhost/replica:0/task:0/device:CPU:0";
constexpr char kOtherCpu[] = "/job:localhost/replica:0/task:0/device:CPU:1";

NodeDef* AddNode(GraphDef* graph, const std::string& name, const std::string& op,
                 const std::vector<std::string>& inputs) {
  NodeDef* node = graph->add_node();
  node->set_name(name);
  node->set_op(op);
  for (const std::string& input : inputs) node->add_input(input);
  return node;
}

void AddConst(GraphDef* graph, const std::string& name, const Tensor& value) {
  NodeDef* node = AddNode(graph, name, "Const", {});
  SetAttr(value.dtype(), &(*node->mutable_attr())["dtype"]);
  SetAttr(value, &(*node->mutable_attr())["value"]);
}

void AddFloatNode(GraphDef* graph, const std::string& name, const std::string& op,
                  const std::vector<std::string>& inputs) {
  SetAttr(DT_FLOAT, &(*AddNode(graph, name, op, inputs)->mutable_attr())["T"]);
}

Tensor Numbers(int64_t count) {
  Tensor tensor = *Tensor::Allocate(DT_FLOAT, Shape::Vector(static_cast<size_t>(count)));
  std::iota(tensor.mutable_flat<float>().begin(), tensor.mutable_flat<float>().end(), 0.5f);
  return tensor;
}

// w -> sum(w, w) -> out, all float, w of `count` numbers.
GraphDef GraphWithConst(int64_t count) {
  GraphDef def;
  def.mutable_versions()->set_producer(kGraphVersion);
  AddConst(&def, "w", Numbers(count));
  AddFloatNode(&def, "sum", "Add", {"w", "w"});
  AddFloatNode(&def, "out", "Identity", {"sum"});
  return def;
}

constexpr int64_t kCount = 1 << 18;
constexpr int64_t kBytes = kCount * static_cast<int64_t>(sizeof(float));

TEST(NodeBody, BytesOfAConstAreCopiedOnceFromTheMessageToThePartitions) {
  for (const bool take : {false, true}) {
    GraphDef def = GraphWithConst(kCount);
    const int64_t before = ConstantBytesCopiedForTesting();
    Graph graph;
    ASSERT_OK(take ? ImportGraphDef(std::move(def), {}, &graph) : ImportGraphDef(def, {}, &graph));
    EXPECT_EQ(ConstantBytesCopiedForTesting() - before, kBytes);
    const Tensor value = *GetAttr<Tensor>(*graph.FindNode("w"), "value");
    EXPECT_EQ(value, Numbers(kCount));

    ASSERT_OK_AND_ASSIGN(const auto copy, CopyGraph(graph));
    EXPECT_EQ(copy->FindNode("w")->body(), graph.FindNode("w")->body());
    for (const char* second_device : {kCpu, kOtherCpu}) {
      ASSERT_OK_AND_ASSIGN(RunGraph run, BuildRunGraph(graph, {{}, {"out"}, {}}));
      run.graph->FindNode("out")->set_requested_device(second_device);
      ASSERT_OK(
          PlaceGraph(run.graph.get(), {{kCpu, "CPU", 1}, {kOtherCpu, "CPU", 2}}, nullptr, {}));
      ASSERT_OK_AND_ASSIGN(const GraphPartitions parts, PartitionGraph(std::move(run.graph)));
      EXPECT_EQ(parts.size(), second_device == kCpu ? 1u : 2u);
      const Tensor there = *GetAttr<Tensor>(*parts.at(kCpu)->FindNode("w"), "value");
      EXPECT_TRUE(there.SharesBufferWith(value));
    }
    EXPECT_EQ(ConstantBytesCopiedForTesting() - before, kBytes);
  }
}

TEST(NodeBody, AttrsAreValidatedOnceFromTheMessageToThePartitions) {
  GraphDef def = GraphWithConst(4);
  for (int i = 0; i < 100; ++i) {
    AddFloatNode(&def, "more" + std::to_string(i), "Identity", {"out"});
  }
  const int64_t before = AttrValidationsForTesting();
  Graph graph;
  ASSERT_OK(ImportGraphDef(def, {}, &graph));
  EXPECT_EQ(AttrValidationsForTesting() - before, 3) << "a Const, an Add and 101 equal Identities";
  const int64_t imported = AttrValidationsForTesting();
  ASSERT_OK_AND_ASSIGN(RunGraph run, BuildRunGraph(graph, {{}, {"more7"}, {"more8"}}));
  EXPECT_EQ(AttrValidationsForTesting() - imported, 1) << "the _Retval";
  ASSERT_OK(PlaceGraph(run.graph.get(), {{kCpu, "CPU", 1}}, nullptr, {}));
  ASSERT_OK_AND_ASSIGN(const GraphPartitions parts, PartitionGraph(*run.graph));
  EXPECT_EQ(AttrValidationsForTesting() - imported, 1);
}

TEST(NodeBody, ExportWritesTheBytesAgain) {
  GraphDef def = GraphWithConst(kCount);
  AddConst(&def, "small", Numbers(3));
  Graph graph;
  ASSERT_OK(ImportGraphDef(def, {}, &graph));
  GraphDef back;
  graph.ToGraphDef(&back);
  EXPECT_EQ(DeterministicBytes(back), DeterministicBytes(def));
  EXPECT_EQ(DeterministicBytes(graph.NodeToDef(*graph.FindNode("w"))),
            DeterministicBytes(def.node(0)));
}

TEST(NodeBody, BytesThatAreNoBoolsComeBackAsTheyWere) {
  GraphDef def;
  NodeDef* node = AddNode(&def, "mask", "Const", {});
  SetAttr(DT_BOOL, &(*node->mutable_attr())["dtype"]);
  auto* const value = (*node->mutable_attr())["value"].mutable_tensor();
  value->set_dtype(tensorflow::DT_BOOL);
  value->mutable_tensor_shape()->add_dim()->set_size(2000);
  value->set_tensor_content(std::string(2000, '\2'));
  Graph graph;
  ASSERT_OK(ImportGraphDef(def, {}, &graph));
  EXPECT_TRUE((*GetAttr<Tensor>(*graph.FindNode("mask"), "value")).flat<bool>()[1999]);
  GraphDef back;
  graph.ToGraphDef(&back);
  EXPECT_EQ(DeterministicBytes(back.node(0)), DeterministicBytes(def.node(0)));
}

TEST(NodeBody, AMessageWithoutItsBytesIsNeverTakenForAValue) {
  Graph graph;
  ASSERT_OK(ImportGraphDef(GraphWithConst(kCount), {}, &graph));
  const Node& w = *graph.FindNode("w");
  EXPECT_STATUS(GetAttr<Tensor>(w.def(), "value").status(), absl::StatusCode::kInvalidArgument,
                "tensor_content");
  Graph other;
  ASSERT_OK(ImportGraphDef(GraphWithConst(kCount), {}, &other));
  EXPECT_NE(DeterministicBytes(w.def()), DeterministicBytes(other.FindNode("w")->def()))
      << "different bodies must not look equal by accident";
}

TEST(NodeBody, FewNumbersThatStandForManyStayInTheirMessage) {
  GraphDef def;
  NodeDef* node = AddNode(&def, "zeros", "Const", {});
  SetAttr(DT_FLOAT, &(*node->mutable_attr())["dtype"]);
  auto* const value = (*node->mutable_attr())["value"].mutable_tensor();
  value->set_dtype(tensorflow::DT_FLOAT);
  value->mutable_tensor_shape()->add_dim()->set_size(1 << 30);
  value->add_float_val(0);
  const int64_t before = ConstantBytesCopiedForTesting();
  Graph graph;
  ASSERT_OK(ImportGraphDef(def, {}, &graph));
  EXPECT_LT(ConstantBytesCopiedForTesting() - before, 1024);
  EXPECT_EQ(graph.FindNode("zeros")->body()->value(), nullptr);
}

TEST(NodeBody, ChangingAnAttrLeavesCopiesAlone) {
  Graph graph;
  ASSERT_OK(ImportGraphDef(GraphWithConst(kCount), {}, &graph));
  ASSERT_OK_AND_ASSIGN(const auto copy, CopyGraph(graph));
  Node* const sum = graph.FindNode("sum");
  sum->EditAttr("_where", [](tensorflow::AttrValue* attr) { SetAttr("here", attr); });
  EXPECT_EQ(*GetAttr<std::string>(*sum, "_where"), "here");
  EXPECT_FALSE(HasAttr(*copy->FindNode("sum"), "_where"));

  Node* const w = graph.FindNode("w");
  w->EditAttr("_where", [](tensorflow::AttrValue* attr) { SetAttr("here", attr); });
  EXPECT_EQ(*GetAttr<Tensor>(*w, "value"), Numbers(kCount)) << "the value is still there";
  w->EditAttr("value", [](tensorflow::AttrValue* attr) {
    SetAttr(Tensor::Vector<float>({1, 2}), attr);
  });
  EXPECT_EQ(*GetAttr<Tensor>(*w, "value"), Tensor::Vector<float>({1, 2}));
  EXPECT_EQ(*GetAttr<Tensor>(*copy->FindNode("w"), "value"), Numbers(kCount));
}

TEST(NodeBody, EqualNodesShareOne) {
  GraphDef def = GraphWithConst(4);
  AddFloatNode(&def, "same", "Identity", {"w"});
  AddNode(&def, "u1", "NobodyKnows", {"w", "w"});
  AddNode(&def, "u2", "NobodyKnows", {"w"});
  SetAttr(DT_INT32, &(*AddNode(&def, "other", "Placeholder", {})->mutable_attr())["dtype"]);
  SetAttr(DT_FLOAT, &(*AddNode(&def, "another", "Placeholder", {})->mutable_attr())["dtype"]);
  Graph graph;
  ASSERT_OK(ImportGraphDef(def, {}, &graph));
  const auto body = [&](const char* name) { return graph.FindNode(name)->body(); };
  EXPECT_EQ(body("same"), body("out"));
  EXPECT_NE(body("other"), body("another"));
  EXPECT_NE(body("u1"), body("u2")) << "an unknown op has as many inputs as its node";
  EXPECT_EQ(graph.FindNode("u1")->num_inputs(), 2);
}

TEST(NodeBody, ExtendingVerifiesOnlyWhatIsNew) {
  GraphDef def = GraphWithConst(4);
  for (int i = 0; i < 1000; ++i) {
    AddFloatNode(&def, "n" + std::to_string(i), "Identity", {"out"});
  }
  Graph graph;
  ASSERT_OK(ExtendGraph(def, &graph));
  GraphDef more;
  more.mutable_versions()->set_producer(kGraphVersion);
  AddFloatNode(&more, "last", "Add", {"n3", "n999"});
  const int64_t before = NodesVerifiedForTesting();
  ASSERT_OK(ExtendGraph(more, &graph));
  EXPECT_EQ(NodesVerifiedForTesting() - before, 1);
  EXPECT_EQ(graph.FindNode("last")->input(1).node, graph.FindNode("n999"));

  // What is new is verified, though.
  GraphDef cycle;
  AddFloatNode(&cycle, "c1", "Add", {"out", "c2"});
  AddFloatNode(&cycle, "c2", "Identity", {"c1"});
  EXPECT_STATUS(ExtendGraph(cycle, &graph), absl::StatusCode::kInvalidArgument, "cycle");
  EXPECT_EQ(graph.num_nodes(), 1004);
}

TEST(NodeBody, AChainOf100000NodesPassesThroughEverything) {
  constexpr int kDepth = 100'000;
  GraphDef def = GraphWithConst(4);
  std::string before = "out";
  for (int i = 0; i < kDepth; ++i) {
    const std::string name = "n" + std::to_string(i);
    AddFloatNode(&def, name, "Identity", {before});
    before = name;
  }
  Graph graph;
  ASSERT_OK(ImportGraphDef(def, {}, &graph));
  ASSERT_OK(VerifyGraph(graph));
  ASSERT_OK_AND_ASSIGN(RunGraph run, BuildRunGraph(graph, {{}, {before}, {}}));
  run.graph->FindNode("n50000")->set_requested_device(kOtherCpu);
  ASSERT_OK(PlaceGraph(run.graph.get(), {{kCpu, "CPU", 1}, {kOtherCpu, "CPU", 2}}, nullptr, {}));
  ASSERT_OK_AND_ASSIGN(const GraphPartitions parts, PartitionGraph(*run.graph));
  EXPECT_EQ(parts.size(), 2u);
  EXPECT_EQ(parts.at(kOtherCpu)->num_nodes(), 3) << "_Recv, n50000, _Send";
  Node* const keep[] = {graph.FindNode("sum")};
  ASSERT_OK(PruneForTargets(&graph, keep));
  EXPECT_EQ(graph.num_nodes(), 2);
}

}  // namespace
}  // namespace millrace
