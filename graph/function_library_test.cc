// SPDX-License-Identifier: Apache-2.0
#include "graph/function_library.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/function_body.h"
#include "graph/graph.h"
#include "graph/import_export.h"
#include "graph/node_builder.h"
#include "graph/scope.h"
#include "graph/shape_inference.h"
#include "graph/testing/tiny_ops.h"
#include "gtest/gtest.h"
#include "proto/attr_value.pb.h"
#include "proto/function.pb.h"
#include "proto/node_def.pb.h"

// covers: graphs: function libraries merge; bodies fill in types and lists; shapes go through
//   calls, with a bound; 100,000 nested functions need no stack

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotFound = absl::StatusCode::kNotFound;

// "library { ... }" and whatever else a GraphDef has.
tensorflow::GraphDef Parse(const std::string& text) {
  StatusOr<tensorflow::GraphDef> def = ParseGraphDefText(text);
  EXPECT_OK(def.status()) << text;
  return def.ok() ? *std::move(def) : tensorflow::GraphDef();
}

std::string Attr(const std::string& name, const std::string& value) {
  return absl::StrCat("attr { key: '", name, "' value { ", value, " } } ");
}
const std::string kFloat = Attr("T", "type: DT_FLOAT");
const std::string kT = Attr("T", "placeholder: 'T'");

std::string NodeText(const char* kind, const std::string& name, const std::string& op,
                     const std::vector<std::string>& inputs, const std::string& attrs) {
  std::string text = absl::StrCat(kind, " { name: '", name, "' op: '", op, "' ");
  for (const std::string& input : inputs) absl::StrAppend(&text, "input: '", input, "' ");
  return absl::StrCat(text, attrs, "} ");
}
std::string Body(const std::string& name, const std::string& op,
                 const std::vector<std::string>& inputs, const std::string& attrs = kFloat) {
  return NodeText("node_def", name, op, inputs, attrs);
}
std::string Ret(const std::string& output, const std::string& from) {
  return absl::StrCat("ret { key: '", output, "' value: '", from, "' } ");
}
// A function of floats: "x y -> z".
std::string Floats(const std::string& name, const std::vector<std::string>& inputs,
                   const std::vector<std::string>& outputs, const std::string& rest) {
  std::string text = absl::StrCat("function { signature { name: '", name, "' ");
  for (const std::string& input : inputs) {
    absl::StrAppend(&text, "input_arg { name: '", input, "' type: DT_FLOAT } ");
  }
  for (const std::string& output : outputs) {
    absl::StrAppend(&text, "output_arg { name: '", output, "' type: DT_FLOAT } ");
  }
  return absl::StrCat(text, "} ", rest, "} ");
}

std::shared_ptr<const FunctionLibrary> LibraryOf(const std::string& functions) {
  auto library =
      FunctionLibrary::Empty()->With(Parse(absl::StrCat("library { ", functions, "}")).library());
  EXPECT_OK(library.status());
  return library.ok() ? *library : FunctionLibrary::Empty();
}

tensorflow::NameAttrList CallOf(const std::string& name) {
  tensorflow::NameAttrList call;
  call.set_name(name);
  return call;
}

const std::string kTwice =
    Floats("Twice", {"x"}, {"y"}, Body("sum", "Add", {"x", "x"}) + Ret("y", "sum:z:0"));

// --- The library ---------------------------------------------------------------------------------

TEST(FunctionLibrary, GrowsWithoutChangingWhatItHas) {
  const auto one = LibraryOf(kTwice);
  const auto twice = one->Find("Twice");
  ASSERT_NE(twice, nullptr);
  EXPECT_EQ(twice->op().def.name(), "Twice");
  EXPECT_EQ(one->Find("Thrice"), nullptr);
  EXPECT_STATUS(one->Get("Twise"), kNotFound, "did you mean 'Twice'?");

  ASSERT_OK_AND_ASSIGN(const auto same, one->With(Parse("library { " + kTwice + "}").library()));
  EXPECT_EQ(same, one);
  ASSERT_OK_AND_ASSIGN(const auto two,
                       one->With(Parse("library { " + Floats("F", {"x"}, {"y"}, Ret("y", "x")) +
                                       "gradient { function_name: 'F' gradient_func: 'Twice' } }")
                                     .library()));
  EXPECT_EQ(two->Find("Twice"), twice);
  EXPECT_EQ(two->GradientOf("F"), "Twice");
  EXPECT_EQ(one->functions().size(), 1u);

  tensorflow::FunctionDefLibrary written;
  two->WriteTo(&written);
  ASSERT_EQ(written.function_size(), 2);
  EXPECT_EQ(written.function(1).signature().name(), "F");
  EXPECT_EQ(written.gradient(0).gradient_func(), "Twice");

  for (const auto& [text, message] : std::vector<std::pair<std::string, const char*>>{
           {Floats("Twice", {"x"}, {"y"}, Ret("y", "x")), "must be equal to the graph's function"},
           {Floats("G", {}, {}, "") + Floats("G", {}, {}, ""), "name must be unique, got two"},
           {Floats("", {}, {}, ""), "signature must have a name, got none"},
           {"gradient { function_name: 'F' gradient_func: 'Other' } ",
            "Function 'F': must have one gradient, got 'Twice' and 'Other'"},
           {"gradient { function_name: 'H' gradient_func: 'F' } "
            "gradient { function_name: 'H' gradient_func: 'Twice' } ",
            "Function 'H': must have one gradient, got 'F' and 'Twice'"}}) {
    EXPECT_STATUS(two->With(Parse("library { " + text + "}").library()), kInvalid, message);
  }
}

TEST(FunctionLibrary, KnowsWhatIsReachedAndWhatKeepsState) {
  const auto library = LibraryOf(
      kTwice + Floats("Calls", {"x"}, {"y"}, Body("c", "Twice", {"x"}, "") + Ret("y", "c:y:0")) +
      Floats("Reads", {}, {"y"},
             Body("v", "VarHandleOp", {},
                  Attr("dtype", "type: DT_FLOAT") + Attr("shape", "shape { }")) +
                 Body("r", "ReadVariableOp", {"v:resource:0"}, Attr("dtype", "type: DT_FLOAT")) +
                 Ret("y", "r:value:0")) +
      Floats("CallsReads", {}, {"y"}, Body("c", "Reads", {}, "") + Ret("y", "c:y:0")) +
      Floats("Unknown", {}, {}, Body("c", "NobodyKnowsThis", {}, "")) +
      Floats("Backward", {"x", "dy"}, {"dx"}, Ret("dx", "dy")) +
      "gradient { function_name: 'Twice' gradient_func: 'Backward' } ");
  for (const auto& [name, stateful] :
       std::vector<std::pair<const char*, bool>>{{"Twice", false},
                                                 {"Calls", false},
                                                 {"Reads", true},
                                                 {"CallsReads", true},
                                                 {"Unknown", true}}) {
    EXPECT_EQ(library->IsStateful(*library->Find(name)), stateful) << name;
  }

  Graph graph;
  EXPECT_EQ(library->ReachableFrom(graph), FunctionLibrary::Empty());
  tensorflow::NodeDef node;
  node.set_name("n");
  node.set_op("NobodyKnowsThisEither");
  (*node.mutable_attr())["f"].mutable_list()->add_func()->set_name("Calls");
  ASSERT_OK(graph.AddNode(node));
  std::vector<std::string> reached;
  const auto reachable = library->ReachableFrom(graph);
  for (const auto& function : reachable->functions()) {
    reached.push_back(function->name());
  }
  EXPECT_EQ(reached, (std::vector<std::string>{"Twice", "Calls", "Backward"}));
}

TEST(FunctionLibrary, AChainOfAHundredThousandCallsNeedsNoStack) {
  std::string functions = Floats("f0", {"x"}, {"y"}, Ret("y", "x"));
  constexpr int kFunctions = 100'000;
  tensorflow::FunctionDefLibrary def = Parse("library { " + functions + "}").library();
  const tensorflow::FunctionDef link =
      Parse("library { " + Floats("f", {"x"}, {"y"}, Body("c", "f", {"x"}, "") + Ret("y", "c:y")) +
            "}")
          .library()
          .function(0);
  for (int i = 1; i < kFunctions; ++i) {
    tensorflow::FunctionDef* const function = def.add_function();
    *function = link;
    function->mutable_signature()->set_name(absl::StrCat("f", i));
    function->mutable_node_def(0)->set_op(absl::StrCat("f", i - 1));
  }
  ASSERT_OK_AND_ASSIGN(const auto library, FunctionLibrary::Empty()->With(def));
  EXPECT_OK(library->CheckNoRecursion());
  EXPECT_FALSE(library->IsStateful(*library->Find(absl::StrCat("f", kFunctions - 1))));
  def.mutable_function(0)->add_node_def()->set_op(absl::StrCat("f", kFunctions - 1));
  ASSERT_OK_AND_ASSIGN(const auto circle, FunctionLibrary::Empty()->With(def));
  EXPECT_STATUS(circle->CheckNoRecursion(), kInvalid,
                "Function: must not call itself, got the cycle");
}

// --- Bodies --------------------------------------------------------------------------------------

const char kSum[] =
    "function { signature { name: 'Sum' "
    "input_arg { name: 'xs' type_attr: 'T' number_attr: 'N' } "
    "input_arg { name: 'y' type_attr: 'T' } "
    "output_arg { name: 'sum' type_attr: 'T' } "
    "output_arg { name: 'all' type_attr: 'T' number_attr: 'N' } "
    "attr { name: 'T' type: 'type' } "
    "attr { name: 'N' type: 'int' has_minimum: true minimum: 1 default_value { i: 2 } } } ";

TEST(FunctionBody, FillsInTypesAndExpandsLists) {
  const auto library = LibraryOf(
      kSum + Body("s", "AddN", {"xs"}, kT + Attr("N", "placeholder: 'N'")) +
      Body("plus", "Add", {"s:sum:0", "y:0"}, kT) + Body("first", "Identity", {"xs:1", "^s"}, kT) +
      Ret("sum", "plus:z:0") + Ret("all", "xs") + "} ");
  tensorflow::NameAttrList call = CallOf("Sum");
  (*call.mutable_attr())["T"].set_type(tensorflow::DT_DOUBLE);
  ASSERT_OK_AND_ASSIGN(const auto body, library->Body(call));
  EXPECT_EQ(body->argument_types, (std::vector<DType>{DT_DOUBLE, DT_DOUBLE, DT_DOUBLE}));
  EXPECT_EQ(body->result_types, (std::vector<DType>{DT_DOUBLE, DT_DOUBLE, DT_DOUBLE}));
  EXPECT_EQ(body->arguments[0]->name(), "xs_0");
  EXPECT_EQ(body->arguments[2]->name(), "y");
  EXPECT_EQ(body->results[0]->name(), "sum_RetVal");
  EXPECT_EQ(body->results[0]->input(0).node->name(), "plus");
  EXPECT_EQ(body->results[2]->input(0).node, body->arguments[1]);
  const Node* const sum = body->graph->FindNode("s");
  EXPECT_EQ(sum->num_inputs(), 2);
  EXPECT_EQ(sum->output_type(0), DT_DOUBLE);
  EXPECT_EQ(body->graph->FindNode("first")->input(0).node, body->arguments[1]);
  EXPECT_EQ(body->order.size(), static_cast<size_t>(body->graph->num_nodes()));
  EXPECT_TRUE(body->effects.empty());
  // Made once.
  ASSERT_OK_AND_ASSIGN(const auto again, library->Body(call));
  EXPECT_EQ(again, body);
  (*call.mutable_attr())["N"].set_i(3);
  ASSERT_OK_AND_ASSIGN(const auto three, library->Body(call));
  EXPECT_EQ(three->arguments.size(), 4u);
}

TEST(FunctionBody, RunsStatefulNodesAndControlOutputs) {
  const std::string dtype = Attr("dtype", "type: DT_FLOAT");
  const auto library = LibraryOf(
      "function { signature { name: 'F' input_arg { name: 'v' type: DT_RESOURCE } "
      "input_arg { name: 'x' type: DT_FLOAT } control_output: 'done' is_stateful: true } " +
      Body("own", "VarHandleOp", {}, dtype + Attr("shape", "shape { }")) +
      Body("assign", "AssignVariableOp", {"v", "x"}, dtype) +
      Body("last", "NoOp", {"^assign"}, "") + Body("unused", "Identity", {"x"}) +
      "control_ret { key: 'done' value: 'last' } } ");
  ASSERT_OK_AND_ASSIGN(const auto body, library->Body(CallOf("F")));
  std::vector<std::string> effects;
  for (const Node* node : body->effects) effects.push_back(node->name());
  EXPECT_EQ(effects, (std::vector<std::string>{"assign", "last"}));
}

TEST(FunctionBody, NamesOfNodesAreTheFunctionsOwn) {
  const auto library = LibraryOf(Floats("F", {"x"}, {"y"},
                                        Body("y_RetVal", "Identity", {"x"}) +
                                            Body("x_1", "Identity", {"y_RetVal:output:0"}) +
                                            Ret("y", "x_1:output:0")));
  ASSERT_OK_AND_ASSIGN(const auto body, library->Body(CallOf("F")));
  EXPECT_EQ(body->results[0]->name(), "y_RetVal_1");
  EXPECT_EQ(body->results[0]->input(0).node->name(), "x_1");
}

TEST(FunctionBody, RefusesWhatIsNotLegal) {
  const std::string sum = Body("s", "AddN", {"xs"}, kT + Attr("N", "placeholder: 'N'"));
  const std::string rets = Ret("sum", "y") + Ret("all", "xs");
  struct Case {
    std::string text;
    absl::StatusCode code;
    const char* message;
  };
  const Case cases[] = {
      {kSum + sum + rets, kNotFound, ""},  // no such function: closed below, and called by name
      {kSum + Body("s", "AddN", {"xs"}, kT + Attr("N", "placeholder: 'M'")) + rets + "}", kInvalid,
       "Function 'Sum': node[0] 's': attr 'N': the placeholder 'M' must be an attr of the call, "
       "got none"},
      {kSum + Body("s", "AddN", {"xs", "y"}, kT + Attr("N", "placeholder: 'N'")) + rets + "}",
       kInvalid, "Function 'Sum': node[0] 's': AddN must have 2 inputs, got 3"},
      {kSum + Body("s", "AddN", {"y"}, kT + Attr("N", "placeholder: 'N'")) + rets + "}", kInvalid,
       "AddN must have 2 inputs, got 1"},
      {kSum + Body("s", "Identity", {"y"}) + rets + "}", kInvalid,
       "input 0 must be float, got int32 from 'y:0'"},
      {kSum + Body("s", "Identity", {"z"}, kT) + rets + "}", kInvalid,
       "input 0: refers to 'z', but the function has no node or argument 'z'"},
      {kSum + Body("s", "Identity", {"xs:2"}, kT) + rets + "}", kInvalid,
       "input 0: refers to 'xs:2', but 'xs' has 2 tensors"},
      {kSum + Body("s", "Identity", {"y:0", "^z"}, kT) + rets + "}", kInvalid,
       "control input must name a node, got 'z'"},
      {kSum + Body("s", "Identity", {"t:output:0"}, kT) +
           Body("t", "Identity", {"s:output:0"}, kT) + rets + "}",
       kInvalid, "got the cycle 's' -> 't' -> 's'"},
      {kSum + Body("s", "Identity", {"t:none:0"}, kT) + Body("t", "Identity", {"y"}, kT) + rets +
           "}",
       kInvalid, "refers to 't:none:0', but Identity has no output 'none'"},
      {kSum + Body("s", "NobodyKnows", {"y"}, kT) + rets + "}", absl::StatusCode::kUnimplemented,
       "node[0] 's': op kind 'NobodyKnows' is not registered in this program"},
      {kSum + Ret("sum", "xs") + Ret("all", "xs") + "}", kInvalid,
       "output 'sum': must have 1 tensor, got 2 from 'xs'"},
      {kSum + Ret("sum", "y") + "}", kInvalid,
       "output 'all': ret must say where it comes from, got none"},
      {kSum + Body("s", "_Retval", {"y"}, kT + Attr("index", "i: 0")) + rets + "}", kInvalid,
       "op must not be at the border of a step, got _Retval"},
  };
  for (const Case& c : cases) {
    const bool none = c.code == kNotFound;
    const auto library = LibraryOf(none ? kTwice : c.text);
    tensorflow::NameAttrList call = CallOf("Sum");
    (*call.mutable_attr())["T"].set_type(tensorflow::DT_INT32);
    EXPECT_STATUS(library->Body(call), c.code, c.message) << c.text;
  }
  const auto library = LibraryOf(kSum + rets + "}");
  EXPECT_STATUS(library->Body(CallOf("Sum")), kInvalid,
                "Function 'Sum': attr 'T' must be given (type), got none");
  tensorflow::NameAttrList call = CallOf("Sum");
  (*call.mutable_attr())["T"].set_type(tensorflow::DT_INT32);
  (*call.mutable_attr())["N"].set_i(0);
  EXPECT_STATUS(library->Body(call), kInvalid, "attr 'N' must be >= 1, got 0");
}

// --- Calls in a graph ----------------------------------------------------------------------------

TEST(FunctionCalls, HaveTheTypesOfTheSignature) {
  Graph graph;
  const std::string call =
      NodeText("node", "x", "Placeholder", {},
               Attr("dtype", "type: DT_FLOAT") + Attr("shape", "shape { dim { size: 3 } }"));
  ASSERT_OK(ImportGraphDef(Parse("library { " + kTwice + "}" + call), {}, &graph));
  // Functions of the graph are known to nodes that come later.
  ImportOptions options;
  options.input_map["x"] = {graph.FindNode("x"), 0};
  ASSERT_OK(ImportGraphDef(Parse(NodeText("node", "y", "Twice", {"x"}, "")), options, &graph));
  const Node* const y = graph.FindNode("y");
  EXPECT_EQ(y->num_outputs(), 1);
  EXPECT_EQ(y->output_type(0), DT_FLOAT);
  EXPECT_EQ(y->body()->function(), graph.library().Find("Twice"));
  EXPECT_STATUS(
      ImportGraphDef(Parse(NodeText("node", "z", "Twice", {"x", "x"}, "")), options, &graph),
      kInvalid, "GraphDef node[0] 'z': Twice must have 1 input, got 2");
  // An import that fails leaves no function behind.
  EXPECT_FALSE(ImportGraphDef(Parse("library { " + Floats("F", {}, {}, "") + "}" +
                                    NodeText("node", "z", "Identity", {"nobody"}, kFloat)),
                              {}, &graph)
                   .ok());
  EXPECT_EQ(graph.library().functions().size(), 1u);
  tensorflow::NodeDef later;
  later.set_name("f");
  later.set_op("F");
  ASSERT_OK_AND_ASSIGN(const Node* unknown, graph.AddNode(later));
  EXPECT_EQ(unknown->op_entry(), nullptr);
}

TEST(FunctionCalls, ShapesGoThroughThem) {
  // Rows of what a handle holds, and a shape that an argument describes.
  const std::string functions =
      kTwice +
      Floats(
          "TwiceTwice", {"x"}, {"y"},
          Body("a", "Twice", {"x"}, "") + Body("b", "Twice", {"a:y:0"}, "") + Ret("y", "b:y:0")) +
      "function { signature { name: 'Ones' input_arg { name: 'dims' type: DT_INT32 } "
      "input_arg { name: 'one' type: DT_FLOAT } output_arg { name: 'y' type: DT_FLOAT } } " +
      Body("fill", "Fill", {"dims", "one"}) + Ret("y", "fill:output:0") + "} " +
      "function { signature { name: 'Read' input_arg { name: 'v' type: DT_RESOURCE } "
      "output_arg { name: 'y' type: DT_FLOAT } output_arg { name: 'same' type: DT_RESOURCE } } " +
      Body("r", "ReadVariableOp", {"v"}, Attr("dtype", "type: DT_FLOAT")) + Ret("y", "r:value:0") +
      Ret("same", "v") + "} ";
  Scope scope;
  ASSERT_OK_AND_ASSIGN(const auto library, scope.graph()->library().With(
                                               Parse("library { " + functions + "}").library()));
  scope.graph()->set_library(library);
  const auto call = [&](const char* function, const std::vector<Output>& inputs) {
    tensorflow::NodeDef def;
    def.set_name(scope.UniqueName(function));
    def.set_op(function);
    StatusOr<Node*> node = scope.graph()->AddNode(def);
    EXPECT_OK(node.status());
    for (size_t i = 0; i < inputs.size(); ++i) {
      EXPECT_OK(
          scope.graph()->AddEdge(inputs[i].node(), inputs[i].index(), *node, static_cast<int>(i)));
    }
    return *node;
  };
  const Output x = testing::Input(scope, DT_FLOAT, *PartialShape::Make({-1, 3}));
  const Node* const twice = call("TwiceTwice", {x});
  ASSERT_OK(scope.refiner()->AddNode(*twice));
  EXPECT_EQ(scope.refiner()->OutputShape(*twice, 0).ToString(), "[?,3]");

  const Output dims = testing::Constant(scope, Tensor::Vector<int32_t>({2, 5}));
  const Output one = testing::Constant(scope, Tensor::Scalar(1.0f));
  const Node* const ones = call("Ones", {dims, one});
  ASSERT_OK(scope.refiner()->AddNode(*ones));
  EXPECT_EQ(scope.refiner()->OutputShape(*ones, 0).ToString(), "[2,5]");

  const Output variable = NodeBuilder(scope, "VarHandleOp")
                              .Attr("dtype", DT_FLOAT)
                              .Attr("shape", *PartialShape::Make({7}))
                              .Finish()
                              .output(0);
  const Node* const read = call("Read", {variable});
  ASSERT_OK(scope.refiner()->AddNode(*read));
  EXPECT_EQ(scope.refiner()->OutputShape(*read, 0).ToString(), "[7]");
  ASSERT_TRUE(scope.refiner()->OutputHandle(*read, 1).has_value());
  EXPECT_EQ(scope.refiner()->OutputHandle(*read, 1)->shape.ToString(), "[7]");

  const Output matrix = testing::Constant(scope, *Tensor::Zeros(DT_INT32, *Shape::Make({2, 2})));
  const Node* const wrong = call("Ones", {matrix, one});
  EXPECT_STATUS(scope.refiner()->AddNode(*wrong), kInvalid, "Ones 'Ones_1': Function 'Ones': Fill");
}

TEST(FunctionCalls, ThatBranchWithoutEndAreNotFollowed) {
  // f40 calls f39 twice, which calls f38 twice ...
  std::string functions = Floats("f0", {"x"}, {"y"}, Ret("y", "x"));
  for (int i = 1; i <= 40; ++i) {
    const std::string callee = absl::StrCat("f", i - 1);
    functions +=
        Floats(absl::StrCat("f", i), {"x"}, {"y"},
               Body("a", callee, {"x"}, "") + Body("b", callee, {"a:y:0"}, "") + Ret("y", "b:y:0"));
  }
  tensorflow::GraphDef def =
      Parse("library { " + functions + "}" +
            NodeText("node", "x", "Placeholder", {},
                     Attr("dtype", "type: DT_FLOAT") + Attr("shape", "shape { dim { size: 3 } }")) +
            NodeText("node", "y", "f40", {"x"}, "") + NodeText("node", "z", "f3", {"x"}, ""));
  auto graph = std::make_unique<Graph>();
  ASSERT_OK(ImportGraphDef(def, {}, graph.get()));
  ASSERT_OK_AND_ASSIGN(const Scope scope, Scope::ForGraph(std::move(graph)));
  EXPECT_EQ(scope.shape(Output(scope.graph()->FindNode("y"), 0)).ToString(), "<unknown>");
  EXPECT_EQ(scope.shape(Output(scope.graph()->FindNode("z"), 0)).ToString(), "[3]");
}

}  // namespace
}  // namespace millrace
