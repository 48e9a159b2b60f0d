// SPDX-License-Identifier: Apache-2.0
#include "graph/graph_extension.h"

#include "core/testing/tensor_testing.h"
#include "graph/attr.h"
#include "graph/function_library.h"
#include "gtest/gtest.h"
#include "proto/function.pb.h"

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

}  // namespace
}  // namespace millrace
