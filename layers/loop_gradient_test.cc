// SPDX-License-Identifier: Apache-2.0
//
// Gradients of loops and conditionals, alone and in each other, equal finite differences.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/function_builder.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "graph/import_export.h"
#include "gtest/gtest.h"
#include "layers/control_flow.h"
#include "layers/tensor_array.h"
#include "layers/testing/layer_test.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "proto/graph.pb.h"
#include "runtime/session.h"

// covers: graphs: gradients of branches and loops, nested up to three deep, over tensor arrays and
//   lists, of unknown shapes, of graphs from files, agree with finite differences; a table's are
//   slices

namespace millrace {
namespace {

using Outputs = std::vector<Output>;

Output Input(const Scope& s, const char* name, const PartialShape& shape) {
  return Placeholder(s.WithName(name), DT_DOUBLE, shape);
}
Output Number(const Scope& s, const char* name) { return Input(s, name, PartialShape::Scalar()); }
Output Int(const Scope& s, int32_t value) { return Const(s, value); }

// `state` after n (an int32 scalar) times `step(scope, i, state)`.
Outputs Repeat(const Scope& s, const Output& n, const Outputs& state,
               const std::function<Outputs(const Scope&, const Output& i, const Outputs&)>& step,
               const WhileLoopAttrs& attrs = {}) {
  Outputs variables = {Int(s, 0)};
  variables.insert(variables.end(), state.begin(), state.end());
  Outputs out = WhileLoop(
      s, variables, [&](const Scope& c, const Outputs& v) { return Less(c, v[0], n); },
      [&](const Scope& b, const Outputs& v) {
        Outputs next = step(b, v[0], Outputs(v.begin() + 1, v.end()));
        next.insert(next.begin(), Add(b, v[0], Int(b, 1)));
        return next;
      },
      attrs);
  if (!out.empty()) out.erase(out.begin());
  return out;
}

const Tensor kX = Tensor::Of<double>({{0.5, -1.5, 0.3}, {1.1, 0.7, -0.4}});
const Tensor kW = Tensor::Of<double>({{0.3, -0.2, 0.5}, {0.9, 0.1, -0.7}, {-0.6, 0.8, 0.2}});

// --- Loops ---------------------------------------------------------------------------------------

TEST(LoopGradient, OfWhatChangesAndOfWhatEveryIterationGets) {
  for (const int n : {0, 1, 4}) {
    for (const int64_t parallel : {1, 10}) {
      Scope s;
      const Output x = Input(s, "x", {2, 3}), w = Input(s, "w", {3, 3});
      const Outputs y = Repeat(s, Int(s, n), {Mul(s, x, Const(s, 1.5))},
                               [&](const Scope& b, const Output&, const Outputs& v) {
                                 return Outputs{Tanh(b, MatMul(b, v[0], w))};
                               },
                               {.parallel_iterations = parallel});
      ASSERT_OK(s.status());
      const auto gradients = AddGradients(s, {y[0]}, {x, w});
      ASSERT_OK(gradients);
      SCOPED_TRACE(n);
      ExpectLayerGradientsMatch(s, y[0], {{x, kX}, {w, kW}});
    }
  }
}

TEST(LoopGradient, OfALoopWhoseLengthIsFed) {
  Scope s;
  const Output x = Number(s, "x"),
               n = Placeholder(s.WithName("n"), DT_INT32, PartialShape::Scalar());
  const Output y = Repeat(
      s, n, {Const(s, 1.0)},
      [&](const Scope& b, const Output&, const Outputs& v) { return Outputs{Mul(b, v[0], x)}; })[0];
  ASSERT_OK_AND_ASSIGN(const auto gradients, AddGradients(s, {y}, {x}));
  const Output dx = DenseGradient(s, gradients[0]);
  for (const int count : {0, 1, 2, 7}) {
    ASSERT_OK_AND_ASSIGN(
        const auto out,
        RunInitialized(s, {{x, Tensor::Scalar(2.0)}, {n, Tensor::Scalar(count)}}, {y, dx}));
    EXPECT_EQ(out[0].scalar<double>(), std::pow(2.0, count));
    EXPECT_EQ(out[1].scalar<double>(), count == 0 ? 0 : count * std::pow(2.0, count - 1));
  }
}

// Iterations may overlap: a value is pushed, and popped, before the count of its loop goes on, or
// the next iteration could come first and take that of another. No run shows it for certain.
TEST(LoopGradient, KeepsTheOrderOfItsStacksByTheCountOfTheLoop) {
  Scope s;
  const Output x = Input(s, "x", {2, 3}), w = Input(s, "w", {3, 3});
  const Output y = Repeat(s, Int(s, 4), {x}, [&](const Scope& b, const Output&, const Outputs& v) {
    return Outputs{Tanh(b, MatMul(b, Square(b, v[0]), w))};
  })[0];
  ASSERT_OK(AddGradients(s, {y}, {x, w}));
  const auto waits_for = [](const Node& node, const Node* other) {
    for (const Node* const control : node.control_inputs()) {
      if (control == other) return true;
    }
    return false;
  };
  int pushes = 0, pops = 0;
  for (const auto& node : s.graph()->nodes()) {
    if (node == nullptr || (node->op() != "StackPushV2" && node->op() != "StackPopV2")) continue;
    (node->op() == "StackPushV2" ? pushes : pops) += 1;
    bool holds_up = false;
    for (const auto& sync : s.graph()->nodes()) {
      if (sync == nullptr || sync->op() != "ControlTrigger" || !waits_for(*sync, node.get())) {
        continue;
      }
      for (const auto& next : s.graph()->nodes()) {
        holds_up |=
            next != nullptr && next->op() == "NextIteration" && waits_for(*next, sync.get());
      }
    }
    EXPECT_TRUE(holds_up) << node->name();
  }
  EXPECT_GE(pushes, 2);
  EXPECT_EQ(pops, pushes);
}

TEST(LoopGradient, OfVariablesThatDependOnEachOther) {
  Scope s;
  const Output x = Input(s, "x", {2, 3}), z = Input(s, "z", {2, 3});
  // The second goes into the first, the third counts for nothing, one is passed on as it is.
  const Outputs y =
      Repeat(s, Int(s, 3), {x, z, x, z}, [&](const Scope& b, const Output& i, const Outputs& v) {
        const Output weight = Cast(b, i, DT_DOUBLE);
        return Outputs{Add(b, v[0], Mul(b, v[1], weight)), Mul(b, v[1], v[0]), Sin(b, v[2]), v[3]};
      });
  const Output loss = Add(s, y[0], Mul(s, y[3], y[3]));
  ExpectLayerGradientsMatch(
      s, loss, {{x, kX}, {z, Tensor::Of<double>({{1.0, 2.0, 3.0}, {-1.0, 0.5, 2.0}})}});
}

TEST(LoopGradient, WhereShapesAreNotKnown) {
  Scope s;
  const Output x = Input(s, "x", {-1, 3}), w = Input(s, "w", {3, -1});
  const Outputs y = Repeat(s, Int(s, 3), {x},
                           [&](const Scope& b, const Output&, const Outputs& v) {
                             // Broadcasting, a reduction: what asks for shapes.
                             const Output sum =
                                 Sum(b, v[0], Const<int32_t>(b, {1}), {.keep_dims = true});
                             return Outputs{Mul(b, MatMul(b, v[0], w), Sigmoid(b, sum))};
                           },
                           {.shape_invariants = {PartialShape::Scalar(), PartialShape({-1, -1})}});
  ASSERT_OK(s.status());
  s.SetShape(y[0], {2, 3});
  ExpectLayerGradientsMatch(s, y[0], {{x, kX}, {w, kW}});
}

TEST(LoopGradient, WhereShapesVary) {
  Scope s;
  const Output x = Input(s, "x", {1, 2});
  const Outputs y = Repeat(s, Int(s, 3), {x},
                           [&](const Scope& b, const Output&, const Outputs& v) {
                             return Outputs{ConcatV2(b, {v[0], Square(b, v[0])}, Int(b, 0))};
                           },
                           {.shape_invariants = {PartialShape::Scalar(), PartialShape({-1, 2})}});
  s.SetShape(y[0], {8, 2});
  ExpectLayerGradientsMatch(s, y[0], {{x, Tensor::Of<double>({{0.9, -1.1}})}});
}

TEST(LoopGradient, OfLoopsInLoops) {
  Scope s;
  const Output x = Input(s, "x", {2, 3}), w = Input(s, "w", {3, 3});
  // The inner loop runs i times; it uses what is of the outer iteration and what is around both.
  const Outputs y =
      Repeat(s, Int(s, 4), {x}, [&](const Scope& b, const Output& i, const Outputs& v) {
        const Output scaled = Mul(b, v[0], Const(b, 0.7));
        const Outputs inner =
            Repeat(b, i, {scaled}, [&](const Scope& c, const Output& j, const Outputs& u) {
              const Output mixed =
                  Add(c, MatMul(c, u[0], w), Mul(c, scaled, Cast(c, j, DT_DOUBLE)));
              return Outputs{Tanh(c, mixed)};
            });
        return Outputs{Add(b, inner[0], v[0])};
      });
  ASSERT_OK(s.status());
  ExpectLayerGradientsMatch(s, y[0], {{x, kX}, {w, kW}});
}

TEST(LoopGradient, OfLoopsThreeDeep) {
  Scope s;
  const Output x = Number(s, "x"), w = Number(s, "w");
  const Outputs y = Repeat(s, Int(s, 2), {x}, [&](const Scope& a, const Output&, const Outputs& v) {
    return Repeat(a, Int(a, 3), v, [&](const Scope& b, const Output& i, const Outputs& u) {
      return Repeat(b, i, u, [&](const Scope& c, const Output&, const Outputs& t) {
        return Outputs{Sin(c, Mul(c, t[0], w))};
      });
    });
  });
  ExpectLayerGradientsMatch(s, y[0], {{x, Tensor::Scalar(0.8)}, {w, Tensor::Scalar(1.3)}});
}

TEST(LoopGradient, TwiceOfOneLoop) {
  Scope s;
  const Output x = Number(s, "x");
  const Output y = Repeat(s, Int(s, 3), {x}, [&](const Scope& b, const Output&, const Outputs& v) {
    return Outputs{Mul(b, v[0], Sin(b, v[0]))};
  })[0];
  ASSERT_OK_AND_ASSIGN(const auto first, AddGradients(s, {y}, {x}));
  ASSERT_OK_AND_ASSIGN(const auto second, AddGradients(s, {Square(s, y)}, {x}));
  ASSERT_OK_AND_ASSIGN(
      const auto out, RunInitialized(s, {{x, Tensor::Scalar(1.2)}},
                                     {y, DenseGradient(s, first[0]), DenseGradient(s, second[0])}));
  EXPECT_NEAR(out[2].scalar<double>(), 2 * out[0].scalar<double>() * out[1].scalar<double>(),
              1e-12);
}

// --- Conditionals --------------------------------------------------------------------------------

TEST(CondGradient, OfEitherBranch) {
  for (const double limit : {-10.0, 10.0}) {
    Scope s;
    const Output x = Input(s, "x", {2, 3}), w = Input(s, "w", {3, 3});
    const Output y = Cond(
        s, Less(s, Const(s, 0.0), Const(s, limit)),
        [&](const Scope& t) { return Tanh(t, MatMul(t, x, w)); },
        [&](const Scope& t) { return Mul(t, x, x); });
    // w counts in one branch only: zeros in the other.
    ExpectLayerGradientsMatch(s, y, {{x, kX}, {w, kW}});
  }
}

TEST(CondGradient, OfTheSecondOrder) {
  for (const bool pred : {true, false}) {
    Scope s;
    const Output x = Input(s, "x", {2, 3});
    const Output y = Cond(
        s, Const(s, pred), [&](const Scope& t) { return Mul(t, x, Sin(t, x)); },
        [&](const Scope& t) { return Mul(t, Square(t, x), x); });
    ASSERT_OK_AND_ASSIGN(const auto first, AddGradients(s, {y}, {x}));
    ExpectLayerGradientsMatch(s, DenseGradient(s, first[0]), {{x, kX}});
  }
}

TEST(CondGradient, OfConditionalsInLoops) {
  Scope s;
  const Output x = Input(s, "x", {2, 3}), w = Input(s, "w", {3, 3}), u = Input(s, "u", {2, 3});
  const Outputs y =
      Repeat(s, Int(s, 5), {x}, [&](const Scope& b, const Output& i, const Outputs& v) {
        const Output is_even = Equal(b, FloorMod(b, i, Int(b, 2)), Int(b, 0));
        const Output next = Cond(
            b, is_even, [&](const Scope& t) { return Tanh(t, MatMul(t, Tanh(t, v[0]), w)); },
            [&](const Scope& t) {
              return Cond(
                  t, Less(t, i, Int(t, 2)), [&](const Scope& q) { return Mul(q, Sin(q, v[0]), u); },
                  [&](const Scope& q) { return Mul(q, Square(q, v[0]), Cos(q, v[0])); });
            });
        return Outputs{Add(b, next, v[0])};
      });
  ASSERT_OK(s.status());
  ExpectLayerGradientsMatch(
      s, y[0], {{x, kX}, {w, kW}, {u, Tensor::Of<double>({{1.0, 2.0, 3.0}, {-1.0, 0.5, 2.0}})}});
}

// Their values are kept by the call, which does not know that they may be dead.
TEST(CondGradient, OfConditionalsInFunctionsInLoops) {
  Scope s;
  const Output x = Input(s, "x", {2, 3});
  const DefinedFunction f =
      DefineFunction(s, "f", {DT_DOUBLE, DT_BOOL}, [](const Scope& t, const Outputs& v) {
        return Outputs{Cond(
            t, v[1], [&](const Scope& u) { return Mul(u, v[0], v[0]); },
            [&](const Scope& u) { return Sin(u, v[0]); })};
      });
  const Outputs y =
      Repeat(s, Int(s, 4), {x}, [&](const Scope& b, const Output& i, const Outputs& v) {
        return Call(b, f, {v[0], Equal(b, FloorMod(b, i, Int(b, 2)), Int(b, 1))});
      });
  ASSERT_OK(s.status());
  ExpectLayerGradientsMatch(s, y[0], {{x, kX}});
}

TEST(CondGradient, OfLoopsInConditionals) {
  for (const bool pred : {true, false}) {
    Scope s;
    const Output x = Input(s, "x", {2, 3}), w = Input(s, "w", {3, 3});
    const Output y = Cond(
        s, Const(s, pred),
        [&](const Scope& t) {
          return Repeat(t, Int(t, 3), {x}, [&](const Scope& b, const Output&, const Outputs& v) {
            return Outputs{Tanh(b, MatMul(b, v[0], w))};
          })[0];
        },
        [&](const Scope& t) { return MatMul(t, x, w); });
    ASSERT_OK(s.status());
    ExpectLayerGradientsMatch(s, y, {{x, kX}, {w, kW}});
  }
}

TEST(CondGradient, OfLoopsInConditionalsInLoops) {
  Scope s;
  const Output x = Input(s, "x", {2, 3}), w = Input(s, "w", {3, 3});
  const Outputs y =
      Repeat(s, Int(s, 4), {x}, [&](const Scope& b, const Output& i, const Outputs& v) {
        const Output is_odd = Equal(b, FloorMod(b, i, Int(b, 2)), Int(b, 1));
        const Output next = Cond(
            b, is_odd,
            [&](const Scope& t) {
              return Repeat(t, i, {v[0]}, [&](const Scope& c, const Output&, const Outputs& u) {
                return Outputs{Tanh(c, MatMul(c, u[0], w))};
              })[0];
            },
            [&](const Scope& t) { return Mul(t, v[0], Const(t, 1.1)); });
        return Outputs{Add(b, next, v[0])};
      });
  ASSERT_OK(s.status());
  ExpectLayerGradientsMatch(s, y[0], {{x, kX}, {w, kW}});
}

// --- Rows ----------------------------------------------------------------------------------------

TEST(LoopGradient, OfRowsOfATableComesAsSlices) {
  Scope s;
  const Output table = Input(s, "table", {4, 2});
  const Output y = Repeat(s, Int(s, 3), {Const(s, TensorOf<double>({2}, {0, 0}))},
                          [&](const Scope& b, const Output& i, const Outputs& v) {
                            const Output rows = Gather(b, table, Pack(b, {i, Int(b, 0)}));
                            return Outputs{Add(b, v[0], ReduceSum(b, Square(b, rows), {0}))};
                          })[0];
  ASSERT_OK_AND_ASSIGN(const auto gradients, AddGradients(s, {y}, {table}));
  EXPECT_TRUE(std::holds_alternative<IndexedSlices>(gradients[0]));
  ExpectLayerGradientsMatch(s, y, {{table, Tensor::Of<double>({{1, 2}, {3, 4}, {-5, 6}, {7, 8}})}});
}

TEST(LoopGradient, OfRowsOfAVariableComesAsSlices) {
  for (const int n : {3, 0}) {
    Scope s;
    const Variable table = MakeVariable(
        s.WithName("table"), Const(s, Tensor::Of<double>({{1, 2}, {3, 4}, {-5, 6}, {7, 8}})));
    const Output y = Repeat(s, Int(s, n), {Const(s, TensorOf<double>({2}, {0, 0}))},
                            [&](const Scope& b, const Output& i, const Outputs& v) {
                              const Output row = ResourceGather(b, table.handle, i, DT_DOUBLE);
                              return Outputs{Add(b, v[0], Mul(b, row, row))};
                            })[0];
    ASSERT_OK_AND_ASSIGN(const auto gradients, AddGradients(s, {y}, {table.handle}));
    ASSERT_TRUE(std::holds_alternative<IndexedSlices>(gradients[0]));
    const IndexedSlices slices = std::get<IndexedSlices>(gradients[0]);
    ASSERT_OK_AND_ASSIGN(const auto out,
                         RunInitialized(s, {}, {DenseGradient(s, gradients[0]), slices.indices}));
    ExpectTensorEqual(out[0], n == 3 ? Tensor::Of<double>({{2, 4}, {6, 8}, {-10, 12}, {0, 0}})
                                     : Tensor::Of<double>({{0, 0}, {0, 0}, {0, 0}, {0, 0}}));
    EXPECT_EQ(out[1].num_elements(), n);
  }
}

TEST(LoopGradient, OfAVariableThatTheBodyReads) {
  Scope s;
  const Variable w = MakeVariable(s.WithName("w"), Const(s, kW));
  const Output x = Input(s, "x", {2, 3});
  const Output y = Repeat(s, Int(s, 2), {x}, [&](const Scope& b, const Output&, const Outputs& v) {
    return Outputs{MatMul(b, v[0], ReadVariableOp(b, w.handle, DT_DOUBLE))};
  })[0];
  const Output direct = MatMul(s, MatMul(s, x, w.value), w.value);
  ASSERT_OK_AND_ASSIGN(const auto looped, AddGradients(s, {y}, {w.handle, x}));
  ASSERT_OK_AND_ASSIGN(const auto plain, AddGradients(s, {direct}, {w.value, x}));
  ASSERT_OK_AND_ASSIGN(const auto out,
                       RunInitialized(s, {{x, kX}},
                                      {DenseGradient(s, looped[0]), DenseGradient(s, plain[0]),
                                       DenseGradient(s, looped[1]), DenseGradient(s, plain[1])}));
  ExpectTensorNear(out[0], out[1], 1e-12, 1e-12);
  ExpectTensorNear(out[2], out[3], 1e-12, 1e-12);
}

TEST(LoopGradient, OfMapScanAndFold) {
  Scope s;
  const Output x = Input(s, "x", {2, 3}), w = Input(s, "w", {3, 3});
  const Output mapped = MapFn(s, x, [&](const Scope& t, const Output& row) {
    return Tanh(t, Reshape(t, MatMul(t, Reshape(t, row, Const<int32_t>(t, {1, 3})), w),
                           Const<int32_t>(t, {3})));
  });
  const auto fold = [&](const Scope& t, const Outputs& a, const Outputs& e) {
    return Outputs{Add(t, Mul(t, a[0], Sin(t, e[0])), e[0])};
  };
  const Outputs initial = {Input(s, "initial", {3})};
  const Output scanned = Scan(s, {mapped}, initial, fold, {.reverse = true})[0];
  const Output folded = FoldL(s, {scanned}, initial, fold)[0];
  ASSERT_OK(s.status());
  ExpectLayerGradientsMatch(s, folded,
                            {{x, kX}, {w, kW}, {initial[0], Tensor::Of<double>({0.4, -0.8, 1.2})}});
}

TEST(LoopGradient, OfTensorArraysInNestedLoops) {
  Scope s;
  const Output x = Input(s, "x", {3, 2});
  // Rows are maps of rows: a loop in a loop, both with arrays.
  const Output y = MapFn(s, x, [&](const Scope& t, const Output& row) {
    return MapFn(t, row, [&](const Scope& u, const Output& element) {
      return Mul(u, element, ReduceSum(u, Sin(u, row)));
    });
  });
  ASSERT_OK(s.status());
  s.SetShape(y, {3, 2});
  ExpectLayerGradientsMatch(s, y, {{x, Tensor::Of<double>({{1.0, 2.0}, {0.5, -1.0}, {0.1, 3.0}})}});
}

TEST(LoopGradient, OfTensorListsAsLoopVariables) {
  Scope s;
  const Output x = Input(s, "x", {3});
  const Output any = Int(s, -1);
  const Outputs out =
      Repeat(s, Int(s, 3), {EmptyTensorList(s, any, any, DT_DOUBLE), x},
             [&](const Scope& b, const Output&, const Outputs& v) {
               return Outputs{TensorListPushBack(b, v[0], v[1]), Mul(b, v[1], Sin(b, v[1]))};
             });
  const Output y = TensorListStack(s, out[0], Const<int32_t>(s, {3}), DT_DOUBLE);
  s.SetShape(y, {3, 3});
  ASSERT_OK(s.status());
  ExpectLayerGradientsMatch(s, y, {{x, Tensor::Of<double>({1.0, 0.5, -2.0})}});
}

// --- Where and what ------------------------------------------------------------------------------

TEST(LoopGradient, MayBeTakenInABody) {
  Scope s;
  const Output x = Number(s, "x"), w = Number(s, "w");
  // Three steps of gradient descent of (v w - 1)^2; w is around the loop.
  const Outputs y = Repeat(
      s, Int(s, 3), {x, Const(s, 0.0)}, [&](const Scope& b, const Output&, const Outputs& v) {
        const Output loss = Square(b, Sub(b, Mul(b, v[0], w), Const(b, 1.0)));
        const auto g = AddGradients(b, {loss}, {v[0], w});
        EXPECT_OK(g);
        if (!g.ok()) return Outputs{};
        const Output dv = DenseGradient(b, (*g)[0]);
        return Outputs{Sub(b, v[0], Mul(b, Const(b, 0.1), dv)), DenseGradient(b, (*g)[1])};
      });
  ASSERT_OK(s.status());
  ASSERT_OK_AND_ASSIGN(
      const auto out,
      RunInitialized(s, {{x, Tensor::Scalar(2.0)}, {w, Tensor::Scalar(3.0)}}, {y[0], y[1]}));
  double v = 2, dw = 0;
  for (int i = 0; i < 3; ++i) {
    dw = 2 * (v * 3 - 1) * v;
    v -= 0.1 * 2 * (v * 3 - 1) * 3;
  }
  EXPECT_NEAR(out[0].scalar<double>(), v, 1e-12);
  EXPECT_NEAR(out[1].scalar<double>(), dw, 1e-12);
}

TEST(LoopGradient, IsNoneWithoutBackProp) {
  Scope s;
  const Output x = Number(s, "x");
  const Output y = Repeat(
      s, Int(s, 3), {x},
      [&](const Scope& b, const Output&, const Outputs& v) { return Outputs{Mul(b, v[0], x)}; },
      {.back_prop = false})[0];
  ASSERT_OK_AND_ASSIGN(const auto gradients, AddGradients(s, {Add(s, y, x)}, {x}));
  ASSERT_OK_AND_ASSIGN(const auto out, RunInitialized(s, {{x, Tensor::Scalar(2.0)}},
                                                      {DenseGradient(s, gradients[0])}));
  EXPECT_EQ(out[0].scalar<double>(), 1);  // of the x beside the loop
}

TEST(LoopGradient, StopsWhereItIsToldTo) {
  Scope s;
  const Output x = Number(s, "x");
  const Output y =
      Repeat(s, Int(s, 3), {Const(s, 1.0)}, [&](const Scope& b, const Output&, const Outputs& v) {
        return Outputs{Add(b, Mul(b, StopGradient(b, v[0]), x), v[0])};
      })[0];
  ASSERT_OK_AND_ASSIGN(const auto gradients, AddGradients(s, {y}, {x}));
  ASSERT_OK_AND_ASSIGN(const auto out, RunInitialized(s, {{x, Tensor::Scalar(2.0)}},
                                                      {DenseGradient(s, gradients[0])}));
  EXPECT_EQ(out[0].scalar<double>(), 1 + 3 + 9);
}

// What a file holds has no contexts: the loops are found by their nodes.
TEST(LoopGradient, OfLoopsThatCameInAFile) {
  const auto build = [](const Scope& s, const Output& x, const Output& w) {
    return Repeat(s, Int(s, 3), {x}, [&](const Scope& b, const Output& i, const Outputs& v) {
      const Output is_even = Equal(b, FloorMod(b, i, Int(b, 2)), Int(b, 0));
      const Output inner =
          Repeat(b, i, {v[0]}, [&](const Scope& c, const Output&, const Outputs& u) {
            return Outputs{Tanh(c, MatMul(c, u[0], w))};
          })[0];
      return Outputs{Cond(
          b, is_even, [&](const Scope& t) { return Mul(t, Sin(t, inner), v[0]); },
          [&](const Scope& t) { return Tanh(t, MatMul(t, inner, w)); })};
    })[0];
  };
  tensorflow::GraphDef def;
  std::string name;
  std::vector<Tensor> want;
  {
    Scope s;
    const Output x = Input(s, "x", {2, 3}), w = Input(s, "w", {3, 3});
    const Output y = build(s, x, w);
    ASSERT_OK_AND_ASSIGN(def, s.ToGraphDef());
    name = y.node()->name();
    ASSERT_OK_AND_ASSIGN(const auto g, AddGradients(s, {y}, {x, w}));
    ASSERT_OK_AND_ASSIGN(want, RunInitialized(s, {{x, kX}, {w, kW}},
                                              {DenseGradient(s, g[0]), DenseGradient(s, g[1])}));
    ExpectLayerGradientsMatch(s, y, {{x, kX}, {w, kW}});
  }
  auto graph = std::make_unique<Graph>();
  ASSERT_OK(ImportGraphDef(def, {}, graph.get()));
  ASSERT_OK_AND_ASSIGN(const Scope s, Scope::ForGraph(std::move(graph)));
  const Output x(s.graph()->FindNode("x"), 0), w(s.graph()->FindNode("w"), 0);
  const Output y(s.graph()->FindNode(name), 0);
  ASSERT_OK_AND_ASSIGN(const auto g, AddGradients(s, {y}, {x, w}));
  ASSERT_OK_AND_ASSIGN(
      const auto got,
      RunInitialized(s, {{x, kX}, {w, kW}}, {DenseGradient(s, g[0]), DenseGradient(s, g[1])}));
  ExpectTensorNear(got[0], want[0], 1e-12, 1e-12);
  ExpectTensorNear(got[1], want[1], 1e-12, 1e-12);
}

TEST(LoopGradient, RefusesWhatItCannotDo) {
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  {
    Scope s;
    const Output x = Number(s, "x");
    const Output y =
        Repeat(s, Int(s, 3), {x}, [&](const Scope& b, const Output&, const Outputs& v) {
          return Outputs{Mul(b, v[0], v[0])};
        })[0];
    ASSERT_OK_AND_ASSIGN(const auto first, AddGradients(s, {y}, {x}));
    EXPECT_STATUS(AddGradients(s, {DenseGradient(s, first[0])}, {x}), kUnimplemented,
                  "is the gradient of a loop; second-order gradients of loops are not available");
  }
  {
    Scope s;
    const Output x = Number(s, "x");
    Output inside;
    const Output y =
        Repeat(s, Int(s, 3), {x}, [&](const Scope& b, const Output&, const Outputs& v) {
          inside = Sin(b.WithName("inside"), v[0]);
          return Outputs{inside};
        })[0];
    EXPECT_STATUS(
        AddGradients(s, {y}, {inside}), kUnimplemented,
        "Gradients: xs[0] 'while/inside:0' is in loop 'while/while_context', which the ys "
        "are outside of");
  }
  {
    // No gradient is defined for this op.
    Scope s;
    const Output x = Input(s, "x", {3, 3});
    const Output y = Repeat(
        s, Int(s, 3), {x},
        [&](const Scope& b, const Output&, const Outputs& v) { return Outputs{Qr(b, v[0]).q}; })[0];
    EXPECT_STATUS(AddGradients(s, {y}, {x}), absl::StatusCode::kNotFound,
                  "No gradient defined for operation 'while/Qr' (op type: Qr)");
  }
}

}  // namespace
}  // namespace millrace
