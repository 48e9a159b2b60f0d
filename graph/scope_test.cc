// SPDX-License-Identifier: Apache-2.0
#include "graph/scope.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "graph/op_registry.h"
#include "graph/shape_inference.h"
#include "gtest/gtest.h"
#include "proto/graph.pb.h"
#include "proto/meta_graph.pb.h"
#include "proto/node_def.pb.h"
#include "proto/types.pb.h"

// covers: accidents: an Output outlives its Scope
// covers: accidents: an operator's node remembers the scope where the program built it

namespace millrace {
namespace {

Status ShapeOfAttr(InferenceContext* c) {
  MR_ASSIGN_OR_RETURN(PartialShape shape, c->GetAttr<PartialShape>("shape"));
  c->set_output(0, shape);
  return absl::OkStatus();
}

const OpRegistration kOps[] = {
    OpSpec("In")
        .Output("y: dtype")
        .Attr("dtype: type = DT_FLOAT")
        .Attr("shape: shape = { unknown_rank: true }")
        .Shape(ShapeOfAttr),
    OpSpec("Var")
        .Output("ref: Ref(dtype)")
        .Attr("dtype: type = DT_FLOAT")
        .Attr("shape: shape = {}")
        .Stateful()
        .Shape(ShapeOfAttr),
    OpSpec("Sum2")
        .Input("a: T")
        .Input("b: T")
        .Output("y: T")
        .Attr("T: {float, double, int32}")
        .Shape(BroadcastBinaryShape),
    OpSpec("SumN")
        .Input("inputs: N * T")
        .Output("y: T")
        .Attr("N: int >= 1")
        .Attr("T: type")
        .Shape(UnchangedShape),
    OpSpec("Pairs")
        .Input("a: N * int32")
        .Input("b: N * string")
        .Attr("N: int >= 1")
        .Shape(NoOutputShape),
    OpSpec("Tuple")
        .Input("x: Ts")
        .Output("y: Ts")
        .Attr("Ts: list(type)")
        .Shape(ValueDependentShape),
    OpSpec("Store")
        .Input("ref: Ref(T)")
        .Input("value: T")
        .Output("out: Ref(T)")
        .Attr("T: type")
        .Shape(UnchangedShape),
    OpSpec("Strict").Input("x: int32").Output("y: int32").Shape(UnchangedShape),
    OpSpec("Done").Shape(NoOutputShape),
};

Output In(ScopeAt at, DType dtype = DT_FLOAT, const PartialShape& shape = {}) {
  return NodeBuilder(at, "In").Attr("dtype", dtype).Attr("shape", shape).Finish().output(0);
}
Output Var(ScopeAt at) { return NodeBuilder(at, "Var").Finish().output(0); }
Output Sum2(ScopeAt at, Output a, Output b) {
  return NodeBuilder(at, "Sum2").Input(a).Input(b).Finish().output(0);
}
Operation Done(ScopeAt at) { return NodeBuilder(at, "Done").Finish().operation(); }

PartialShape Unknown() { return PartialShape(); }

// The message without the source line, which must be there.
std::string MessageOf(const Scope& scope) {
  const std::string message(scope.status().message());
  const size_t built_at = message.find("; built at ");
  EXPECT_NE(built_at, std::string::npos) << message;
  return message.substr(0, built_at);
}

TEST(ScopeTest, NamesAreUniqueWhateverTheirCase) {
  Scope root;
  EXPECT_EQ(In(root).name(), "In:0");
  EXPECT_EQ(In(root).name(), "In_1:0");
  EXPECT_EQ(In(root.WithName("in")).name(), "in_2:0");
  EXPECT_EQ(In(root.WithName("x")).name(), "x:0");
  EXPECT_EQ(In(root.WithName("X")).name(), "X_1:0");
  EXPECT_EQ(In(root.WithName("x_1")).name(), "x_1_1:0");
  EXPECT_EQ(In(root.WithName("x")).name(), "x_2:0");
  EXPECT_EQ(root.UniqueName("x"), "x_3");
  EXPECT_EQ(In(root.WithName("x")).name(), "x_4:0") << "UniqueName reserves";
}

TEST(ScopeTest, SubScopesPrefixNamesAndAreUniqueThemselves) {
  Scope root;
  Scope a = root.WithSubScope("a");
  EXPECT_EQ(a.prefix(), "a/");
  EXPECT_EQ(In(a.WithName("x")).name(), "a/x:0");
  Scope again = root.WithSubScope("a");
  EXPECT_EQ(again.prefix(), "a_1/");
  EXPECT_EQ(In(again.WithName("x")).name(), "a_1/x:0");
  EXPECT_EQ(a.WithSubScope("b").prefix(), "a/b/");
  EXPECT_EQ(In(a.WithSubScope("a/")).name(), "a/In:0") << "a slash goes on with a scope";
  EXPECT_EQ(In(root.WithName("a")).name(), "a_2:0") << "scopes and nodes share their names";
  EXPECT_EQ(root.WithName("layer").CompositeScope("dense").prefix(), "layer/");
  EXPECT_EQ(root.CompositeScope("dense").prefix(), "dense/");
}

TEST(ScopeTest, ANameWithASlashAtItsEndIsTheFullNameThatWasReserved) {
  Scope root;
  const Scope a = root.WithSubScope("a");
  const std::string name = a.UniqueName("sum");
  EXPECT_EQ(In(a.WithSubScope(name + "/").WithName("x")).name(), "a/sum/x:0");
  EXPECT_EQ(In(root.WithName(name + "/")).name(), "a/sum:0");
  EXPECT_EQ(In(a.WithName("sum")).name(), "a/sum_1:0");
  EXPECT_FALSE(In(root.WithName(name + "/")).valid());
  EXPECT_TRUE(absl::StrContains(MessageOf(root), "In 'a/sum': node name must be unique"));
}

TEST(ScopeTest, NodesRememberTheScopeOfTheProgram) {
  Scope root;
  const Scope a = root.WithSubScope("a").WithDevice("/job:a");
  const Operation other = Done(root);
  const auto home_of = [](const Scope& scope) {
    const std::optional<Scope> home = Scope::HomeOf(In(scope));
    if (!home) return std::string("none");
    const Output there = In(home->WithName("n"));
    return absl::StrCat(home->prefix(), " ", there.node()->requested_device(), " ",
                        there.node()->control_inputs().size(), HasAttr(*there.node(), "_class"));
  };
  EXPECT_EQ(home_of(root), "  00");
  EXPECT_EQ(home_of(a), "a/ /job:a 00");
  EXPECT_EQ(home_of(a.WithSubScope("b")), "a/b/ /job:a 00");
  EXPECT_EQ(home_of(a.WithDevice("/task:1")), "a/ /job:a/task:1 00");
  EXPECT_EQ(home_of(a.WithName("x")), "a/ /job:a 00");
  EXPECT_EQ(home_of(a.WithRootPrefix()), "a/ /job:a 00");
  EXPECT_EQ(home_of(a.WithControlDependencies({other}).ColocatedWith(other)), "a/ /job:a 00");
  const Scope composite = a.CompositeScope("c");
  EXPECT_EQ(home_of(composite), "a/ /job:a 00");
  EXPECT_EQ(home_of(composite.WithSubScope("d").WithDevice("/job:d")), "a/ /job:a 00");
  EXPECT_EQ(home_of(composite.WithRootPrefix().CompositeScope("e")), "a/ /job:a 00");
  EXPECT_TRUE(root.ok()) << root.status();
  EXPECT_FALSE(Scope::HomeOf(Output()).has_value());
}

TEST(ScopeTest, DevicesMergeAndTheInnerFieldWins) {
  Scope root;
  Scope ps = root.WithDevice("/job:ps/task:1/cpu:0");
  EXPECT_EQ(In(ps).node()->requested_device(), "/job:ps/task:1/device:CPU:0");
  EXPECT_EQ(In(ps.WithDevice("/task:2")).node()->requested_device(), "/job:ps/task:2/device:CPU:0");
  EXPECT_EQ(In(ps.WithDevice("")).node()->requested_device(), "");
  EXPECT_EQ(In(root).node()->requested_device(), "");
  BuiltNode own = NodeBuilder(ps, "In").Device("/job:w").Finish();
  EXPECT_EQ(own.operation().node()->requested_device(), "/job:w");
}

TEST(ScopeTest, DeviceFunctionsSeeTheInnerDeviceAndDefaultAttrs) {
  Scope root;
  std::vector<std::string> seen;
  Scope scope =
      root.WithDevice("/job:outer/task:7").WithDevice([&](const tensorflow::NodeDef& def) {
        seen.push_back(absl::StrCat(def.name(), " ", def.op(), " ", def.device(), " ",
                                    def.attr().contains("dtype")));
        return def.op() == "Var" ? std::string("/job:ps") : def.device();
      });
  EXPECT_EQ(Var(scope).node()->requested_device(), "/job:ps/task:7");
  EXPECT_EQ(In(scope.WithDevice("/job:w/cpu:1")).node()->requested_device(),
            "/job:w/task:7/device:CPU:1");
  EXPECT_EQ(seen, std::vector<std::string>({"Var Var  1", "In In /job:w/device:CPU:1 1"}));
  EXPECT_TRUE(root.ok()) << root.status();
}

TEST(ScopeTest, MalformedDeviceIsAnErrorOfTheNode) {
  Scope root;
  EXPECT_FALSE(In(root.WithDevice("/job:a/job:b")).valid());
  EXPECT_TRUE(absl::StartsWith(MessageOf(root), "In 'In': ")) << root.status();
}

TEST(ScopeTest, ControlDependenciesAddUpAndCanBeCleared) {
  Scope root;
  Operation a = Done(root.WithName("a"));
  Operation b = Done(root.WithName("b"));
  Scope both = root.WithControlDependencies({a}).WithControlDependencies({b, a});
  Output x = In(both);
  ASSERT_EQ(x.node()->control_inputs().size(), 2u);
  EXPECT_EQ(x.node()->control_inputs()[0]->name(), "a");
  EXPECT_EQ(x.node()->control_inputs()[1]->name(), "b");
  EXPECT_TRUE(In(both.WithoutControlDependencies()).node()->control_inputs().empty());
  BuiltNode with = NodeBuilder(root, "Done").ControlInput(a).Finish();
  EXPECT_EQ(with.operation().node()->control_inputs().size(), 1u);
}

TEST(ScopeTest, ColocationNamesTheGroupAndTakesItsDevice) {
  Scope root;
  Output v = Var(root.WithName("v").WithDevice("/job:ps"));
  Output slot = Var(root.WithName("slot").WithDevice("/job:w").ColocatedWith(Operation(v.node())));
  EXPECT_EQ(slot.node()->requested_device(), "/job:ps");
  EXPECT_EQ(*GetAttr<std::vector<std::string>>(slot.node()->def(), "_class"),
            std::vector<std::string>({"loc:@v"}));
  Output update = In(root.WithName("u").ColocatedWith(Operation(slot.node())));
  EXPECT_EQ(*GetAttr<std::vector<std::string>>(update.node()->def(), "_class"),
            std::vector<std::string>({"loc:@v"}))
      << "the group of a colocated node, not the node";
  Output w = Var(root.WithName("w"));
  Output x = In(root.WithDevice("/job:w").ColocatedWith(Operation(w.node())));
  EXPECT_EQ(x.node()->requested_device(), "/job:w");
}

TEST(ScopeTest, DeviceFunctionsSeeTheColocationThatWins) {
  Scope root;
  Output v = Var(root.WithName("v").WithDevice("/job:ps"));
  std::vector<std::string> seen;
  const Scope placed = root.WithDevice([&seen](const tensorflow::NodeDef& node) -> std::string {
    seen = GetAttr<std::vector<std::string>>(node, "_class").value_or(std::vector<std::string>());
    return "/job:w";
  });
  Output slot = Var(placed.WithName("slot").ColocatedWith(Operation(v.node())));
  EXPECT_EQ(seen, std::vector<std::string>({"loc:@v"}));
  EXPECT_EQ(slot.node()->requested_device(), "/job:ps");
  Output other = Var(placed.WithName("other"));
  EXPECT_TRUE(seen.empty());
  EXPECT_EQ(other.node()->requested_device(), "/job:w");
}

TEST(ScopeTest, FirstErrorIsKeptWithTheLineThatMadeIt) {
  Scope root;
  Output a = In(root.WithName("a"));
  Output i = In(root.WithName("i"), DT_INT32);
  const int line = __LINE__ + 1;
  Output bad = Sum2(root.WithSubScope("dense").WithName("add"), a, i);
  EXPECT_FALSE(bad.valid());
  EXPECT_EQ(root.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      root.status().message(),
      absl::StrCat("Sum2 'dense/add': input 'b' must be float (attr 'T', given by input 'a'), "
                   "got int32 from 'i:0'; built at ",
                   __FILE__, ":", line));
  // What follows is a no-op and changes nothing.
  const int nodes = root.graph()->num_nodes();
  EXPECT_FALSE(Sum2(root, bad, a).valid());
  EXPECT_FALSE(In(root).valid());
  EXPECT_EQ(root.graph()->num_nodes(), nodes);
  EXPECT_TRUE(absl::StrContains(root.status().message(), "dense/add"));
  EXPECT_FALSE(root.ToGraphDef().ok());
}

TEST(ScopeTest, NodesKnowWhereTheyWereBuilt) {
  Scope root;
  const int line = __LINE__ + 1;
  Output x = In(root);
  EXPECT_EQ(x.node()->built_at(), absl::StrCat(__FILE__, ":", line));
}

TEST(ScopeTest, NodesOfAScopeThatCarriesALineNameThatOne) {
  Scope root;
  const std::source_location line = std::source_location::current();
  const std::string want = absl::StrCat(line.file_name(), ":", line.line());
  const Scope carries = root.BuiltAt(line);
  // Whatever else is made of it.
  const Scope scopes[] = {carries,
                          carries.WithSubScope("a"),
                          carries.CompositeScope("b"),
                          carries.WithName("c"),
                          carries.WithDevice("/cpu:0"),
                          carries.WithoutControlDependencies().WithRootPrefix(),
                          carries.ColocatedWith(In(carries).op())};
  for (const Scope& scope : scopes) {
    EXPECT_EQ(In(scope).node()->built_at(), want);
    // A line that is given explicitly is that of the Scope, too.
    EXPECT_EQ(In({scope, std::source_location::current()}).node()->built_at(), want);
    EXPECT_EQ(ScopeAt(scope).here().built_at().line(), line.line());
  }
  // For functions of the program the line that calls counts again.
  const int own = __LINE__ + 1;
  const Output x = In(carries.BuiltWhereCalled());
  EXPECT_EQ(x.node()->built_at(), absl::StrCat(__FILE__, ":", own));
  // A builder hands the line of its caller on.
  const auto composite = [](ScopeAt at) { return In(at.here().WithSubScope("d")); };
  const int caller = __LINE__ + 1;
  const Output y = composite(root);
  EXPECT_EQ(y.node()->built_at(), absl::StrCat(__FILE__, ":", caller));
  EXPECT_TRUE(root.ok()) << root.status();
  // Errors, those of SetShape as well.
  carries.SetShape(y, {1, 2, 3});
  carries.SetShape(y, {4});
  EXPECT_TRUE(absl::EndsWith(root.status().message(), absl::StrCat("; built at ", want)))
      << root.status();
}

TEST(ScopeTest, ShapesAreInferredAndCanBeMerged) {
  Scope root;
  Output a = In(root, DT_FLOAT, {-1, 3});
  Output b = In(root, DT_FLOAT, {2, 1});
  Output sum = Sum2(root, a, b);
  EXPECT_EQ(root.shape(sum).ToString(), "[2,3]");
  EXPECT_EQ(root.shape(Output()).ToString(), "<unknown>");
  root.SetShape(a, {4, -1});
  EXPECT_EQ(root.shape(a).ToString(), "[4,3]");
  EXPECT_TRUE(root.ok());
  root.SetShape(a, {5, 3});
  EXPECT_EQ(MessageOf(root), "In 'In': output 0 must have shape [4,3], got [5,3]");
}

TEST(ScopeTest, AnErrorOfShapeInferenceLeavesNoNode) {
  Scope root;
  Output a = In(root, DT_FLOAT, {2});
  Output b = In(root, DT_FLOAT, {3});
  EXPECT_FALSE(Sum2(root.WithName("s"), a, b).valid());
  EXPECT_EQ(root.graph()->FindNode("s"), nullptr);
  EXPECT_TRUE(absl::StartsWith(MessageOf(root), "Sum2 's': ")) << root.status();
  EXPECT_TRUE(a.node()->out_edges().empty());
}

TEST(ScopeTest, FinalizedGraphRefusesNodes) {
  Scope root;
  In(root);
  root.Finalize();
  EXPECT_FALSE(In(root).valid());
  EXPECT_EQ(root.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(MessageOf(root), "Graph is finalized and cannot be modified.");
}

TEST(ScopeTest, CollectionsAndSeedAreSharedByAllScopes) {
  Scope root;
  Scope sub = root.WithSubScope("s");
  sub.AddToNodeCollection("train_op", "x");
  sub.AddToBytesCollection("variables", "abc");
  sub.SetGraphSeed(7);
  EXPECT_EQ((*root.collections())["train_op"].node_list().value(0), "x");
  EXPECT_EQ((*root.collections())["variables"].bytes_list().value(0), "abc");
  EXPECT_EQ(root.graph_seed(), 7);
}

TEST(ScopeTest, AScopeForAGraphKeepsItsNamesAndKnowsItsShapes) {
  auto graph = std::make_unique<Graph>();
  tensorflow::NodeDef def;
  def.set_name("a/b/x");
  def.set_op("In");
  SetAttr(PartialShape({2}), &(*def.mutable_attr())["shape"]);
  ASSERT_TRUE(graph->AddNode(def).ok());
  Node* x = graph->FindNode("a/b/x");
  StatusOr<Scope> scope = Scope::ForGraph(std::move(graph));
  ASSERT_TRUE(scope.ok()) << scope.status();
  EXPECT_EQ(scope->shape(Output(x, 0)).ToString(), "[2]");
  EXPECT_EQ(scope->WithSubScope("a").prefix(), "a_1/");
  EXPECT_EQ(In(scope->WithSubScope("a/b/").WithName("X")).name(), "a/b/X_1:0");
}

TEST(ScopeTest, OutputsOutliveTheirScope) {
  Output x;
  Operation op;
  {
    Scope root;
    x = In(root.WithName("x"), DT_FLOAT, Unknown());
    op = x.op();
  }
  EXPECT_EQ(x.name(), "x:0");
  EXPECT_EQ(x.dtype(), DT_FLOAT);
  EXPECT_EQ(op.name(), "x");
  EXPECT_FALSE(Scope::HomeOf(x).has_value());
  Scope other;
  NodeBuilder(other, "Sum2").Input(x).Input(x).Finish();
  EXPECT_EQ(MessageOf(other),
            "Sum2 'Sum2': input 0 must be of the same graph, got 'x:0' of another");
}

TEST(NodeBuilderTest, TypeNumberAndListAttrsComeFromInputs) {
  Scope root;
  Output a = In(root), i = In(root, DT_INT32), v = Var(root);
  const std::vector<Output> floats = {a, v, a};
  BuiltNode sum = NodeBuilder(root, "SumN").Input(floats).Finish();
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_EQ(sum.operation().node()->def().attr().at("N").i(), 3);
  EXPECT_EQ(sum.operation().node()->def().attr().at("T").type(), tensorflow::DT_FLOAT)
      << "a reference feeds a value";
  const std::vector<Output> mixed = {a, i};
  BuiltNode tuple = NodeBuilder(root, "Tuple").Input(mixed).Finish();
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_EQ(tuple.num_outputs(), 2);
  EXPECT_EQ(tuple.output(1).dtype(), DT_INT32);
  EXPECT_FALSE(tuple.output(2).valid());
  BuiltNode store = NodeBuilder(root, "Store").Input(v).Input(a).Finish();
  ASSERT_TRUE(root.ok()) << root.status();
  EXPECT_EQ(store.output(0).dtype(), DT_FLOAT_REF);
}

TEST(NodeBuilderTest, WrongCallsNameTheInput) {
  using Build = void (*)(const Scope& root, Output f, Output i);
  struct Case {
    Build build;
    const char* message;
  };
  const std::vector<Case> cases = {
      {[](const Scope& root, Output f, Output) { NodeBuilder(root, "Sum2").Input(f).Finish(); },
       "Sum2 'Sum2': must have 2 inputs (a, b), got 1"},
      {[](const Scope& root, Output f, Output i) {
         NodeBuilder(root, "Sum2").Input(f).Input(f).Input(i).Finish();
       },
       "Sum2 'Sum2': must have 2 inputs (a, b), got 3"},
      {[](const Scope& root, Output f, Output) {
         NodeBuilder(root, "Sum2").Attr("T", DT_DOUBLE).Input(f).Input(f).Finish();
       },
       "Sum2 'Sum2': input 'a' must be double (attr 'T'), got float from 'f:0'"},
      {[](const Scope& root, Output f, Output) { NodeBuilder(root, "Strict").Input(f).Finish(); },
       "Strict 'Strict': input 'x' must be int32, got float from 'f:0'"},
      {[](const Scope& root, Output f, Output) { NodeBuilder(root, "SumN").Input(f).Finish(); },
       "SumN 'SumN': input 'inputs' must be a list of tensors, got float from 'f:0'"},
      {[](const Scope& root, Output f, Output) {
         const std::vector<Output> list = {f, f};
         NodeBuilder(root, "Strict").Input(list).Finish();
       },
       "Strict 'Strict': input 'x' must be one tensor, got a list of 2"},
      {[](const Scope& root, Output f, Output i) {
         const std::vector<Output> list = {f, i};
         NodeBuilder(root, "SumN").Input(list).Finish();
       },
       "SumN 'SumN': input 'inputs' must be float (attr 'T', given by input 'inputs'), got int32 "
       "from 'i:0'"},
      {[](const Scope& root, Output, Output i) {
         const std::vector<Output> one = {i}, none;
         NodeBuilder(root, "Pairs").Input(one).Input(none).Finish();
       },
       "Pairs 'Pairs': input 'b' must have 1 tensors (attr 'N', given by input 'a'), got 0"},
      {[](const Scope& root, Output, Output) {
         const std::vector<Output> none;
         NodeBuilder(root, "SumN").Attr("T", DT_FLOAT).Input(none).Finish();
       },
       "SumN 'SumN': attr 'N' must be >= 1, got 0"},
      {[](const Scope& root, Output, Output i) {
         const std::vector<Output> one = {i};
         NodeBuilder(root, "Tuple").Attr("Ts", std::vector<DType>{DT_FLOAT}).Input(one).Finish();
       },
       "Tuple 'Tuple': input 'x' must have types (float) (attr 'Ts'), got (int32)"},
      {[](const Scope& root, Output f, Output) {
         NodeBuilder(root, "Store").Input(f).Input(f).Finish();
       },
       "Store 'Store': input 'ref' must be a reference (the output of a variable), got float from "
       "'f:0'"},
      {[](const Scope& root, Output f, Output) {
         NodeBuilder(root.WithName("s"), "Sum2").Input(f).Input(Output()).Finish();
       },
       "Sum2 's': input 1 must be the output of a node, got an invalid Output"},
      {[](const Scope& root, Output f, Output) {
         Scope other;
         NodeBuilder(root, "Sum2").Input(f).Input(In(other)).Finish();
       },
       "Sum2 'Sum2': input 1 must be of the same graph, got 'In:0' of another"},
      {[](const Scope& root, Output, Output) {
         Output s = In(root, DT_STRING);
         NodeBuilder(root, "Sum2").Input(s).Input(s).Finish();
       },
       "Sum2 'Sum2': attr 'T' must be one of {float, double, int32}, got string"},
      {[](const Scope& root, Output, Output) {
         NodeBuilder(root.WithName("a b"), "Done").Finish();
       },
       "Done 'a b': node name must be letters, digits and any of '_./-' and not begin with '/' or "
       "'-', got 'a b'"},
  };
  for (const Case& c : cases) {
    Scope root;
    Output f = In(root.WithName("f"), DT_FLOAT, Unknown());
    Output i = In(root.WithName("i"), DT_INT32, Unknown());
    const int nodes = root.graph()->num_nodes();
    ASSERT_TRUE(root.ok()) << root.status();
    c.build(root, f, i);
    ASSERT_FALSE(root.ok()) << c.message;
    EXPECT_EQ(MessageOf(root), c.message);
    EXPECT_EQ(root.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_LE(root.graph()->num_nodes(), nodes + 1);
  }
  Scope root;
  EXPECT_FALSE(NodeBuilder(root, "NoSuchOp").Finish().operation().valid());
  EXPECT_EQ(root.status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace millrace
