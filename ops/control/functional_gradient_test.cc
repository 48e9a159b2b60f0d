// SPDX-License-Identifier: Apache-2.0
//
// Gradients of calls, in sessions: with the functions put into the graph and with calls of them.
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/function_builder.h"
#include "graph/function_gradient.h"
#include "graph/function_library.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "ops/ops.h"
#include "ops/testing/function_gradients.h"
#include "proto/attr_value.pb.h"
#include "proto/function.pb.h"
#include "runtime/session.h"

// covers: graphs: gradients of calls are those of finite differences, twice; random numbers and
//   variables are those of the call; a GradientDef wins

namespace millrace {
namespace {

using testing::CallsInlined;
using testing::D;
using testing::ExpectGradients;
using testing::GradientsOf;
using Outputs = std::vector<Output>;

TEST(GradientsOfCalls, MatchFiniteDifferencesTwice) {
  ExpectGradients(
      [](const Scope& s, const Outputs& x) {
        const DefinedFunction inner = DefineFunction(
            s, "inner", {DT_DOUBLE, DT_DOUBLE}, [](const Scope& t, const Outputs& in) {
              return Outputs{Mul(t, Tanh(t, in[0]), in[1]), Exp(t, in[1])};
            });
        const DefinedFunction outer = DefineFunction(
            s, "outer", {DT_DOUBLE, DT_DOUBLE}, [&](const Scope& t, const Outputs& in) {
              const Outputs once = Call(t, inner, in);
              const Outputs again = Call(t, inner, {once[1], in[0]});
              return Outputs{Add(t, again[0], once[0]), Sin(t, again[1])};
            });
        const Outputs y = Call(s, outer, x);
        return Mul(s, y[0], y[1]);
      },
      {D({0.3, -0.7}), D({0.5, 0.2})});
}

TEST(GradientsOfCalls, OfOneResultAndOfArgumentsThatPass) {
  ExpectGradients(
      [](const Scope& s, const Outputs& x) {
        const DefinedFunction f =
            DefineFunction(s, "f", {DT_DOUBLE, DT_DOUBLE}, [](const Scope& t, const Outputs& in) {
              return Outputs{Mul(t, Square(t, in[0]), in[1]), in[1], in[1], Size(t, in[0])};
            });
        const Outputs y = Call(s, f, x);
        return Mul(s, Add(s, y[1], y[2]), Mul(s, y[1], x[0]));
      },
      {D({0.3, -0.7}), D({0.5, 0.2})});
}

TEST(GradientsOfCalls, GoThroughConditionalsInside) {
  for (const bool pred : {true, false}) {
    ExpectGradients(
        [pred](const Scope& s, const Outputs& x) {
          const DefinedFunction f =
              DefineFunction(s, "f", {DT_DOUBLE, DT_BOOL}, [](const Scope& t, const Outputs& in) {
                const SwitchOutputs ways = Switch(t, in[0], in[1]);
                return Outputs{
                    Merge(t, {Sin(t, ways.output_false), Exp(t, ways.output_true)}).output};
              });
          return Call(s, f, {x[0], Const(s, pred)})[0];
        },
        {D({0.3, -0.7})});
  }
}

// Values of the branch that is not taken do not exist, and nothing may be computed of them.
TEST(GradientsOfCalls, GoThroughConditionalsInsideOfConditionals) {
  for (int preds = 0; preds < 4; ++preds) {
    SCOPED_TRACE(preds);
    ExpectGradients(
        [preds](const Scope& s, const Outputs& x) {
          const DefinedFunction f =
              DefineFunction(s, "f", {DT_DOUBLE, DT_BOOL}, [](const Scope& t, const Outputs& in) {
                const SwitchOutputs ways = Switch(t, in[0], in[1]);
                const Output taken = ways.output_true;
                const Output square = MatMul(t, Reshape(t, taken, Const<int32_t>(t, {1, 2})),
                                             Reshape(t, taken, Const<int32_t>(t, {2, 1})));
                const Output cube = Mul(t, taken, Reshape(t, square, Const<int32_t>(t, {1})));
                return Outputs{Merge(t, {Sin(t, ways.output_false), cube}).output};
              });
          const SwitchOutputs ways = Switch(s, x[0], Const(s, (preds & 1) != 0));
          const Output y = Call(s, f, {ways.output_true, Const(s, (preds & 2) != 0)})[0];
          return Merge(s, {Cos(s, ways.output_false), y}).output;
        },
        {D({0.3, -0.7})});
  }
}

TEST(GradientsOfCalls, OfCallsInABranchThatIsNotTaken) {
  for (const bool pred : {true, false}) {
    ExpectGradients(
        [pred](const Scope& s, const Outputs& x) {
          const DefinedFunction f =
              DefineFunction(s, "f", {DT_DOUBLE}, [](const Scope& t, const Outputs& in) {
                return Outputs{Mul(t, Exp(t, in[0]), Const(t, D({2, 3})))};
              });
          const SwitchOutputs ways = Switch(s, x[0], Const(s, pred));
          const Output y = Call(s, f, {ways.output_true})[0];
          return Merge(s, {Sin(s, ways.output_false), y}).output;
        },
        {D({0.3, -0.7})});
  }
}

TEST(GradientsOfCalls, OfSymbolicGradient) {
  ExpectGradients(
      [](const Scope& s, const Outputs& x) {
        const DefinedFunction f =
            DefineFunction(s, "f", {DT_DOUBLE, DT_DOUBLE}, [](const Scope& t, const Outputs& in) {
              return Outputs{Mul(t, Sin(t, in[0]), Exp(t, in[1])), Size(t, in[0])};
            });
        const BuiltNode gradient = SymbolicGradient(s, Outputs{x[0], x[1], x[2], Const(s, 0)},
                                                    {DT_DOUBLE, DT_DOUBLE}, {f.name});
        return Mul(s, gradient.output(0), gradient.output(1));
      },
      {D({0.3, -0.7}), D({0.5, 0.2}), D({1, -2})}, /*twice=*/false);
}

// dx = 10 dy, whatever the function is.
TEST(GradientsOfCalls, AreThoseOfAGradientDefWhereThereIsOne) {
  for (const bool symbolic : {false, true}) {
    Scope s;
    const DefinedFunction f =
        DefineFunction(s, "f", {DT_DOUBLE},
                       [](const Scope& t, const Outputs& x) { return Outputs{Square(t, x[0])}; });
    const DefinedFunction g = DefineFunction(
        s, "g", {DT_DOUBLE, DT_DOUBLE},
        [](const Scope& t, const Outputs& x) { return Outputs{Mul(t, x[1], Const(t, 10.0))}; });
    tensorflow::FunctionDefLibrary more;
    auto* const gradient = more.add_gradient();
    gradient->set_function_name(f.name);
    gradient->set_gradient_func(g.name);
    ASSERT_OK_AND_ASSIGN(const auto library, s.graph()->library().With(more));
    s.graph()->set_library(library);
    const Output x = Placeholder(s, DT_DOUBLE, {2});
    const Output dx =
        symbolic
            ? Output(SymbolicGradient(s, Outputs{x, Const(s, D({1, 1}))}, {DT_DOUBLE}, {f.name}))
            : GradientsOf(s, Call(s, f, {x}), {x})[0];
    for (const bool inlined : {true, false}) {
      ASSERT_OK_AND_ASSIGN(const auto session, NewSession(CallsInlined(inlined)));
      ASSERT_OK(session->Extend(s));
      ASSERT_OK_AND_ASSIGN(const auto out, session->Run({{x, D({3, 4})}}, {dx}));
      ExpectTensorEqual(out[0], D({10, 10}));
    }
  }
}

// What the call has drawn is what its gradient sees, and nothing is drawn twice.
TEST(GradientsOfCalls, SeeTheNumbersThatTheCallHasDrawn) {
  Scope s;
  const Output count = VarHandleOp(s.WithName("count"), DT_INT32, {});
  const Operation init = AssignVariableOp(s, count, Const(s, 0));
  const DefinedFunction dropout =
      DefineFunction(s, "dropout", {DT_DOUBLE}, [&](const Scope& t, const Outputs& x) {
        const Operation add = AssignAddVariableOp(t, count, Const(t, 1));
        const Output random =
            RandomUniform(t.WithControlDependencies({add}), ShapeOf(t, x[0]), DT_DOUBLE);
        return Outputs{Mul(t, x[0], random)};
      });
  const Output x = Placeholder(s, DT_DOUBLE, {4});
  const Output y = Call(s, dropout, {x})[0];
  // Two losses on one call: its function is extended twice.
  const Output dx = GradientsOf(s, {y}, {x})[0];
  const Output half = GradientsOf(s, {Mul(s, y, Const(s, 0.5))}, {x})[0];
  const Output read =
      ReadVariableOp(s.WithControlDependencies({dx.op(), half.op(), y.op()}), count, DT_INT32);
  const Tensor ones = D({1, 1, 1, 1});
  for (const bool inlined : {true, false}) {
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession(CallsInlined(inlined)));
    ASSERT_OK(session->Extend(s));
    ASSERT_OK(session->Run({}, {}, {init}));
    for (int step = 1; step <= 2; ++step) {
      ASSERT_OK_AND_ASSIGN(const auto out, session->Run({{x, ones}}, {y, dx, half, read}));
      ExpectTensorEqual(out[1], out[0]);
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_DOUBLE_EQ(out[2].flat<double>()[i], out[0].flat<double>()[i] / 2);
      }
      ExpectTensorEqual(out[3], Tensor::Scalar<int32_t>(step));
    }
  }
}

TEST(GradientsOfCalls, OfVariablesAndOfTheirRows) {
  Scope s;
  const Output v = VarHandleOp(s.WithName("v"), DT_DOUBLE, {3, 2});
  const Operation init =
      AssignVariableOp(s, v, Const(s, TensorOf<double>({3, 2}, {1, 2, 3, 4, 5, 6})));
  const DefinedFunction dense = DefineFunction(s, "dense", {}, [&](const Scope& t, const Outputs&) {
    return Outputs{Square(t, ReadVariableOp(t, v, DT_DOUBLE))};
  });
  const DefinedFunction rows =
      DefineFunction(s, "rows", {DT_INT32}, [&](const Scope& t, const Outputs& in) {
        return Outputs{Square(t, ResourceGather(t, v, in[0], DT_DOUBLE))};
      });
  const Output ids = Const<int32_t>(s, {2, 0, 2});
  ASSERT_OK_AND_ASSIGN(auto gradients, AddGradients(s, Call(s, rows, {ids}), {{v}}));
  ASSERT_TRUE(std::holds_alternative<IndexedSlices>(gradients[0]));
  const Output of_rows = DenseGradient(s, gradients[0]);
  const Output of_all = GradientsOf(s, Call(s, dense, {}), {v})[0];
  for (const bool inlined : {true, false}) {
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession(CallsInlined(inlined)));
    ASSERT_OK(session->Extend(s));
    ASSERT_OK(session->Run({}, {}, {init}));
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {of_rows, of_all}));
    ExpectTensorEqual(out[0], TensorOf<double>({3, 2}, {2, 4, 0, 0, 20, 24}));
    ExpectTensorEqual(out[1], TensorOf<double>({3, 2}, {2, 4, 6, 8, 10, 12}));
  }
}

TEST(GradientsOfCalls, TheCallKeepsItsNameAndResults) {
  Scope s;
  const DefinedFunction f =
      DefineFunction(s, "f", {DT_DOUBLE}, [](const Scope& t, const Outputs& x) {
        return Outputs{Exp(t, x[0]), Neg(t, x[0])};
      });
  const Output x = Placeholder(s, DT_DOUBLE, {2});
  const Outputs y = Call(s.WithName("call"), f, {x});
  Node* const node = y[0].node();
  GradientsOf(s, {y[0]}, {x});
  EXPECT_EQ(y[0].node(), node);
  EXPECT_EQ(node->num_outputs(), 3);
  EXPECT_EQ(s.shape(y[1]).ToString(), "[2]");
  ASSERT_OK_AND_ASSIGN(const auto function, GetAttr<tensorflow::NameAttrList>(*node, "f"));
  EXPECT_EQ(function.name(), "f_forward");
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(s));
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({{x, D({1, 2})}}, {"call:1"}));
  ExpectTensorEqual(out[0], D({-1, -2}));
}

TEST(GradientsOfCalls, SayWhatCannotBeDifferentiated) {
  {
    Scope s;
    DefinedFunction f = DefineFunction(s, "f", {DT_DOUBLE}, [](const Scope& t, const Outputs& x) {
      return Outputs{Neg(t, x[0])};
    });
    for (int i = 0; i < kMaxDifferentiatedCalls + 1; ++i) {
      f = DefineFunction(s, "f", {DT_DOUBLE},
                         [&](const Scope& t, const Outputs& x) { return Call(t, f, x); });
    }
    const Output x = Placeholder(s, DT_DOUBLE, {2});
    EXPECT_STATUS(AddGradients(s, Call(s, f, {x}), {{x}}).status(),
                  absl::StatusCode::kInvalidArgument, "calls must be at most 64 deep");
  }
  {
    // Through an op without gradient.
    Scope s;
    const DefinedFunction f = DefineFunction(
        s, "f", {DT_DOUBLE},
        [](const Scope& t, const Outputs& x) { return Outputs{Qr(t.WithName("qr"), x[0]).q}; });
    const Output x = Placeholder(s, DT_DOUBLE, {2, 2});
    const Output y = Call(s.WithName("call"), f, {x})[0];
    const Status status = AddGradients(s, {{y}}, {{x}}).status();
    EXPECT_STATUS(status, absl::StatusCode::kNotFound, "No gradient defined for operation 'qr'");
    EXPECT_STATUS(status, absl::StatusCode::kNotFound, "'call'");
  }
}

}  // namespace
}  // namespace millrace
