// SPDX-License-Identifier: Apache-2.0
#include "graph/graph_extension.h"

#include <functional>
#include <string>
#include <vector>

#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/attr.h"
#include "graph/function_library.h"
#include "graph/node_body.h"
#include "graph/node_builder.h"
#include "graph/scope.h"
#include "graph/testing/tiny_ops.h"
#include "gtest/gtest.h"
#include "proto/attr_value.pb.h"
#include "proto/function.pb.h"
#include "proto/graph.pb.h"
#include "proto/versions.pb.h"

namespace millrace {
namespace {

tensorflow::NodeDef NodeOf(const std::string& name, const std::string& op,
                           const std::vector<std::string>& inputs = {}) {
  tensorflow::NodeDef node;
  node.set_name(name);
  node.set_op(op);
  for (const std::string& input : inputs) node.add_input(input);
  return node;
}

tensorflow::NodeDef FloatNode(const std::string& name, const std::string& op,
                              const std::vector<std::string>& inputs = {}) {
  tensorflow::NodeDef node = NodeOf(name, op, inputs);
  (*node.mutable_attr())[op == "Placeholder" ? "dtype" : "T"].set_type(tensorflow::DT_FLOAT);
  return node;
}

tensorflow::GraphDef GraphOf(const std::vector<tensorflow::NodeDef>& nodes) {
  tensorflow::GraphDef graph;
  graph.mutable_versions()->set_producer(134);
  for (const tensorflow::NodeDef& node : nodes) *graph.add_node() = node;
  return graph;
}

TEST(GraphExtensionTest, NewNodesUseOldOnes) {
  Graph graph;
  ASSERT_OK(ExtendGraph(GraphOf({FloatNode("x", "Placeholder")}), &graph));
  ASSERT_OK(ExtendGraph(GraphOf({FloatNode("y", "Identity", {"x"}), NodeOf("n", "NoOp", {"^x"})}),
                        &graph));
  EXPECT_EQ(graph.num_nodes(), 3);
  ASSERT_NE(graph.FindNode("y"), nullptr);
  EXPECT_EQ(graph.NodeToDef(*graph.FindNode("y")).input(0), "x");
  EXPECT_EQ(graph.NodeToDef(*graph.FindNode("n")).input(0), "^x");
}

TEST(GraphExtensionTest, ANodeMayComeAgainInAnotherSpelling) {
  Graph graph;
  ASSERT_OK(ExtendGraph(GraphOf({FloatNode("x", "Placeholder"), FloatNode("y", "Identity", {"x"})}),
                        &graph));
  tensorflow::NodeDef x = FloatNode("x", "Placeholder");
  (*x.mutable_attr())["shape"].mutable_shape()->set_unknown_rank(true);  // the default
  x.mutable_experimental_debug_info()->add_original_node_names("model/x");
  ASSERT_OK(ExtendGraph(
      GraphOf({x, FloatNode("y", "Identity", {"x:0"}), FloatNode("z", "Identity", {"y"})}),
      &graph));
  EXPECT_EQ(graph.num_nodes(), 3);
}

TEST(GraphExtensionTest, ControlInputsHaveNoOrder) {
  Graph graph;
  const auto after = [](const std::vector<std::string>& inputs) {
    return GraphOf({NodeOf("a", "NoOp"), NodeOf("b", "NoOp"), NodeOf("n", "NoOp", inputs)});
  };
  ASSERT_OK(ExtendGraph(after({"^a", "^b"}), &graph));
  ASSERT_OK(ExtendGraph(after({"^b", "^a"}), &graph));
  EXPECT_STATUS(ExtendGraph(after({"^a"}), &graph), absl::StatusCode::kInvalidArgument,
                "a name that the session has must keep its definition");
}

TEST(GraphExtensionTest, AttrsThatHoldMapsAreComparedWithoutTheirOrder) {
  const auto with_function = [](bool backwards) {
    tensorflow::NodeDef node = NodeOf("f", "SomeOpOfSomebody");
    auto* const function = (*node.mutable_attr())["f"].mutable_func();
    function->set_name("body");
    for (int i = 0; i < 20; ++i) {
      const int n = backwards ? 19 - i : i;
      (*function->mutable_attr())["attr" + std::to_string(n)].set_i(n);
    }
    return node;
  };
  Graph graph;
  ASSERT_OK(ExtendGraph(GraphOf({with_function(false)}), &graph));
  for (int i = 0; i < 10; ++i) {
    ASSERT_OK(ExtendGraph(GraphOf({with_function(i % 2 == 0)}), &graph));
  }
}

TEST(GraphExtensionTest, AnotherNodeUnderAKnownNameIsRefusedAndChangesNothing) {
  Graph graph;
  ASSERT_OK(ExtendGraph(GraphOf({FloatNode("x", "Placeholder"), FloatNode("y", "Identity", {"x"})}),
                        &graph));
  tensorflow::NodeDef wider = FloatNode("x", "Placeholder");
  (*wider.mutable_attr())["dtype"].set_type(tensorflow::DT_DOUBLE);
  const tensorflow::NodeDef others[] = {wider, NodeOf("x", "NoOp"),
                                        FloatNode("y", "Identity", {"y"})};
  for (const tensorflow::NodeDef& other : others) {
    EXPECT_STATUS(ExtendGraph(GraphOf({NodeOf("fresh", "NoOp"), other}), &graph),
                  absl::StatusCode::kInvalidArgument,
                  "a name that the session has must keep its definition");
    EXPECT_EQ(graph.num_nodes(), 2);
  }
  EXPECT_STATUS(ExtendGraph(GraphOf({FloatNode("z", "Identity", {"nobody"})}), &graph),
                absl::StatusCode::kInvalidArgument, "nobody");
  EXPECT_EQ(graph.num_nodes(), 2);
}

TEST(GraphExtensionTest, FunctionsMayComeAlone) {
  Graph graph;
  ASSERT_OK(ExtendGraph(GraphOf({NodeOf("n", "NoOp")}), &graph));
  tensorflow::GraphDef functions = GraphOf({});
  functions.mutable_library()->add_function()->mutable_signature()->set_name("Body");
  ASSERT_OK(ExtendGraph(functions, &graph));
  ASSERT_EQ(graph.library().functions().size(), 1u);
  EXPECT_EQ(graph.library().functions()[0]->name(), "Body");
}

// --- A graph in memory ---------------------------------------------------------------------------

constexpr int64_t kLarge = 4096;

// x (placeholder), w (a large constant) and y = w + x.
Scope SmallModel() {
  Scope scope;
  const Output x = testing::Input(scope.WithName("x"), DT_FLOAT, {kLarge});
  Tensor value = *Tensor::Zeros(DT_FLOAT, Shape({kLarge}));
  value.mutable_flat<float>()[7] = 7;
  const Output w =
      NodeBuilder(scope.WithName("w"), "Const").Attr("dtype", DT_FLOAT).Value(value).Finish();
  testing::Call(scope.WithName("y").WithDevice("/cpu:0"), "Add", {w, x});
  EXPECT_OK(scope.status());
  return scope;
}

std::string TextOf(const Graph& graph) {
  tensorflow::GraphDef def;
  graph.ToGraphDef(&def);
  return def.DebugString();
}

// covers: graphs: a session shares the bodies of a Scope's graph
TEST(GraphHandOverTest, BodiesAreSharedAndNothingIsCopiedOrValidated) {
  const Scope scope = SmallModel();
  const int64_t bytes = ConstantBytesCopiedForTesting();
  const int64_t validations = AttrValidationsForTesting();
  Graph graph;
  ASSERT_OK(ExtendGraph(*scope.graph(), 0, &graph));
  EXPECT_EQ(ConstantBytesCopiedForTesting(), bytes);
  EXPECT_EQ(AttrValidationsForTesting(), validations);
  EXPECT_EQ(graph.num_nodes(), 3);
  for (const char* name : {"x", "w", "y"}) {
    EXPECT_EQ(graph.FindNode(name)->body(), scope.graph()->FindNode(name)->body()) << name;
  }
  EXPECT_EQ(TextOf(graph), TextOf(*scope.graph()));
  // Again: the same nodes.
  ASSERT_OK(ExtendGraph(*scope.graph(), 0, &graph));
  EXPECT_EQ(graph.num_nodes(), 3);
}

TEST(GraphHandOverTest, AMessageOfTheSameGraphIsTheSameGraph) {
  const Scope scope = SmallModel();
  ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef def, scope.ToGraphDef());
  Graph from_message, from_graph;
  ASSERT_OK(ExtendGraph(def, &from_message));
  ASSERT_OK(ExtendGraph(*scope.graph(), 0, &from_graph));
  EXPECT_EQ(TextOf(from_graph), TextOf(from_message));
  ASSERT_OK(ExtendGraph(*scope.graph(), 0, &from_message));
  ASSERT_OK(ExtendGraph(def, &from_graph));
  EXPECT_EQ(from_message.num_nodes(), 3);
  EXPECT_EQ(from_graph.num_nodes(), 3);
}

TEST(GraphHandOverTest, LaterNodesUseEarlierOnes) {
  const Scope scope = SmallModel();
  Graph graph;
  ASSERT_OK(ExtendGraph(*scope.graph(), 0, &graph));
  const int first = scope.graph()->num_node_ids();
  const Output y(scope.graph()->FindNode("y"), 0);
  testing::Call(scope.WithName("z").WithControlDependencies({y.op()}), "Identity", {y});
  ASSERT_OK(ExtendGraph(*scope.graph(), first, &graph));
  EXPECT_EQ(TextOf(graph), TextOf(*scope.graph()));
}

TEST(GraphHandOverTest, WhatTheOwnerEditsAfterwardsChangesNothing) {
  const Scope scope = SmallModel();
  Graph graph;
  ASSERT_OK(ExtendGraph(*scope.graph(), 0, &graph));
  const std::string before = TextOf(graph);
  Graph* const own = scope.graph();
  Node* const y = own->FindNode("y");
  y->EditAttr("_note", [](tensorflow::AttrValue* attr) { attr->set_s("mine"); });
  own->FindNode("w")->EditAttr("value", [](tensorflow::AttrValue* attr) {
    SetAttr(Tensor::Vector<float>({1, 2}), attr);
  });
  y->set_requested_device("/cpu:1");
  ASSERT_OK(own->UpdateInput(y, 0, own->FindNode("x"), 0));
  own->AddControlEdge(own->FindNode("w"), y);
  own->RemoveNode(own->FindNode("w"));
  EXPECT_EQ(TextOf(graph), before);
  ASSERT_OK_AND_ASSIGN(const Tensor value, GetAttr<Tensor>(*graph.FindNode("w"), "value"));
  EXPECT_EQ(value.flat<float>()[7], 7);
  EXPECT_STATUS(ExtendGraph(*own, 0, &graph), absl::StatusCode::kInvalidArgument,
                "a name that the session has must keep its definition");
  EXPECT_EQ(TextOf(graph), before);
}

// covers: graphs: edited attrs of a Scope's graph are validated and not shared
TEST(GraphHandOverTest, EditedAttrsAreValidatedAndNotShared) {
  const Scope scope = SmallModel();
  Node* const x = scope.graph()->FindNode("x");
  x->EditAttr("_note", [](tensorflow::AttrValue* attr) { attr->set_s("mine"); });
  Graph graph;
  ASSERT_OK(ExtendGraph(*scope.graph(), 0, &graph));
  EXPECT_NE(graph.FindNode("x")->body(), x->body());
  EXPECT_FALSE(graph.FindNode("x")->body()->is_edited());
  EXPECT_EQ(TextOf(graph), TextOf(*scope.graph()));

  x->EditAttr("dtype", [](tensorflow::AttrValue* attr) { attr->set_i(3); });
  Graph refused;
  EXPECT_STATUS(ExtendGraph(*scope.graph(), 0, &refused), absl::StatusCode::kInvalidArgument,
                "Placeholder 'x': ");
  EXPECT_EQ(refused.num_nodes(), 0);
}

TEST(GraphHandOverTest, WrongGraphsAreRefusedAndChangeNothing) {
  struct Wrong {
    const char* what;
    std::function<void(Graph*)> spoil;
    const char* message;
  };
  const auto classes = [](Graph* graph, const char* node, const std::string& group) {
    graph->FindNode(node)->EditAttr("_class", [&](tensorflow::AttrValue* attr) {
      SetAttr(std::vector<std::string>{group}, attr);
    });
  };
  const Wrong cases[] = {
      {"an input without a source", [](Graph* graph) { graph->RemoveNode(graph->FindNode("x")); },
       "Add 'y': input 1 must have a source, got none"},
      {"a cycle",
       [](Graph* graph) {
         Node* const y = graph->FindNode("y");
         EXPECT_OK(graph->UpdateInput(y, 0, y, 0));
       },
       "a cycle must go through NextIteration into Merge, got the cycle 'y' -> 'y'"},
      {"a cycle of control edges",
       [](Graph* graph) { graph->AddControlEdge(graph->FindNode("y"), graph->FindNode("w")); },
       "a cycle must go through NextIteration"},
      {"next to nobody", [&](Graph* graph) { classes(graph, "y", "loc:@nobody"); },
       "attr '_class' must name a node, got 'loc:@nobody'"},
      {"next to each other",
       [&](Graph* graph) {
         classes(graph, "y", "loc:@w");
         classes(graph, "w", "loc:@y");
       },
       "colocation ('_class') must not be circular, got the cycle 'w' -> 'y' -> 'w'"},
      {"a name of the runtime's",
       [](Graph* graph) {
         EXPECT_OK(graph->AddNode("_own", graph->FindNode("x")->body()).status());
       },
       "name must be letters, digits"},
      {"a graph of the future",
       [](Graph* graph) { graph->mutable_versions()->set_min_consumer(1000); },
       "GraphDef min consumer version 1000 above current version"},
  };
  for (const Wrong& wrong : cases) {
    SCOPED_TRACE(wrong.what);
    Graph graph;
    ASSERT_OK(ExtendGraph(GraphOf({FloatNode("old", "Placeholder")}), &graph));
    const std::string before = TextOf(graph);
    const Scope scope = SmallModel();
    wrong.spoil(scope.graph());
    EXPECT_STATUS(ExtendGraph(*scope.graph(), 0, &graph), absl::StatusCode::kInvalidArgument,
                  wrong.message);
    EXPECT_EQ(TextOf(graph), before);
  }
}

TEST(GraphHandOverTest, FunctionsComeAlongAndMustAgree) {
  const auto library = [](const std::string& output) {
    tensorflow::FunctionDefLibrary def;
    tensorflow::FunctionDef* const function = def.add_function();
    function->mutable_signature()->set_name("Body");
    auto* const arg = function->mutable_signature()->add_input_arg();
    arg->set_name("a");
    arg->set_type(tensorflow::DT_FLOAT);
    auto* const result = function->mutable_signature()->add_output_arg();
    result->set_name(output);
    result->set_type(tensorflow::DT_FLOAT);
    (*function->mutable_ret())[output] = "a";
    return *FunctionLibrary::Empty()->With(def);
  };
  Graph from, graph;
  from.set_library(library("r"));
  ASSERT_OK(ExtendGraph(from, 0, &graph));
  EXPECT_EQ(graph.shared_library(), from.shared_library());
  Graph equal;
  equal.set_library(library("r"));
  ASSERT_OK(ExtendGraph(equal, 0, &graph));
  EXPECT_EQ(graph.library().functions().size(), 1u);
  Graph other;
  other.set_library(library("s"));
  EXPECT_STATUS(ExtendGraph(other, 0, &graph), absl::StatusCode::kInvalidArgument, "Body");
}

}  // namespace
}  // namespace millrace
