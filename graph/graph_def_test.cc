// SPDX-License-Identifier: Apache-2.0
#include "graph/graph_def.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"

namespace millrace {
namespace {

using ::testing::ElementsAre;

tensorflow::GraphDef Parse(const std::string& text) {
  tensorflow::GraphDef def;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &def));
  return def;
}

// a -> b -> c, with a control edge from d to c; e is by itself; a function with two nodes.
tensorflow::GraphDef Sample() {
  return Parse(R"pb(
    node { name: "c" op: "C" input: "b:1" input: "^d" device: "/gpu:0" }
    node { name: "a" op: "A" device: "/cpu:0" }
    node {
      name: "b"
      op: "B"
      input: "a"
      attr {
        key: "_class"
        value { list { s: "loc:@e" s: "loc:@a" } }
      }
    }
    node { name: "d" op: "D" }
    node { name: "e" op: "E" }
    library {
      function {
        signature { name: "f" }
        node_def { name: "x" op: "X" device: "/gpu:0" }
        node_def { name: "y" op: "Y" }
      }
    }
    versions { producer: 27 }
  )pb");
}

std::vector<std::string> Needed(const std::vector<std::string>& fetches,
                                const std::vector<std::string>& feeds = {}) {
  const tensorflow::GraphDef def = Sample();
  const auto needed = NeededNodes(def, fetches, feeds);
  EXPECT_OK(needed.status());
  std::vector<std::string> names;
  for (const int position : needed.value_or(std::vector<int>())) {
    names.push_back(def.node(position).name());
  }
  return names;
}

TEST(NeededNodesTest, FollowsDataAndControlInputsUpToFeeds) {
  EXPECT_THAT(Needed({"c"}), ElementsAre("c", "a", "b", "d"));
  EXPECT_THAT(Needed({"b:1"}), ElementsAre("a", "b"));
  EXPECT_THAT(Needed({"e", "d:0"}), ElementsAre("d", "e"));
  EXPECT_THAT(Needed({"c"}, {"b:1"}), ElementsAre("c", "d"));
  EXPECT_THAT(Needed({"c"}, {"b:0"}), ElementsAre("c", "a", "b", "d"));
  EXPECT_THAT(Needed({"c"}, {"a", "d"}), ElementsAre("c", "b", "d"));
  EXPECT_THAT(Needed({"b"}, {"b:0"}), ElementsAre());
  EXPECT_THAT(Needed({}), ElementsAre());
}

TEST(NeededNodesTest, ACycleEnds) {
  const tensorflow::GraphDef def = Parse(R"pb(
    node { name: "a" op: "A" input: "b" }
    node { name: "b" op: "B" input: "a" input: "nobody" }
  )pb");
  ASSERT_OK_AND_ASSIGN(const std::vector<int> needed, NeededNodes(def, {"a"}));
  EXPECT_THAT(needed, ElementsAre(0, 1));
}

TEST(NeededNodesTest, ANameThatIsNotThereIsNotFound) {
  EXPECT_STATUS(NeededNodes(Parse("node { name: 'logits' op: 'A' }"), {"logit:0"}),
                absl::StatusCode::kNotFound,
                "GraphDef: has no node 'logit'; did you mean 'logits'?");
}

TEST(PrunedGraphDefTest, KeepsWhatIsNeededAndNoColocationWithTheRest) {
  ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef pruned, PrunedGraphDef(Sample(), {"b"}));
  ASSERT_EQ(pruned.node_size(), 2);
  EXPECT_EQ(pruned.node(0).name(), "a");
  EXPECT_EQ(pruned.node(0).device(), "/cpu:0");
  EXPECT_THAT(pruned.node(1).attr().at("_class").list().s(), ElementsAre("loc:@a"));
  EXPECT_EQ(pruned.library().function_size(), 1);
  EXPECT_EQ(pruned.versions().producer(), 27);
}

TEST(ClearDevicesTest, ReachesFunctions) {
  tensorflow::GraphDef def = Sample();
  ClearDevices(&def);
  for (const auto& node : def.node()) EXPECT_EQ(node.device(), "");
  EXPECT_EQ(def.library().function(0).node_def(0).device(), "");
}

}  // namespace
}  // namespace millrace
