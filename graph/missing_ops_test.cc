// SPDX-License-Identifier: Apache-2.0
#include "graph/missing_ops.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/import_export.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "gtest/gtest.h"
#include "proto/graph.pb.h"

// covers: graphs: the ops that a step needs and nobody has registered are found before it is
//   compiled, in the functions that it calls, too

namespace millrace {
namespace {

const OpRegistration kKnown =
    OpSpec("MissingOpsTestKnown", "x: float -> y: float").Shape(UnchangedShape);

std::string NodeText(const std::string& name, const std::string& op, const std::string& input,
                     const std::string& rest = "") {
  return "node { name: '" + name + "' op: '" + op + "'" +
         (input.empty() ? "" : " input: '" + input + "'") + " " + rest + " } ";
}
std::string FunctionText(const std::string& name, const std::string& op,
                         const std::string& rest = "") {
  return "function { signature { name: '" + name + "' } node_def { name: 'n' op: '" + op + "' " +
         rest + " } } ";
}
std::string Calls(const std::string& function) {
  return "attr { key: 'f' value { func { name: '" + function + "' } } }";
}

// train -> Lost; y -> known -> x; z -> Gone -> Shrink -> x; by_name and by_attr call
// functions with Deep.
tensorflow::GraphDef TestGraph() {
  const std::string known = "MissingOpsTestKnown";
  const StatusOr<tensorflow::GraphDef> graph =
      ParseGraphDefText(NodeText("x", "Placeholder_", "") + NodeText("y", known, "x:0") +
                        NodeText("train", "Lost", "y") + NodeText("small", "Shrink", "x") +
                        NodeText("z", "Gone", "small:0") + NodeText("by_name", "Outer", "y") +
                        NodeText("by_attr", known, "y", Calls("Inner")) + "library { " +
                        FunctionText("Outer", known, Calls("Inner")) +
                        FunctionText("Inner", "Deep") + FunctionText("Unused", "Never") + "}");
  EXPECT_OK(graph.status());
  return graph.ok() ? *graph : tensorflow::GraphDef();
}

struct Case {
  std::vector<std::string> fetches, feeds;
  std::string text;  // "" for none
};

TEST(MissingOps, AreThoseThatTheStepNeeds) {
  const tensorflow::GraphDef graph = TestGraph();
  const Case cases[] = {
      {{"y:0"}, {"x:0"}, ""},
      {{"y:0"}, {}, "got 'Placeholder_' of node 'x'"},
      {{"train"}, {"x"}, "got 'Lost' of node 'train'"},
      {{"z:0"}, {"x:0"}, "got 'Gone' of node 'z', 'Shrink' of node 'small'"},
      {{"z:0"}, {"small:0", "x:0"}, "got 'Gone' of node 'z'"},
      {{"z"}, {"z"}, ""},
      {{"y", "train"}, {"x"}, "got 'Lost' of node 'train'"},
      {{"by_name"}, {"x"}, "got 'Deep' of node 'n' in function 'Inner'"},
      {{"by_attr"}, {"x"}, "got 'Deep' of node 'n' in function 'Inner'"},
      {{"nobody"}, {}, ""},
      {{}, {}, ""},
  };
  for (const Case& c : cases) {
    const std::vector<MissingOp> missing = MissingOps(graph, c.fetches, c.feeds);
    EXPECT_EQ(missing.empty() ? "" : MissingOpsText(missing), c.text);
  }
}

TEST(MissingOps, ManyAreCounted) {
  std::vector<MissingOp> many;
  for (const char* op : {"A", "B", "C", "D", "E", "F", "G"}) many.push_back({op, "n", ""});
  EXPECT_EQ(MissingOpsText(many),
            "got 'A' of node 'n', 'B' of node 'n', 'C' of node 'n', 'D' of node 'n', 'E' of node "
            "'n' and 2 more");
}

}  // namespace
}  // namespace millrace
