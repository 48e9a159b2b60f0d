// SPDX-License-Identifier: Apache-2.0
//
// Sparse gradients: a step looks up some rows of a table, and optimizers update these rows.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/node_builder.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/reduction.h"
#include "ops/state/state.h"
#include "runtime/session.h"
#include "train/adagrad.h"
#include "train/adam.h"
#include "train/gradient_descent.h"
#include "train/momentum.h"
#include "train/rms_prop.h"
#include "train/testing/optimizer_losses.h"

// covers: variables: optimizers follow TensorFlow's equations and slot names, dense and sparse, one
//   slot of a kind per variable however many updates and graphs; a hyperparameter may be a tensor
//   (a schedule, fed), one too small for a dtype is 0 with a warning; slots are found by name;
//   gradients may be gated, colocated, start from a gradient of the loss; an optimizer may wrap
//   another

namespace millrace {
namespace {

TEST(SparseGradientTest, DescentTouchesOnlyTheRowsAndAddsRepeatedOnes) {
  TableLoss model;
  const Operation train =
      GradientDescentOptimizer({.learning_rate = 0.5}).Minimize(model.root, model.loss);
  ASSERT_OK_AND_ASSIGN(const Tensor table, model.TrainOnce(train));
  ExpectTensorNear(table, TensorOf<float>({4, 2}, {0, 1, 1, 2, 4, 5, 5.5f, 6.5f}), 1e-6, 1e-6);
  EXPECT_FALSE(model.HasDenseGradient());
}

TEST(SparseGradientTest, AdagradSumsRepeatedRowsBeforeItSquares) {
  TableLoss model;
  const Operation train = AdagradOptimizer({.learning_rate = 1}).Minimize(model.root, model.loss);
  ASSERT_OK_AND_ASSIGN(const Tensor table, model.TrainOnce(train));
  const float row1 = 2 / std::sqrt(0.1f + 4);
  const float row3 = 1 / std::sqrt(0.1f + 1);
  ExpectTensorNear(table,
                   TensorOf<float>({4, 2}, {0, 1, 2 - row1, 3 - row1, 4, 5, 6 - row3, 7 - row3}),
                   1e-5, 1e-6);
  EXPECT_FALSE(model.HasDenseGradient());
}

TEST(SparseGradientTest, MomentumAndRMSPropTouchOnlyTheRows) {
  {
    TableLoss model;
    const Operation train =
        MomentumOptimizer({.learning_rate = 0.5, .momentum = 0.9}).Minimize(model.root, model.loss);
    ASSERT_OK_AND_ASSIGN(const Tensor table, model.TrainFor(2, train));
    // Row 1 has the gradient 2 in both steps: it moves by 0.5 * (2 + (0.9 * 2 + 2)); row 3 has 1.
    ExpectTensorNear(table, TensorOf<float>({4, 2}, {0, 1, -0.9f, 0.1f, 4, 5, 4.55f, 5.55f}), 1e-5,
                     1e-6);
    EXPECT_FALSE(model.HasDenseGradient());
  }
  TableLoss model;
  RMSPropOptimizer({.momentum = 0.5, .centered = true}).Minimize(model.root, model.loss);
  EXPECT_FALSE(model.HasDenseGradient());
}

// The rows differ from step to step, one of them occurs twice, and no number of the optimizer has
// its default. The rows and their slots follow the equations in plain loops; rows and slots that a
// step does not touch stay.
TEST(SparseGradientTest, RMSPropFollowsItsEquationsInTheTouchedRows) {
  constexpr size_t kRows = 4, kColumns = 2;
  constexpr double kRate = 0.1, kDecay = 0.75, kMomentum = 0.6, kEpsilon = 0.01;
  struct Step {
    std::vector<int64_t> rows;
    std::vector<double> factors;  // of the elements looked up: their gradients
  };
  const Step steps[] = {{{1, 3, 1}, {0.5, -1, 2, 0.25, -3, 0.125}},
                        {{0, 1}, {1, -2, 0.5, 0.75}},
                        {{3}, {-1.5, 4}},
                        {{1, 1, 0}, {2, 1, -2, 0.5, 0.25, -0.75}}};
  for (const bool centered : {false, true}) {
    for (const bool use_locking : {false, true}) {
      SCOPED_TRACE(absl::StrCat(centered ? "centered" : "plain", use_locking ? ", locking" : ""));
      Scope root;
      const std::vector<double> begin = {0, 1, 2, 3, 4, 5, 6, 7};
      const Variable table = MakeVariable(
          root.WithName("table"), Const(root, TensorOf<float>({4, 2}, {0, 1, 2, 3, 4, 5, 6, 7})));
      const Output rows = Placeholder(root, DT_INT64, {-1});
      const Output factors = Placeholder(root, DT_FLOAT, {-1, 2});
      const Output loss =
          ReduceSum(root, Mul(root, ResourceGather(root, table.handle, rows, DT_FLOAT), factors));
      const Operation train = RMSPropOptimizer({.learning_rate = kRate,
                                                .decay = kDecay,
                                                .momentum = kMomentum,
                                                .epsilon = kEpsilon,
                                                .centered = centered,
                                                .use_locking = use_locking})
                                  .Minimize(root, loss);
      std::vector<std::string> slots = {"table/RMSProp", "table/RMSProp_1"};
      if (centered) slots.push_back("table/RMSProp_2");
      EXPECT_EQ(SlotNames(root), slots);
      std::vector<FetchName> reads = {table.value};
      for (const std::string& slot : slots) reads.emplace_back(slot + "/Read/ReadVariableOp");
      const Operation init = GlobalVariablesInitializer(root);
      ASSERT_OK(root.status());
      ASSERT_OK_AND_ASSIGN(auto session, NewSession());
      ASSERT_OK(session->Extend(root));
      ASSERT_OK(session->Run({}, {}, {init}).status());

      std::vector<double> v = begin, rms(begin.size(), 1), mean(begin.size()), move(begin.size());
      for (const Step& step : steps) {
        std::vector<double> gradient(begin.size());
        std::vector<bool> touched(kRows);
        std::vector<float> fed;
        for (size_t i = 0; i < step.rows.size(); ++i) {
          const size_t row = static_cast<size_t>(step.rows[i]);
          touched[row] = true;
          for (size_t c = 0; c < kColumns; ++c) {
            gradient[row * kColumns + c] += step.factors[i * kColumns + c];
            fed.push_back(static_cast<float>(step.factors[i * kColumns + c]));
          }
        }
        for (size_t i = 0; i < begin.size(); ++i) {
          if (!touched[i / kColumns]) continue;
          const double g = gradient[i];
          rms[i] += (g * g - rms[i]) * (1 - kDecay);
          if (centered) mean[i] += (g - mean[i]) * (1 - kDecay);
          move[i] =
              kMomentum * move[i] + kRate * g / std::sqrt(rms[i] - mean[i] * mean[i] + kEpsilon);
          v[i] -= move[i];
        }
        ASSERT_OK_AND_ASSIGN(
            const Tensor values,
            Tensor::FromValues<float>(*Shape::Make({static_cast<int64_t>(step.rows.size()), 2}),
                                      absl::MakeConstSpan(fed)));
        ASSERT_OK(
            session
                ->Run({{rows, Tensor::Vector<int64_t>(step.rows)}, {factors, values}}, {}, {train})
                .status());
        ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, session->Run({}, reads));
        const auto expect = [&](const Tensor& got, const std::vector<double>& want) {
          const absl::Span<const float> floats = got.raw<float>();
          ASSERT_EQ(floats.size(), want.size());
          for (size_t i = 0; i < want.size(); ++i) {
            EXPECT_NEAR(floats[i], want[i], 1e-5 * std::max(1.0, std::abs(want[i]))) << i;
          }
        };
        expect(out[0], v);
        expect(out[1], rms);
        if (centered) expect(out[2], mean);
        expect(out.back(), move);
      }
    }
  }
}

TEST(SparseGradientTest, AdamMovesTheWholeTableAsTensorFlowDoes) {
  TableLoss model;
  const Operation train = AdamOptimizer({.learning_rate = 0.1}).Minimize(model.root, model.loss);
  ASSERT_OK_AND_ASSIGN(const Tensor table, model.TrainOnce(train));
  // First step: rows with a gradient move by the learning rate, the others' moments are zero.
  ExpectTensorNear(table, TensorOf<float>({4, 2}, {0, 1, 1.9f, 2.9f, 4, 5, 5.9f, 6.9f}), 1e-4,
                   1e-4);
}

// Rows are gathered, repeated ones added up and the rows updated in half and bfloat16.
TEST(SparseGradientTest, TablesOfNarrowTypesTrain) {
  for (const DType dtype : {DT_HALF, DT_BFLOAT16}) {
    for (const bool has_slot : {false, true}) {
      Scope root;
      const Tensor initial = TensorOf<float>({4, 2}, {0, 1, 2, 3, 4, 5, 6, 7});
      const Variable table =
          MakeVariable(root.WithName("table"), Cast(root, Const(root, initial), dtype));
      const Output loss = ReduceSum(
          root, ResourceGather(root, table.handle, Const<int64_t>(root, {1, 3, 1}), dtype));
      const Operation train =
          has_slot ? AdagradOptimizer({.learning_rate = 1}).Minimize(root, loss)
                   : GradientDescentOptimizer({.learning_rate = 0.5}).Minimize(root, loss);
      const Operation init = GlobalVariablesInitializer(root);
      const Output value = Cast(root, table.value, DT_FLOAT);
      ASSERT_OK(root.status());
      ASSERT_OK_AND_ASSIGN(auto session, NewSession());
      ASSERT_OK(session->Extend(root));
      ASSERT_OK(session->Run({}, {}, {init}).status());
      ASSERT_OK(session->Run({}, {}, {train}).status());
      ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {value}));
      const float row1 = has_slot ? 2 / std::sqrt(0.1f + 4) : 1;
      const float row3 = has_slot ? 1 / std::sqrt(0.1f + 1) : 0.5f;
      ExpectTensorNear(
          out[0], TensorOf<float>({4, 2}, {0, 1, 2 - row1, 3 - row1, 4, 5, 6 - row3, 7 - row3}),
          1e-2, 1e-2);
    }
  }
}

// The powers have the dtype of the first variable by name: here float, and the table is double.
TEST(SparseGradientTest, AdamsPowersAreCastToTheTablesType) {
  Scope root;
  const Variable a = MakeVariable(root.WithName("a"), Const<float>(root, {1}));
  const Variable table =
      MakeVariable(root.WithName("b"), Const(root, TensorOf<double>({2, 1}, {1, 2})));
  const Output rows = ResourceGather(root, table.handle, Const<int64_t>(root, {1}), DT_DOUBLE);
  const Output sum = NodeBuilder(root, "Cast")
                         .Input(ReduceSum(root, rows))
                         .Attr("DstT", DT_FLOAT)
                         .Finish()
                         .output(0);
  const Operation train = AdamOptimizer({.learning_rate = 0.1})
                              .Minimize(root, Add(root, ReduceSum(root, a.value), sum));
  const Operation init = GlobalVariablesInitializer(root);
  ASSERT_OK(root.status());
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(root));
  ASSERT_OK(session->Run({}, {}, {init}).status());
  ASSERT_OK(session->Run({}, {}, {train}).status());
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {a.value, table.value}));
  ExpectTensorNear(out[0], TensorOf<float>({1}, {0.9f}), 1e-4, 1e-4);
  ExpectTensorNear(out[1], TensorOf<double>({2, 1}, {1, 1.9}), 1e-4, 1e-4);
}

}  // namespace
}  // namespace millrace
