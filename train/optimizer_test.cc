// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/node_builder.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/state/state.h"
#include "runtime/session.h"
#include "train/adagrad.h"
#include "train/adam.h"
#include "train/gradient_descent.h"

namespace millrace {
namespace {

// A model with one vector variable whose gradient is fed: loss = sum(g * w).
struct LinearLoss {
  Scope root;
  Output gradient, loss;
  Variable w;

  explicit LinearLoss(std::initializer_list<float> initial) {
    gradient = Placeholder(root.WithName("g"), DT_FLOAT, {static_cast<int64_t>(initial.size())});
    w = MakeVariable(root.WithName("w"), Const<float>(root, initial));
    loss = ReduceSum(root, Mul(root, gradient, w.value));
  }

  // The values of w after each of `gradients` has been applied by `train`.
  StatusOr<std::vector<Tensor>> Train(Operation train, const std::vector<Tensor>& gradients,
                                      const std::vector<FetchName>& also = {}) {
    const Operation init = GlobalVariablesInitializer(root);
    MR_RETURN_IF_ERROR(root.status());
    MR_ASSIGN_OR_RETURN(session, NewSession());
    MR_RETURN_IF_ERROR(session->Extend(root));
    MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());
    for (const Tensor& g : gradients) {
      MR_RETURN_IF_ERROR(session->Run({{gradient, g}}, {}, {train}).status());
    }
    std::vector<FetchName> fetches = {w.value};
    fetches.insert(fetches.end(), also.begin(), also.end());
    return session->Run({}, fetches);
  }
  std::unique_ptr<Session> session;
};

const std::vector<std::vector<double>> kGradients = {{0.5, -1, 0}, {0.25, 3, 0}, {-2, 0.125, 1}};

std::vector<Tensor> GradientTensors() {
  std::vector<Tensor> tensors;
  for (const auto& g : kGradients) {
    tensors.push_back(TensorOf<float>(
        {3}, {static_cast<float>(g[0]), static_cast<float>(g[1]), static_cast<float>(g[2])}));
  }
  return tensors;
}

TEST(GradientDescentTest, MovesAgainstTheGradient) {
  LinearLoss model({1, 2, 3});
  const Operation train =
      GradientDescentOptimizer({.learning_rate = 0.5}).Minimize(model.root, model.loss);
  ASSERT_OK_AND_ASSIGN(const auto out, model.Train(train, GradientTensors()));
  ExpectTensorNear(out[0], TensorOf<float>({3}, {1.625f, 0.9375f, 2.5f}), 1e-6, 1e-6);
}

// Kingma & Ba's algorithm, written in double from its equations.
TEST(AdamTest, FollowsTheEquationsAndKeepsTensorFlowsNames) {
  LinearLoss model({1, 2, 3});
  const Variable step = GlobalStep(model.root);
  const Operation train =
      AdamOptimizer({.learning_rate = 0.1}).Minimize(model.root, model.loss, {.global_step = step});
  double w[3] = {1, 2, 3}, m[3] = {}, v[3] = {};
  double beta1_power = 1, beta2_power = 1;
  for (const auto& g : kGradients) {
    beta1_power *= 0.9;
    beta2_power *= 0.999;
    const double rate = 0.1 * std::sqrt(1 - beta2_power) / (1 - beta1_power);
    for (size_t i = 0; i < 3; ++i) {
      m[i] = 0.9 * m[i] + 0.1 * g[i];
      v[i] = 0.999 * v[i] + 0.001 * g[i] * g[i];
      w[i] -= rate * m[i] / (std::sqrt(v[i]) + 1e-8);
    }
  }
  std::vector<std::string> names;
  for (const Variable& variable : VariablesOf(model.root)) names.push_back(variable.name);
  EXPECT_EQ(names, (std::vector<std::string>{"w", "global_step", "beta1_power", "beta2_power",
                                             "w/Adam", "w/Adam_1"}));
  ASSERT_OK_AND_ASSIGN(const auto out,
                       model.Train(train, GradientTensors(),
                                   {step.value, FetchName("beta1_power/Read/ReadVariableOp"),
                                    FetchName("w/Adam/Read/ReadVariableOp"),
                                    FetchName("w/Adam_1/Read/ReadVariableOp")}));
  const auto floats = [](const double* d) {
    return TensorOf<float>(
        {3}, {static_cast<float>(d[0]), static_cast<float>(d[1]), static_cast<float>(d[2])});
  };
  ExpectTensorNear(out[0], floats(w), 1e-5, 1e-6);
  EXPECT_EQ(out[1].scalar<int64_t>(), 3);
  // In step t the power is beta^t; after three steps it stands at beta^4.
  EXPECT_NEAR(out[2].scalar<float>(), 0.9f * 0.9f * 0.9f * 0.9f, 1e-6);
  ExpectTensorNear(out[3], floats(m), 1e-5, 1e-6);
  ExpectTensorNear(out[4], floats(v), 1e-5, 1e-6);
}

TEST(AdagradTest, DividesByTheRootOfTheAccumulator) {
  LinearLoss model({1, 2, 3});
  const Operation train = AdagradOptimizer({.learning_rate = 0.5}).Minimize(model.root, model.loss);
  double w[3] = {1, 2, 3}, a[3] = {0.1, 0.1, 0.1};
  for (const auto& g : kGradients) {
    for (size_t i = 0; i < 3; ++i) {
      a[i] += g[i] * g[i];
      w[i] -= 0.5 * g[i] / std::sqrt(a[i]);
    }
  }
  ASSERT_OK_AND_ASSIGN(const auto out, model.Train(train, GradientTensors()));
  ExpectTensorNear(out[0],
                   TensorOf<float>({3}, {static_cast<float>(w[0]), static_cast<float>(w[1]),
                                         static_cast<float>(w[2])}),
                   1e-5, 1e-6);
}

// A table of 4 rows of which rows 1, 3, 1 are looked up: loss = sum of the rows, so every look-up
// contributes ones.
struct TableLoss {
  Scope root;
  Variable table;
  Output loss;
  TableLoss() {
    table = MakeVariable(root.WithName("table"),
                         Const(root, TensorOf<float>({4, 2}, {0, 1, 2, 3, 4, 5, 6, 7})));
    loss = ReduceSum(root,
                     ResourceGather(root, table.handle, Const<int64_t>(root, {1, 3, 1}), DT_FLOAT));
  }
  StatusOr<Tensor> TrainOnce(Operation train) {
    const Operation init = GlobalVariablesInitializer(root);
    MR_RETURN_IF_ERROR(root.status());
    MR_ASSIGN_OR_RETURN(auto session, NewSession());
    MR_RETURN_IF_ERROR(session->Extend(root));
    MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());
    MR_RETURN_IF_ERROR(session->Run({}, {}, {train}).status());
    MR_ASSIGN_OR_RETURN(auto out, session->Run({}, {table.value}));
    return out[0];
  }
  // No node of the training graph makes a dense gradient of the table.
  bool HasDenseGradient() const {
    for (const auto& node : root.graph()->nodes()) {
      if (node == nullptr) continue;
      if (node->op() == "ResourceApplyAdagrad" || node->op() == "ResourceApplyGradientDescent") {
        return true;
      }
    }
    return false;
  }
};

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

TEST(SparseGradientTest, AdamMovesTheWholeTableAsTensorFlowDoes) {
  TableLoss model;
  const Operation train = AdamOptimizer({.learning_rate = 0.1}).Minimize(model.root, model.loss);
  ASSERT_OK_AND_ASSIGN(const Tensor table, model.TrainOnce(train));
  // First step: rows with a gradient move by the learning rate, the others' moments are zero.
  ExpectTensorNear(table, TensorOf<float>({4, 2}, {0, 1, 1.9f, 2.9f, 4, 5, 5.9f, 6.9f}), 1e-4,
                   1e-4);
}

// The powers live with the first variable by name, here a float beside a table of doubles.
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

TEST(OptimizerTest, SlotsOfHugeVariablesHaveTheirShape) {
  Scope root;
  constexpr int64_t kRows = 3'000'000'000;
  const Variable table = MakeVariable(
      root.WithName("table"), Fill(root, Const<int64_t>(root, {kRows, 1}), Const(root, 1.0f)));
  const Output loss = ReduceSum(
      root, ResourceGather(root, table.handle, Const<int64_t>(root, {kRows - 1}), DT_FLOAT));
  AdagradOptimizer().Minimize(root, loss);
  ASSERT_OK(root.status());
  const std::vector<Variable> variables = VariablesOf(root, "variables");
  ASSERT_EQ(variables.size(), 2u);
  EXPECT_EQ(variables[1].name, "table/Adagrad");
  EXPECT_EQ(variables[1].shape.ToString(), "[3000000000,1]");
}

TEST(OptimizerTest, ErrorsNameTheOptimizerAndTheSourceLine) {
  {
    Scope root;
    const Output x = Placeholder(root, DT_FLOAT, {2});
    AdamOptimizer().Minimize(root, ReduceSum(root, x));
    EXPECT_STATUS(root.status(), absl::StatusCode::kInvalidArgument,
                  "Adam: the graph must have trainable variables, got none; built at ");
  }
  {
    Scope root;
    const Output x = Placeholder(root, DT_FLOAT, {2});
    MakeVariable(root.WithName("w"), Const(root, 1.0f));
    GradientDescentOptimizer().Minimize(root, ReduceSum(root, x));
    EXPECT_STATUS(root.status(), absl::StatusCode::kInvalidArgument,
                  "at least one variable must have a gradient, got none for 1 variable(s); of 'w': "
                  "'Sum:0' does not depend on it; built at ");
  }
  {
    Scope root;
    const Variable w = MakeVariable(root.WithName("w"), Const(root, 1.5f));
    GradientDescentOptimizer().Minimize(root, Square(root, Floor(root.WithName("cut"), w.value)));
    EXPECT_STATUS(root.status(), absl::StatusCode::kInvalidArgument,
                  "of 'w': Floor 'cut' on the way passes no gradient on");
  }
  {
    Scope root;
    const Variable w = MakeVariable(root.WithName("w"), Const(root, 1.5f));
    const Output whole = Cast(root.WithName("whole"), w.value, DT_INT32);
    GradientDescentOptimizer().Minimize(root, Cast(root, whole, DT_FLOAT));
    EXPECT_STATUS(root.status(), absl::StatusCode::kInvalidArgument,
                  "of 'w': Cast 'whole' on the way gives int32");
  }
  {
    LinearLoss model({1});
    AdagradOptimizer({.initial_accumulator_value = 0}).Minimize(model.root, model.loss);
    EXPECT_STATUS(model.root.status(), absl::StatusCode::kInvalidArgument,
                  "initial_accumulator_value must be > 0, got 0");
  }
}

TEST(OptimizerTest, StepAfterRunsTheUpdateAndSeesItsCount) {
  LinearLoss model({1, 2});
  // Beside the variable, wherever the caller's scope is.
  const Variable step = GlobalStep(model.root.WithDevice("/job:localhost"));
  const Operation train = GradientDescentOptimizer({.learning_rate = 1})
                              .Minimize(model.root, model.loss, {.global_step = step});
  const Output after = StepAfter(model.root.WithName("now").WithDevice("/cpu:7"), train, step);
  ASSERT_OK(model.root.status());
  EXPECT_EQ(after.name(), "now:0");
  EXPECT_EQ(after.dtype(), DT_INT64);
  EXPECT_EQ(after.node()->requested_device(), step.handle.node()->requested_device());
  const Operation init = GlobalVariablesInitializer(model.root);
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(model.root));
  ASSERT_OK(session->Run({}, {}, {init}).status());
  const Tensor ones = TensorOf<float>({2}, {1, 1});
  for (int64_t i = 1; i <= 100; ++i) {
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({{model.gradient, ones}}, {after}));
    ASSERT_EQ(out[0].scalar<int64_t>(), i);
  }
  ASSERT_OK_AND_ASSIGN(const auto w, session->Run({}, {model.w.value}));
  ExpectTensorEqual(w[0], TensorOf<float>({2}, {-99, -98}));
}

TEST(OptimizerTest, StepAfterNeedsAnUpdateAndAStep) {
  LinearLoss model({1});
  const Variable step = GlobalStep(model.root);
  EXPECT_FALSE(StepAfter(model.root, Operation(), step).valid());
  EXPECT_STATUS(model.root.status(), absl::StatusCode::kInvalidArgument,
                "StepAfter: train and global_step must belong to the graph, got an invalid train");
  LinearLoss other({1});
  EXPECT_FALSE(StepAfter(other.root, other.w.initializer, Variable()).valid());
  EXPECT_STATUS(other.root.status(), absl::StatusCode::kInvalidArgument,
                "got an invalid global_step; built at ");
}

TEST(OptimizerTest, GlobalStepIsOneVariableAndCountsUpdates) {
  LinearLoss model({1, 1, 1});
  const Variable step = GlobalStep(model.root);
  EXPECT_EQ(GlobalStep(model.root).name, step.name);
  const Operation train =
      GradientDescentOptimizer().Minimize(model.root, model.loss, {.global_step = step});
  ASSERT_OK_AND_ASSIGN(const auto out, model.Train(train, GradientTensors(), {step.value}));
  EXPECT_EQ(out[1].scalar<int64_t>(), 3);
}

}  // namespace
}  // namespace millrace
