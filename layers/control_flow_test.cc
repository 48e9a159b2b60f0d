// SPDX-License-Identifier: Apache-2.0
#include "layers/control_flow.h"

#include <functional>
#include <string>
#include <vector>

#include "core/allocator.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layers/dense.h"
#include "layers/initializers.h"
#include "layers/tensor_array.h"
#include "layers/testing/layer_test.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "proto/control_flow.pb.h"
#include "proto/graph.pb.h"
#include "proto/meta_graph.pb.h"
#include "proto/node_def.pb.h"
#include "runtime/session.h"

// covers: graphs: `Cond`, `Case` and `WhileLoop` make TensorFlow's nodes and collections; tensors
//   and control inputs come in by themselves; misuse of inner tensors and broken invariants are
//   refused by name
// covers: graphs: a tensor array that is misused in a loop is an error of that step, the next one
//   works, no memory is left

namespace millrace {
namespace {

using Outputs = std::vector<Output>;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Output Number(const Scope& s, const char* name) {
  return Placeholder(s.WithName(name), DT_DOUBLE, PartialShape::Scalar());
}

Tensor Run1(const Scope& s, const std::vector<Feed>& feeds, const Output& y) {
  StatusOr<std::vector<Tensor>> out = RunInitialized(s, feeds, {y});
  EXPECT_OK(out);
  return out.ok() ? (*out)[0] : Tensor();
}

// --- Cond, Case ----------------------------------------------------------------------------------

TEST(Cond, GivesWhatTheTakenBranchGives) {
  Scope s;
  const Output x = Number(s, "x"), limit = Const(s, 10.0);
  const Output y = Cond(
      s, Less(s, x, limit), [&](const Scope& t) { return Mul(t, x, Const(t, 2.0)); },
      [&](const Scope& t) { return Sub(t, x, limit); });
  ASSERT_OK(s.status());
  EXPECT_EQ(s.shape(y).ToString(), "[]");
  EXPECT_EQ(Run1(s, {{x, Tensor::Scalar(3.0)}}, y).scalar<double>(), 6);
  EXPECT_EQ(Run1(s, {{x, Tensor::Scalar(30.0)}}, y).scalar<double>(), 20);
}

TEST(Cond, RunsOneBranchOnly) {
  Scope s;
  const Variable count = MakeVariable(s.WithName("count"), Const(s, 0));
  const Output pred = Placeholder(s, DT_BOOL, PartialShape::Scalar());
  const auto added = [&](int n) {
    return [&count, n](const Scope& t) {
      const Operation add = AssignAddVariableOp(t, count.handle, Const(t, n));
      return Identity(t.WithControlDependencies({add}), Const(t, n));
    };
  };
  const Output y = Cond(s, pred, added(1), added(100));
  ASSERT_OK_AND_ASSIGN(const auto session, InitializedSession(s));
  for (const bool p : {true, false, true}) {
    ASSERT_OK(session->Run({{pred, Tensor::Scalar(p)}}, {y}));
  }
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {count.value}));
  EXPECT_EQ(out[0].scalar<int32_t>(), 102);
}

TEST(Cond, PassesOnWhatIsNotMadeInIt) {
  Scope s;
  const Output x = Number(s, "x"), z = Number(s, "z");
  const Output pred = Less(s, x, z);
  // A tensor as it is, a constant, several outputs, another one twice.
  const Outputs y = Cond(
      s, pred,
      [&](const Scope& t) {
        return Outputs{x, Const(t, 5)};
      },
      [&](const Scope& t) {
        return Outputs{z, Const(t, 6)};
      });
  const Outputs same = Cond(
      s, pred,
      [&](const Scope&) {
        return Outputs{x, x};
      },
      [&](const Scope&) {
        return Outputs{z, z};
      });
  ASSERT_OK(s.status());
  for (const double a : {1.0, 7.0}) {
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out,
                         RunInitialized(s, {{x, Tensor::Scalar(a)}, {z, Tensor::Scalar(3.0)}},
                                        {y[0], y[1], same[0], same[1]}));
    EXPECT_EQ(out[0].scalar<double>(), a < 3 ? a : 3);
    EXPECT_EQ(out[1].scalar<int32_t>(), a < 3 ? 5 : 6);
    EXPECT_EQ(out[2].scalar<double>(), a < 3 ? a : 3);
    EXPECT_EQ(out[3].scalar<double>(), a < 3 ? a : 3);
  }
}

TEST(Cond, OperatorsBuildInTheBranchOfWhatTheyAreGiven) {
  Scope s;
  const Output x = Number(s, "x"), pred = Less(s, x, Const(s, 0.0));
  const Output y = Cond(
      s, pred,
      [&](const Scope& t) {
        const Output inside = Neg(t, x);
        return 3.0 * x + inside;  // x is outside, `inside` decides
      },
      [&](const Scope&) { return x; });
  ASSERT_OK(s.status());
  EXPECT_EQ(Run1(s, {{x, Tensor::Scalar(-2.0)}}, y).scalar<double>(), -4);
}

TEST(Cond, IsTheNodesOfTensorFlow) {
  Scope s;
  const Output x = Number(s, "x");
  Cond(
      s, Less(s, x, Const(s, 0.0)), [&](const Scope& t) { return Neg(t.WithName("minus"), x); },
      [&](const Scope& t) { return Const(t.WithName("zero"), 0.0); });
  ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef def, s.ToGraphDef());
  std::map<std::string, tensorflow::NodeDef> nodes;
  for (const auto& node : def.node()) nodes[node.name()] = node;
  EXPECT_EQ(nodes["cond/Switch"].op(), "Switch");
  EXPECT_EQ(nodes["cond/switch_t"].input(0), "cond/Switch:1");
  EXPECT_EQ(nodes["cond/switch_f"].input(0), "cond/Switch");
  EXPECT_EQ(nodes["cond/pred_id"].input(0), "Less");
  EXPECT_EQ(nodes["cond/minus/Switch"].input(0), "x");
  EXPECT_EQ(nodes["cond/minus/Switch"].input(1), "cond/pred_id");
  EXPECT_EQ(nodes["cond/minus"].input(0), "cond/minus/Switch:1");
  EXPECT_EQ(nodes["cond/zero"].input(0), "^cond/switch_f");
  EXPECT_EQ(nodes["cond/Merge"].input(0), "cond/zero");
  EXPECT_EQ(nodes["cond/Merge"].input(1), "cond/minus");
  const auto& contexts = s.collections()->at("cond_context").bytes_list();
  ASSERT_EQ(contexts.value_size(), 2);
  tensorflow::CondContextDef context;
  ASSERT_TRUE(context.ParseFromString(contexts.value(0)));
  EXPECT_EQ(context.context_name(), "cond/cond_text");
  EXPECT_EQ(context.pred_name(), "cond/pred_id:0");
  EXPECT_EQ(context.pivot_name(), "cond/switch_t:0");
  EXPECT_EQ(context.branch(), 1);
  EXPECT_EQ(context.values_def().external_values().at("x:0"), "cond/minus/Switch:1");
  // Asking again writes them once.
  EXPECT_EQ(s.collections()->at("cond_context").bytes_list().value_size(), 2);
}

TEST(Cond, MayStandInItself) {
  Scope s;
  const Output x = Number(s, "x");
  const Output y = Cond(
      s, Less(s, x, Const(s, 0.0)), [&](const Scope& t) { return Neg(t, x); },
      [&](const Scope& t) {
        return Cond(
            t, Less(t, x, Const(t, 10.0)), [&](const Scope& u) { return Add(u, x, x); },
            [&](const Scope&) { return x; });
      });
  for (const auto& [in, want] :
       {std::pair(-3.0, 3.0), std::pair(4.0, 8.0), std::pair(40.0, 40.0)}) {
    EXPECT_EQ(Run1(s, {{x, Tensor::Scalar(in)}}, y).scalar<double>(), want);
  }
}

TEST(Cond, MakesVariablesOutsideOfItself) {
  Scope s;
  const Output x = Placeholder(s.WithName("x"), DT_FLOAT, {2, 3});
  const Output pred = Placeholder(s.WithName("pred"), DT_BOOL, PartialShape::Scalar());
  const Output y = Cond(
      s, pred,
      [&](const Scope& t) -> Output {
        return Dense(t, x, 1, {.kernel_initializer = OnesInitializer()});
      },
      [&](const Scope& t) { return Sum(t, x, Const<int32_t>(t, {1}), {.keep_dims = true}); });
  ASSERT_OK(s.status());
  for (const bool p : {true, false}) {
    ExpectTensorEqual(
        Run1(s, {{x, Tensor::Of<float>({{1, 2, 3}, {4, 5, 6}})}, {pred, Tensor::Scalar(p)}}, y),
        TensorOf<float>({2, 1}, {6, 15}));
  }
}

TEST(Case, TakesTheFirstThatIsTrue) {
  Scope s;
  const Output x = Number(s, "x");
  const auto number = [](double n) { return [n](const Scope& t) { return Outputs{Const(t, n)}; }; };
  const Outputs y = Case(s,
                         {{Less(s, x, Const(s, 0.0)), number(1)},
                          {Less(s, x, Const(s, 10.0)), number(2)},
                          {Less(s, x, Const(s, 20.0)), number(3)}},
                         number(4));
  ASSERT_OK(s.status());
  for (const auto& [in, want] :
       {std::pair(-3.0, 1.0), std::pair(4.0, 2.0), std::pair(14.0, 3.0), std::pair(40.0, 4.0)}) {
    EXPECT_EQ(Run1(s, {{x, Tensor::Scalar(in)}}, y[0]).scalar<double>(), want);
  }
}

TEST(Case, RefusesTwoThatAreTrueWhereTheyAreExclusive) {
  Scope s;
  const Output x = Number(s, "x");
  const auto number = [](double n) { return [n](const Scope& t) { return Outputs{Const(t, n)}; }; };
  const Outputs y =
      Case(s, {{Less(s, x, Const(s, 0.0)), number(1)}, {Less(s, x, Const(s, 10.0)), number(2)}},
           number(4), {.exclusive = true});
  EXPECT_EQ(Run1(s, {{x, Tensor::Scalar(4.0)}}, y[0]).scalar<double>(), 2);
  EXPECT_STATUS(RunInitialized(s, {{x, Tensor::Scalar(-4.0)}}, {y[0]}), kInvalid,
                "more than 1 conditions evaluated as True");
}

TEST(Cond, RefusesWhatIsNotLegal) {
  const auto one = [](const Scope& t) { return Const(t, 1.0); };
  ExpectBadCalls({
      {[&](const Scope& s) { return Cond(s, Const(s, 1), one, one); },
       "Cond 'm/cond': pred must be a bool scalar, got int32[]"},
      {[&](const Scope& s) { return Cond(s, Const<bool>(s, {true}), one, one); },
       "pred must be a bool scalar, got bool[1]"},
      {[&](const Scope& s) { return Cond(s, Output(), one, one); },
       "pred[0] must be a tensor, got an invalid Output"},
      {[&](const Scope& s) {
         return Cond(s, Const(s, true), one, [](const Scope& t) { return Const(t, 1); });
       },
       "then and otherwise must give tensors of one type for [0], got double and int32"},
      {[&](const Scope& s) {
         const Outputs out = Cond(
             s, Const(s, true), [](const Scope& t) { return Outputs{Const(t, 1.0)}; },
             [](const Scope&) { return Outputs{}; });
         return out.empty() ? Output() : out[0];
       },
       "then and otherwise must give as many tensors, got 1 and 0"},
      {[&](const Scope& s) {
         return Cond(s, Const(s, true), one, [](const Scope&) { return Output(); });
       },
       "otherwise must give a tensor for [0], got an invalid Output"},
      {[&](const Scope& s) {
         // What a branch has made is used beside it.
         Output leaked;
         Cond(
             s, Const(s, true),
             [&](const Scope& t) {
               leaked = Const(t.WithName("leaked"), 1.0);
               return leaked;
             },
             one);
         return Neg(s, leaked);
       },
       "Neg 'm/Neg': input 0 must be outside of all branches and loops, got 'm/cond/leaked:0' of "
       "branch 'm/cond/cond_text'; build with the Scope that the branch or body was given"},
      {[&](const Scope& s) {
         Output leaked;
         return Cond(
             s, Const(s, true),
             [&](const Scope& t) {
               leaked = Const(t.WithName("leaked"), 1.0);
               return leaked;
             },
             [&](const Scope& t) { return Neg(t, leaked); });
       },
       "must be of branch 'm/cond/cond_text_1' or around it, got 'm/cond/leaked:0' of branch "
       "'m/cond/cond_text'; return it from there"},
  });
}

// --- WhileLoop -----------------------------------------------------------------------------------

// x * base^n by n multiplications.
Output Power(const Scope& s, const Output& base, int n, const WhileLoopAttrs& attrs = {}) {
  const Outputs out = WhileLoop(
      s, {Const(s, 0), Const(s, 1.0)},
      [&](const Scope& c, const Outputs& v) { return Less(c, v[0], Const(c, n)); },
      [&](const Scope& b, const Outputs& v) {
        return Outputs{Add(b, v[0], Const(b, 1)), Mul(b, v[1], base)};
      },
      attrs);
  return out.empty() ? Output() : out[1];
}

TEST(WhileLoop, RunsAsOftenAsTheConditionSays) {
  Scope s;
  const Output x = Number(s, "x");
  const Output none = Power(s, x, 0), many = Power(s, x, 5);
  ASSERT_OK(s.status());
  EXPECT_EQ(s.shape(many).ToString(), "[]");
  EXPECT_EQ(Run1(s, {{x, Tensor::Scalar(2.0)}}, none).scalar<double>(), 1);
  EXPECT_EQ(Run1(s, {{x, Tensor::Scalar(2.0)}}, many).scalar<double>(), 32);
}

TEST(WhileLoop, EndsAtMaximumIterations) {
  Scope s;
  const Output x = Number(s, "x"), limit = Placeholder(s, DT_INT32, PartialShape::Scalar());
  const Output y = Power(s, x, 100, {.maximum_iterations = limit, .parallel_iterations = 1});
  EXPECT_EQ(Run1(s, {{x, Tensor::Scalar(2.0)}, {limit, Tensor::Scalar(3)}}, y).scalar<double>(), 8);
}

TEST(WhileLoop, TakesWhatIsAroundItAndPassesOnWhatDoesNotChange) {
  Scope s;
  const Output x = Number(s, "x"), step = Number(s, "step");
  // A variable that stays, one that becomes what is around the loop, a constant from outside.
  const Output outside = Const(s, 4);
  const Outputs out = WhileLoop(
      s, {Const(s, 0), x, x},
      [&](const Scope& c, const Outputs& v) { return Less(c, v[0], outside); },
      [&](const Scope& b, const Outputs& v) {
        return Outputs{Add(b, v[0], Const(b, 1)), v[1], step};
      });
  ASSERT_OK(s.status());
  ASSERT_OK_AND_ASSIGN(const auto got,
                       RunInitialized(s, {{x, Tensor::Scalar(7.0)}, {step, Tensor::Scalar(2.0)}},
                                      {out[0], out[1], out[2]}));
  EXPECT_EQ(got[0].scalar<int32_t>(), 4);
  EXPECT_EQ(got[1].scalar<double>(), 7);
  EXPECT_EQ(got[2].scalar<double>(), 2);
}

TEST(WhileLoop, MayBeNestedAndHoldConditions) {
  Scope s;
  const Output n = Placeholder(s.WithName("n"), DT_INT32, PartialShape::Scalar());
  const Output one = Const(s, 1);
  // The sum over i < n of (i even ? the sum over j < i of j : i).
  const Outputs out = WhileLoop(
      s, {Const(s, 0), Const(s, 0)},
      [&](const Scope& c, const Outputs& v) { return Less(c, v[0], n); },
      [&](const Scope& b, const Outputs& v) {
        const Output is_even = Equal(b, FloorMod(b, v[0], Const(b, 2)), Const(b, 0));
        const Output add = Cond(
            b, is_even,
            [&](const Scope& t) {
              return WhileLoop(
                  t, {Const(t, 0), Const(t, 0)},
                  [&](const Scope& c, const Outputs& w) { return Less(c, w[0], v[0]); },
                  [&](const Scope& d, const Outputs& w) {
                    return Outputs{Add(d, w[0], one), Add(d, w[1], w[0])};
                  })[1];
            },
            [&](const Scope&) { return v[0]; });
        return Outputs{Add(b, v[0], one), Add(b, v[1], add)};
      });
  ASSERT_OK(s.status());
  for (const int size : {0, 1, 6, 9}) {
    int want = 0;
    for (int i = 0; i < size; ++i) want += i % 2 == 0 ? i * (i - 1) / 2 : i;
    EXPECT_EQ(Run1(s, {{n, Tensor::Scalar(size)}}, out[1]).scalar<int32_t>(), want) << size;
  }
}

TEST(WhileLoop, ShapesMayVaryWhereInvariantsAllowIt) {
  Scope s;
  const Output x = Const<float>(s, {1, 2});
  const Outputs out = WhileLoop(
      s, {Const(s, 0), x},
      [&](const Scope& c, const Outputs& v) { return Less(c, v[0], Const(c, 3)); },
      [&](const Scope& b, const Outputs& v) {
        return Outputs{Add(b, v[0], Const(b, 1)), ConcatV2(b, {v[1], v[1]}, Const(b, 0))};
      },
      {.shape_invariants = {PartialShape::Scalar(), PartialShape({-1})}});
  ASSERT_OK(s.status());
  EXPECT_EQ(s.shape(out[1]).ToString(), "[?]");
  EXPECT_EQ(Run1(s, {}, out[1]).num_elements(), 16);
}

TEST(WhileLoop, WaitsForWhatItsScopeWaitsFor) {
  Scope s;
  const Variable v = MakeVariable(s.WithName("v"), Const(s, 1.0));
  const Operation assign = AssignVariableOp(s, v.handle, Const(s, 5.0));
  const Scope after = s.WithControlDependencies({assign});
  const Outputs out = WhileLoop(
      after, {Const(s, 0), Const(s, 0.0)},
      [&](const Scope& c, const Outputs& w) { return Less(c, w[0], Const(c, 2)); },
      [&](const Scope& b, const Outputs& w) {
        return Outputs{Add(b, w[0], Const(b, 1)),
                       Add(b, w[1], ReadVariableOp(b, v.handle, DT_DOUBLE))};
      });
  EXPECT_EQ(Run1(s, {}, out[1]).scalar<double>(), 10);
}

TEST(WhileLoop, ControlInputsFromAroundItHoldInEachIteration) {
  Scope s;
  const Variable v = MakeVariable(s.WithName("v"), Const(s, 1.0));
  const Operation assign = AssignVariableOp(s, v.handle, Const(s, 5.0));
  const Outputs out = WhileLoop(
      s, {Const(s, 0), Const(s, 0.0)},
      [&](const Scope& c, const Outputs& w) { return Less(c, w[0], Const(c, 2)); },
      [&](const Scope& b, const Outputs& w) {
        const Scope after = b.WithControlDependencies({assign});
        return Outputs{Add(b, w[0], Const(b, 1)),
                       Add(b, w[1], ReadVariableOp(after, v.handle, DT_DOUBLE))};
      });
  ASSERT_OK(s.status());
  EXPECT_EQ(Run1(s, {}, out[1]).scalar<double>(), 10);
}

TEST(WhileLoop, IsTheNodesOfTensorFlow) {
  Scope s;
  const Output x = Number(s, "x");
  Power(s, x, 5);
  ASSERT_OK_AND_ASSIGN(const tensorflow::GraphDef def, s.ToGraphDef());
  std::map<std::string, tensorflow::NodeDef> nodes;
  for (const auto& node : def.node()) nodes[node.name()] = node;
  EXPECT_EQ(nodes["while/Enter"].attr().at("frame_name").s(), "while/while_context");
  EXPECT_EQ(nodes["while/Enter_1"].input(0), "Const_1");
  EXPECT_EQ(nodes["while/Merge"].input(0), "while/Enter");
  EXPECT_EQ(nodes["while/Merge"].input(1), "while/NextIteration");
  EXPECT_EQ(nodes["while/LoopCond"].input(0), "while/Less");
  EXPECT_EQ(nodes["while/Switch_1"].input(1), "while/LoopCond");
  EXPECT_EQ(nodes["while/Identity"].input(0), "while/Switch:1");
  EXPECT_EQ(nodes["while/Mul/Enter"].attr().at("is_constant").b(), true);
  EXPECT_EQ(nodes["while/Mul"].input(1), "while/Mul/Enter");
  EXPECT_EQ(nodes["while/Exit_1"].input(0), "while/Switch_1");
  const auto& contexts = s.collections()->at("while_context").bytes_list();
  ASSERT_EQ(contexts.value_size(), 1);
  tensorflow::WhileContextDef context;
  ASSERT_TRUE(context.ParseFromString(contexts.value(0)));
  EXPECT_EQ(context.context_name(), "while/while_context");
  EXPECT_EQ(context.parallel_iterations(), 10);
  EXPECT_TRUE(context.back_prop());
  EXPECT_EQ(context.pivot_name(), "while/LoopCond:0");
  EXPECT_EQ(context.pivot_for_pred_name(), "while/Merge:0");
  EXPECT_EQ(context.pivot_for_body_name(), "while/Identity:0");
  ASSERT_EQ(context.loop_exit_names_size(), 2);
  EXPECT_EQ(context.loop_exit_names(1), "while/Exit_1:0");
  ASSERT_EQ(context.loop_enter_names_size(), 2);
  EXPECT_EQ(context.loop_enter_names(0), "while/Enter:0");
  EXPECT_EQ(context.values_def().external_values().at("x:0"), "while/Mul/Enter:0");
}

TEST(WhileLoop, RefusesWhatIsNotLegal) {
  const auto forever = [](const Scope& c, const Outputs&) { return Const(c, true); };
  const auto same = [](const Scope&, const Outputs& v) { return v; };
  const auto first = [](const Outputs& out) { return out.empty() ? Output() : out[0]; };
  ExpectBadCalls({
      {[&](const Scope& s) { return first(WhileLoop(s, {}, forever, same)); },
       "WhileLoop 'm/while': there must be a variable, got none"},
      {[&](const Scope& s) {
         return first(WhileLoop(s, {Const(s, 1)}, forever, same, {.parallel_iterations = 0}));
       },
       "parallel_iterations must be >= 1, got 0"},
      {[&](const Scope& s) {
         return first(WhileLoop(
             s, {Const(s, 1)}, [](const Scope& c, const Outputs&) { return Const(c, 1); }, same));
       },
       "condition must give a bool scalar, got int32[]"},
      {[&](const Scope& s) {
         return first(WhileLoop(s, {Const(s, 1)}, forever,
                                [](const Scope&, const Outputs&) { return Outputs{}; }));
       },
       "body must give a value for each of the 1 variables, got 0"},
      {[&](const Scope& s) {
         return first(WhileLoop(s, {Const(s, 1)}, forever, [](const Scope& b, const Outputs&) {
           return Outputs{Const(b, 1.0)};
         }));
       },
       "variable 0 must keep its type int32, got double from 'm/while/Const_1:0' after one "
       "iteration"},
      {[&](const Scope& s) {
         return first(
             WhileLoop(s, {Const<float>(s, {1})}, forever, [](const Scope& b, const Outputs& v) {
               return Outputs{ConcatV2(b, {v[0], v[0]}, Const(b, 0))};
             }));
       },
       "It must keep its shape [1], got [2] after one iteration"},
      {[&](const Scope& s) {
         return first(WhileLoop(s, {Const<float>(s, {1})}, forever, same,
                                {.shape_invariants = {PartialShape({2})}}));
       },
       "shape_invariants[0] must allow the variable's shape at the beginning, [1] of "
       "'m/Const:0', got [2]"},
      {[&](const Scope& s) {
         Output leaked;
         WhileLoop(s, {Const(s, 1)}, forever, [&](const Scope& b, const Outputs& v) {
           leaked = Neg(b.WithName("leaked"), v[0]);
           return Outputs{leaked};
         });
         return Neg(s, leaked);
       },
       "got 'm/while/leaked:0' of loop 'm/while/while_context'; build with the Scope"},
      {[&](const Scope& s) {
         // The scope around the loop instead of the one that the body is given.
         return first(WhileLoop(s, {Const(s, 1)}, forever, [&](const Scope&, const Outputs& v) {
           return Outputs{Neg(s, v[0])};
         }));
       },
       "Neg 'm/Neg': input 0 must be outside of all branches and loops, got 'm/while/Identity:0'"},
  });
}

// --- Loops over rows -----------------------------------------------------------------------------

TEST(MapFn, GivesARowForEachRow) {
  Scope s;
  const Output x = Placeholder(s.WithName("x"), DT_DOUBLE, {-1, 2});
  const Output y = MapFn(s, x, [](const Scope& t, const Output& row) { return ReduceSum(t, row); });
  const Outputs two =
      MapFn(s, Outputs{x, Const<double>(s, {10, 20, 30})}, [](const Scope& t, const Outputs& row) {
        return Outputs{Mul(t, row[0], row[1]), Cast(t, row[1], DT_INT32)};
      });
  ASSERT_OK(s.status());
  EXPECT_EQ(s.shape(two[0]).ToString(), "[3,2]");
  const Tensor rows = Tensor::Of<double>({{1, 2}, {3, 4}, {5, 6}});
  ASSERT_OK_AND_ASSIGN(const auto out, RunInitialized(s, {{x, rows}}, {y, two[0], two[1]}));
  ExpectTensorEqual(out[0], Tensor::Of<double>({3, 7, 11}));
  ExpectTensorEqual(out[1], Tensor::Of<double>({{10, 20}, {60, 80}, {150, 180}}));
  ExpectTensorEqual(out[2], Tensor::Of<int32_t>({10, 20, 30}));
}

TEST(Scan, GivesAllThatTheFoldHasBeen) {
  Scope s;
  const Output x = Const<double>(s, {1, 2, 3, 4});
  const auto add = [](const Scope& t, const Outputs& a, const Outputs& e) {
    return Outputs{Add(t, Mul(t, a[0], Const(t, 10.0)), e[0])};
  };
  const Outputs initial = {Const(s, 0.0)};
  const Outputs up = Scan(s, {x}, initial, add);
  const Outputs down = Scan(s, {x}, initial, add, {.reverse = true});
  const Outputs left = FoldL(s, {x}, initial, add), right = FoldR(s, {x}, initial, add);
  ASSERT_OK(s.status());
  ASSERT_OK_AND_ASSIGN(const auto out, RunInitialized(s, {}, {up[0], down[0], left[0], right[0]}));
  ExpectTensorEqual(out[0], Tensor::Of<double>({1, 12, 123, 1234}));
  ExpectTensorEqual(out[1], Tensor::Of<double>({4321, 432, 43, 4}));
  EXPECT_EQ(out[2].scalar<double>(), 1234);
  EXPECT_EQ(out[3].scalar<double>(), 4321);
}

TEST(LoopsOverRows, AcceptNoRows) {
  Scope s;
  const Output x = Placeholder(s.WithName("x"), DT_DOUBLE, {-1, 2});
  const Outputs sum = FoldL(s, {x}, {Const<double>(s, {7, 7})},
                            [](const Scope& t, const Outputs& a, const Outputs& e) {
                              return Outputs{Add(t, a[0], e[0])};
                            });
  const Output y = MapFn(s, x, [](const Scope& t, const Output& row) { return Neg(t, row); });
  ASSERT_OK(s.status());
  const Tensor none = TensorOf<double>({0, 2}, {});
  ASSERT_OK_AND_ASSIGN(const auto out, RunInitialized(s, {{x, none}}, {sum[0], y}));
  ExpectTensorEqual(out[0], Tensor::Of<double>({7, 7}));
  ExpectTensorEqual(out[1], none);
}

TEST(LoopsOverRows, RefuseWhatIsNotLegal) {
  const auto same = [](const Scope&, const Output& row) { return row; };
  const auto keep = [](const Scope&, const Outputs& a, const Outputs&) { return a; };
  const auto first = [](const Outputs& out) { return out.empty() ? Output() : out[0]; };
  ExpectBadCalls({
      {[&](const Scope& s) { return MapFn(s, Const(s, 1), same); },
       "MapFn 'm/map': rows[0] must have rank >= 1, got the scalar 'm/Const:0'"},
      {[&](const Scope& s) { return MapFn(s, Output(), same); },
       "rows[0] must be a tensor, got an invalid Output"},
      {[&](const Scope& s) {
         return first(MapFn(s, Outputs{Const<float>(s, {1}), Const<float>(s, {1, 2})},
                            [](const Scope&, const Outputs& e) { return e; }));
       },
       "rows must have equal first dimensions, got 1 and 2 of 'm/Const_1:0'"},
      {[&](const Scope& s) { return first(Scan(s, {Const<float>(s, {1})}, {}, keep)); },
       "Scan 'm/scan': there must be an initial tensor, got none"},
      {[&](const Scope& s) {
         return first(
             FoldL(s, {Const<float>(s, {1})}, {Const(s, 1)},
                   [](const Scope&, const Outputs&, const Outputs&) { return Outputs{}; }));
       },
       "the function must give as many tensors as initial (1), got 0"},
  });
}

// --- TensorArray ---------------------------------------------------------------------------------

TEST(TensorArray, IsFilledInALoopAndReadBehindIt) {
  Scope s;
  const Output n = Const(s, 5), one = Const(s, 1);
  const TensorArray squares(s, DT_INT32, n);
  const Outputs out = WhileLoop(
      s, {Const(s, 0), squares.flow()},
      [&](const Scope& c, const Outputs& v) { return Less(c, v[0], n); },
      [&](const Scope& b, const Outputs& v) {
        return Outputs{Add(b, v[0], one),
                       squares.WithFlow(v[1]).Write(b, v[0], Mul(b, v[0], v[0])).flow()};
      });
  const TensorArray filled = squares.WithFlow(out[1]);
  const Output all = filled.Stack(s);
  ASSERT_OK(s.status());
  ExpectTensorEqual(Run1(s, {}, all), Tensor::Of<int32_t>({0, 1, 4, 9, 16}));
}

TEST(TensorArray, SplitsAndConcatenates) {
  Scope s;
  const Output rows = Const(s, Tensor::Of<float>({{1, 2}, {3, 4}, {5, 6}}));
  const TensorArray parts(s, DT_FLOAT, Const(s, 2), {.element_shape = {-1, 2}});
  const TensorArray split = parts.Split(s, rows, Const<int64_t>(s, {1, 2}));
  const Output all = split.Concat(s);
  ASSERT_OK(s.status());
  EXPECT_EQ(s.shape(all).ToString(), "[?,2]");
  ExpectTensorEqual(Run1(s, {}, all), Tensor::Of<float>({{1, 2}, {3, 4}, {5, 6}}));
}

// What a step of a loop is refused leaves the next step whole, and no memory behind.
TEST(TensorArray, IsRefusedInALoopByNameAndTheNextStepWorks) {
  constexpr int64_t kWidth = 1 << 16;
  Scope s;
  const Output rows = Const(s, *Tensor::Zeros(DT_FLOAT, Shape{4, kWidth}));
  const Output index = Placeholder(s.WithName("index"), DT_INT32, PartialShape::Scalar());
  const Output other = Placeholder(s.WithName("other"), DT_INT32, PartialShape::Scalar());
  const TensorArray array = TensorArray::OfRows(s.WithName("rows"), rows);
  const TensorArray kept(s.WithName("kept"), DT_FLOAT, Const(s, 4));
  // Reads `index` in iteration 0 and `other` in iteration 1, writes where it read.
  const auto pick = [&](const Scope& b, const Output& i) {
    return Select(b, Equal(b, i, Const(b, 0)), index, other);
  };
  const auto repeat = [&](const char* name, const std::function<Output(const Scope&, Output)>& f) {
    return WhileLoop(
        s.WithName(name), {Const(s, 0), Const(s, 0.0f)},
        [&](const Scope& c, const Outputs& v) { return Less(c, v[0], Const(c, 2)); },
        [&](const Scope& b, const Outputs& v) {
          return Outputs{Add(b, v[0], Const(b, 1)), Add(b, v[1], ReduceSum(b, f(b, v[0])))};
        })[1];
  };
  const Output reads =
      repeat("reads", [&](const Scope& b, Output i) { return array.Read(b, pick(b, i)); });
  const Output writes = repeat("writes", [&](const Scope& b, Output i) {
    const Output row = Fill(b, Const(b, {int32_t{kWidth}}), Const(b, 1.0f));
    return kept.Write(b, pick(b, i), row).flow();
  });
  const Output closed = repeat("closed", [&](const Scope& b, Output i) {
    return array.Read(b.WithControlDependencies({array.Close(b)}), pick(b, i));
  });
  const Output as_ints = repeat("as_ints", [&](const Scope& b, Output i) {
    return Cast(b, TensorArrayReadV3(b, array.handle(), pick(b, i), array.flow(), DT_INT32),
                DT_FLOAT);
  });
  ASSERT_OK_AND_ASSIGN(const auto session, InitializedSession(s));
  const auto feeds = [&](int32_t a, int32_t b) {
    return std::vector<Feed>{{index, Tensor::Scalar(a)}, {other, Tensor::Scalar(b)}};
  };
  ASSERT_OK(session->Run(feeds(0, 1), {reads, writes}));
  // Each of them is compiled, which keeps constants.
  for (const Output& y : {reads, writes, closed, as_ints}) {
    static_cast<void>(session->Run(feeds(0, 1), {y}));
  }
  const int64_t before = DefaultAllocatorStats().bytes_in_use;
  struct Case {
    const Output& y;
    int32_t index, other;
    const char* message;
  };
  const Case cases[] = {
      {reads, 1, 1, "Could not read index 1 twice because it was cleared after a previous read"},
      {reads, 0, 4, "Tried to read from index 4 but array size is: 4"},
      {reads, -1, 0, "Tried to read from index -1 but array size is: 4"},
      {writes, 2, 2, "Could not write to TensorArray index 2 because it has already been written"},
      {writes, 3, 4, "Tried to write to index 4 but array is not resizeable and size is: 4"},
      {closed, 0, 1, "has already been closed"},
      {as_ints, 0, 1, "TensorArray dtype is float but Op "},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    const auto failed = session->Run(feeds(c.index, c.other), {c.y});
    ASSERT_FALSE(failed.ok());
    EXPECT_THAT(std::string(failed.status().message()), testing::HasSubstr(c.message));
    EXPECT_LT(DefaultAllocatorStats().bytes_in_use, before + kWidth);
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run(feeds(3, 2), {reads, writes}));
    EXPECT_EQ(out[0].scalar<float>(), 0);
  }
}

}  // namespace
}  // namespace millrace
