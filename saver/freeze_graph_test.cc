// SPDX-License-Identifier: Apache-2.0
//
// Each graph runs in a session with variables and, frozen, in one without: values must agree.
// Models of TensorFlow are frozen in tests/compat/saved_model_run_test.
#include "saver/freeze_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/shared_data.h"
#include "core/testing/tensor_testing.h"
#include "graph/import_export.h"
#include "saver/tensor_bundle.h"

// covers: graphs: variables of both kinds become constants with the same values, through branches
//   and loops; nodes that write them are refused by name
// covers: graphs: freezing leaves out what a constant predicate never lets run, and the writes that
//   the default of a predicate turns off

namespace millrace {
namespace {

using ::testing::ElementsAre;
using ::testing::UnorderedElementsAre;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
FileSystem* const kFiles = FileSystem::Posix();

// A node in one line: "y: Add(a, b:1, ^c) T=DT_FLOAT N=2".
std::string Node(const std::string& name, const std::string& op,
                 const std::vector<std::string>& inputs, const std::string& attrs = "") {
  std::string text = absl::StrCat("node { name: '", name, "' op: '", op, "'");
  for (const std::string& input : inputs) absl::StrAppend(&text, " input: '", input, "'");
  return absl::StrCat(text, " ", attrs, " }\n");
}
std::string Type(const std::string& attr, const std::string& type) {
  return absl::StrCat("attr { key: '", attr, "' value { type: ", type, " } } ");
}
const std::string kFloat = Type("T", "DT_FLOAT");
const std::string kDtype = Type("dtype", "DT_FLOAT");
const std::string kShape2x2 =
    "attr { key: 'shape' value { shape { dim { size: 2 } dim { size: 2 } } } } ";

std::string Floats(const std::string& name, const std::string& values) {
  return Node(name, "Const", {},
              kDtype +
                  "attr { key: 'value' value { tensor { dtype: DT_FLOAT tensor_shape { "
                  "dim { size: 2 } dim { size: 2 } } " +
                  values + " } } }");
}
std::string Int(const std::string& name, int value) {
  return Node(name, "Const", {},
              Type("dtype", "DT_INT32") +
                  absl::StrCat("attr { key: 'value' value { tensor { dtype: DT_INT32 tensor_shape "
                               "{ } int_val: ",
                               value, " } } }"));
}
const std::string kOneToFour = "float_val: 1 float_val: 2 float_val: 3 float_val: 4";

// Variables r (a reference) and v (a resource), both [[1, 2], [3, 4]] after `init`.
std::string Variables() {
  return Floats("start", kOneToFour) + Node("r", "VariableV2", {}, kDtype + kShape2x2) +
         Node("r/init", "Assign", {"r", "start"}, kFloat) +
         Node("r/read", "Identity", {"r"},
              kFloat + "attr { key: '_class' value { list { s: 'loc:@r' } } }") +
         Node("v", "VarHandleOp", {}, kDtype + kShape2x2) +
         Node("v/init", "AssignVariableOp", {"v", "start"}, kDtype) +
         Node("v/Read", "ReadVariableOp", {"v"}, kDtype) +
         Node("init", "NoOp", {"^r/init", "^v/init"}) +
         Node("x", "Placeholder", {}, kDtype + kShape2x2);
}

tensorflow::GraphDef Graph(const std::string& text) {
  auto graph = ParseGraphDefText(absl::StrCat(text, "versions { producer: 134 }"));
  EXPECT_OK(graph.status());
  return graph.value_or(tensorflow::GraphDef());
}

StatusOr<std::unique_ptr<Session>> Initialized(const tensorflow::GraphDef& graph) {
  MR_ASSIGN_OR_RETURN(auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(graph));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {"init"}).status());
  return session;
}

std::set<std::string> OpsOf(const tensorflow::GraphDef& graph) {
  std::set<std::string> ops;
  for (const auto& node : graph.node()) ops.insert(node.op());
  return ops;
}

// Freezes the graph for `output` and compares what it gives with what the variables give.
FrozenGraph ExpectTheSame(const std::string& text, const std::string& output,
                          const std::vector<Feed>& feeds = {}) {
  const tensorflow::GraphDef graph = Graph(text);
  const auto session = Initialized(graph);
  EXPECT_OK(session.status());
  if (!session.ok()) return {};
  const auto want = (*session)->Run(feeds, {output});
  EXPECT_OK(want.status());
  auto frozen = FreezeGraph(session->get(), graph, {.outputs = {output}});
  EXPECT_OK(frozen.status());
  if (!want.ok() || !frozen.ok()) return {};
  const auto fresh = NewSession();
  EXPECT_OK((*fresh)->Extend(frozen->graph));
  const auto got = (*fresh)->Run(feeds, {output});
  EXPECT_OK(got.status());
  if (got.ok()) ExpectTensorEqual((*got)[0], (*want)[0]);
  for (const char* op : {"VariableV2", "VarHandleOp", "ReadVariableOp", "Assign"}) {
    EXPECT_EQ(OpsOf(frozen->graph).count(op), 0u) << op;
  }
  return *std::move(frozen);
}

TEST(FreezeGraphTest, ReadsOfBothKindsBecomeConstants) {
  const FrozenGraph frozen =
      ExpectTheSame(Variables() + Node("s", "Add", {"r/read", "v/Read"}, kFloat) +
                        Node("y", "MatMul", {"s", "x"}, kFloat),
                    "y", {{"x:0", TensorOf<float>({2, 2}, {5, 6, 7, 8})}});
  EXPECT_THAT(frozen.variables, ElementsAre("r", "v"));
  std::vector<std::string> names;
  for (const auto& node : frozen.graph.node()) names.push_back(node.name());
  EXPECT_THAT(names, UnorderedElementsAre("r", "r/read", "v", "v/Read", "x", "s", "y"));
}

TEST(FreezeGraphTest, GathersFromResourcesAreGathersFromConstants) {
  const std::string indices = Type("Tindices", "DT_INT32");
  ExpectTheSame(Variables() + Int("one", 1) + Node("wait", "NoOp", {}) +
                    Node("y", "ResourceGather", {"v", "one", "^wait"}, kDtype + indices),
                "y:0");
  // Dimensions in common are counted from the end of the indices, of rank 1 here.
  const std::string two_rows =
      "attr { key: 'value' value { tensor { dtype: DT_INT32 tensor_shape { dim { size: 2 } } "
      "int_val: 1 int_val: 0 } } } ";
  const std::string back = "attr { key: 'batch_dims' value { i: -1 } } ";
  ExpectTheSame(Variables() + Node("rows", "Const", {}, Type("dtype", "DT_INT32") + two_rows) +
                    Node("y", "ResourceGather", {"v", "rows"}, kDtype + indices + back),
                "y:0");
  ExpectTheSame(Variables() + Node("y", "VariableShape", {"v"}, Type("out_type", "DT_INT32")),
                "y:0");
  ExpectTheSame(Variables() + Node("y", "VarIsInitializedOp", {"v"}), "y:0");
  ExpectTheSame(Variables() + Node("y", "IsVariableInitialized", {"r"}, kDtype), "y:0");
}

TEST(FreezeGraphTest, ReferencesAndHandlesPassThroughBranches) {
  const std::string predicate =
      Node("p", "Const", {},
           Type("dtype", "DT_BOOL") +
               "attr { key: 'value' value { tensor { dtype: DT_BOOL tensor_shape { } bool_val: "
               "true } } }");
  const std::string two = "attr { key: 'N' value { i: 2 } } ";
  ExpectTheSame(Variables() + predicate + Node("switch", "RefSwitch", {"r", "p"}, kFloat) +
                    Node("n", "Neg", {"switch"}, kFloat) +
                    Node("y", "Merge", {"n", "switch:1"}, kFloat + two),
                "y:0");
  ExpectTheSame(
      Variables() + predicate + Node("switch", "Switch", {"v", "p"}, Type("T", "DT_RESOURCE")) +
          Node("off", "ReadVariableOp", {"switch"}, kDtype) +
          Node("on", "ReadVariableOp", {"switch:1"}, kDtype) + Node("n", "Neg", {"off"}, kFloat) +
          Node("y", "Merge", {"n", "on"}, kFloat + two),
      "y:0");
}

std::string Bool(const std::string& name, bool value) {
  return Node(name, "Const", {},
              Type("dtype", "DT_BOOL") +
                  absl::StrCat("attr { key: 'value' value { tensor { dtype: DT_BOOL tensor_shape "
                               "{ } bool_val: ",
                               value ? "true" : "false", " } } }"));
}
// p, which is `value` unless another one is fed.
std::string BoolByDefault(bool value) {
  return Bool("default", value) +
         Node("p", "PlaceholderWithDefault", {"default"},
              Type("dtype", "DT_BOOL") + "attr { key: 'shape' value { shape { } } } ");
}
// As a batch normalisation: where p is true the variables r and v change, and y is the square of
// start; where it is false they are read, and y is r + v.
std::string Normalisation(const std::string& predicate) {
  const std::string two = "attr { key: 'N' value { i: 2 } } ";
  return Variables() + predicate + Node("pred_id", "Identity", {"p"}, Type("T", "DT_BOOL")) +
         Node("delta", "Switch", {"start", "pred_id"}, kFloat) +
         Node("r/switch", "RefSwitch", {"r", "pred_id"}, kFloat) +
         Node("r/write", "AssignSub", {"r/switch:1", "delta:1"}, kFloat) +
         Node("v/switch", "Switch", {"v", "pred_id"}, Type("T", "DT_RESOURCE")) +
         Node("v/write", "AssignSubVariableOp", {"v/switch:1", "delta:1"}, kDtype) +
         Node("true", "Mul", {"delta:1", "delta:1", "^r/write", "^v/write"}, kFloat) +
         Node("old", "Switch", {"r/read", "pred_id"}, kFloat) +
         Node("v/read_old", "ReadVariableOp", {"v/switch"}, kDtype) +
         Node("false", "Add", {"old", "v/read_old"}, kFloat) +
         Node("y", "Merge", {"false", "true"}, kFloat + two);
}

TEST(FreezeGraphTest, ABranchThatAConstantPredicateNeverRunsIsLeftOut) {
  const FrozenGraph frozen = ExpectTheSame(Normalisation(Bool("p", false)), "y:0");
  std::vector<std::string> names;
  for (const auto& node : frozen.graph.node()) names.push_back(node.name());
  EXPECT_THAT(names, UnorderedElementsAre("r", "r/read", "old", "v", "v/switch", "v/read_old",
                                          "false", "y"));
  EXPECT_EQ(OpsOf(frozen.graph).count("Switch"), 0u);
}

TEST(FreezeGraphTest, ABranchThatADefaultTurnsOffStaysWithoutItsWrites) {
  const FrozenGraph frozen = ExpectTheSame(Normalisation(BoolByDefault(false)), "y:0");
  const std::set<std::string> ops = OpsOf(frozen.graph);
  EXPECT_EQ(ops.count("AssignSub") + ops.count("AssignSubVariableOp"), 0u);
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(frozen.graph));
  const Tensor yes = Tensor::Scalar<bool>(true);
  for (int step = 0; step < 2; ++step) {
    ASSERT_OK_AND_ASSIGN(const auto fed, session->Run({{"p:0", yes}}, {"y:0"}));
    ExpectTensorEqual(fed[0], TensorOf<float>({2, 2}, {1, 4, 9, 16}));
    ASSERT_OK_AND_ASSIGN(const auto off, session->Run({}, {"y:0"}));
    ExpectTensorEqual(off[0], TensorOf<float>({2, 2}, {2, 4, 6, 8}));
  }
}

// Loops do not run here; their nodes are rewritten all the same.
TEST(FreezeGraphTest, HandlesEnterLoops) {
  const std::string handle = Type("T", "DT_RESOURCE");
  const std::string frame = "attr { key: 'frame_name' value { s: 'loop' } } ";
  const std::string two = "attr { key: 'N' value { i: 2 } } ";
  const tensorflow::GraphDef graph = Graph(
      Variables() + Node("enter", "Enter", {"v"}, handle + frame) +
      Node("merge", "Merge", {"enter", "next"}, handle + two) +
      Node("switch", "Switch", {"merge", "c"}, handle) + Node("c", "LoopCond", {"x"}) +
      Node("next", "NextIteration", {"switch:1"}, handle) +
      Node("read", "ReadVariableOp", {"switch:1"}, kDtype) +
      Node("exit", "Exit", {"switch"}, handle) + Node("after", "ReadVariableOp", {"exit"}, kDtype));
  ASSERT_OK_AND_ASSIGN(const auto session, Initialized(Graph(Variables())));
  ASSERT_OK_AND_ASSIGN(const FrozenGraph frozen,
                       FreezeGraph(session.get(), graph, {.outputs = {"read", "after"}}));
  std::map<std::string, std::string> ops;
  for (const auto& node : frozen.graph.node()) {
    ops[node.name()] = node.op();
    if (node.attr().count("T") > 0) {
      EXPECT_EQ(node.attr().at("T").type(), tensorflow::DT_FLOAT) << node.name();
    }
  }
  const std::map<std::string, std::string> want = {
      {"v", "Const"},       {"x", "Placeholder"}, {"enter", "Enter"},
      {"merge", "Merge"},   {"switch", "Switch"}, {"c", "LoopCond"},
      {"exit", "Exit"},     {"read", "Identity"}, {"next", "NextIteration"},
      {"after", "Identity"}};
  EXPECT_EQ(ops, want);
}

TEST(FreezeGraphTest, ChosenVariablesStayAndDevicesGoUnlessKept) {
  std::string text = Variables() + Node("y", "Add", {"r/read", "v/Read"}, kFloat);
  tensorflow::GraphDef graph = Graph(text);
  for (auto& node : *graph.mutable_node()) node.set_device("/device:CPU:0");
  ASSERT_OK_AND_ASSIGN(const auto session, Initialized(graph));
  ASSERT_OK_AND_ASSIGN(FrozenGraph frozen,
                       FreezeGraph(session.get(), graph, {.outputs = {"y"}, .only = {"r", "q"}}));
  EXPECT_THAT(frozen.variables, ElementsAre("r"));
  EXPECT_EQ(OpsOf(frozen.graph).count("VarHandleOp"), 1u);
  for (const auto& node : frozen.graph.node()) EXPECT_EQ(node.device(), "");
  ASSERT_OK_AND_ASSIGN(frozen,
                       FreezeGraph(session.get(), graph,
                                   {.outputs = {"y"}, .except = {"r"}, .clear_devices = false}));
  EXPECT_THAT(frozen.variables, ElementsAre("v"));
  EXPECT_EQ(OpsOf(frozen.graph).count("VariableV2"), 1u);
  for (const auto& node : frozen.graph.node()) EXPECT_EQ(node.device(), "/device:CPU:0");
}

std::string Types(const std::string& attr, const std::string& type) {
  return absl::StrCat("attr { key: '", attr, "' value { list { type: ", type, " } } } ");
}
// read(h) -> the variable's value twice, by another function.
constexpr char kReadFunction[] = R"(
  library {
    function {
      signature { name: 'read' input_arg { name: 'h' type: DT_RESOURCE }
                  output_arg { name: 'y' type: DT_FLOAT } is_stateful: true }
      node_def { name: 'value' op: 'value' input: 'h' }
      node_def { name: 'sum' op: 'Add' input: 'value:y:0' input: 'value:y:0'
                 attr { key: 'T' value { type: DT_FLOAT } } }
      ret { key: 'y' value: 'sum:z:0' }
      attr { key: '_noinline' value { b: true } }
    }
    function {
      signature { name: 'value' input_arg { name: 'h' type: DT_RESOURCE }
                  output_arg { name: 'y' type: DT_FLOAT } is_stateful: true }
      node_def { name: 'read' op: 'ReadVariableOp' input: 'h'
                 attr { key: 'dtype' value { type: DT_FLOAT } } }
      ret { key: 'y' value: 'read:value:0' }
    }
  } )";

TEST(FreezeGraphTest, VariablesReachTheNodesOfFunctions) {
  const FrozenGraph frozen =
      ExpectTheSame(Variables() + kReadFunction +
                        Node("call", "StatefulPartitionedCall", {"v"},
                             Types("Tin", "DT_RESOURCE") + Types("Tout", "DT_FLOAT") +
                                 "attr { key: 'f' value { func { name: 'read' } } } "),
                    "call");
  EXPECT_EQ(frozen.variables, std::vector<std::string>{"v"});
  EXPECT_EQ(frozen.graph.library().function_size(), 0);
  const std::set<std::string> ops = OpsOf(frozen.graph);
  EXPECT_TRUE(ops.contains("Add"));
  EXPECT_FALSE(ops.contains("StatefulPartitionedCall") || ops.contains("VarHandleOp"));
}

TEST(FreezeGraphTest, WhatCannotBeFrozenIsNamed) {
  const std::string two = "attr { key: 'N' value { i: 2 } } ";
  struct Case {
    std::string nodes;
    std::vector<std::string> outputs;
    absl::StatusCode code;
    std::string text;
  };
  const std::vector<Case> cases = {
      {"", {}, kInvalid, "FreezeGraph: outputs must name nodes, got none"},
      {"", {"r/reed"}, absl::StatusCode::kNotFound, "no node 'r/reed'; did you mean 'r/read'?"},
      {"",
       {"r/init"},
       kInvalid,
       "FreezeGraph: Assign 'r/init' must only read variable 'r', which is to become a constant"},
      {"", {"v/init"}, kInvalid, "AssignVariableOp 'v/init' must only read variable 'v'"},
      {Node("call", "NobodyKnowsThis", {"v"}),
       {"call"},
       kInvalid,
       "NobodyKnowsThis 'call' must only"},
      // What a predicate turns on, and what it may.
      {Bool("p", true), {"y"}, kInvalid, "must only read variable '"},
      {BoolByDefault(true), {"y"}, kInvalid, "must only read variable '"},
      {Node("p", "Placeholder", {}, Type("dtype", "DT_BOOL")),
       {"y"},
       kInvalid,
       "must only read variable '"},
      // A branch is not put into the graph.
      {Node("c", "VarIsInitializedOp", {"v"}) +
           Node("if", "If", {"c", "v"},
                "attr { key: 'Tcond' value { type: DT_BOOL } } " + Types("Tin", "DT_RESOURCE") +
                    Types("Tout", "DT_FLOAT") +
                    "attr { key: 'then_branch' value { func { name: 'read' } } } "
                    "attr { key: 'else_branch' value { func { name: 'read' } } } ") +
           kReadFunction,
       {"if"},
       kInvalid,
       "If 'if' must only read variable 'v'"},
      {Node("w", "VarHandleOp", {}, kDtype + kShape2x2) +
           Node("h", "Merge", {"v", "w"}, Type("T", "DT_RESOURCE") + two) +
           Node("y", "ReadVariableOp", {"h"}, kDtype),
       {"y"},
       absl::StatusCode::kFailedPrecondition,
       "w"},
      {Node("ph", "Placeholder", {}, Type("dtype", "DT_RESOURCE")) +
           Node("h", "Merge", {"v", "ph"}, Type("T", "DT_RESOURCE") + two) +
           Node("y", "ReadVariableOp", {"h"}, kDtype),
       {"y"},
       kInvalid,
       "Merge 'h' must have variables that become constants in all of its inputs, got 'ph'"},
  };
  for (const Case& c : cases) {
    const bool is_predicate = absl::StrContains(c.nodes, "name: 'p'");
    const tensorflow::GraphDef graph =
        Graph(is_predicate ? Normalisation(c.nodes) : Variables() + c.nodes);
    ASSERT_OK_AND_ASSIGN(const auto session, Initialized(graph));
    EXPECT_STATUS(FreezeGraph(session.get(), graph, {.outputs = c.outputs}), c.code, c.text);
  }
}

class RestoreByNameTest : public ::testing::Test {
 protected:
  RestoreByNameTest()
      : prefix_(JoinPath(::testing::TempDir(), absl::StrCat("freeze_", RandomHexName()))) {}

  void Write(const std::vector<std::pair<std::string, Tensor>>& tensors) {
    ASSERT_OK_AND_ASSIGN(auto writer, BundleWriter::Open(kFiles, prefix_));
    for (const auto& [name, tensor] : tensors) ASSERT_OK(writer->Add(name, tensor));
    ASSERT_OK(writer->Finish());
  }
  const std::string prefix_;
};

TEST_F(RestoreByNameTest, SetsTheVariablesThatTheCheckpointHas) {
  const tensorflow::GraphDef graph =
      Graph(Variables() + Node("y", "Add", {"r/read", "v/Read"}, kFloat));
  Write({{"r", TensorOf<float>({2, 2}, {1, 1, 1, 1})},
         {"v", TensorOf<float>({2, 2}, {0, 1, 2, 3})},
         {"other", Tensor::Scalar<float>(7)}});
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(graph));
  ASSERT_OK_AND_ASSIGN(const int restored, RestoreByName(session.get(), graph, prefix_));
  EXPECT_EQ(restored, 2);
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {"y:0"}));
  ExpectTensorEqual(out[0], TensorOf<float>({2, 2}, {1, 2, 3, 4}));
}

TEST_F(RestoreByNameTest, ReadsCheckpointsOfTheFirstFormat) {
  const std::string directory = SharedDataPath("session_bundle/half_plus_two");
  if (directory.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no session_bundle/half_plus_two";
  const std::string scalar = kDtype + "attr { key: 'shape' value { shape { } } } ";
  const tensorflow::GraphDef graph =
      Graph(Node("a", "VariableV2", {}, scalar) + Node("b", "VarHandleOp", {}, scalar) +
            Node("b/Read", "ReadVariableOp", {"b"}, kDtype));
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(graph));
  ASSERT_OK_AND_ASSIGN(
      const int restored,
      RestoreByName(session.get(), graph, JoinPath(directory, "export-\?\?\?\?\?-of-00001")));
  EXPECT_EQ(restored, 2);
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {"a:0", "b/Read:0"}));
  ExpectTensorEqual(out[0], Tensor::Scalar<float>(0.5f));
  ExpectTensorEqual(out[1], Tensor::Scalar<float>(2));
}

TEST_F(RestoreByNameTest, WhatDoesNotFitIsNamed) {
  const tensorflow::GraphDef graph = Graph(Variables());
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(graph));
  EXPECT_STATUS(RestoreByName(session.get(), graph, prefix_), absl::StatusCode::kNotFound, prefix_);
  Write({{"q", Tensor::Scalar<float>(7)}});
  EXPECT_STATUS(RestoreByName(session.get(), graph, prefix_), absl::StatusCode::kNotFound,
                "got 1 tensors and 2 variables that have no name in common");
  Write({{"v", Tensor::Scalar<int32_t>(7)}});
  EXPECT_STATUS(RestoreByName(session.get(), graph, prefix_), kInvalid,
                "'v' must be of float as the graph's variable, got int32");
  for (const char* name : {"r", "v"}) {  // a reference and a resource variable
    Write({{name, TensorOf<float>({3}, {1, 2, 3})}});
    EXPECT_STATUS(
        RestoreByName(session.get(), graph, prefix_), kInvalid,
        absl::StrCat("'", name, "' must have the shape of the graph's variable, [2,2], got [3]"));
  }
}

}  // namespace
}  // namespace millrace
