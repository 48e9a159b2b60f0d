// SPDX-License-Identifier: Apache-2.0
#include "graph/function_builder.h"

#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/attr.h"
#include "graph/function_body.h"
#include "graph/function_library.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "graph/op_registry.h"
#include "graph/print.h"
#include "graph/scope.h"
#include "graph/shape_inference.h"
#include "graph/testing/tiny_ops.h"
#include "gtest/gtest.h"
#include "proto/attr_value.pb.h"
#include "proto/function.pb.h"
#include "proto/node_def.pb.h"

// covers: graphs: functions built in C++ capture what they use of the program around them, and can
//   be read back

namespace millrace {
namespace {

using testing::Constant;
using testing::Input;
using Outputs = std::vector<Output>;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Output Op(const Scope& s, absl::string_view op, std::initializer_list<Output> inputs) {
  return testing::Call(s, op, inputs);
}

const OpRegistration kCalls[] = {
    OpSpec("PartitionedCall", "args: Tin -> output: Tout",
           "Tin: list(type) >= 0; Tout: list(type) >= 0; f: func")
        .Shape(ValueDependentShape),
    OpSpec("StatefulPartitionedCall", "args: Tin -> output: Tout",
           "Tin: list(type) >= 0; Tout: list(type) >= 0; f: func")
        .Stateful()
        .Shape(ValueDependentShape),
};

std::string TextOf(const Scope& scope, const std::string& function) {
  tensorflow::GraphDef def;
  tensorflow::FunctionDefLibrary library;
  *library.add_function() = scope.graph()->library().Find(function)->def();
  *def.mutable_library() = library;
  return GraphToText(def);
}

TEST(DefineFunction, WritesTheNodesThatItsResultsNeed) {
  Scope scope;
  const DefinedFunction f = DefineFunction(
      scope, "twice_plus", {DT_FLOAT, DT_FLOAT},
      [](const Scope& s, const Outputs& in) {
        Op(s.WithName("unused"), "Floor", {in[0]});
        const Output sum = Op(s.WithName("sum"), "Add", {in[0], in[0]});
        const Output two =
            NodeBuilder(s.WithName("two"), "TwoOutputs").Input(sum).Finish().output(1);
        return Outputs{Op(s.WithName("plus"), "Add", {two, in[1]}), in[1]};
      },
      {.argument_names = {"X", "plus"}});
  ASSERT_OK(scope.status());
  EXPECT_EQ(f.name, "twice_plus");
  EXPECT_EQ(f.results, (std::vector<DType>{DT_FLOAT, DT_FLOAT}));
  EXPECT_FALSE(f.has_effects);
  const tensorflow::FunctionDef& def = scope.graph()->library().Find(f.name)->def();
  EXPECT_EQ(def.signature().input_arg(0).name(), "x");
  EXPECT_EQ(def.signature().input_arg(1).name(), "plus");
  ASSERT_EQ(def.node_def_size(), 3);
  EXPECT_EQ(def.node_def(2).input(0), "two:z:0") << TextOf(scope, f.name);
  EXPECT_EQ(def.node_def(2).name(), "plus_1");
  EXPECT_EQ(def.node_def(2).input(1), "plus");

  const Output x = Input(scope, DT_FLOAT, *PartialShape::Make({3}));
  const Outputs y = Call(scope.WithName("call"), f, {x, x});
  ASSERT_OK(scope.status());
  ASSERT_EQ(y.size(), 2u);
  EXPECT_EQ(y[1].name(), "call:1");
  EXPECT_EQ(y[0].node()->op(), "PartitionedCall");
  // It can be read back as what it was made of.
  tensorflow::NameAttrList call;
  call.set_name(f.name);
  ASSERT_OK_AND_ASSIGN(const auto body, scope.graph()->library().Body(call));
  EXPECT_EQ(body->results[0]->input(0).node->input(0).node->name(), "two");
  EXPECT_EQ(body->results[0]->input(0).node->input(0).index, 1);
  EXPECT_EQ(body->results[1]->input(0).node, body->arguments[1]);
}

TEST(DefineFunction, CapturesWhatIsAround) {
  Scope scope;
  const Output c = Constant(scope.WithName("Offset"), Tensor::Vector<float>({1, 2}));
  const Output v = NodeBuilder(scope.WithName("v"), "VarHandleOp")
                       .Attr("dtype", DT_FLOAT)
                       .Attr("shape", *PartialShape::Make({2}))
                       .Finish()
                       .output(0);
  DefinedFunction inner;
  const DefinedFunction f =
      DefineFunction(scope, "f", {DT_FLOAT}, [&](const Scope& s, const Outputs& x) {
        inner = DefineFunction(s, "inner", {}, [&](const Scope& t, const Outputs&) {
          // Of the function around it, and of the program around that.
          return Outputs{Op(t, "Add", {x[0], c})};
        });
        const Output read =
            NodeBuilder(s, "ReadVariableOp").Input(v).Attr("dtype", DT_FLOAT).Finish().output(0);
        EXPECT_EQ(s.shape(read).ToString(), "[2]");
        return Outputs{Op(s, "Add", {read, Call(s, inner, {})[0]}), c};
      });
  ASSERT_OK(scope.status());
  EXPECT_TRUE(f.captures == (Outputs{c, v}));
  EXPECT_EQ(inner.captures.size(), 2u);
  EXPECT_TRUE(f.has_effects);
  EXPECT_FALSE(inner.has_effects);
  const tensorflow::OpDef& signature = scope.graph()->library().Find("f")->def().signature();
  EXPECT_EQ(signature.input_arg(1).name(), "offset");
  EXPECT_EQ(signature.input_arg(2).name(), "v");
  EXPECT_TRUE(signature.is_stateful());
  ASSERT_EQ(signature.control_output_size(), 1);

  const Outputs y = Call(scope, f, {c});
  ASSERT_OK(scope.status());
  EXPECT_EQ(y[0].node()->op(), "StatefulPartitionedCall");
  EXPECT_EQ(y[0].node()->input(1).node, c.node());
  EXPECT_EQ(y[0].node()->input(2).node, v.node());
}

TEST(DefineFunction, NamesAreUniqueAndErrorsAreTheScopes) {
  const auto identity = [](const Scope&, const Outputs& x) { return Outputs{x[0]}; };
  {
    Scope scope;
    EXPECT_EQ(DefineFunction(scope, "f", {DT_FLOAT}, identity).name, "f");
    EXPECT_EQ(DefineFunction(scope, "f", {DT_FLOAT}, identity).name, "f_1");
    EXPECT_EQ(DefineFunction(scope, "Identity", {DT_FLOAT}, identity).name, "Identity_1");
    ASSERT_OK(scope.status());
    const DefinedFunction f = DefineFunction(scope, "g", {DT_FLOAT}, identity, {.no_inline = true});
    EXPECT_TRUE(scope.graph()->library().Find("g")->is_no_inline());
    EXPECT_TRUE(Call(scope, f, {}).empty() || !Call(scope, f, {})[0].valid());
    EXPECT_STATUS(scope.status(), kInvalid,
                  "Call: function 'g' must have 1 arguments, got 0; built at");
  }
  {
    Scope scope;
    EXPECT_EQ(
        DefineFunction(scope, "a b", {}, [](const Scope&, const Outputs&) { return Outputs{}; })
            .name,
        "");
    EXPECT_STATUS(scope.status(), kInvalid, "Function: name must be letters");
  }
  {
    Scope scope;
    DefineFunction(scope, "f", {DT_FLOAT}, [](const Scope& s, const Outputs& x) {
      return Outputs{Op(s, "Nothing", {x[0]})};
    });
    EXPECT_STATUS(scope.status(), absl::StatusCode::kNotFound,
                  "Function 'f': Op type not registered 'Nothing'");
    EXPECT_TRUE(scope.graph()->library().empty());
  }
  {
    Scope scope, other;
    const Output x = Input(other, DT_FLOAT, PartialShape::Scalar());
    DefineFunction(scope, "f", {}, [&](const Scope& s, const Outputs&) {
      return Outputs{Op(s.WithName("n"), "Floor", {x})};
    });
    EXPECT_STATUS(
        scope.status(), kInvalid,
        "Function 'f': Floor 'n': input 0 must be of the same graph, got 'Placeholder:0' of "
        "another");
  }
  {
    Scope scope;
    const Output v = NodeBuilder(scope.WithName("v"), "VariableV2")
                         .Attr("dtype", DT_FLOAT)
                         .Attr("shape", PartialShape::Scalar())
                         .Finish()
                         .output(0);
    DefineFunction(scope, "f", {}, [&](const Scope& s, const Outputs&) {
      return Outputs{Op(s.WithName("n"), "Floor", {v})};
    });
    EXPECT_STATUS(
        scope.status(), kInvalid,
        "Floor 'n': input 0 a function must not use a reference to a variable, got 'v:0'");
  }
  {
    // The scope of a function that has been built takes nothing more in.
    Scope scope;
    Scope kept;
    const Output x = Input(scope, DT_FLOAT, PartialShape::Scalar());
    DefineFunction(scope, "f", {}, [&](const Scope& s, const Outputs&) {
      kept = s;
      return Outputs{};
    });
    ASSERT_OK(scope.status());
    Op(kept, "Floor", {x});
    EXPECT_STATUS(kept.status(), absl::StatusCode::kFailedPrecondition, "has been built");
  }
}

}  // namespace
}  // namespace millrace
