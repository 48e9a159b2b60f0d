// SPDX-License-Identifier: Apache-2.0
//
// Gradients of While and For: nested, of bodies of all kinds, twice; with calls put into the graph
// and with calls.
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/allocator.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/attr.h"
#include "graph/function_builder.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "layers/control_flow.h"
#include "ops/ops.h"
#include "ops/testing/function_gradients.h"
#include "runtime/session.h"

// covers: graphs: gradients of `While` and `For` are those of finite differences, of shapes that
//   grow and of loops with a data-dependent end; once in and around branches, in frames, three deep
//   and of lists; of variables by their handles; frames in functions are refused

namespace millrace {
namespace {

using testing::CallsInlined;
using testing::D;
using testing::ExpectGradients;
using testing::GradientsOf;
using Outputs = std::vector<Output>;
using Body = std::function<Outputs(const Scope&, const Output&, const Outputs&)>;

std::vector<DType> TypesOf(const Outputs& tensors) {
  std::vector<DType> types;
  for (const Output& tensor : tensors) types.push_back(WithoutRef(tensor.dtype()));
  return types;
}

// variables = body(i, variables) for i = 0, 1, ... `trips` - 1, by a While.
Outputs WhileOf(const Scope& s, const Output& trips, const Outputs& variables, const Body& body) {
  Outputs inputs = {Const(s, 0), trips};
  inputs.insert(inputs.end(), variables.begin(), variables.end());
  const DefinedFunction cond =
      DefineFunction(s, "cond", TypesOf(inputs),
                     [](const Scope& t, const Outputs& v) { return Outputs{Less(t, v[0], v[1])}; });
  const DefinedFunction next =
      DefineFunction(s, "body", TypesOf(inputs), [&](const Scope& t, const Outputs& v) {
        Outputs results = {Add(t, v[0], Const(t, 1)), v[1]};
        for (const Output& one : body(t, v[0], {v.begin() + 2, v.end()})) results.push_back(one);
        return results;
      });
  EXPECT_TRUE(cond.captures.empty() && next.captures.empty());
  return While(s.WithName("loop"), inputs, {cond.name}, {next.name})
      .outputs(2, static_cast<int>(variables.size()));
}

// The same by a For.
Outputs ForOf(const Scope& s, const Output& trips, const Outputs& variables, const Body& body) {
  std::vector<DType> types = TypesOf(variables);
  types.insert(types.begin(), DT_INT32);
  const DefinedFunction next =
      DefineFunction(s, "for_body", types, [&](const Scope& t, const Outputs& v) {
        return body(t, v[0], {v.begin() + 1, v.end()});
      });
  EXPECT_TRUE(next.captures.empty());
  return For(s.WithName("loop"), Const(s, 0), trips, Const(s, 1), variables, {next.name})
      .outputs(0, static_cast<int>(variables.size()));
}

Output AsDouble(const Scope& s, const Output& i) { return Cast(s, i, DT_DOUBLE); }

// (x, w) -> (sin(x) * w + i, w).
Outputs SineTimes(const Scope& s, const Output& i, const Outputs& v) {
  return {Add(s, Mul(s, Sin(s, v[0]), v[1]), AsDouble(s, i)), v[1]};
}

TEST(GradientsOfLoops, MatchFiniteDifferencesTwice) {
  for (const auto loop : {&WhileOf, &ForOf}) {
    for (const int32_t trips : {0, 1, 3}) {
      SCOPED_TRACE(absl::StrCat(loop == &ForOf ? "For, " : "While, ", trips, " trips"));
      ExpectGradients(
          [&](const Scope& s, const Outputs& x) {
            return loop(s, Const(s, trips), {x[0], x[1]}, SineTimes)[0];
          },
          {D({0.3, -0.7}), D({0.5, 1.2})});
    }
  }
}

// Each iteration carries the gradient from one variable to the next.
TEST(GradientsOfLoops, GoRoundFromVariableToVariable) {
  ExpectGradients(
      [&](const Scope& s, const Outputs& x) {
        return WhileOf(s, Const(s, 3), {x[0], x[1], x[2], x[0]},
                       [](const Scope& t, const Output&, const Outputs& v) {
                         return Outputs{v[1], Mul(t, v[2], v[0]), Exp(t, v[0]), Neg(t, v[3])};
                       })[0];
      },
      {D({0.3}), D({0.5}), D({0.7})});
}

TEST(GradientsOfLoops, OfLoopsInLoops) {
  for (const auto outer : {&WhileOf, &ForOf}) {
    for (const auto inner : {&WhileOf, &ForOf}) {
      SCOPED_TRACE(absl::StrCat(outer == &ForOf ? "For" : "While", " of ",
                                inner == &ForOf ? "For" : "While"));
      ExpectGradients(
          [&](const Scope& s, const Outputs& x) {
            return outer(
                s, Const(s, 3), {x[0], x[1]},
                [&](const Scope& t, const Output& i, const Outputs& v) {
                  // As often as the outer one has gone round.
                  return Outputs{inner(t, i, {v[0], v[1]}, SineTimes)[0], Mul(t, v[1], v[0])};
                })[0];
          },
          {D({0.3, -0.7}), D({0.5, 1.2})});
    }
  }
}

TEST(GradientsOfLoops, OfThreeLoopsInEachOther) {
  ExpectGradients(
      [&](const Scope& s, const Outputs& x) {
        return WhileOf(s, Const(s, 2), {x[0], x[1]},
                       [&](const Scope& t, const Output&, const Outputs& v) {
                         return ForOf(t, Const(t, 2), v,
                                      [](const Scope& u, const Output& j, const Outputs& w) {
                                        return WhileOf(u, j, w, SineTimes);
                                      });
                       })[0];
      },
      {D({0.3}), D({0.5})}, /*twice=*/false);
}

TEST(GradientsOfLoops, OfIfsInLoopsAndLoopsInIfs) {
  const auto branch = [](const Scope& s, const char* name, const Body& code) {
    return DefineFunction(s, name, {DT_DOUBLE, DT_DOUBLE},
                          [&](const Scope& t, const Outputs& v) { return code(t, Output(), v); })
        .name;
  };
  const auto either = [&](const Scope& s, const Output& pred, const Outputs& v) {
    return If(s, pred, v, {DT_DOUBLE},
              {branch(s, "yes",
                      [](const Scope& t, const Output&, const Outputs& w) {
                        return Outputs{Mul(t, Exp(t, w[0]), w[1])};
                      })},
              {branch(s, "no",
                      [](const Scope& t, const Output&, const Outputs& w) {
                        return Outputs{WhileOf(t, Const(t, 2), w, SineTimes)[0]};
                      })})
        .output(0);
  };
  ExpectGradients(
      [&](const Scope& s, const Outputs& x) {
        return WhileOf(s, Const(s, 3), {x[0], x[1]},
                       [&](const Scope& t, const Output& i, const Outputs& v) {
                         return Outputs{either(t, Equal(t, i, Const(t, 1)), v), v[1]};
                       })[0];
      },
      {D({0.1, -0.4}), D({0.5, 0.2})}, /*twice=*/false);
  for (const bool pred : {true, false}) {
    ExpectGradients([&](const Scope& s, const Outputs& x) { return either(s, Const(s, pred), x); },
                    {D({0.1, -0.4}), D({0.5, 0.2})}, /*twice=*/false);
  }
}

// Branches of Switch and Merge in the body, and a While in a loop of these.
TEST(GradientsOfLoops, AreMixedWithThoseOfFrames) {
  ExpectGradients(
      [&](const Scope& s, const Outputs& x) {
        return WhileOf(s, Const(s, 3), {x[0], x[1]},
                       [&](const Scope& t, const Output& i, const Outputs& v) {
                         const Output y = Cond(
                             t, Equal(t, i, Const(t, 1)),
                             [&](const Scope& u) { return Mul(u, Exp(u, v[0]), v[1]); },
                             [&](const Scope& u) { return Sin(u, v[0]); });
                         return Outputs{y, v[1]};
                       })[0];
      },
      {D({0.1, -0.4}), D({0.5, 0.2})}, /*twice=*/false);
  const auto frames = [](const Scope& s, const Output& trips, const Outputs& variables,
                         const Body& body) {
    Outputs all = {Const(s, 0)};
    all.insert(all.end(), variables.begin(), variables.end());
    const Outputs results = WhileLoop(
        s, all, [&](const Scope& t, const Outputs& v) { return Less(t, v[0], trips); },
        [&](const Scope& t, const Outputs& v) {
          Outputs next = body(t, v[0], {v.begin() + 1, v.end()});
          next.insert(next.begin(), Add(t, v[0], Const(t, 1)));
          return next;
        });
    return Outputs(results.begin() + 1, results.end());
  };
  ExpectGradients(
      [&](const Scope& s, const Outputs& x) {
        return frames(s, Const(s, 3), {x[0], x[1]},
                      [&](const Scope& t, const Output& i, const Outputs& v) {
                        return WhileOf(t, i, v, SineTimes);
                      })[0];
      },
      {D({0.1, -0.4}), D({0.5, 0.2})}, /*twice=*/false);
}

TEST(GradientsOfLoops, OfShapesThatGrow) {
  ExpectGradients(
      [&](const Scope& s, const Outputs& x) {
        return WhileOf(s, Const(s, 3), {x[0]}, [](const Scope& t, const Output&, const Outputs& v) {
          return Outputs{ConcatV2(t, {Square(t, v[0]), v[0]}, Const(t, 0))};
        })[0];
      },
      {D({0.3, -0.7})});
}

// The number of iterations depends on what is computed.
TEST(GradientsOfLoops, OfLoopsThatEndByThemselves) {
  ExpectGradients(
      [&](const Scope& s, const Outputs& x) {
        const DefinedFunction cond = DefineFunction(
            s, "small", {DT_DOUBLE, DT_DOUBLE}, [](const Scope& t, const Outputs& v) {
              return Outputs{Less(t, Sum(t, v[0], Const(t, 0)), Const(t, 100.0))};
            });
        const DefinedFunction body =
            DefineFunction(s, "grow", {DT_DOUBLE, DT_DOUBLE}, [](const Scope& t, const Outputs& v) {
              return Outputs{Mul(t, v[0], v[1]), v[1]};
            });
        return While(s, {x[0], x[1]}, {cond.name}, {body.name}).output(0);
      },
      {D({0.3, 0.7}), D({2.5, 3.5})});
}

// Lists as variables, as TensorFlow 2 writes its loops over rows.
TEST(GradientsOfLoops, OfListsOfTensors) {
  for (const auto loop : {&WhileOf, &ForOf}) {
    ExpectGradients(
        [&](const Scope& s, const Outputs& x) {
          const Output any = Const(s, -1);
          const Output rows = TensorListFromTensor(s, Reshape(s, x[0], Const<int32_t>(s, {3, 2})),
                                                   Const<int32_t>(s, {2}));
          const Output none = TensorListReserve(s, Const<int32_t>(s, {2}), Const(s, 3), DT_DOUBLE);
          const Output state = Slice(s, x[0], Const<int32_t>(s, {0}), Const<int32_t>(s, {2}));
          const Outputs out = loop(
              s, Const(s, 3), {rows, none, state, x[1]},
              [](const Scope& t, const Output& i, const Outputs& v) {
                const Output row = TensorListGetItem(t, v[0], i, Const<int32_t>(t, {2}), DT_DOUBLE);
                const Output next = Tanh(t, Add(t, Mul(t, v[2], v[3]), row));
                return Outputs{v[0], TensorListSetItem(t, v[1], i, next), next, v[3]};
              });
          return TensorListStack(s, out[1], any, DT_DOUBLE);
        },
        {D({0.3, -0.7, 0.1, 0.2, 0.6, -0.4}), D({0.5, 1.2})}, /*twice=*/false);
  }
}

// What an iteration has drawn is what its gradient sees, and nothing is drawn twice.
TEST(GradientsOfLoops, SeeTheNumbersThatTheIterationsHaveDrawn) {
  Scope s;
  const Output count = VarHandleOp(s.WithName("count"), DT_INT32, {});
  const Operation init = AssignVariableOp(s, count, Const(s, 0));
  const Output x = Placeholder(s, DT_DOUBLE, {4});
  const Outputs y =
      WhileOf(s, Const(s, 3), {x, count}, [](const Scope& t, const Output&, const Outputs& v) {
        const Operation add = AssignAddVariableOp(t, v[1], Const(t, 1));
        const Output random =
            RandomUniform(t.WithControlDependencies({add}), ShapeOf(t, v[0]), DT_DOUBLE);
        return Outputs{Mul(t, v[0], random), v[1]};
      });
  // Two losses on one loop: it is extended twice.
  const Output dx = GradientsOf(s, {y[0]}, {x})[0];
  const Output half = GradientsOf(s, {Mul(s, y[0], Const(s, 0.5))}, {x})[0];
  const Output read =
      ReadVariableOp(s.WithControlDependencies({dx.op(), half.op(), y[0].op()}), count, DT_INT32);
  for (const bool inlined : {true, false}) {
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession(CallsInlined(inlined)));
    ASSERT_OK(session->Extend(s));
    ASSERT_OK(session->Run({}, {}, {init}));
    for (int step = 1; step <= 2; ++step) {
      ASSERT_OK_AND_ASSIGN(const auto out,
                           session->Run({{x, D({1, 1, 1, 1})}}, {y[0], dx, half, read}));
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_DOUBLE_EQ(out[1].flat<double>()[i], out[0].flat<double>()[i]);
        EXPECT_DOUBLE_EQ(out[2].flat<double>()[i], out[0].flat<double>()[i] / 2);
      }
      ExpectTensorEqual(out[3], Tensor::Scalar<int32_t>(3 * step));
    }
  }
}

// y = x * v^3 and the rows of v: a variable goes round by its handle.
TEST(GradientsOfLoops, OfVariablesAndOfTheirRows) {
  Scope s;
  const Output v = VarHandleOp(s.WithName("v"), DT_DOUBLE, {3});
  const Operation init = AssignVariableOp(s, v, Const(s, D({1, 2, 3})));
  const Output x = Const(s, D({2, 1, 1}));
  const auto loop_of = [&](const Body& body) {
    return GradientsOf(s, {WhileOf(s, Const(s, 3), {x, v}, body)[0]}, {v})[0];
  };
  const Output dense = loop_of([](const Scope& t, const Output&, const Outputs& w) {
    return Outputs{Mul(t, w[0], ReadVariableOp(t, w[1], DT_DOUBLE)), w[1]};
  });
  const Output rows = loop_of([](const Scope& t, const Output& i, const Outputs& w) {
    const Output two = Pack(t, {Minimum(t, i, Const(t, 1)), Const(t, 1)});
    return Outputs{ConcatV2(t, {w[0], ResourceGather(t, w[1], two, DT_DOUBLE)}, Const(t, 0)),
                   Identity(t, w[1])};
  });
  const Output none =
      GradientsOf(s,
                  {WhileOf(s, Const(s, 0), {x, v},
                           [](const Scope& t, const Output&, const Outputs& w) {
                             return Outputs{Mul(t, w[0], ReadVariableOp(t, w[1], DT_DOUBLE)), w[1]};
                           })[0]},
                  {v})[0];
  ASSERT_OK(s.status());
  for (const bool inlined : {true, false}) {
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession(CallsInlined(inlined)));
    ASSERT_OK(session->Extend(s));
    ASSERT_OK(session->Run({}, {}, {init}));
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {dense, rows, none}));
    ExpectTensorEqual(out[0], D({6, 12, 27}));  // 3 x v^2
    ExpectTensorEqual(out[1], D({1, 5, 0}));
    ExpectTensorEqual(out[2], D({0, 0, 0}));
  }
}

// The same where one node hands the handle and the other variable on: in each iteration it is the
// handle that went in.
TEST(GradientsOfLoops, OfVariablesThatGoRoundTogetherWithOthers) {
  Scope s;
  const Output v = VarHandleOp(s.WithName("v"), DT_DOUBLE, {3});
  const Operation init = AssignVariableOp(s, v, Const(s, D({1, 2, 3})));
  const Output x = Const(s, D({2, 1, 1}));
  const auto loop_of = [&](const Body& body) {
    return GradientsOf(s, {WhileOf(s, Const(s, 3), {x, v}, body)[0]}, {v})[0];
  };
  const Output dense = loop_of([](const Scope& t, const Output&, const Outputs& w) {
    return IdentityN(t, Outputs{Mul(t, w[0], ReadVariableOp(t, w[1], DT_DOUBLE)), w[1]});
  });
  const Output rows = loop_of([](const Scope& t, const Output& i, const Outputs& w) {
    const Output two = Pack(t, {Minimum(t, i, Const(t, 1)), Const(t, 1)});
    return IdentityN(
        t,
        Outputs{ConcatV2(t, {w[0], ResourceGather(t, w[1], two, DT_DOUBLE)}, Const(t, 0)), w[1]});
  });
  ASSERT_OK(s.status());
  for (const bool inlined : {true, false}) {
    ASSERT_OK_AND_ASSIGN(const auto session, NewSession(CallsInlined(inlined)));
    ASSERT_OK(session->Extend(s));
    ASSERT_OK(session->Run({}, {}, {init}));
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {dense, rows}));
    ExpectTensorEqual(out[0], D({6, 12, 27}));  // 3 x v^2
    ExpectTensorEqual(out[1], D({1, 5, 0}));
  }
  // Handed on crosswise they are other variables in each iteration.
  const Output other = VarHandleOp(s.WithName("other"), DT_DOUBLE, {3});
  const Output crossed =
      WhileOf(s, Const(s, 3), {x, v, other}, [](const Scope& t, const Output&, const Outputs& w) {
        return IdentityN(t, Outputs{Mul(t, w[0], ReadVariableOp(t, w[1], DT_DOUBLE)), w[2], w[1]});
      })[0];
  EXPECT_STATUS(AddGradients(s, {{crossed}}, {{v}}).status(), absl::StatusCode::kUnimplemented,
                "is the handle of another resource in each iteration");
}

TEST(GradientsOfLoops, TheLoopKeepsItsNameAndResults) {
  Scope s;
  const Output x = Placeholder(s, DT_DOUBLE, {2});
  const Outputs y = WhileOf(s, Const(s, 3), {x, Const(s, 2.0)}, SineTimes);
  Node* const node = y[0].node();
  EXPECT_EQ(node->name(), "loop");
  GradientsOf(s, {y[0]}, {x});
  EXPECT_EQ(y[0].node(), node);
  EXPECT_EQ(node->op(), "PartitionedCall");
  EXPECT_EQ(s.shape(y[0]).ToString(), "[2]");
}

// Nothing is left over, whether the gradient is run or not.
TEST(GradientsOfLoops, LeaveNothingOver) {
  Scope s;
  const Output x = Placeholder(s, DT_DOUBLE, {2}), trips = Placeholder(s, DT_INT32, {});
  const Output y = WhileOf(s, trips, {x, Const(s, 2.0)}, SineTimes)[0];
  const Output dx = GradientsOf(s, {y}, {x})[0];
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession());
  ASSERT_OK(session->Extend(s));
  const auto run = [&](int32_t n, const FetchName& fetch) {
    EXPECT_OK(session->Run({{x, D({1, 2})}, {trips, Tensor::Scalar(n)}}, {fetch}));
  };
  run(3, y);
  run(3, dx);
  const int64_t bytes = DefaultAllocatorStats().bytes_in_use;
  for (const int32_t n : {1, 100, 1000}) {
    run(n, y);
    run(n, dx);
  }
  EXPECT_EQ(DefaultAllocatorStats().bytes_in_use, bytes);
}

TEST(GradientsOfLoops, SayWhatCannotBeDifferentiated) {
  for (const auto loop : {&WhileOf, &ForOf}) {
    // Through an op without gradient.
    Scope s;
    const Output x = Placeholder(s, DT_DOUBLE, {2, 2});
    const Output y = loop(s, Const(s, 3), {x}, [](const Scope& t, const Output&, const Outputs& v) {
      return Outputs{Qr(t.WithName("qr"), v[0]).q};
    })[0];
    const Status status = AddGradients(s, {{y}}, {{x}}).status();
    EXPECT_STATUS(status, absl::StatusCode::kNotFound, "No gradient defined for operation 'qr'");
    EXPECT_STATUS(status, absl::StatusCode::kNotFound, "'loop'");
    // The graph is as it was.
    EXPECT_EQ(y.node()->op(), loop == &ForOf ? "For" : "While");
  }
  // Another variable each time.
  Scope s;
  const Output a = VarHandleOp(s.WithName("a"), DT_DOUBLE, {2});
  const Output b = VarHandleOp(s.WithName("b"), DT_DOUBLE, {2});
  const Output x = Placeholder(s, DT_DOUBLE, {2});
  const Output y =
      WhileOf(s, Const(s, 3), {x, a, b}, [](const Scope& t, const Output&, const Outputs& v) {
        return Outputs{Mul(t, v[0], ReadVariableOp(t, v[1], DT_DOUBLE)), v[2], v[1]};
      })[0];
  EXPECT_STATUS(AddGradients(s, {{y}}, {{a}}).status(), absl::StatusCode::kUnimplemented,
                "is the handle of another resource in each iteration");
}

TEST(GradientsOfLoops, RefuseAConditionWithoutAResult) {
  Scope s;
  const Output x = Placeholder(s, DT_DOUBLE, {2});
  const DefinedFunction cond = DefineFunction(
      s, "cond", {DT_DOUBLE}, [](const Scope&, const Outputs&) { return Outputs{}; });
  const DefinedFunction body =
      DefineFunction(s, "body", {DT_DOUBLE},
                     [](const Scope& t, const Outputs& v) { return Outputs{Sin(t, v[0])}; });
  const Output y = StatelessWhile(s, {x}, {cond.name}, {body.name}).output(0);
  ASSERT_OK(s.status());
  EXPECT_STATUS(AddGradients(s, {{y}}, {{x}}).status(), absl::StatusCode::kInvalidArgument,
                "the function of attr 'cond' must have one result, got 0");
}

// A loop of Switch and Merge would need its stacks on both sides of the cut.
TEST(GradientsOfLoops, RefuseLoopsOfFramesInFunctions) {
  const auto frame = [](const Scope& s, const Outputs& v) {
    return Outputs{WhileLoop(
        s.WithName("squares"), {Const(s, 0), v.back()},
        [](const Scope& t, const Outputs& w) { return Less(t, w[0], Const(t, 2)); },
        [](const Scope& t, const Outputs& w) {
          return Outputs{Add(t, w[0], Const(t, 1)), Square(t, w[1])};
        })[1]};
  };
  for (const std::string op : {"PartitionedCall", "If", "While", "For"}) {
    SCOPED_TRACE(op);
    Scope s;
    const Output x = Placeholder(s, DT_DOUBLE, {2});
    const FunctionName one = {DefineFunction(s, "frame", {DT_DOUBLE}, frame).name};
    Output y;
    if (op == "PartitionedCall") y = PartitionedCall(s, {x}, {DT_DOUBLE}, one).output(0);
    if (op == "If") y = If(s, Const(s, true), {x}, {DT_DOUBLE}, one, one).output(0);
    const auto body = [&](const Scope& t, const Output&, const Outputs& v) { return frame(t, v); };
    if (op == "While") y = WhileOf(s, Const(s, 2), {x}, body)[0];
    if (op == "For") y = ForOf(s, Const(s, 2), {x}, body)[0];
    ASSERT_OK(s.status());
    const Status status = AddGradients(s, {{y}}, {{x}}).status();
    EXPECT_STATUS(status, absl::StatusCode::kUnimplemented,
                  "no loop of Switch and Merge may be differentiated inside of a function, got "
                  "frame 'squares/while_context'");
    EXPECT_STATUS(status, absl::StatusCode::kUnimplemented, y.node()->name());
    EXPECT_EQ(y.node()->op(), op);  // as it was
  }
}

}  // namespace
}  // namespace millrace
