// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/testing/shared_data.h"
#include "google/protobuf/stubs/logging.h"
#include "google/protobuf/text_format.h"
#include "google/protobuf/util/message_differencer.h"
#include "graph/attr.h"
#include "graph/function_library.h"
#include "graph/graph.h"
#include "graph/import_export.h"
#include "graph/op_registry.h"
#include "graph/print.h"
#include "graph/shape_inference.h"
#include "graph/testing/op_list.h"
#include "graph/verify.h"
#include "gtest/gtest.h"
#include "proto/saved_model.pb.h"

// covers: values: GraphDefs and SavedModels are read and written again, byte for byte
// covers: graphs: untrusted graphs are refused with where, what, rule and value
// covers: graphs: a loop imported twice is two loops
// covers: graphs: wrong function libraries are refused with where, what, rule and value

namespace millrace {
namespace {

using google::protobuf::util::MessageDifferencer;
using tensorflow::GraphDef;

Status NoShape(InferenceContext*) { return absl::OkStatus(); }

// What the tables below need; every other op of TensorFlow is added when its list is there.
const OpSpec kLocalOps[] = {
    OpSpec("Const").Output("output: dtype").Attr("value: tensor").Attr("dtype: type"),
    OpSpec("Placeholder")
        .Output("output: dtype")
        .Attr("dtype: type")
        .Attr("shape: shape = { unknown_rank: true }"),
    OpSpec("NoOp"),
    OpSpec("Identity").Input("input: T").Output("output: T").Attr("T: type"),
    OpSpec("IdentityN").Input("input: T").Output("output: T").Attr("T: list(type) >= 1"),
    OpSpec("BiasAdd")
        .Input("value: T")
        .Input("bias: T")
        .Output("output: T")
        .Attr("T: numbertype")
        .Attr("data_format: {'NHWC', 'NCHW'} = 'NHWC'"),
    OpSpec("AddN")
        .Input("inputs: N * T")
        .Output("sum: T")
        .Attr("N: int >= 1")
        .Attr("T: {numbertype, variant}")
        .Commutative()
        .Aggregate(),
    OpSpec("Switch")
        .Input("data: T")
        .Input("pred: bool")
        .Output("output_false: T")
        .Output("output_true: T")
        .Attr("T: type"),
    OpSpec("Merge")
        .Input("inputs: N * T")
        .Output("output: T")
        .Output("value_index: int32")
        .Attr("T: type")
        .Attr("N: int >= 1"),
    OpSpec("Enter")
        .Input("data: T")
        .Output("output: T")
        .Attr("T: type")
        .Attr("frame_name: string")
        .Attr("is_constant: bool = false")
        .Attr("parallel_iterations: int = 10"),
    OpSpec("Exit").Input("data: T").Output("output: T").Attr("T: type"),
    OpSpec("NextIteration").Input("data: T").Output("output: T").Attr("T: type"),
    OpSpec("LoopCond").Input("input: bool").Output("output: bool"),
    OpSpec("VariableV2")
        .Output("ref: Ref(dtype)")
        .Attr("shape: shape")
        .Attr("dtype: type")
        .Attr("container: string = ''")
        .Attr("shared_name: string = ''")
        .Stateful(),
    OpSpec("Assign")
        .Input("ref: Ref(T)")
        .Input("value: T")
        .Output("output_ref: Ref(T)")
        .Attr("T: type")
        .Attr("validate_shape: bool = true")
        .Attr("use_locking: bool = true")
        .AllowsUninitializedInput(),
    OpSpec("Fan").Output("y: N * T").Attr("N: int >= 1").Attr("T: type"),
    OpSpec("PartitionedCall")
        .Input("args: Tin")
        .Output("output: Tout")
        .Attr("Tin: list(type) >= 0")
        .Attr("Tout: list(type) >= 0")
        .Attr("f: func")
        .Attr("config: string = ''")
        .Attr("config_proto: string = ''")
        .Attr("executor_type: string = ''"),
};

const bool kRegistered = [] {
  std::set<std::string> local;
  for (const OpSpec& spec : kLocalOps) {
    OpRegistration{OpSpec(spec).Shape(NoShape)};
    local.insert(spec.name());
  }
  const tensorflow::OpList all = TensorFlowOps();
  for (const tensorflow::OpDef& def : all.op()) {
    if (local.count(def.name()) == 0) OpRegistration{SpecOf(def).Shape(NoShape)};
  }
  return true;
}();

GraphDef Parse(const std::string& text) {
  StatusOr<GraphDef> def = ParseGraphDefText(text);
  EXPECT_TRUE(def.ok()) << def.status() << "\n" << text;
  return def.ok() ? *def : GraphDef();
}

// "name = Op(input, ...) T=DT_FLOAT" in the text form of GraphDef.
std::string N(const std::string& name, const std::string& op,
              const std::vector<std::string>& inputs = {}, const std::string& attrs = "") {
  std::string text = "node { name: '" + name + "' op: '" + op + "'";
  for (const std::string& input : inputs) text += " input: '" + input + "'";
  return text + " " + attrs + " }\n";
}
std::string A(const std::string& key, const std::string& value) {
  return "attr { key: '" + key + "' value { " + value + " } } ";
}
const std::string kFloat = A("T", "type: DT_FLOAT");
std::string X(const std::string& name = "x") {
  return N(name, "Placeholder", {}, A("dtype", "type: DT_FLOAT"));
}
std::string Id(const std::string& name, const std::string& input) {
  return N(name, "Identity", {input}, kFloat);
}
std::string Const(const std::string& tensor, const std::string& dtype = "DT_FLOAT") {
  return N("c", "Const", {},
           A("dtype", "type: " + dtype) + A("value", "tensor { " + tensor + " }"));
}
std::string InLoop(const std::string& name, const std::string& op, const std::string& input,
                   const std::string& frame, const std::string& attrs = "") {
  return N(name, op, {input}, kFloat + A("frame_name", "s: '" + frame + "'") + attrs);
}
// Each Enter leads into a loop inside of the one before.
std::string DeepLoops(int depth) {
  std::string text = X();
  for (int i = 0; i < depth; ++i) {
    text += InLoop(absl::StrCat("e", i), "Enter", i == 0 ? "x" : absl::StrCat("e", i - 1),
                   absl::StrCat("l", i));
  }
  return text;
}
std::string Loop(const std::string& back) {
  return N("p", "Placeholder", {}, A("dtype", "type: DT_BOOL")) + X() +
         N("enter", "Enter", {"x"}, kFloat + A("frame_name", "s: 'loop'")) +
         N("enter_p", "Enter", {"p"}, A("T", "type: DT_BOOL") + A("frame_name", "s: 'loop'")) +
         N("merge", "Merge", {"enter", back}, kFloat + A("N", "i: 2")) +
         N("cond", "LoopCond", {"enter_p"}) + N("switch", "Switch", {"merge", "cond"}, kFloat) +
         N("next", "NextIteration", {"switch:1"}, kFloat) + N("exit", "Exit", {"switch"}, kFloat);
}
const std::string kSignature =
    "signature { name: 'F' input_arg { name: 'a' type: DT_FLOAT } "
    "output_arg { name: 'r' type: DT_FLOAT } } ";
std::string Function(const std::string& body) { return "library { function { " + body + " } }"; }
std::string BodyNode(const std::string& name, const std::string& op, const std::string& input,
                     const std::string& attrs = "") {
  return "node_def { name: '" + name + "' op: '" + op + "' input: '" + input + "' " + attrs + " } ";
}

struct BadGraph {
  const char* id;  // of reliability's list where it has one
  std::string text;
  std::string message;
};

std::vector<BadGraph> BadGraphs() {
  const std::string kRet = "ret { key: 'r' value: 'i:output:0' } ";
  const std::string kBody = BodyNode("i", "Identity", "a", kFloat);
  std::string many;
  for (int i = 0; i < 16; ++i) many += X(absl::StrCat("x", i));
  return {
      {"G01",
       many + N("dense/bias", "Identity", {"x0"}, kFloat) +
           N("dense/BiasAdd", "BiasAdd", {"x1", "dense/bias:2"}, kFloat),
       "GraphDef node[17] 'dense/BiasAdd': input 1 refers to 'dense/bias:2', but 'dense/bias' has "
       "1 output"},
      {"G01", X() + Id("y", "x:2147483647"),
       "GraphDef node[1] 'y': input 0 refers to 'x:2147483647', but 'x' has 1 output"},
      {"G01", X() + Id("y", "x:-1"),
       "GraphDef node[1] 'y': input 0: tensor name must be 'node', 'node:index' or '^node', got "
       "'x:-1'"},
      {"G03", Id("y", "nobody"),
       "GraphDef node[0] 'y': input 0 refers to 'nobody', but the graph has no node 'nobody'"},
      {"G03", N("y", "NoOp", {"^nobody"}),
       "GraphDef node[0] 'y': control input refers to '^nobody', but the graph has no node "
       "'nobody'"},
      {"G03", Id("y", ""),
       "GraphDef node[0] 'y': input 0: tensor name must be 'node', 'node:index' or '^node', got "
       "''"},
      {"G05", X() + N("y", "BiasAdd", {"x"}, kFloat),
       "GraphDef node[1] 'y': BiasAdd must have 2 inputs, got 1"},
      {"G05", X() + N("y", "Identity", {"x", "x"}, kFloat),
       "GraphDef node[1] 'y': Identity must have 1 input, got 2"},
      {"order", X() + N("y", "Identity", {"^x", "x"}, kFloat),
       "GraphDef node[1] 'y': control inputs must come after all data inputs, got 'x' after one"},
      {"G07", X() + X(), "GraphDef node[1] 'x': name must be unique, got it at node[0], too"},
      {"name", N("_x", "NoOp"),
       "GraphDef node[0] '_x': name must be letters, digits and any of '_./-' and begin with a "
       "letter, a digit or '.', got '_x'"},
      {"name", N("", "NoOp"),
       "GraphDef node[0] '': name must be letters, digits and any of '_./-' and begin with a "
       "letter, a digit or '.', got ''"},
      {"G09", N("x", ""), "GraphDef node[0] 'x': op must be given, got none"},
      {"G11", N("x", "NoOp", {}, A("_class", "list { s: 'loc:@gone' }")),
       "GraphDef node[0] 'x': attr '_class' must name a node, got 'loc:@gone', which is not in the "
       "graph"},
      {"G11",
       N("x", "NoOp", {}, A("_class", "list { s: 'loc:@y' }")) +
           N("y", "NoOp", {}, A("_class", "list { s: 'loc:@x' }")),
       "GraphDef: colocation ('_class') must not be circular, got the cycle 'x' -> 'y' -> 'x'"},
      {"G13", X() + N("e", "Exit", {"x"}, kFloat),
       "GraphDef: Exit 'e': must be inside a loop that begins with Enter, got no Enter before it"},
      {"G13", X() + N("n", "NextIteration", {"x"}, kFloat),
       "GraphDef: NextIteration 'n': must be inside a loop that begins with Enter, got no Enter "
       "before it"},
      {"G13", N("p", "Placeholder", {}, A("dtype", "type: DT_BOOL")) + N("l", "LoopCond", {"p"}),
       "GraphDef: LoopCond 'l': must be inside a loop that begins with Enter, got no Enter before "
       "it"},
      {"frame", Loop("next") + N("y", "AddN", {"switch:1", "x"}, kFloat + A("N", "i: 2")),
       "GraphDef: node 'y': all inputs must come from one frame, got 'switch' in frame 'loop' and "
       "'x' in frame ''"},
      {"frame", Loop("next") + InLoop("inner", "Enter", "switch:1", "loop"),
       "GraphDef: Enter 'inner': all that lead into loop 'loop' must come from one frame, got "
       "'enter' in frame '' and 'inner' in frame 'loop'"},
      {"frame",
       Loop("next") + InLoop("few", "Enter", "x", "loop", A("parallel_iterations", "i: 3")),
       "GraphDef: Enter 'few': all that lead into loop 'loop' must have equal parallel_iterations, "
       "got 10 of 'enter' and 3 of 'few'"},
      {"frame", X() + InLoop("none", "Enter", "x", "loop", A("parallel_iterations", "i: 0")),
       "GraphDef: Enter 'none': attr 'parallel_iterations' must be >= 1, got 0"},
      {"frame", X() + InLoop("none", "Enter", "x", "loop", A("parallel_iterations", "i: -7")),
       "GraphDef: Enter 'none': attr 'parallel_iterations' must be >= 1, got -7"},
      {"frame", X() + InLoop("nameless", "Enter", "x", ""),
       "GraphDef: Enter 'nameless': attr 'frame_name' must name a loop, got ''"},
      {"frame",
       X() + InLoop("in_a", "Enter", "x", "a") + InLoop("in_b", "Enter", "x", "b") +
           N("m", "Merge", {"in_a", "in_b"}, kFloat + A("N", "i: 2")),
       "GraphDef: node 'm': all inputs must come from one frame, got 'in_a' in frame 'a' and "
       "'in_b' in frame 'b'"},
      {"frame",
       X() + InLoop("in_a", "Enter", "x", "a") + InLoop("in_b", "Enter", "x", "b") +
           N("m", "Merge", {"in_a", "next_b"}, kFloat + A("N", "i: 2")) +
           N("next_b", "NextIteration", {"in_b"}, kFloat),
       "GraphDef: node 'm': all inputs must come from one frame, got 'in_a' in frame 'a' and "
       "'next_b' in frame 'b'"},
      {"frame", Loop("next") + N("y", "NoOp", {"^switch", "^x"}),
       "GraphDef: node 'y': all inputs must come from one frame, got 'switch' in frame 'loop' and "
       "'x' in frame ''"},
      {"frame", Loop("next") + N("cond2", "LoopCond", {"enter_p"}),
       "GraphDef: LoopCond 'cond2': loop 'loop' must have one LoopCond, got 'cond', too"},
      {"frame", DeepLoops(101),
       "GraphDef: Enter 'e100': loops must be nested at most 100 deep, got more at loop 'l100'"},
      {"type",
       X() + InLoop("enter", "Enter", "x", "a") +
           N("m", "Merge", {"enter", "next"}, kFloat + A("N", "i: 2")) + N("i", "Mystery", {"m"}) +
           N("next", "NextIteration", {"i"}, A("T", "type: DT_INT32")),
       "GraphDef node[2] 'm': input 1 must be float, got int32 from 'next'"},
      {"cycle", X() + N("a", "AddN", {"x", "b"}, kFloat + A("N", "i: 2")) + Id("b", "a"),
       "Graph: a cycle must go through NextIteration into Merge, got the cycle 'a' -> 'b' -> 'a'"},
      {"cycle", N("a", "NoOp", {"^a"}),
       "Graph: a cycle must go through NextIteration into Merge, got the cycle 'a' -> 'a'"},
      {"cycle", Loop("switch:1"),
       "Graph: a cycle must go through NextIteration into Merge, got the cycle 'merge' -> 'switch' "
       "-> 'merge'"},
      {"G17", X() + N("y", "IdentityN", {"x"}, A("T", "i: 1")),
       "GraphDef node[1] 'y': attr 'T' must be list(type), got int"},
      {"G17", X() + N("y", "IdentityN", {"x"}, A("T", "list { }")),
       "GraphDef node[1] 'y': attr 'T' must have at least 1 elements, got 0"},
      {"G17", X() + N("y", "IdentityN", {"x"}, A("T", "list { type: DT_INVALID }")),
       "GraphDef node[1] 'y': attr 'T' must be a type, got DT_INVALID"},
      {"G17", X() + N("y", "Identity", {"x"}, A("T", "")),
       "GraphDef node[1] 'y': attr 'T' must have a value, got none"},
      {"attr", X() + N("y", "Identity", {"x"}),
       "GraphDef node[1] 'y': attr 'T' must be given (type), got none"},
      {"attr", X() + N("y", "Identity", {"x"}, A("T", "placeholder: 'U'")),
       "GraphDef node[1] 'y': attr 'T' must have a value, got the placeholder 'U', which only a "
       "function may have"},
      {"attr", X() + N("y", "BiasAdd", {"x", "x"}, kFloat + A("data_format", "s: 'HWC'")),
       "GraphDef node[1] 'y': attr 'data_format' must be one of {'NHWC', 'NCHW'}, got 'HWC'"},
      {"G19", X() + N("y", "Identity", {"x"}, A("T", "type: DT_FLOAT_REF")),
       "GraphDef node[1] 'y': attr 'T' must not be a reference type, got float_ref"},
      {"type", X() + N("y", "Identity", {"x"}, A("T", "type: DT_INT32")),
       "GraphDef node[1] 'y': input 0 must be int32, got float from 'x'"},
      {"type", X() + N("a", "Assign", {"x", "x"}, kFloat),
       "GraphDef node[1] 'a': input 0 must be float_ref, got float from 'x'"},
      {"G21", X() + N("y", "AddN", {"x"}, kFloat + A("N", "i: 0")),
       "GraphDef node[1] 'y': attr 'N' must be >= 1, got 0"},
      {"G21", X() + N("y", "AddN", {"x"}, kFloat + A("N", "i: -1")),
       "GraphDef node[1] 'y': attr 'N' must be >= 1, got -1"},
      {"G21", X() + N("y", "AddN", {"x"}, kFloat + A("N", "i: 9223372036854775807")),
       "GraphDef node[1] 'y': attr 'N' must be in [0, 1048576], got 9223372036854775807"},
      {"args", N("u", "NobodyKnows") + Id("y", "u:4096"),
       "GraphDef node[1] 'y': input 0 refers to 'u:4096', but an unknown op ('NobodyKnows') has at "
       "most 4096 outputs"},
      {"G23", Const("dtype: DT_INT32 tensor_shape { } int_val: 1"),
       "GraphDef node[0] 'c': attr 'value' must be float as attr 'dtype' says, got int32"},
      {"G25",
       Const("dtype: DT_FLOAT tensor_shape { dim { size: 4611686018427387904 } dim { size: "
             "4 } }"),
       "*"},
      {"G25", Const("dtype: DT_FLOAT tensor_shape { dim { size: -2 } }"), "*"},
      {"G27", Const("dtype: DT_FLOAT tensor_shape { dim { size: 2 } } tensor_content: '123'"), "*"},
      {"G27", Const("dtype: DT_FLOAT tensor_shape { dim { size: 1 } } tensor_content: '12345678'"),
       "*"},
      {"G19", Const("dtype: DT_FLOAT_REF tensor_shape { }", "DT_FLOAT_REF"), "*"},
      {"G31", Function(kSignature + BodyNode("i", "F", "a") + "ret { key: 'r' value: 'i:r:0' }"),
       "Function: must not call itself, got the cycle 'F' -> 'F'"},
      {"G31",
       Function(kSignature +
                BodyNode("i", "PartitionedCall", "a",
                         A("Tin", "list { type: DT_FLOAT }") +
                             A("Tout", "list { type: DT_FLOAT }") + A("f", "func { name: 'F' }")) +
                kRet),
       "Function: must not call itself, got the cycle 'F' -> 'F'"},
      {"G31",
       Function("signature { name: 'Identity' input_arg { name: 'a' type: DT_FLOAT } output_arg { "
                "name: 'r' type: DT_FLOAT } }" +
                kBody + kRet),
       "Function 'Identity': name must not be that of an op, got 'Identity'"},
      {"G31", Function(kSignature + BodyNode("i", "_Arg", "") + kRet),
       "Function 'F': node[0] 'i': op must not be at the border of a step, got _Arg"},
      {"G33",
       Function("signature { name: 'F' input_arg { name: 'a' type: DT_FLOAT } input_arg { name: "
                "'a' type: DT_FLOAT } }"),
       "Function 'F': argument 'a' must be declared once, got two"},
      {"G33", Function(kSignature + kBody),
       "Function 'F': ret must say where output 'r' comes from, got none"},
      {"G33", Function(kSignature + kBody + "ret { key: 'r' value: 'gone:output:0' }"),
       "Function 'F': output 'r': refers to 'gone:output:0', but the function has no node or "
       "argument 'gone'"},
      {"G33", Function(kSignature + kBody + "ret { key: 'r' value: '' }"),
       "Function 'F': output 'r': must be 'argument' or 'node:output:index', got ''"},
      {"G33", Function(kSignature + kBody + "ret { key: 'r' value: 'i:output:1' }"),
       "Function 'F': output 'r': refers to 'i:output:1', but 'i:output' has 1 tensor"},
      {"G33", Function(kSignature + kBody + "ret { key: 'r' value: 'i:other:0' }"),
       "Function 'F': output 'r': refers to 'i:other:0', but Identity has no output 'other'"},
      {"G33", Function(kSignature + kBody + kRet + "arg_attr { key: 3 value { } }"),
       "Function 'F': arg_attr index must be in [0, 1), got 3"},
      {"G33", Function(kSignature + BodyNode("i", "Identity", "b:0", kFloat) + kRet),
       "Function 'F': node[0] 'i': input 0: refers to 'b:0', but the function has no node or "
       "argument 'b'"},
      {"G35", "versions { producer: 134 min_consumer: 200 }",
       "GraphDef min consumer version 200 above current version 134 for TensorFlow 1.15. Please "
       "upgrade TensorFlow."},
      {"G35", "versions { producer: -1 }",
       "GraphDef producer version -1 below min producer 0 supported by TensorFlow 1.15. Please "
       "regenerate your graph."},
      {"G35", "versions { producer: 134 bad_consumers: [ 3, 134 ] }",
       "GraphDef disallows consumer version 134. Please upgrade TensorFlow: this version is likely "
       "buggy."},
  };
}

TEST(VerifyTest, BadGraphsAreRefusedWithWhereWhatAndValue) {
  ASSERT_TRUE(kRegistered);
  for (const BadGraph& bad : BadGraphs()) {
    const Status status = VerifyGraphDef(Parse(bad.text));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.id << "\n" << bad.text;
    if (bad.message != "*") {
      EXPECT_EQ(status.message(), bad.message) << bad.id;
    }
    // Import refuses the same and leaves the graph alone.
    Graph graph;
    EXPECT_EQ(ImportGraphDef(Parse(bad.text), {}, &graph), status) << bad.id;
    EXPECT_EQ(graph.num_nodes(), 0);
  }
}

TEST(VerifyTest, NestingIsBounded) {
  tensorflow::AttrValue value;
  value.set_i(1);
  for (int depth = 1; depth <= kMaxAttrNesting + 1; ++depth) {
    GraphDef def = Parse(N("x", "Anything"));
    (*def.mutable_node(0)->mutable_attr())["f"] = value;
    EXPECT_EQ(VerifyGraphDef(def).ok(), depth <= kMaxAttrNesting) << depth;
    tensorflow::AttrValue outer;
    outer.mutable_func()->set_name("f");
    (*outer.mutable_func()->mutable_attr())["a"] = value;
    value = outer;
  }
}

TEST(VerifyTest, DeclaredOutputsAreBoundedInAll) {
  // A few bytes each declare a million outputs.
  std::string text;
  for (int i = 0; i < 40; ++i) {
    text += N(absl::StrCat("u", i), "Fan", {}, kFloat + A("N", "i: 1048576"));
  }
  EXPECT_EQ(VerifyGraphDef(Parse(text)).message(),
            "GraphDef node[30] 'u30': nodes must have at most 32000000 outputs in all, got more");
}

TEST(VerifyTest, LegalUnusualGraphsPass) {
  const std::vector<std::string> graphs = {
      "",
      Loop("next"),
      // Nodes in any order, a reference as a value, an unknown op with many outputs.
      Id("y", "v") +
          N("v", "VariableV2", {}, A("dtype", "type: DT_FLOAT") + A("shape", "shape { }")),
      N("u", "NobodyKnows", {"w:7", "^w"}, A("odd", "s: 'q'")) + N("w", "NobodyKnows"),
      N("x", "NoOp", {}, A("_class", "list { s: 'loc:@x' }")),
      "versions { producer: 1286 min_consumer: 12 }",
      Function(kSignature + BodyNode("i", "Identity", "a", A("T", "placeholder: 'T'")) +
               "ret { key: 'r' value: 'i:output:0' }") +
          X() + N("call", "F", {"x"}),
      Const("dtype: DT_FLOAT tensor_shape { dim { size: 3 } } float_val: 1"),
  };
  for (const std::string& text : graphs) {
    const Status status = VerifyGraphDef(Parse(text));
    EXPECT_TRUE(status.ok()) << status << "\n" << text;
  }
}

TEST(VerifyTest, UnknownOpsAreRefusedOnRequest) {
  VerifyOptions options;
  options.unknown_ops = UnknownOps::kRefuse;
  const Status status = VerifyGraphDef(Parse(X() + N("y", "NobodyKnows")), options);
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(absl::StartsWith(status.message(),
                               "GraphDef node[1] 'y': Op type not registered 'NobodyKnows'"))
      << status;
  EXPECT_TRUE(VerifyGraphDef(Parse(X()), options).ok());
}

TEST(ImportTest, PrefixRenamesNodesInputsAndColocation) {
  Graph graph;
  const GraphDef def =
      Parse(X() + N("y", "Identity", {"x", "^x"}, kFloat + A("_class", "list { s: 'loc:@x' }")));
  ImportOptions options;
  options.prefix = "a/b";
  ImportedNodes imported;
  ASSERT_TRUE(ImportGraphDef(def, options, &graph, &imported).ok());
  Node* y = graph.FindNode("a/b/y");
  ASSERT_NE(y, nullptr);
  EXPECT_EQ(imported.at("y"), y);
  EXPECT_EQ(y->input(0).node->name(), "a/b/x");
  EXPECT_EQ(y->control_inputs()[0]->name(), "a/b/x");
  EXPECT_EQ(y->def().attr().at("_class").list().s(0), "loc:@a/b/x");
  const Status again = ImportGraphDef(def, options, &graph);
  EXPECT_EQ(again.message(),
            "Placeholder 'a/b/x': node name must be unique, got a second node of this name");
  EXPECT_EQ(graph.num_nodes(), 2) << "a refused import leaves the graph as it was";
  options.uniquify_names = true;
  ASSERT_TRUE(ImportGraphDef(def, options, &graph).ok());
  EXPECT_NE(graph.FindNode("a/b/y_1"), nullptr);
  EXPECT_EQ(graph.FindNode("a/b/y_1")->def().attr().at("_class").list().s(0), "loc:@a/b/x_1");
  options.prefix = "bad name";
  EXPECT_FALSE(ImportGraphDef(def, options, &graph).ok());
}

TEST(ImportTest, ALoopThatIsImportedTwiceIsTwoLoops) {
  Graph graph;
  const GraphDef def = Parse(Loop("next"));
  const auto frame_of = [&](const char* enter) {
    return graph.FindNode(enter)->def().attr().at("frame_name").s();
  };
  ImportOptions options;
  ASSERT_TRUE(ImportGraphDef(def, options, &graph).ok());
  options.prefix = "a";
  ASSERT_TRUE(ImportGraphDef(def, options, &graph).ok());
  EXPECT_EQ(frame_of("enter"), "loop");
  EXPECT_EQ(frame_of("a/enter"), "a/loop");
  EXPECT_EQ(frame_of("a/enter_p"), "a/loop");
  options.prefix = "";
  options.uniquify_names = true;
  for (const char* last : {"1", "2"}) {
    ASSERT_TRUE(ImportGraphDef(def, options, &graph).ok());
    EXPECT_EQ(frame_of(absl::StrCat("enter_", last).c_str()), absl::StrCat("loop_", last));
    EXPECT_EQ(frame_of(absl::StrCat("enter_p_", last).c_str()), absl::StrCat("loop_", last));
  }
  EXPECT_TRUE(VerifyGraph(graph).ok());
}

TEST(ImportTest, InputMapReplacesTensorsAndControlInputs) {
  Graph graph;
  ASSERT_TRUE(ImportGraphDef(Parse(X("mine") + N("gate", "NoOp")), {}, &graph).ok());
  Node* mine = graph.FindNode("mine");
  ImportOptions options;
  options.input_map["x:0"] = OutputRef{mine, 0};
  options.input_map["^go"] = OutputRef{graph.FindNode("gate"), kControlSlot};
  const GraphDef def = Parse(N("y", "Identity", {"x", "^go"}, kFloat) + Id("z", "y"));
  ASSERT_TRUE(ImportGraphDef(def, options, &graph).ok());
  EXPECT_EQ(graph.FindNode("y")->input(0).node, mine);
  EXPECT_EQ(graph.FindNode("y")->control_inputs()[0]->name(), "gate");
  // What is mapped nowhere is an error; so is a mapped tensor of another type.
  EXPECT_EQ(ImportGraphDef(Parse(Id("w", "q")), options, &graph).message(),
            "GraphDef node[0] 'w': input 0 refers to 'q', but neither the graph nor the input map "
            "has it");
  EXPECT_EQ(
      ImportGraphDef(Parse(N("w", "Identity", {"x"}, A("T", "type: DT_INT32"))), options, &graph)
          .message(),
      "GraphDef node[0] 'w': Identity 'w': input 0 must be int32, got float from 'mine:0'");
  EXPECT_EQ(graph.num_nodes(), 4);
}

TEST(ImportTest, ControlDependenciesGoToNodesWithoutImportedInputs) {
  Graph graph;
  ASSERT_TRUE(ImportGraphDef(Parse(N("gate", "NoOp")), {}, &graph).ok());
  ImportOptions options;
  options.control_dependencies = {graph.FindNode("gate")};
  ASSERT_TRUE(ImportGraphDef(Parse(X() + Id("y", "x")), options, &graph).ok());
  EXPECT_EQ(graph.FindNode("x")->control_inputs().size(), 1u);
  EXPECT_TRUE(graph.FindNode("y")->control_inputs().empty());
}

TEST(ImportTest, InternalNamesNeedTheOption) {
  Graph graph;
  ImportOptions options;
  EXPECT_FALSE(ImportGraphDef(Parse(N("_x", "NoOp")), options, &graph).ok());
  options.allow_internal_names = true;
  EXPECT_TRUE(ImportGraphDef(Parse(N("_x", "NoOp")), options, &graph).ok());
}

TEST(ImportTest, VersionsAndLibrariesOfSeveralImportsMerge) {
  Graph graph;
  const std::string f = Function(kSignature + BodyNode("i", "Identity", "a", kFloat) +
                                 "ret { key: 'r' value: 'i:output:0' }");
  ASSERT_TRUE(
      ImportGraphDef(Parse(X() + f + "versions { producer: 22 min_consumer: 5 }"), {}, &graph)
          .ok());
  EXPECT_EQ(graph.versions().producer(), 22);
  ASSERT_TRUE(
      ImportGraphDef(Parse(X("z") + f + "versions { producer: 21 min_consumer: 12 }"), {}, &graph)
          .ok());
  EXPECT_EQ(graph.versions().producer(), 21);
  EXPECT_EQ(graph.versions().min_consumer(), 12);
  EXPECT_EQ(graph.library().functions().size(), 1u);
  const std::string other = Function(kSignature + BodyNode("j", "Identity", "a", kFloat) +
                                     "ret { key: 'r' value: 'j:output:0' }");
  EXPECT_EQ(ImportGraphDef(Parse(X("w") + other), {}, &graph).message(),
            "Function 'F': must be equal to the graph's function of this name, got another body");
  EXPECT_EQ(graph.FindNode("w"), nullptr);
}

TEST(GraphFileTest, BinaryAndTextComeBackEqual) {
  FileSystem* fs = FileSystem::Posix();
  const GraphDef def = Parse(Loop("next") + "versions { producer: 134 }");
  const std::string dir = ::testing::TempDir();
  for (const auto& [name, format] :
       std::vector<std::pair<std::string, GraphFormat>>{{"g.pb", GraphFormat::kBinary},
                                                        {"g.pbtxt", GraphFormat::kText},
                                                        {"binary", GraphFormat::kBinary},
                                                        {"text", GraphFormat::kText}}) {
    const std::string path = JoinPath(dir, name);
    ASSERT_TRUE(WriteGraphDef(fs, path, def, format).ok());
    StatusOr<GraphDef> back = ReadGraphDef(fs, path);
    ASSERT_TRUE(back.ok()) << name << " " << back.status();
    EXPECT_TRUE(MessageDifferencer::Equals(def, *back)) << name;
  }
}

TEST(GraphFileTest, BadFilesAreDataLossWithThePath) {
  FileSystem* fs = FileSystem::Posix();
  const std::string text = JoinPath(::testing::TempDir(), "bad.pbtxt");
  ASSERT_TRUE(WriteFileAtomically(fs, text, "node {\n  name: 7\n}").ok());
  const Status status = ReadGraphDef(fs, text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(absl::StartsWith(status.message(), absl::StrCat("GraphDef '", text,
                                                              "': must be a GraphDef in text "
                                                              "form, got line 2:")))
      << status;
  const std::string binary = JoinPath(::testing::TempDir(), "bad.pb");
  std::string bytes = Parse(X()).SerializeAsString();
  ASSERT_TRUE(WriteFileAtomically(fs, binary, bytes.substr(0, bytes.size() - 1)).ok());
  EXPECT_EQ(ReadGraphDef(fs, binary).status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ReadGraphDef(fs, JoinPath(::testing::TempDir(), "none.pb")).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(GraphFileTest, DeepNestingIsRefusedBeforeTheStackEnds) {
  std::string text;
  for (int i = 0; i < 100000; ++i) text += "func { attr { key: 'a' value { ";
  const Status status = ParseGraphDefText("node { attr { key: 'a' value { " + text).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
}

TEST(GraphFileTest, EveryCutOfABinaryGraphIsRefusedOrAnotherGraph) {
  const std::string bytes = Parse(Loop("next")).SerializeAsString();
  for (size_t n = 0; n < bytes.size(); ++n) {
    GraphDef def;
    if (!def.ParseFromString(bytes.substr(0, n))) continue;
    Graph graph;
    ImportGraphDef(def, {}, &graph).IgnoreError();  // any Status, no crash
    EXPECT_LE(graph.num_nodes(), def.node_size());
  }
}

TEST(GraphFileTest, EveryFlippedBitIsRefusedOrAnotherGraph) {
  const std::string bytes =
      Parse(Loop("next") + Const("dtype: DT_FLOAT tensor_shape { dim { size: 3 } } float_val: 1") +
            Function(kSignature + BodyNode("i", "Identity", "a", kFloat) +
                     "ret { key: 'r' value: 'i:output:0' }") +
            "versions { producer: 134 }")
          .SerializeAsString();
  google::protobuf::LogSilencer quiet;  // it writes a line for every string that is not UTF-8
  int accepted = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = bytes;
      flipped[i] = static_cast<char>(flipped[i] ^ (1 << bit));
      GraphDef def;
      if (!def.ParseFromString(flipped)) continue;
      Graph graph;
      if (!ImportGraphDef(def, {}, &graph).ok()) {
        EXPECT_EQ(graph.num_nodes(), 0);
        continue;
      }
      // What was accepted is sound and can be written and read again.
      ++accepted;
      EXPECT_TRUE(VerifyGraph(graph).ok());
      GraphDef back;
      graph.ToGraphDef(&back);
      const Status again = VerifyGraphDef(back);
      EXPECT_TRUE(again.ok()) << "byte " << i << " bit " << bit << ": " << again;
    }
  }
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, static_cast<int>(bytes.size()) * 8);
}

// ---- files that TensorFlow wrote ---------------------------------------------------------------

std::vector<std::string> GraphFiles(const std::string& folder) {
  std::vector<std::string> files;
  const std::string path = SharedDataPath(folder);
  if (path.empty()) return files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path)) {
    const std::string extension = entry.path().extension().string();
    if (extension == ".pb" || extension == ".pbtxt") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  return files;
}

// What import adds.
GraphDef WithDefaults(GraphDef def) {
  for (tensorflow::NodeDef& node : *def.mutable_node()) {
    if (const OpEntry* op = LookUpOp(node.op()); op != nullptr) AddDefaultAttrs(op->def, &node);
    // "x:0" is written "x".
    for (std::string& input : *node.mutable_input()) {
      if (absl::EndsWith(input, ":0")) input.resize(input.size() - 2);
    }
  }
  return def;
}

// Imports and exports again. The status is the import's.
Status RoundTrip(const std::string& what, const GraphDef& def, size_t* nodes) {
  Graph graph;
  MR_RETURN_IF_ERROR(ImportGraphDef(def, {}, &graph));
  EXPECT_TRUE(VerifyGraph(graph).ok()) << what;
  EXPECT_TRUE(TopologicalOrder(graph).ok()) << what;
  EXPECT_FALSE(GraphToText(graph).empty());
  *nodes += static_cast<size_t>(graph.num_nodes());
  GraphDef back;
  graph.ToGraphDef(&back);
  GraphDef expected = WithDefaults(def);
  // "No library" and "an empty library" are the same, as are no versions and empty ones.
  if (expected.library().ByteSizeLong() == 0) expected.clear_library();
  expected.mutable_versions();
  MessageDifferencer differencer;
  std::string difference;
  differencer.ReportDifferencesToString(&difference);
  // The field that versions replaced in 2015 is not written again.
  differencer.IgnoreField(GraphDef::descriptor()->FindFieldByName("version"));
  EXPECT_TRUE(differencer.Compare(expected, back)) << what << "\n" << difference;
  return absl::OkStatus();
}

TEST(RealGraphsTest, EveryFileImportsAndExportsToTheSameMessage) {
  std::vector<std::string> files = GraphFiles("tf_graphs");
  for (const std::string& file : GraphFiles("graphs")) files.push_back(file);
  if (files.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no tf_graphs and graphs";
  EXPECT_GT(files.size(), 900u);
  size_t nodes = 0;
  int frozen_variables = 0, wrong_loops = 0;
  for (const std::string& file : files) {
    StatusOr<GraphDef> def = ReadGraphDef(FileSystem::Posix(), file);
    ASSERT_TRUE(def.ok()) << def.status();
    const Status status = RoundTrip(file, *def, &nodes);
    if (status.ok()) continue;
    // Freezing turned variables into constants that Assign and Scatter ops still refer to, and one
    // hand-written graph compares a resource with a number: TensorFlow refuses these, too.
    if (absl::StrContains(status.message(), "input 0 must be float_ref, got float from")) {
      EXPECT_TRUE(absl::StrContains(file, "scatter_")) << file;
      ++frozen_variables;
    } else {
      EXPECT_TRUE(absl::EndsWith(file, "grappler_while_loop_var_handle_op.pbtxt")) << file;
      EXPECT_EQ(status.message(),
                "GraphDef node[8] 'while/Less': input 0 must be int32, got resource from "
                "'while/Merge'");
      ++wrong_loops;
    }
  }
  EXPECT_EQ(frozen_variables, 37);
  EXPECT_EQ(wrong_loops, 1);
  EXPECT_GT(nodes, 10000u);
}

TEST(RealGraphsTest, GraphsOfSavedModelsImportAndExportToTheSameMessage) {
  std::vector<std::string> files;
  for (const std::string& file : GraphFiles("saved_models")) {
    if (absl::StrContains(file, "saved_model.pb")) files.push_back(file);
  }
  if (files.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no saved_models";
  EXPECT_GE(files.size(), 22u);
  size_t nodes = 0;
  for (const std::string& file : files) {
    StatusOr<std::string> bytes = ReadFileToString(FileSystem::Posix(), file);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    tensorflow::SavedModel model;
    ASSERT_TRUE(absl::EndsWith(file, ".pbtxt")
                    ? google::protobuf::TextFormat::ParseFromString(*bytes, &model)
                    : model.ParseFromString(*bytes))
        << file;
    ASSERT_GT(model.meta_graphs_size(), 0) << file;
    for (const tensorflow::MetaGraphDef& meta : model.meta_graphs()) {
      const Status status = RoundTrip(file, meta.graph_def(), &nodes);
      EXPECT_TRUE(status.ok()) << file << ": " << status;
    }
  }
  EXPECT_GT(nodes, 5000u);
}

TEST(RealGraphsTest, TextAndBinaryOfOneGraphPrintTheSame) {
  std::map<std::string, std::string> binary;
  for (const std::string& file : GraphFiles("tf_graphs/pb")) {
    binary[std::filesystem::path(file).stem().string()] = file;
  }
  if (binary.empty()) GTEST_SKIP() << "MILLRACE_SHARED has no tf_graphs";
  int compared = 0;
  for (const std::string& file : GraphFiles("tf_graphs/pbtxt")) {
    auto it = binary.find(std::filesystem::path(file).stem().string());
    if (it == binary.end()) continue;
    StatusOr<GraphDef> a = ReadGraphDef(FileSystem::Posix(), file);
    StatusOr<GraphDef> b = ReadGraphDef(FileSystem::Posix(), it->second);
    ASSERT_TRUE(a.ok() && b.ok()) << file;
    EXPECT_EQ(GraphToText(*a), GraphToText(*b)) << file;
    ++compared;
  }
  EXPECT_GT(compared, 200);
}

}  // namespace
}  // namespace millrace
