// SPDX-License-Identifier: Apache-2.0
#include "ops/operators.h"

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/testing/tensor_testing.h"
#include "graph/attr.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "proto/node_def.pb.h"
#include "runtime/testing/op_test.h"

// covers: accidents: an operator on Outputs builds in the scope of the left one, never on a
//   variable's server; wrong operands are refused with the operator's line

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Output Float(const Scope& scope) { return Placeholder(scope, DT_FLOAT, {2}); }

TEST(Operators, ComputeWhatTheyShow) {
  Scope scope;
  const Output a = TestInput(scope, DT_FLOAT, {2}), b = TestInput(scope, DT_FLOAT, {2});
  const std::pair<Output, Tensor> cases[] = {
      {a + b, TensorOf<float>({2}, {11, 22})},
      {a - b, TensorOf<float>({2}, {-9, -18})},
      {a * b, TensorOf<float>({2}, {10, 40})},
      {a / b, TensorOf<float>({2}, {0.1f, 0.1f})},
      {-a, TensorOf<float>({2}, {-1, -2})},
      {a + 1, TensorOf<float>({2}, {2, 3})},
      {1 - a, TensorOf<float>({2}, {0, -1})},
      {a - 1.5, TensorOf<float>({2}, {-0.5f, 0.5f})},
      {2 * a, TensorOf<float>({2}, {2, 4})},
      {a * 0.5f, TensorOf<float>({2}, {0.5f, 1})},
      {2 / a, TensorOf<float>({2}, {2, 1})},
      {a / 2u, TensorOf<float>({2}, {0.5f, 1})},
      {0.5 * (a * b + 2) - -a, TensorOf<float>({2}, {7, 23})},
  };
  ASSERT_OK(scope.status());
  for (const auto& [output, want] : cases) {
    ASSERT_OK_AND_ASSIGN(
        const std::vector<Tensor> got,
        EvaluateGraph(scope,
                      {{a, TensorOf<float>({2}, {1, 2})}, {b, TensorOf<float>({2}, {10, 20})}},
                      {output}));
    ExpectTensorNear(got[0], want, 1e-6, 0);
  }
}

TEST(Operators, DivideIntegersAsPythonDoes) {
  Scope scope;
  const Output i = Const(scope, int32_t{7}), s = Const(scope, Tensor::Scalar<int16_t>(7));
  const Output text = Const(scope, "ab") + Const(scope, "c");
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                       EvaluateGraph(scope, {}, {i / 2, s / s, text}));
  ExpectTensorEqual(got[0], Tensor::Scalar<double>(3.5));
  ExpectTensorEqual(got[1], Tensor::Scalar<float>(1));
  ExpectTensorEqual(got[2], Tensor::Scalar("abc"));
}

TEST(Operators, NameNodesAsTensorFlowsPythonOperators) {
  Scope root;
  const Scope s = root.WithSubScope("s");
  const Output a = Placeholder(s, DT_INT32);
  EXPECT_EQ((a + a).name(), "s/add:0");
  const Output sum = a + 2;
  EXPECT_EQ(sum.name(), "s/add_1:0");
  EXPECT_EQ(sum.node()->op(), "AddV2");
  EXPECT_EQ(sum.node()->input(1).node->name(), "s/add_1/y");
  EXPECT_EQ(sum.node()->input(1).node->output_type(0), DT_INT32);
  const Output product = 2 * a;
  EXPECT_EQ(product.name(), "s/mul:0");
  EXPECT_EQ(product.node()->input(0).node->name(), "s/mul/x");
  EXPECT_EQ((a - a).name(), "s/sub:0");
  const Output quotient = a / 2;
  EXPECT_EQ(quotient.name(), "s/truediv:0");
  EXPECT_EQ(quotient.node()->op(), "RealDiv");
  EXPECT_EQ(quotient.node()->input(0).node->name(), "s/truediv/Cast");
  EXPECT_EQ(quotient.node()->input(1).node->name(), "s/truediv/Cast_1");
  EXPECT_NE(root.graph()->FindNode("s/truediv/y"), nullptr);
  EXPECT_EQ((-a).name(), "s/Neg:0");
  EXPECT_OK(root.status());
}

// A builder of several nodes, one of them beside another on a server.
Output Composite(ScopeAt at, const Output& beside) {
  const Scope scope = at.scope.CompositeScope("layer");
  const Scope inner = scope.WithSubScope("deep").WithRootPrefix().WithDevice("/job:ps");
  return Float(inner.ColocatedWith(beside.op()).WithName("layer/deep/read"));
}

TEST(Operators, BuildWhereTheProgramBuiltTheLeftOutput) {
  Scope root;
  const Scope model = root.WithSubScope("model").WithDevice(
      [](const tensorflow::NodeDef& def) { return absl::StrCat("/job:", def.op()); });
  const Output x = Float(root.WithName("x"));
  const Output w = Float(model.WithName("w"));
  const Output composite =
      Composite(model.WithControlDependencies({x.op()}).WithName("layer").ColocatedWith(x.op()), w);
  ASSERT_OK(root.status());
  ASSERT_EQ(composite.name(), "layer/deep/read:0");
  struct Case {
    Output output;
    const char* name;
    const char* device;
  };
  const Case cases[] = {
      {w * x, "model/mul:0", "/job:Mul"},
      {composite * x, "model/mul_1:0", "/job:Mul"},
      {1 + composite, "model/add:0", "/job:AddV2"},
      {-(composite - 1), "model/Neg:0", "/job:Neg"},
      {x * w, "mul:0", ""},
  };
  for (const Case& c : cases) {
    ASSERT_TRUE(c.output.valid()) << root.status();
    const Node& node = *c.output.node();
    EXPECT_EQ(c.output.name(), c.name);
    EXPECT_EQ(node.requested_device(), c.device);
    EXPECT_FALSE(HasAttr(node, "_class")) << c.name;
    EXPECT_TRUE(node.control_inputs().empty()) << c.name;
  }
  EXPECT_EQ(root.graph()->FindNode("model/add/x")->requested_device(), "/job:Const");
}

TEST(Operators, BuildBesideImportedNodesInTheRoot) {
  auto graph = std::make_unique<Graph>();
  tensorflow::NodeDef def;
  def.set_name("layer/x");
  def.set_op("Const");
  SetAttr(DT_FLOAT, &(*def.mutable_attr())["dtype"]);
  SetAttr(Tensor::Scalar<float>(3), &(*def.mutable_attr())["value"]);
  ASSERT_OK(graph->AddNode(def).status());
  Node* const x = graph->FindNode("layer/x");
  ASSERT_OK_AND_ASSIGN(const Scope scope, Scope::ForGraph(std::move(graph)));
  const Output y = Output(x, 0) * 2;
  EXPECT_EQ(y.name(), "mul:0") << scope.status();
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got, EvaluateGraph(scope, {}, {y}));
  ExpectTensorEqual(got[0], Tensor::Scalar<float>(6));
}

TEST(Operators, AreErrorsOfTheScopeWithTheLineOfTheOperator) {
  struct Case {
    std::function<Output(const Output& f, const Output& i, const Output& text, const Output& bad)>
        build;
    const char* text;
  };
  const Case cases[] = {
      {[](auto&, auto& i, auto&, auto&) { return i + 1.5; },
       "operator 's/add': a number must be a value of the dtype int32, got 1.5, next to 's/i:0'"},
      {[](auto&, auto& i, auto&, auto&) { return (int64_t{1} << 40) * i; },
       "operator 's/mul': a number must be a value of the dtype int32, got 1099511627776, next to "
       "'s/i:0'"},
      {[](auto& f, auto&, auto&, auto&) { return f / std::numeric_limits<double>::max(); },
       "operator 's/truediv': a number must be a value of the dtype float, got 1.79769e+308"},
      {[](auto&, auto&, auto& text, auto&) { return text + 1; },
       "operator 's/add': the dtype of the number 1 must be an integer, floating or complex one, "
       "got string, next to 's/text:0'"},
      {[](auto& f, auto& i, auto&, auto&) { return f + i; },
       "AddV2 's/add': input 'y' must be float (attr 'T', given by input 'x'), got int32 from "
       "'s/i:0'"},
      {[](auto& f, auto& i, auto&, auto&) { return f / i; },
       "RealDiv 's/truediv': input 'y' must be float"},
      {[](auto& f, auto&, auto&, auto& bad) { return f - bad; },
       "Sub 's/sub': input 1 must be the output of a node, got an invalid Output"},
      {[](auto& f, auto&, auto&, auto& bad) { return bad / f; },
       "RealDiv 's/truediv': input 0 must be the output of a node, got an invalid Output"},
      {[](auto&, auto&, auto& text, auto&) { return -text; },
       "Neg 's/Neg': attr 'T' must be one of"},
      {[](auto& f, auto&, auto&, auto&) {
         Scope other;
         return f * Float(other.WithName("foreign"));
       },
       "Mul 's/mul': input 1 must be of the same graph, got 'foreign:0' of another"},
  };
  for (const Case& c : cases) {
    Scope root;
    const Scope s = root.WithSubScope("s");
    EXPECT_FALSE(c.build(Placeholder(s.WithName("f"), DT_FLOAT),
                         Placeholder(s.WithName("i"), DT_INT32),
                         Placeholder(s.WithName("text"), DT_STRING), Output())
                     .valid())
        << c.text;
    EXPECT_STATUS(root.status(), kInvalid, c.text);
    EXPECT_STATUS(root.status(), kInvalid, absl::StrCat("; built at ", __FILE__, ":"));
  }
  Scope root;
  const Output i = Placeholder(root, DT_INT32);
  const int line = __LINE__ + 1;
  const Output bad = 1.5 - i;
  EXPECT_STATUS(root.status(), kInvalid, absl::StrCat("; built at ", __FILE__, ":", line));
  // The first error stays; what follows builds nothing.
  const int nodes = root.graph()->num_nodes();
  EXPECT_FALSE((i + bad).valid());
  EXPECT_FALSE((-i).valid());
  EXPECT_EQ(root.graph()->num_nodes(), nodes);
}

TEST(Operators, AreInvalidWithoutAScope) {
  Output x;
  {
    Scope gone;
    x = Float(gone);
  }
  for (const Output& result : {x + x, 2 * x, -x, Output() + 1, 1 / Output(), -Output()}) {
    EXPECT_FALSE(result.valid());
  }
  Scope root;
  EXPECT_FALSE((x + Float(root)).valid());
  EXPECT_STATUS(root.status(), kInvalid, "input 0 must be of the same graph");
}

TEST(Operators, TellTheLineThatBuiltTheirNodes) {
  Scope root;
  const Output a = Float(root);
  const int line = __LINE__ + 1;
  const Output b = 2 * a;
  EXPECT_EQ(b.node()->built_at(), absl::StrCat(__FILE__, ":", line));
  EXPECT_EQ(root.graph()->FindNode("mul/x")->built_at(), absl::StrCat(__FILE__, ":", line));
}

}  // namespace
}  // namespace millrace
