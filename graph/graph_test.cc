// SPDX-License-Identifier: Apache-2.0
#include "graph/graph.h"

#include <limits>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "graph/attr.h"
#include "graph/print.h"
#include "graph/shape_inference.h"
#include "graph/verify.h"
#include "gtest/gtest.h"

// covers: graphs: an edge is removed or replaced without walking its neighbours (edges counted)

namespace millrace {
namespace {

using tensorflow::NodeDef;

const OpRegistration kOps[] = {
    OpSpec("TestSource").Output("y: T").Attr("T: type = DT_FLOAT").Shape(ValueDependentShape),
    OpSpec("TestVariable").Output("ref: Ref(float)").Stateful().Shape(ValueDependentShape),
    OpSpec("TestUnary").Input("x: T").Output("y: T").Attr("T: type").Shape(UnchangedShape),
    OpSpec("TestBinary")
        .Input("a: float")
        .Input("b: float")
        .Output("y: float")
        .Shape(BroadcastBinaryShape),
    OpSpec("TestPack")
        .Input("values: N * T")
        .Output("y: T")
        .Attr("N: int >= 1")
        .Attr("T: type")
        .Shape(ValueDependentShape),
    OpSpec("TestSplit")
        .Input("x: float")
        .Output("first: float")
        .Output("rest: N * int32")
        .Output("more: Ts")
        .Attr("N: int >= 1")
        .Attr("Ts: list(type) >= 0")
        .Shape(ValueDependentShape),
    OpSpec("TestAssign").Input("ref: Ref(float)").Input("value: float").Shape(NoOutputShape),
    OpSpec("Merge")
        .Input("inputs: N * T")
        .Output("output: T")
        .Output("value_index: int32")
        .Attr("T: type")
        .Attr("N: int >= 1")
        .Shape(ValueDependentShape),
    OpSpec("NextIteration")
        .Input("data: T")
        .Output("output: T")
        .Attr("T: type")
        .Shape(UnchangedShape),
};

NodeDef Def(const std::string& name, const std::string& op, const std::string& attrs = "") {
  NodeDef def;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(attrs, &def)) << attrs;
  def.set_name(name);
  def.set_op(op);
  return def;
}

std::string TypeAttr(const std::string& name, const std::string& type) {
  return "attr { key: '" + name + "' value { type: " + type + " } }";
}

Node* Add(Graph* graph, const std::string& name, const std::string& op,
          const std::string& attrs = "") {
  StatusOr<Node*> node = graph->AddNode(Def(name, op, attrs));
  EXPECT_TRUE(node.ok()) << node.status();
  return node.ok() ? *node : nullptr;
}

TEST(GraphTest, NodesGetDenseIdsAndRemovalLeavesAHole) {
  Graph graph;
  Node* a = Add(&graph, "a", "TestSource");
  Node* b = Add(&graph, "b", "TestSource");
  Node* c = Add(&graph, "c", "TestBinary");
  ASSERT_TRUE(graph.AddEdge(a, 0, c, 0).ok());
  ASSERT_TRUE(graph.AddEdge(b, 0, c, 1).ok());
  graph.AddControlEdge(b, c);
  graph.RemoveNode(b);
  EXPECT_EQ(graph.num_nodes(), 2);
  EXPECT_EQ(graph.num_node_ids(), 3);
  EXPECT_EQ(graph.nodes()[1], nullptr);
  EXPECT_EQ(graph.FindNode("b"), nullptr);
  EXPECT_EQ(c->input(1).node, nullptr);
  EXPECT_TRUE(c->control_inputs().empty());
  EXPECT_EQ(c->id(), 2);
  graph.RemoveNode(c);
  EXPECT_TRUE(a->out_edges().empty());
}

TEST(GraphTest, TypesComeFromOpAndAttrs) {
  Graph graph;
  Node* split = Add(&graph, "s", "TestSplit",
                    "attr { key: 'N' value { i: 2 } } attr { key: 'Ts' value { list { type: "
                    "[DT_STRING, DT_BOOL] } } }");
  EXPECT_EQ(split->input_types(), std::vector<DType>({DT_FLOAT}));
  EXPECT_EQ(split->output_types(),
            std::vector<DType>({DT_FLOAT, DT_INT32, DT_INT32, DT_STRING, DT_BOOL}));
  const tensorflow::OpDef& op = split->op_entry()->def;
  StatusOr<ArgRange> rest = OutputArgRange(split->def(), op, "rest");
  ASSERT_TRUE(rest.ok());
  EXPECT_EQ(rest->begin, 1);
  EXPECT_EQ(rest->end, 3);
  EXPECT_EQ(OutputArgRange(split->def(), op, "more")->end, 5);
  EXPECT_EQ(OutputArgRange(graph.NodeToDef(*split), op, "none").status().message(),
            "TestSplit 's': has no output 'none'");
  EXPECT_EQ(Add(&graph, "v", "TestVariable")->output_type(0), DT_FLOAT_REF);
}

TEST(GraphTest, BadNodesAreRefused) {
  struct Case {
    NodeDef def;
    const char* message;
  };
  const std::string kNameRule =
      "node name must be letters, digits and any of '_./-' and not begin with '/' or '-', got ";
  const std::vector<std::pair<NodeDef, std::string>> cases = {
      {Def("", "TestSource"), "TestSource '': " + kNameRule + "''"},
      {Def("/a", "TestSource"), "TestSource '/a': " + kNameRule + "'/a'"},
      {Def("a b", "TestSource"), "TestSource 'a b': " + kNameRule + "'a b'"},
      {Def("a:0", "TestSource"), "TestSource 'a:0': " + kNameRule + "'a:0'"},
      {Def("x", ""), "node 'x': op must be given, got none"},
      {Def("taken", "TestSource"),
       "TestSource 'taken': node name must be unique, got a second node of this name"},
      {Def("u", "TestUnary"), "TestUnary 'u': attr 'T' must be given (type), got none"},
      {Def("p", "TestPack", TypeAttr("T", "DT_FLOAT") + "attr { key: 'N' value { i: 0 } }"),
       "TestPack 'p': attr 'N' must be >= 1, got 0"},
      {Def("p", "TestPack",
           TypeAttr("T", "DT_FLOAT") + "attr { key: 'N' value { i: 9223372036854775807 } }"),
       "TestPack 'p': attr 'N' must be in [0, 1048576], got 9223372036854775807"},
      {Def("u", "TestUnary", TypeAttr("T", "DT_FLOAT_REF")),
       "TestUnary 'u': attr 'T' must not be a reference type, got float_ref"},
  };
  Graph graph;
  Add(&graph, "taken", "TestSource");
  for (const auto& [def, message] : cases) {
    StatusOr<Node*> node = graph.AddNode(def);
    EXPECT_EQ(node.status().code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_EQ(node.status().message(), message);
  }
  EXPECT_EQ(graph.num_nodes(), 1);
}

TEST(GraphTest, InternalNamesAndUnknownAttrsAreKept) {
  Graph graph;
  Node* node = Add(&graph, "_send_x", "TestSource", "attr { key: '_kernel' value { s: 'k' } }");
  EXPECT_EQ(node->def().attr().at("_kernel").s(), "k");
  EXPECT_EQ(node->def().attr().at("T").type(), tensorflow::DT_FLOAT) << "default filled";
}

TEST(GraphTest, EdgesAreChecked) {
  Graph graph;
  Node* f = Add(&graph, "f", "TestSource");
  Node* i = Add(&graph, "i", "TestSource", TypeAttr("T", "DT_INT32"));
  Node* v = Add(&graph, "v", "TestVariable");
  Node* add = Add(&graph, "add", "TestBinary");
  Node* assign = Add(&graph, "assign", "TestAssign");
  EXPECT_EQ(graph.AddEdge(f, 2, add, 0).message(),
            "TestBinary 'add': input 0 refers to 'f:2', but 'f' has 1 output");
  EXPECT_EQ(graph.AddEdge(f, 0, add, 2).message(),
            "TestBinary 'add': has 2 inputs, got an edge to input 2");
  EXPECT_EQ(graph.AddEdge(i, 0, add, 0).message(),
            "TestBinary 'add': input 0 must be float, got int32 from 'i:0'");
  EXPECT_EQ(graph.AddEdge(f, 0, assign, 0).message(),
            "TestAssign 'assign': input 0 must be float_ref, got float from 'f:0'");
  EXPECT_TRUE(graph.AddEdge(v, 0, assign, 0).ok());
  EXPECT_TRUE(graph.AddEdge(v, 0, assign, 1).ok()) << "a reference may feed a value";
  EXPECT_TRUE(graph.AddEdge(f, 0, add, 0).ok());
  EXPECT_EQ(graph.AddEdge(v, 0, add, 0).message(),
            "TestBinary 'add': input 0 must have one source, got 'f:0' and 'v:0'");
}

TEST(GraphTest, UpdateInputMovesTheEdge) {
  Graph graph;
  Node* a = Add(&graph, "a", "TestSource");
  Node* b = Add(&graph, "b", "TestSource");
  Node* i = Add(&graph, "i", "TestSource", TypeAttr("T", "DT_INT32"));
  Node* add = Add(&graph, "add", "TestBinary");
  ASSERT_TRUE(graph.AddEdge(a, 0, add, 0).ok());
  ASSERT_TRUE(graph.AddEdge(a, 0, add, 1).ok());
  ASSERT_TRUE(graph.UpdateInput(add, 1, b, 0).ok());
  EXPECT_EQ(add->input(1).node, b);
  EXPECT_EQ(a->out_edges().size(), 1u);
  EXPECT_EQ(a->out_edges()[0].dst_input, 0);
  ASSERT_TRUE(graph.UpdateInput(add, 1, b, 0).ok());
  EXPECT_EQ(b->out_edges().size(), 1u);
  EXPECT_FALSE(graph.UpdateInput(add, 1, i, 0).ok());
  EXPECT_EQ(add->input(1).node, b) << "a refused update changes nothing";
}

TEST(GraphTest, ControlEdgesExistOnce) {
  Graph graph;
  Node* a = Add(&graph, "a", "TestSource");
  Node* b = Add(&graph, "b", "TestSource");
  graph.AddControlEdge(a, b);
  graph.AddControlEdge(a, b);
  EXPECT_EQ(b->control_inputs().size(), 1u);
  EXPECT_EQ(a->out_edges().size(), 1u);
}

// What a list of edges shows, by name and input.
std::vector<std::string> Readers(const Node& node) {
  std::vector<std::string> readers;
  for (const Edge& edge : node.out_edges()) {
    readers.push_back(edge.is_control() ? "^" + edge.dst->name()
                                        : edge.dst->name() + ":" + std::to_string(edge.dst_input));
  }
  return readers;
}

TEST(GraphTest, EdgesKeepTheirOrderWhenOthersAreRemoved) {
  Graph graph;
  Node* a = Add(&graph, "a", "TestSource");
  Node* b = Add(&graph, "b", "TestSource");
  std::vector<Node*> readers;
  for (int i = 0; i < 6; ++i) {
    readers.push_back(Add(&graph, "r" + std::to_string(i), "TestBinary"));
    ASSERT_TRUE(graph.AddEdge(a, 0, readers.back(), 0).ok());
    graph.AddControlEdge(a, readers.back());
  }
  graph.RemoveNode(readers[2]);
  ASSERT_TRUE(graph.UpdateInput(readers[0], 0, b, 0).ok());
  EXPECT_EQ(Readers(*a), std::vector<std::string>(
                             {"^r0", "r1:0", "^r1", "r3:0", "^r3", "r4:0", "^r4", "r5:0", "^r5"}));
  graph.RemoveNode(readers[1]);
  graph.RemoveNode(readers[3]);
  ASSERT_TRUE(graph.AddEdge(a, 0, readers[0], 1).ok());
  EXPECT_EQ(Readers(*a), std::vector<std::string>({"^r0", "r4:0", "^r4", "r5:0", "^r5", "r0:1"}));
  EXPECT_EQ(a->out_edges().size(), 6u);
  EXPECT_EQ(a->out_edges()[3].dst, readers[5]);
}

TEST(GraphTest, ControlInputsKeepTheirOrderWhenOthersAreRemoved) {
  Graph graph;
  Node* group = Add(&graph, "group", "TestSource");
  std::vector<Node*> sources;
  for (int i = 0; i < 8; ++i) {
    sources.push_back(Add(&graph, "s" + std::to_string(i), "TestSource"));
    graph.AddControlEdge(sources.back(), group);
  }
  for (int i : {1, 6, 0, 4, 3}) graph.RemoveNode(sources[static_cast<size_t>(i)]);
  graph.AddControlEdge(sources[7], group);
  graph.AddControlEdge(Add(&graph, "s8", "TestSource"), group);
  const tensorflow::NodeDef def = graph.NodeToDef(*group);
  EXPECT_EQ(std::vector<std::string>(def.input().begin(), def.input().end()),
            std::vector<std::string>({"^s2", "^s5", "^s7", "^s8"}));
  EXPECT_EQ(group->control_inputs().size(), 4u);
}

TEST(GraphTest, EditsAtAHubLookAtTheirOwnEdgesOnly) {
  constexpr int kReaders = 10'000;
  Graph graph;
  Node* hub = Add(&graph, "hub", "TestSource");
  Node* sink = Add(&graph, "sink", "TestSource");
  Node* other = Add(&graph, "other", "TestSource");
  std::vector<Node*> readers;
  for (int i = 0; i < kReaders; ++i) {
    Node* reader = Add(&graph, "r" + std::to_string(i), "TestBinary");
    ASSERT_TRUE(graph.AddEdge(hub, 0, reader, 0).ok());
    ASSERT_TRUE(graph.AddEdge(hub, 0, reader, 1).ok());
    graph.AddControlEdge(hub, reader);
    graph.AddControlEdge(reader, sink);
    readers.push_back(reader);
  }
  const int64_t before = EdgesVisitedForTesting();
  graph.AddControlEdge(hub, sink);
  for (int i = 0; i < kReaders; ++i) graph.AddControlEdge(hub, sink);
  EXPECT_EQ(EdgesVisitedForTesting(), before) << "looking for a duplicate walks no list";
  // From the front, so that a search from either end would be seen.
  for (int i = 0; i < kReaders / 2; ++i) {
    ASSERT_TRUE(graph.UpdateInput(readers[static_cast<size_t>(i)], 0, other, 0).ok());
  }
  for (int i = kReaders / 4; i < kReaders; ++i) {
    graph.RemoveNode(readers[static_cast<size_t>(i)]);
  }
  // Four edges each, all looked at a few times at most.
  EXPECT_LE(EdgesVisitedForTesting() - before, 16 * kReaders);
  EXPECT_EQ(sink->control_inputs().size(), static_cast<size_t>(kReaders / 4 + 1));
  EXPECT_EQ(hub->out_edges().size(), static_cast<size_t>(2 * (kReaders / 4) + 1));
}

TEST(GraphTest, OutputsOfUnknownOpsComeIntoBeingWhenReferredTo) {
  Graph graph;
  NodeDef def = Def("x", "NobodyKnows");
  def.add_input("p");
  def.add_input("q:1");
  def.add_input("^c");
  StatusOr<Node*> x = graph.AddNode(def);
  ASSERT_TRUE(x.ok());
  EXPECT_EQ((*x)->num_inputs(), 2);
  EXPECT_EQ((*x)->num_outputs(), 0);
  Node* add = Add(&graph, "add", "TestBinary");
  EXPECT_TRUE(graph.AddEdge(*x, 3, add, 0).ok());
  EXPECT_EQ((*x)->num_outputs(), 4);
  EXPECT_EQ((*x)->output_type(3), DT_INVALID);
  EXPECT_FALSE(graph.AddEdge(*x, 2'000'000'000, add, 1).ok());
}

TEST(GraphTest, UniqueNamesIgnoreCaseAndFillTheFirstGap) {
  Graph graph;
  EXPECT_EQ(graph.UniqueName("foo"), "foo");
  Add(&graph, "foo", "TestSource");
  EXPECT_EQ(graph.UniqueName("Foo"), "Foo_1");
  Node* one = Add(&graph, "Foo_1", "TestSource");
  Add(&graph, "foo_2", "TestSource");
  EXPECT_EQ(graph.UniqueName("foo"), "foo_3");
  graph.RemoveNode(one);
  EXPECT_EQ(graph.UniqueName("foo"), "foo_1");
  EXPECT_TRUE(graph.HasNameIgnoringCase("FOO_2"));
  EXPECT_FALSE(graph.HasNameIgnoringCase("foo_1"));
}

TEST(GraphTest, ExportWritesInputsAsTensorFlowDoes) {
  Graph graph;
  Node* s = Add(&graph, "s", "TestSplit",
                "attr { key: 'N' value { i: 1 } } attr { key: 'Ts' value { list { type: DT_FLOAT "
                "} } }");
  Node* add = Add(&graph, "add", "TestBinary");
  ASSERT_TRUE(graph.AddEdge(s, 0, add, 0).ok());
  ASSERT_TRUE(graph.AddEdge(s, 2, add, 1).ok());
  graph.AddControlEdge(s, add);
  add->set_requested_device("/cpu:0");
  add->set_assigned_device("/job:a/replica:0/task:0/device:CPU:0");
  tensorflow::GraphDef def;
  graph.ToGraphDef(&def, /*first_id=*/1);
  ASSERT_EQ(def.node_size(), 1);
  EXPECT_EQ(std::vector<std::string>(def.node(0).input().begin(), def.node(0).input().end()),
            std::vector<std::string>({"s", "s:2", "^s"}));
  EXPECT_EQ(def.node(0).device(), "/cpu:0");
  EXPECT_EQ(def.versions().producer(), 134);
  graph.ToGraphDef(&def, 1, /*assigned=*/true);
  EXPECT_EQ(def.node(0).device(), "/job:a/replica:0/task:0/device:CPU:0");
}

TEST(GraphTest, TopologicalOrderAllowsLoopsOnlyThroughNextIteration) {
  Graph graph;
  const std::string t = TypeAttr("T", "DT_FLOAT");
  Node* merge = Add(&graph, "merge", "Merge", t + "attr { key: 'N' value { i: 2 } }");
  Node* body = Add(&graph, "body", "TestUnary", t);
  Node* next = Add(&graph, "next", "NextIteration", t);
  Node* start = Add(&graph, "start", "TestSource");
  ASSERT_TRUE(graph.AddEdge(start, 0, merge, 0).ok());
  ASSERT_TRUE(graph.AddEdge(merge, 0, body, 0).ok());
  ASSERT_TRUE(graph.AddEdge(body, 0, next, 0).ok());
  ASSERT_TRUE(graph.AddEdge(next, 0, merge, 1).ok());
  StatusOr<std::vector<Node*>> order = TopologicalOrder(graph);
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_EQ(*order, std::vector<Node*>({start, merge, body, next}));
  ASSERT_TRUE(graph.UpdateInput(merge, 1, body, 0).ok());
  EXPECT_EQ(TopologicalOrder(graph).status().message(),
            "Graph: a cycle must go through NextIteration into Merge, got the cycle 'merge' -> "
            "'body' -> 'merge'");
}

TEST(GraphTest, VerifyFindsInputsWithoutSource) {
  Graph graph;
  Node* a = Add(&graph, "a", "TestSource");
  Node* add = Add(&graph, "add", "TestBinary");
  ASSERT_TRUE(graph.AddEdge(a, 0, add, 0).ok());
  EXPECT_EQ(VerifyGraph(graph).message(), "TestBinary 'add': input 1 must have a source, got none");
  ASSERT_TRUE(graph.AddEdge(a, 0, add, 1).ok());
  EXPECT_TRUE(VerifyGraph(graph).ok());
}

TEST(TensorNameTest, FormsAreToldApart) {
  StatusOr<TensorName> name = ParseTensorName("a/b");
  ASSERT_TRUE(name.ok());
  EXPECT_EQ(name->node, "a/b");
  EXPECT_EQ(name->index, 0);
  EXPECT_EQ(ParseTensorName("a:12")->index, 12);
  EXPECT_EQ(ParseTensorName("^a")->index, kControlSlot);
  EXPECT_EQ(ParseTensorName("^a")->node, "a");
  for (const char* bad : {"", "^", ":0", "a:", "a:x", "a:-1", "a:1:2", "^a:0", "a:99999999999"}) {
    EXPECT_FALSE(ParseTensorName(bad).ok()) << bad;
  }
}

TEST(AttrTest, ValuesOfEveryKindComeBack) {
  NodeDef node = Def("n", "Op");
  auto attr = [&](const char* name) { return &(*node.mutable_attr())[name]; };
  SetAttr("text", attr("s"));
  SetAttr(int64_t{1} << 40, attr("i"));
  SetAttr(int32_t{-3}, attr("small"));
  SetAttr(2.5f, attr("f"));
  SetAttr(true, attr("b"));
  SetAttr(DT_INT32, attr("t"));
  SetAttr(PartialShape({2, -1}), attr("shape"));
  SetAttr(Tensor::Vector<int32_t>({1, 2}), attr("tensor"));
  SetAttr(std::vector<std::string>{"a", "b"}, attr("ls"));
  SetAttr(std::vector<int64_t>{1, 2}, attr("li"));
  SetAttr(std::vector<float>{0.5f}, attr("lf"));
  SetAttr(std::vector<bool>{true, false}, attr("lb"));
  SetAttr(std::vector<DType>{DT_HALF}, attr("lt"));
  SetAttr(std::vector<PartialShape>{PartialShape()}, attr("lshape"));
  SetAttr(std::vector<int64_t>{}, attr("empty"));
  EXPECT_EQ(*GetAttr<std::string>(node, "s"), "text");
  EXPECT_EQ(*GetAttr<int64_t>(node, "i"), int64_t{1} << 40);
  EXPECT_EQ(*GetAttr<int32_t>(node, "small"), -3);
  EXPECT_EQ(*GetAttr<float>(node, "f"), 2.5f);
  EXPECT_EQ(*GetAttr<bool>(node, "b"), true);
  EXPECT_EQ(*GetAttr<DType>(node, "t"), DT_INT32);
  EXPECT_EQ(GetAttr<PartialShape>(node, "shape")->ToString(), "[2,?]");
  EXPECT_EQ(*GetAttr<Tensor>(node, "tensor"), Tensor::Vector<int32_t>({1, 2}));
  EXPECT_EQ(*GetAttr<std::vector<std::string>>(node, "ls"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(*GetAttr<std::vector<int32_t>>(node, "li"), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(*GetAttr<std::vector<float>>(node, "lf"), (std::vector<float>{0.5f}));
  EXPECT_EQ(*GetAttr<std::vector<bool>>(node, "lb"), (std::vector<bool>{true, false}));
  EXPECT_EQ(*GetAttr<std::vector<DType>>(node, "lt"), (std::vector<DType>{DT_HALF}));
  EXPECT_EQ(GetAttr<std::vector<PartialShape>>(node, "lshape")->size(), 1u);
  EXPECT_TRUE(GetAttr<std::vector<std::string>>(node, "empty")->empty());

  EXPECT_EQ(GetAttr<bool>(node, "none").status().message(), "Op 'n': attr 'none' is missing");
  EXPECT_EQ(GetAttr<bool>(node, "none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(GetAttr<bool>(node, "s").status().message(),
            "Op 'n': attr 's' must be of type bool, got \"text\"");
  EXPECT_EQ(GetAttr<int32_t>(node, "i").status().message(),
            "Op 'n': attr 'i' must fit into 32 bits, got 1099511627776");
  EXPECT_EQ(GetAttr<std::vector<float>>(node, "li").status().message(),
            "Op 'n': attr 'li' must be of type list(float), got [1, 2]");
  EXPECT_EQ(GetAttr<std::vector<float>>(node, "f").status().message(),
            "Op 'n': attr 'f' must be of type list(float), got 2.5");
  (*node.mutable_attr())["t"].set_type(static_cast<tensorflow::DataType>(55));
  EXPECT_FALSE(GetAttr<DType>(node, "t").ok());
}

TEST(PrintTest, TextIsTheSameWhateverTheOrderOfBuilding) {
  std::string texts[2];
  for (int order = 0; order < 2; ++order) {
    Graph graph;
    Node* a = nullptr;
    Node* b = nullptr;
    if (order == 0) a = Add(&graph, "a", "TestSource");
    b = Add(&graph, "b", "TestSource");
    if (order == 1) a = Add(&graph, "a", "TestSource");
    Node* add = Add(&graph, "add", "TestBinary", "attr { key: '_x' value { s: 'q' } }");
    add->set_requested_device("/job:ps");
    ASSERT_TRUE(graph.AddEdge(b, 0, add, 0).ok());
    ASSERT_TRUE(graph.AddEdge(a, 0, add, 1).ok());
    graph.AddControlEdge(order == 0 ? a : b, add);
    graph.AddControlEdge(order == 0 ? b : a, add);
    texts[order] = GraphToText(graph);
  }
  EXPECT_EQ(texts[0],
            "versions: producer 134\n"
            "node a = TestSource()\n"
            "  T = DT_FLOAT\n"
            "node add = TestBinary(b, a, ^a, ^b) @/job:ps\n"
            "  _x = \"q\"\n"
            "node b = TestSource()\n"
            "  T = DT_FLOAT\n");
  EXPECT_EQ(texts[0], texts[1]);
}

}  // namespace
}  // namespace millrace
