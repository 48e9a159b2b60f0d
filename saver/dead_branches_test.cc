// SPDX-License-Identifier: Apache-2.0
#include "saver/dead_branches.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/attr.h"
#include "proto/graph.pb.h"

namespace millrace {
namespace {

using ::testing::UnorderedElementsAre;
using ::testing::UnorderedElementsAreArray;

// Of lines "name = Op(input, input:1, ^control)" and "name = true".
tensorflow::GraphDef Graph(const std::vector<std::string>& lines) {
  tensorflow::GraphDef graph;
  for (const std::string& line : lines) {
    const std::vector<std::string> sides = absl::StrSplit(line, " = ");
    tensorflow::NodeDef* const node = graph.add_node();
    node->set_name(sides[0]);
    if (sides[1] == "true" || sides[1] == "false") {
      node->set_op("Const");
      SetAttr(DT_BOOL, &(*node->mutable_attr())["dtype"]);
      SetAttr(Tensor::Scalar<bool>(sides[1] == "true"), &(*node->mutable_attr())["value"]);
      continue;
    }
    const std::vector<std::string> parts = absl::StrSplit(absl::StripSuffix(sides[1], ")"), '(');
    node->set_op(parts[0]);
    for (const absl::string_view input : absl::StrSplit(parts[1], ", ", absl::SkipEmpty())) {
      node->add_input(std::string(input));
    }
    if (parts[0] == "Merge" || parts[0] == "RefMerge") {
      SetAttr(int64_t{node->input_size()}, &(*node->mutable_attr())["N"]);
    }
  }
  return graph;
}

std::vector<std::string> Lines(const tensorflow::GraphDef& graph) {
  std::vector<std::string> lines;
  for (const auto& node : graph.node()) {
    std::string what = absl::StrCat(node.op(), "(", absl::StrJoin(node.input(), ", "), ")");
    if (node.op() == "Const") {
      const Tensor value = *GetAttr<Tensor>(node, "value");
      what = value.dtype() == DT_BOOL ? (value.scalar<bool>() ? "true" : "false")
                                      : absl::StrCat(value.scalar<int32_t>());
    }
    if (node.attr().count("N") > 0) absl::StrAppend(&what, " N=", node.attr().at("N").i());
    lines.push_back(absl::StrCat(node.name(), " = ", what));
  }
  return lines;
}

std::vector<std::string> Removed(const std::vector<std::string>& lines,
                                 const std::vector<std::string>& outputs) {
  tensorflow::GraphDef graph = Graph(lines);
  EXPECT_OK(RemoveDeadBranches(outputs, &graph));
  return Lines(graph);
}

TEST(DeadBranches, OfAConstantPredicateGoWithAllThatOnlyTheyNeed) {
  EXPECT_THAT(Removed({"x = Placeholder()", "big = Expensive()", "p = false", "id = Identity(p)",
                       "s = Switch(x, id)", "b = Switch(big, id)", "t = Add(s:1, b:1)",
                       "f = Neg(s)", "m = Merge(f, t)", "y = Exp(m)"},
                      {"y"}),
              UnorderedElementsAre("x = Placeholder()", "s = Identity(x)", "f = Neg(s)",
                                   "m = Identity(f)", "y = Exp(m)"));
  // The other one: its tensors have another number.
  EXPECT_THAT(Removed({"x = Placeholder()", "p = true", "s = Switch(x, p, ^x)", "t = Neg(s:1)",
                       "c = Exp(t, ^s)", "m = Merge(s, t)", "y = Add(m, c)"},
                      {"y:0"}),
              UnorderedElementsAre("x = Placeholder()", "s = Identity(x, ^x)", "t = Neg(s)",
                                   "c = Exp(t, ^s)", "m = Identity(t)", "y = Add(m, c)"));
}

TEST(DeadBranches, FollowPredicatesThroughWhatPassesThem) {
  struct Case {
    std::vector<std::string> predicate;  // p
    bool lives;                          // the branch of true
  };
  const std::vector<Case> cases = {
      {{"p = true"}, true},
      {{"c = false", "p = LogicalNot(c)"}, true},
      {{"c = true", "d = LogicalNot(c)", "p = Identity(d)"}, false},
      {{"c = false", "x2 = Placeholder()", "p = LogicalAnd(x2, c)"}, false},
      {{"c = true", "x2 = Placeholder()", "p = LogicalOr(c, x2)"}, true},
      {{"c = true", "d = true", "p = LogicalAnd(c, d)"}, true},
      {{"c = false", "d = false", "p = LogicalOr(c, d)"}, false},
  };
  for (const Case& c : cases) {
    std::vector<std::string> lines = {"x = Placeholder()", "s = Switch(x, p)", "t = Neg(s:1)",
                                      "m = Merge(s, t)"};
    lines.insert(lines.begin(), c.predicate.begin(), c.predicate.end());
    const std::vector<std::string> got = Removed(lines, {"m"});
    const std::vector<std::string> want =
        c.lives
            ? std::vector<std::string>{"x = Placeholder()", "s = Identity(x)", "t = Neg(s)",
                                       "m = Identity(t)"}
            : std::vector<std::string>{"x = Placeholder()", "s = Identity(x)", "m = Identity(s)"};
    EXPECT_THAT(got, UnorderedElementsAreArray(want)) << absl::StrJoin(c.predicate, "; ");
  }
}

TEST(DeadBranches, ConditionalsWithinDeadOnesAreDead) {
  EXPECT_THAT(Removed({"x = Placeholder()", "q = Placeholder()", "p = false", "s = Switch(x, p)",
                       "inner = Switch(s:1, q)", "a = Neg(inner)", "b = Exp(inner:1)",
                       "n = Merge(a, b)", "m = Merge(s, n)"},
                      {"m"}),
              UnorderedElementsAre("x = Placeholder()", "s = Identity(x)", "m = Identity(s)"));
  // A loop of the dead branch; the one of the other branch stays.
  EXPECT_THAT(
      Removed({"x = Placeholder()", "p = false", "s = Switch(x, p)", "e = Enter(s:1)",
               "h = Merge(e, back)", "c = LoopCond(h)", "w = Switch(h, c)", "body = Neg(w:1)",
               "back = NextIteration(body)", "out = Exit(w)", "m = Merge(s, out)"},
              {"m"}),
      UnorderedElementsAre("x = Placeholder()", "s = Identity(x)", "m = Identity(s)"));
  const std::vector<std::string> loop = {
      "x = Placeholder()", "e = Enter(x)",    "h = Merge(e, back)",         "c = LoopCond(h)",
      "w = Switch(h, c)",  "body = Neg(w:1)", "back = NextIteration(body)", "out = Exit(w)"};
  EXPECT_EQ(Removed(loop, {"out"}), Lines(Graph(loop)));
}

// Of an outer conditional that is open: what the inner one chose from stays idle with its
// predicate.
TEST(DeadBranches, APredicateWithinABranchKeepsWhatItDecidedThere) {
  EXPECT_THAT(Removed({"x = Placeholder()", "q = Placeholder()", "c = false", "o = Switch(c, q)",
                       "p = Identity(o:1)", "s = Switch(x, p)", "t = Neg(s:1)", "m = Merge(s, t)",
                       "y = Merge(m, o)"},
                      {"y"}),
              UnorderedElementsAre("x = Placeholder()", "q = Placeholder()", "c = false",
                                   "o = Switch(c, q)", "p = Identity(o:1)", "s = Identity(x, ^p)",
                                   "m = Identity(s)", "y = Merge(m, o) N=2"));
  const std::vector<std::string> references = {
      "v = VariableV2()",  "q = Placeholder()",   "c = false",    "o = Switch(c, q)",
      "p = Identity(o:1)", "s = RefSwitch(v, p)", "t = Neg(s:1)", "m = Merge(s, t)"};
  EXPECT_EQ(Removed(references, {"m"}), Lines(Graph(references)));
}

TEST(DeadBranches, ReferencesAreTakenFromBeforeTheSwitch) {
  EXPECT_THAT(Removed({"v = VariableV2()", "p = false", "s = RefSwitch(v, p)", "w = Assign(s:1, x)",
                       "x = Placeholder()", "q = RefSwitch(s, p)", "f = Identity(q, ^s)",
                       "r = RefMerge(q, w)", "t = Identity(w)", "m = Merge(f, t)", "y = Add(m, r)"},
                      {"y"}),
              UnorderedElementsAre("v = VariableV2()", "f = Identity(v, ^v)", "m = Identity(f)",
                                   "y = Add(m, v)"));
}

TEST(DeadBranches, TheIndexOfAMergeIsAConstant) {
  EXPECT_THAT(Removed({"x = Placeholder()", "p = true", "s = Switch(x, p)", "m = Merge(s, s:1)",
                       "m/value_index = Neg(m)", "y = Pair(m, m:1, m/value_index)"},
                      {"y"}),
              UnorderedElementsAre("x = Placeholder()", "s = Identity(x)", "m = Identity(s)",
                                   "m/value_index = Neg(m)", "m/value_index_1 = 1",
                                   "y = Pair(m, m/value_index_1, m/value_index)"));
  // Of three, two live.
  EXPECT_THAT(Removed({"x = Placeholder()", "q = Placeholder()", "p = true", "s = Switch(x, p)",
                       "o = Switch(s:1, q)", "m = Merge(o, s, o:1)", "y = Neg(m)"},
                      {"y"}),
              UnorderedElementsAre("x = Placeholder()", "q = Placeholder()", "s = Identity(x)",
                                   "o = Switch(s, q)", "m = Merge(o, o:1) N=2", "y = Neg(m)"));
}

TEST(DeadBranches, WhatCannotBeRewrittenStays) {
  const std::vector<std::string> dead = {"x = Placeholder()", "p = false", "s = Switch(x, p)",
                                         "t = Neg(s:1)", "m = Merge(s, t)"};
  const std::vector<std::string> unknown = {"x = Placeholder()", "p = Placeholder()",
                                            "s = Switch(x, p)", "t = Neg(s:1)", "m = Merge(s, t)"};
  const std::vector<std::string> index = {
      "x = Placeholder()",  "q = Placeholder()",    "p = true",        "s = Switch(x, p)",
      "o = Switch(s:1, q)", "m = Merge(o, s, o:1)", "y = Pair(m, m:1)"};
  struct Case {
    std::vector<std::string> lines, outputs;
  };
  const std::vector<Case> cases = {
      {dead, {"t"}},         // never runs
      {dead, {"s:1"}},       // nor does this
      {dead, {"m", "m:1"}},  // a number of a Merge that goes
      {unknown, {"m"}},      // anything may be fed
      {index, {"y"}},        // would number others
      {{"s = Switch(gone, p)", "p = false", "y = Neg(s)"}, {"y"}},
      {{"d = false", "p = PlaceholderWithDefault(d)", "x = Placeholder()", "s = Switch(x, p)",
        "t = Neg(s:1)", "m = Merge(s, t)"},
       {"m"}},  // may be fed true
      {{"v = VariableV2()", "x = Placeholder()", "a = Assign(v, x)", "p = true",
        "s = RefSwitch(v, p, ^a)", "y = Identity(s:1)"},
       {"y"}},  // would not wait for the Assign
  };
  for (const Case& c : cases) EXPECT_EQ(Removed(c.lines, c.outputs), Lines(Graph(c.lines)));
}

// Both count those that they wait for, dead or not.
TEST(DeadBranches, TriggersAndMergesRunBehindDeadBranches) {
  EXPECT_THAT(Removed({"x = Placeholder()", "p = false", "s = Switch(x, p)", "t = Neg(s:1)",
                       "g = ControlTrigger(^t, ^x)", "m = Merge(s, t, ^t)", "y = Exp(m, ^g)"},
                      {"y"}),
              UnorderedElementsAre("x = Placeholder()", "s = Identity(x)", "g = ControlTrigger(^x)",
                                   "m = Identity(s)", "y = Exp(m, ^g)"));
}

TEST(DeadBranches, WhatADefaultTurnsOffIsListed) {
  const std::vector<std::string> lines = {"d = false",         "p = PlaceholderWithDefault(d)",
                                          "x = Placeholder()", "s = Switch(x, p)",
                                          "t = Neg(s:1)",      "w = NoOp(^t)",
                                          "f = Exp(s, ^w2)",   "w2 = NoOp()",
                                          "m = Merge(f, t)"};
  EXPECT_THAT(NodesOffByDefault(Graph(lines)), UnorderedElementsAre("t", "w"));
  std::vector<std::string> on = lines;
  on[0] = "d = true";
  EXPECT_THAT(NodesOffByDefault(Graph(on)), UnorderedElementsAre("f"));
  on[0] = "d = Placeholder()";
  EXPECT_THAT(NodesOffByDefault(Graph(on)), UnorderedElementsAre());
}

}  // namespace
}  // namespace millrace
