// SPDX-License-Identifier: Apache-2.0
#include "train/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/attr.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "graph/node_builder.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/control/control_flow.h"
#include "ops/math/cast.h"
#include "ops/math/cwise_binary.h"
#include "ops/math/cwise_unary.h"
#include "ops/math/reduction.h"
#include "ops/state/state.h"
#include "proto/node_def.pb.h"
#include "runtime/session.h"
#include "train/adadelta.h"
#include "train/adagrad.h"
#include "train/adam.h"
#include "train/ftrl.h"
#include "train/gradient_descent.h"
#include "train/learning_rates.h"
#include "train/momentum.h"
#include "train/proximal.h"
#include "train/rms_prop.h"

// covers: values: FTRL gives the values of TensorFlow's tests
// covers: accidents: the error of a loss without a gradient names the node that cuts it
// covers: variables: optimizers follow TensorFlow's equations and slot names, dense and sparse, one
//   slot of a kind per variable however many updates and graphs; a hyperparameter may be a tensor
//   (a schedule, fed), one too small for a dtype is 0 with a warning; slots are found by name;
//   gradients may be gated, colocated, start from a gradient of the loss; an optimizer may wrap
//   another
// covers: article 2-13: the global step is fetched with the update, before or after it
// covers: article 2-25: Adam with slots and beta powers on the ps, shared by all

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

Tensor ThreeFloats(const double* d) {
  return TensorOf<float>(
      {3}, {static_cast<float>(d[0]), static_cast<float>(d[1]), static_cast<float>(d[2])});
}

// The variables besides w, in the order in which they were made.
std::vector<std::string> SlotNames(const Scope& root) {
  std::vector<std::string> names;
  for (const Variable& variable : VariablesOf(root)) names.push_back(variable.name);
  names.erase(names.begin());
  return names;
}

TEST(FtrlTest, LeavesWeightsAtZeroThatEarnNothing) {
  for (const double shrinkage : {0.0, 0.25}) {
    LinearLoss model({1, 2, 3});
    const Operation train = FtrlOptimizer({.learning_rate = 0.5,
                                           .l1_regularization_strength = 1.5,
                                           .l2_regularization_strength = 0.5,
                                           .l2_shrinkage_regularization_strength = shrinkage})
                                .Minimize(model.root, model.loss);
    double w[3] = {1, 2, 3}, n[3] = {0.1, 0.1, 0.1}, z[3] = {};
    for (const auto& g : kGradients) {
      for (size_t i = 0; i < 3; ++i) {
        const double more = n[i] + g[i] * g[i];
        z[i] += g[i] + 2 * shrinkage * w[i] - (std::sqrt(more) - std::sqrt(n[i])) / 0.5 * w[i];
        const double pull = z[i] > 0 ? 1.5 : -1.5;
        w[i] = std::fabs(z[i]) > 1.5 ? (pull - z[i]) / (std::sqrt(more) / 0.5 + 1) : 0;
        n[i] = more;
      }
    }
    EXPECT_EQ(SlotNames(model.root), (std::vector<std::string>{"w/Ftrl", "w/Ftrl_1"}));
    ASSERT_OK_AND_ASSIGN(const auto out, model.Train(train, GradientTensors(),
                                                     {FetchName("w/Ftrl/Read/ReadVariableOp"),
                                                      FetchName("w/Ftrl_1/Read/ReadVariableOp")}));
    ExpectTensorNear(out[0], ThreeFloats(w), 1e-5, 1e-6);
    ExpectTensorNear(out[1], ThreeFloats(n), 1e-5, 1e-6);
    ExpectTensorNear(out[2], ThreeFloats(z), 1e-5, 1e-6);
    EXPECT_EQ(out[0].flat<float>()[2] == 0, shrinkage == 0);
  }
}

TEST(FtrlTest, RefusesOptionsThatMakeNoSense) {
  const auto error = [](const FtrlOptions& options) {
    LinearLoss model({1, 2});
    FtrlOptimizer(options).Minimize(model.root, model.loss);
    return std::string(model.root.status().message());
  };
  EXPECT_THAT(error({.learning_rate_power = 0.5}),
              testing::HasSubstr("Ftrl 'Ftrl': learning_rate_power must be <= 0, got 0.5"));
  EXPECT_THAT(error({.initial_accumulator_value = -1}),
              testing::HasSubstr("initial_accumulator_value must be >= 0, got -1"));
  EXPECT_THAT(error({.l1_regularization_strength = -1}),
              testing::HasSubstr("l1_regularization_strength must be >= 0, got -1"));
  EXPECT_THAT(error({.l2_regularization_strength = -1, .name = "F"}),
              testing::HasSubstr("Ftrl 'F': l2_regularization_strength must be >= 0, got -1"));
  EXPECT_THAT(error({.l2_shrinkage_regularization_strength = -1}),
              testing::HasSubstr("l2_shrinkage_regularization_strength must be >= 0, got -1"));
}

// What one step of each makes of w = [1, -2, 3] with the gradient [0.5, -1, 0.25].
TEST(OptimizerTest, LessUsualOnesFollowTheirEquations) {
  struct Case {
    std::unique_ptr<Optimizer> optimizer;
    std::function<double(double w, double g)> step;
    std::vector<std::string> slots;
  };
  const auto pulled = [](double p, double pull) {
    return (p > 0 ? 1 : -1) * std::max(std::fabs(p) - pull, 0.0);
  };
  Case cases[3];
  cases[0] = {std::make_unique<AdadeltaOptimizer>(
                  AdadeltaOptions{.learning_rate = 2, .rho = 0.75, .epsilon = 0.125}),
              [](double w, double g) {
                return w - 2 * std::sqrt(0.125) / std::sqrt(0.25 * g * g + 0.125) * g;
              },
              {"w/Adadelta", "w/Adadelta_1"}};
  cases[1] = {std::make_unique<ProximalGradientDescentOptimizer>(
                  ProximalGradientDescentOptions{.learning_rate = 0.5,
                                                 .l1_regularization_strength = 2.5,
                                                 .l2_regularization_strength = 1}),
              [=](double w, double g) { return pulled(w - 0.5 * g, 1.25) / 1.5; },
              {}};
  cases[2] = {std::make_unique<ProximalAdagradOptimizer>(
                  ProximalAdagradOptions{.learning_rate = 0.5,
                                         .initial_accumulator_value = 0.5,
                                         .l1_regularization_strength = 0.25,
                                         .l2_regularization_strength = 1}),
              [=](double w, double g) {
                const double rate = 0.5 / std::sqrt(0.5 + g * g);
                return pulled(w - rate * g, rate * 0.25) / (1 + rate);
              },
              {"w/ProximalAdagrad"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.optimizer->name());
    LinearLoss model({1, -2, 3});
    const Operation train = c.optimizer->Minimize(model.root, model.loss);
    EXPECT_EQ(SlotNames(model.root), c.slots);
    ASSERT_OK_AND_ASSIGN(const auto out,
                         model.Train(train, {TensorOf<float>({3}, {0.5f, -1, 0.25f})}));
    const double w[3] = {c.step(1, 0.5), c.step(-2, -1), c.step(3, 0.25)};
    ExpectTensorNear(out[0], ThreeFloats(w), 1e-5, 1e-6);
  }
}

TEST(MomentumTest, KeepsAVelocityAndLooksAheadWithNesterov) {
  for (const bool nesterov : {false, true}) {
    LinearLoss model({1, 2, 3});
    const Operation train =
        MomentumOptimizer({.learning_rate = 0.5, .momentum = 0.75, .use_nesterov = nesterov})
            .Minimize(model.root, model.loss);
    double w[3] = {1, 2, 3}, a[3] = {};
    for (const auto& g : kGradients) {
      for (size_t i = 0; i < 3; ++i) {
        a[i] = 0.75 * a[i] + g[i];
        w[i] -= 0.5 * (nesterov ? g[i] + 0.75 * a[i] : a[i]);
      }
    }
    EXPECT_EQ(SlotNames(model.root), std::vector<std::string>{"w/Momentum"});
    ASSERT_OK_AND_ASSIGN(
        const auto out,
        model.Train(train, GradientTensors(), {FetchName("w/Momentum/Read/ReadVariableOp")}));
    ExpectTensorNear(out[0], ThreeFloats(w), 1e-5, 1e-6);
    ExpectTensorNear(out[1], ThreeFloats(a), 1e-5, 1e-6);
  }
}

TEST(RMSPropTest, FollowsItsEquationsAndKeepsTensorFlowsSlots) {
  for (const bool centered : {false, true}) {
    LinearLoss model({1, 2, 3});
    const Operation train = RMSPropOptimizer({.learning_rate = 0.1,
                                              .decay = 0.75,
                                              .momentum = 0.5,
                                              .epsilon = 0.01,
                                              .centered = centered})
                                .Minimize(model.root, model.loss);
    double w[3] = {1, 2, 3}, rms[3] = {1, 1, 1}, mean[3] = {}, step[3] = {};
    for (const auto& g : kGradients) {
      for (size_t i = 0; i < 3; ++i) {
        rms[i] = 0.75 * rms[i] + 0.25 * g[i] * g[i];
        mean[i] = 0.75 * mean[i] + 0.25 * g[i];
        const double square = centered ? rms[i] - mean[i] * mean[i] : rms[i];
        step[i] = 0.5 * step[i] + 0.1 * g[i] / std::sqrt(square + 0.01);
        w[i] -= step[i];
      }
    }
    std::vector<std::string> slots = {"w/RMSProp", "w/RMSProp_1"};
    if (centered) slots.push_back("w/RMSProp_2");
    EXPECT_EQ(SlotNames(model.root), slots);
    std::vector<FetchName> reads;
    for (const std::string& slot : slots) reads.emplace_back(slot + "/Read/ReadVariableOp");
    ASSERT_OK_AND_ASSIGN(const auto out, model.Train(train, GradientTensors(), reads));
    ExpectTensorNear(out[0], ThreeFloats(w), 1e-5, 1e-6);
    ExpectTensorNear(out[1], ThreeFloats(rms), 1e-5, 1e-6);
    if (centered) ExpectTensorNear(out[2], ThreeFloats(mean), 1e-5, 1e-6);
    ExpectTensorNear(out.back(), ThreeFloats(step), 1e-5, 1e-6);
  }
}

// --- Several updates of one optimizer ------------------------------------------------------------

// As TensorFlow's: the second update of a graph goes on with the slots of the first; a second graph
// has its own.
TEST(OptimizerTest, MakesASlotOfAVariableOnce) {
  struct Case {
    std::unique_ptr<Optimizer> optimizer;
    std::vector<std::string> slots;
  };
  Case cases[4];
  cases[0] = {std::make_unique<MomentumOptimizer>(), {"w/Momentum"}};
  cases[1] = {std::make_unique<AdagradOptimizer>(), {"w/Adagrad"}};
  cases[2] = {std::make_unique<RMSPropOptimizer>(RMSPropOptions{.centered = true}),
              {"w/RMSProp", "w/RMSProp_1", "w/RMSProp_2"}};
  cases[3] = {std::make_unique<AdamOptimizer>(),
              {"beta1_power", "beta2_power", "w/Adam", "w/Adam_1"}};
  for (const Case& c : cases) {
    for (int graph = 0; graph < 2; ++graph) {
      LinearLoss model({1, 2});
      c.optimizer->Minimize(model.root, model.loss);
      c.optimizer->Minimize(model.root, ReduceSum(model.root, Square(model.root, model.w.value)));
      ASSERT_OK(model.root.status());
      EXPECT_EQ(SlotNames(model.root), c.slots);
    }
  }
}

TEST(OptimizerTest, SecondUpdateGoesOnWithTheVelocityOfTheFirst) {
  LinearLoss model({0, 0});
  MomentumOptimizer optimizer({.learning_rate = 1, .momentum = 0.5});
  const Operation first = optimizer.Minimize(model.root, model.loss);
  const Operation second = optimizer.Minimize(model.root, model.loss);
  const Tensor ones = TensorOf<float>({2}, {1, 0});
  ASSERT_OK(model.Train(first, {ones}).status());
  ASSERT_OK(model.session->Run({{model.gradient, ones}}, {}, {second}).status());
  ASSERT_OK_AND_ASSIGN(const auto w, model.session->Run({}, {model.w.value}));
  ExpectTensorEqual(w[0], TensorOf<float>({2}, {-1 - 1.5f, 0}));
}

// --- Hyperparameters that are tensors ------------------------------------------------------------

TEST(HyperparametersTest, MayBeFedInEachStep) {
  LinearLoss model({1, 2});
  const Output rate = Placeholder(model.root.WithName("rate"), DT_FLOAT, {});
  const Operation train =
      GradientDescentOptimizer({.learning_rate = rate}).Minimize(model.root, model.loss);
  const Operation init = GlobalVariablesInitializer(model.root);
  ASSERT_OK(model.root.status());
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(model.root));
  ASSERT_OK(session->Run({}, {}, {init}).status());
  const Tensor ones = TensorOf<float>({2}, {1, 1});
  for (const float r : {0.5f, 0.25f}) {
    ASSERT_OK(
        session->Run({{model.gradient, ones}, {rate, Tensor::Scalar(r)}}, {}, {train}).status());
  }
  ASSERT_OK_AND_ASSIGN(const auto w, session->Run({}, {model.w.value}));
  ExpectTensorEqual(w[0], TensorOf<float>({2}, {0.25f, 1.25f}));
}

// The update of step n uses the rate of n: it is counted after all variables have changed.
TEST(HyperparametersTest, ASchedulesRateIsThatOfTheUpdatesMadeBefore) {
  LinearLoss model({0, 0});
  const Variable step = GlobalStep(model.root);
  const Output rate = PiecewiseConstant(model.root, step.value, {0, 1}, {100, 10, 1});
  const Operation train = GradientDescentOptimizer({.learning_rate = rate})
                              .Minimize(model.root, model.loss, {.global_step = step});
  const std::vector<Tensor> ones(4, TensorOf<float>({2}, {-1, 0}));
  ASSERT_OK_AND_ASSIGN(const auto out, model.Train(train, ones));
  ExpectTensorEqual(out[0], TensorOf<float>({2}, {100 + 10 + 1 + 1, 0}));
}

TEST(HyperparametersTest, TensorsOfAnotherDtypeAreCastBesideEachVariable) {
  Scope root;
  const Variable a = MakeVariable(root.WithName("a"), Const<float>(root, {1}));
  const Variable b = MakeVariable(root.WithName("b"), Const<double>(root, {1}));
  const Output rate = Const(root.WithName("rate"), 0.5f);
  const Output loss =
      Add(root, Cast(root, ReduceSum(root, a.value), DT_DOUBLE), ReduceSum(root, b.value));
  const Operation train = GradientDescentOptimizer({.learning_rate = rate}).Minimize(root, loss);
  const Operation init = GlobalVariablesInitializer(root);
  ASSERT_OK(root.status());
  EXPECT_EQ(root.graph()->FindNode("GradientDescent/update_a/learning_rate"), nullptr);
  const Node* cast = root.graph()->FindNode("GradientDescent/update_b/learning_rate");
  ASSERT_NE(cast, nullptr);
  EXPECT_EQ(cast->op(), "Cast");
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(root));
  ASSERT_OK(session->Run({}, {}, {init}).status());
  ASSERT_OK(session->Run({}, {}, {train}).status());
  ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {a.value, b.value}));
  ExpectTensorEqual(out[0], TensorOf<float>({1}, {0.5f}));
  ExpectTensorEqual(out[1], TensorOf<double>({1}, {0.5}));
}

// What every optimizer does with constants of the graph in place of its numbers.
TEST(HyperparametersTest, TensorsDoWhatNumbersDo) {
  using Wrap = std::function<NumberOrOutput(double)>;
  using Make = std::function<std::unique_ptr<Optimizer>(const Wrap&)>;
  const Make optimizers[] = {
      [](const Wrap& n) {
        return std::make_unique<GradientDescentOptimizer>(
            GradientDescentOptions{.learning_rate = n(0.3)});
      },
      [](const Wrap& n) {
        return std::make_unique<AdagradOptimizer>(AdagradOptions{.learning_rate = n(0.3)});
      },
      [](const Wrap& n) {
        return std::make_unique<AdamOptimizer>(AdamOptions{
            .learning_rate = n(0.3), .beta1 = n(0.8), .beta2 = n(0.95), .epsilon = n(0.01)});
      },
      [](const Wrap& n) {
        return std::make_unique<MomentumOptimizer>(
            MomentumOptions{.learning_rate = n(0.3), .momentum = n(0.7)});
      },
      [](const Wrap& n) {
        return std::make_unique<RMSPropOptimizer>(RMSPropOptions{
            .learning_rate = n(0.3), .decay = n(0.8), .momentum = n(0.5), .epsilon = n(0.01)});
      },
      [](const Wrap& n) {
        return std::make_unique<FtrlOptimizer>(
            FtrlOptions{.learning_rate = n(0.3), .l1_regularization_strength = 0.01});
      }};
  for (size_t i = 0; i < std::size(optimizers); ++i) {
    SCOPED_TRACE(i);
    std::vector<std::vector<Tensor>> results;
    for (const bool tensors : {false, true}) {
      Scope root;
      const Variable w = MakeVariable(root.WithName("w"), Const<float>(root, {1, -2}));
      const Variable table =
          MakeVariable(root.WithName("table"), Const(root, TensorOf<float>({3, 1}, {0.5, 1, 2})));
      const Output rows =
          ResourceGather(root, table.handle, Const<int64_t>(root, {2, 0, 2}), DT_FLOAT);
      const Output loss =
          Add(root, ReduceSum(root, Square(root, w.value)), ReduceSum(root, Square(root, rows)));
      const auto optimizer = optimizers[i]([&](double number) {
        return tensors ? NumberOrOutput(Const(root, static_cast<float>(number)))
                       : NumberOrOutput(number);
      });
      const Operation train = optimizer->Minimize(root, loss);
      const Operation init = GlobalVariablesInitializer(root);
      ASSERT_OK(root.status());
      ASSERT_OK_AND_ASSIGN(auto session, NewSession());
      ASSERT_OK(session->Extend(root));
      ASSERT_OK(session->Run({}, {}, {init}).status());
      for (int step = 0; step < 3; ++step) ASSERT_OK(session->Run({}, {}, {train}).status());
      ASSERT_OK_AND_ASSIGN(auto out, session->Run({}, {w.value, table.value}));
      results.push_back(std::move(out));
    }
    ExpectTensorNear(results[1][0], results[0][0], 1e-5, 1e-6);
    ExpectTensorNear(results[1][1], results[0][1], 1e-5, 1e-6);
    EXPECT_NE(results[0][0].flat<float>()[0], 1) << "nothing moved";
  }
}

TEST(HyperparametersTest, NumbersAreConstantsWithTensorFlowsNames) {
  LinearLoss model({1});
  AdamOptimizer().Minimize(model.root, model.loss);
  for (const char* name : {"learning_rate", "beta1", "beta2", "epsilon"}) {
    const Node* node = model.root.graph()->FindNode(absl::StrCat("Adam/update_w/", name));
    ASSERT_NE(node, nullptr) << name;
    EXPECT_EQ(node->op(), "Const");
  }
}

TEST(HyperparametersTest, ThatAreNoFloatingScalarsAreErrorsByName) {
  using Minimize = std::function<void(LinearLoss*, const NumberOrOutput&)>;
  const auto with = [](auto options, auto member, auto make) -> Minimize {
    return [=](LinearLoss* model, const NumberOrOutput& bad) {
      auto own = options;
      own.*member = bad;
      make(own).Minimize(model->root, model->loss);
    };
  };
  const auto descent = [](const GradientDescentOptions& o) { return GradientDescentOptimizer(o); };
  const auto adagrad = [](const AdagradOptions& o) { return AdagradOptimizer(o); };
  const auto adam = [](const AdamOptions& o) { return AdamOptimizer(o); };
  const auto momentum = [](const MomentumOptions& o) { return MomentumOptimizer(o); };
  const auto rms_prop = [](const RMSPropOptions& o) { return RMSPropOptimizer(o); };
  const std::pair<Minimize, const char*> options[] = {
      {with(GradientDescentOptions(), &GradientDescentOptions::learning_rate, descent),
       "GradientDescent: learning_rate"},
      {with(AdagradOptions(), &AdagradOptions::learning_rate, adagrad), "Adagrad: learning_rate"},
      {with(AdamOptions(), &AdamOptions::learning_rate, adam), "Adam: learning_rate"},
      {with(AdamOptions(), &AdamOptions::beta1, adam), "Adam: beta1"},
      {with(AdamOptions(), &AdamOptions::beta2, adam), "Adam: beta2"},
      {with(AdamOptions(), &AdamOptions::epsilon, adam), "Adam: epsilon"},
      {with(MomentumOptions(), &MomentumOptions::learning_rate, momentum),
       "Momentum: learning_rate"},
      {with(MomentumOptions(), &MomentumOptions::momentum, momentum), "Momentum: momentum"},
      {with(RMSPropOptions(), &RMSPropOptions::learning_rate, rms_prop), "RMSProp: learning_rate"},
      {with(RMSPropOptions(), &RMSPropOptions::decay, rms_prop), "RMSProp: decay"},
      {with(RMSPropOptions(), &RMSPropOptions::momentum, rms_prop), "RMSProp: momentum"},
      {with(RMSPropOptions(), &RMSPropOptions::epsilon, rms_prop), "RMSProp: epsilon"},
  };
  Scope other;
  const Output foreign = Placeholder(other.WithName("far"), DT_FLOAT, {});
  struct Bad {
    std::function<Output(const Scope&)> make;
    const char* text;
  };
  const Bad bad[] = {
      {[](const Scope& s) { return Placeholder(s.WithName("x"), DT_FLOAT, {2}); },
       " must be a scalar, got shape [2] of 'x:0'; built at "},
      {[](const Scope& s) { return Placeholder(s.WithName("x"), DT_INT32, {}); },
       " must be floating, got int32 from 'x:0'"},
      {[](const Scope&) { return Output(); },
       " must be a number or a tensor of the graph, got an invalid Output"},
      {[&](const Scope&) { return foreign; },
       " must be a number or a tensor of the same graph, got 'far:0' of another"},
  };
  for (const auto& [minimize, option] : options) {
    for (const Bad& b : bad) {
      LinearLoss model({1});
      minimize(&model, b.make(model.root));
      EXPECT_STATUS(model.root.status(), absl::StatusCode::kInvalidArgument,
                    absl::StrCat(option, b.text));
      EXPECT_EQ(SlotNames(model.root).size(), 0u) << option;
    }
  }
}

TEST(HyperparametersTest, NumbersThatAreNoneAreErrorsByName) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::pair<std::function<void(LinearLoss*)>, const char*> cases[] = {
      {[&](LinearLoss* m) {
         GradientDescentOptimizer({.learning_rate = std::nan("")}).Minimize(m->root, m->loss);
       },
       "GradientDescent: learning_rate must be finite, got nan; built at "},
      {[&](LinearLoss* m) { MomentumOptimizer({.momentum = -inf}).Minimize(m->root, m->loss); },
       "Momentum: momentum must be finite, got -inf"},
      {[&](LinearLoss* m) { RMSPropOptimizer({.decay = inf}).Minimize(m->root, m->loss); },
       "RMSProp: decay must be finite, got inf"},
      {[&](LinearLoss* m) { AdagradOptimizer({.learning_rate = inf}).Minimize(m->root, m->loss); },
       "Adagrad: learning_rate must be finite, got inf"},
      {[&](LinearLoss* m) { AdamOptimizer({.epsilon = inf}).Minimize(m->root, m->loss); },
       "Adam: epsilon must be finite, got inf"},
      // A number that the variable's dtype does not have.
      {[&](LinearLoss* m) {
         MomentumOptimizer({.learning_rate = 1e39}).Minimize(m->root, m->loss);
       },
       "'Momentum/update_w/learning_rate': a number must be a value of the dtype float, got 1e+39, "
       "next to 'w/Read/ReadVariableOp:0'"},
  };
  for (const auto& [minimize, text] : cases) {
    LinearLoss model({1});
    minimize(&model);
    EXPECT_STATUS(model.root.status(), absl::StatusCode::kInvalidArgument, text);
  }
}

TEST(HyperparametersTest, AFedRateThatIsNoScalarEndsTheStep) {
  LinearLoss model({1});
  const Output rate = Placeholder(model.root.WithName("rate"), DT_FLOAT);
  const Operation train =
      GradientDescentOptimizer({.learning_rate = rate}).Minimize(model.root, model.loss);
  const Operation init = GlobalVariablesInitializer(model.root);
  ASSERT_OK(model.root.status());
  ASSERT_OK_AND_ASSIGN(auto session, NewSession());
  ASSERT_OK(session->Extend(model.root));
  ASSERT_OK(session->Run({}, {}, {init}).status());
  EXPECT_STATUS(
      session
          ->Run({{model.gradient, TensorOf<float>({1}, {1})}, {rate, TensorOf<float>({2}, {1, 1})}},
                {}, {train})
          .status(),
      absl::StatusCode::kInvalidArgument, "alpha must be a scalar, got shape [2]");
}

// --- Sparse gradients ----------------------------------------------------------------------------

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
  StatusOr<Tensor> TrainOnce(Operation train) { return TrainFor(1, train); }
  StatusOr<Tensor> TrainFor(int steps, Operation train) {
    const Operation init = GlobalVariablesInitializer(root);
    MR_RETURN_IF_ERROR(root.status());
    MR_ASSIGN_OR_RETURN(auto session, NewSession());
    MR_RETURN_IF_ERROR(session->Extend(root));
    MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());
    for (int i = 0; i < steps; ++i) MR_RETURN_IF_ERROR(session->Run({}, {}, {train}).status());
    MR_ASSIGN_OR_RETURN(auto out, session->Run({}, {table.value}));
    return out[0];
  }
  // No node of the training graph makes a dense gradient of the table.
  bool HasDenseGradient() const {
    for (const auto& node : root.graph()->nodes()) {
      if (node == nullptr) continue;
      if (node->op().rfind("ResourceApply", 0) == 0) return true;
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

// Rows that change from step to step, one of them named twice, with every number of the optimizer
// away from its default: the rows and their slots follow the equations in plain loops, and what a
// step does not touch stays, the slots, too.
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

// --- Slots by name -------------------------------------------------------------------------------

std::vector<std::string> NamesOf(const std::vector<Variable>& variables) {
  std::vector<std::string> names;
  for (const Variable& variable : variables) names.push_back(variable.name);
  return names;
}

TEST(SlotsTest, AreFoundByTensorFlowsNamesAndKeptForEachGraph) {
  struct Case {
    std::unique_ptr<Optimizer> optimizer;
    std::vector<std::pair<std::string, std::string>> slots;  // sorted
    std::vector<std::string> variables;
  };
  Case cases[5];
  cases[0] = {std::make_unique<GradientDescentOptimizer>(), {}, {}};
  cases[1] = {std::make_unique<MomentumOptimizer>(), {{"momentum", "w/Momentum"}}, {"w/Momentum"}};
  cases[2] = {std::make_unique<AdagradOptimizer>(), {{"accumulator", "w/Adagrad"}}, {"w/Adagrad"}};
  cases[3] = {std::make_unique<RMSPropOptimizer>(RMSPropOptions{.centered = true}),
              {{"mg", "w/RMSProp_1"}, {"momentum", "w/RMSProp_2"}, {"rms", "w/RMSProp"}},
              {"w/RMSProp", "w/RMSProp_1", "w/RMSProp_2"}};
  cases[4] = {std::make_unique<AdamOptimizer>(),
              {{"m", "w/Adam"}, {"v", "w/Adam_1"}},
              {"beta1_power", "beta2_power", "w/Adam", "w/Adam_1"}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.optimizer->name());
    LinearLoss models[2] = {LinearLoss({1, 2}), LinearLoss({3, 4})};
    for (const auto& [slot, variable] : c.slots) {
      EXPECT_FALSE(c.optimizer->GetSlot(models[0].w, slot).valid()) << "not yet made";
    }
    // In turns: what was made in a graph is found there again.
    for (const size_t graph : {0u, 1u, 0u, 1u}) {
      c.optimizer->Minimize(models[graph].root, models[graph].loss);
      ASSERT_OK(models[graph].root.status());
    }
    std::vector<std::string> names;
    for (const LinearLoss& model : models) {
      names.clear();
      for (const auto& [slot, variable] : c.slots) {
        names.push_back(slot);
        const Variable found = c.optimizer->GetSlot(model.w, slot);
        ASSERT_TRUE(found.valid()) << slot;
        EXPECT_EQ(found.name, variable);
        EXPECT_EQ(found.handle.node()->graph(), model.root.graph());
      }
      EXPECT_EQ(NamesOf(c.optimizer->Variables(model.root)), c.variables);
      EXPECT_EQ(SlotNames(model.root), c.variables);
      EXPECT_FALSE(c.optimizer->GetSlot(model.w, "other").valid());
      EXPECT_FALSE(c.optimizer->GetSlot(Variable(), "m").valid());
    }
    EXPECT_EQ(c.optimizer->GetSlotNames(), names);
    EXPECT_TRUE(c.optimizer->Variables(Scope()).empty());
  }
}

TEST(SlotsTest, OfAPartAreTheSamePartOnItsDevice) {
  Scope root;
  // The second part is on the second device.
  int made = 0;
  const Scope placed = root.WithDevice([&made](const tensorflow::NodeDef& node) -> std::string {
    return node.op() == "VarHandleOp" ? absl::StrCat("/job:ps/task:", made++ % 2) : "";
  });
  const PartitionedVariable table = MakePartitionedVariable(placed.WithName("table"), Shape{5, 2},
                                                            DT_FLOAT, 2, ZerosInitializer());
  Output loss;
  for (const Variable& part : table.parts) {
    const Output sum = ReduceSum(root, Square(root, part.value));
    loss = loss.valid() ? Add(root, loss, sum) : sum;
  }
  AdamOptimizer optimizer;
  optimizer.Minimize(placed, loss);
  ASSERT_OK(root.status());
  for (size_t i = 0; i < 2; ++i) {
    const Variable& part = table.parts[i];
    for (const auto& [slot, name] : {std::pair("m", "Adam"), std::pair("v", "Adam_1")}) {
      const Variable found = optimizer.GetSlot(part, slot);
      ASSERT_TRUE(found.valid());
      EXPECT_EQ(found.name, absl::StrCat("table/part_", i, "/", name));
      EXPECT_EQ(found.handle.node()->requested_device(), absl::StrCat("/job:ps/task:", i));
      EXPECT_EQ(found.slice.full_name, absl::StrCat("table/", name));
      EXPECT_EQ(found.slice.full_shape, part.slice.full_shape);
      EXPECT_EQ(found.slice.var_offset, part.slice.var_offset);
      EXPECT_EQ(found.slice.var_shape, part.slice.var_shape);
    }
  }
}

// --- Options of gradients ------------------------------------------------------------------------

TEST(GradientOptionsTest, TheLossMayHaveAGradientOfItsOwn) {
  LinearLoss model({1, 2, 3});
  const Output each = Mul(model.root, model.gradient, model.w.value);
  const Operation train =
      GradientDescentOptimizer({.learning_rate = 1})
          .Minimize(model.root, each, {.grad_loss = Const<float>(model.root, {1, 10, 100})});
  ASSERT_OK_AND_ASSIGN(const auto out, model.Train(train, {TensorOf<float>({3}, {1, 1, 0.5f})}));
  ExpectTensorEqual(out[0], TensorOf<float>({3}, {0, -8, -47}));

  LinearLoss other({1, 2, 3});
  GradientDescentOptimizer().Minimize(
      other.root, other.loss, {.grad_loss = Const<float>(other.root.WithName("grad"), {1, 2})});
  EXPECT_STATUS(other.root.status(), absl::StatusCode::kInvalidArgument,
                "Gradients: grad_ys[0] 'grad:0' must have the shape of its "
                "y [], got [2]");
}

TEST(GradientOptionsTest, GatesMakeGradientsWaitForEachOther) {
  using Names = std::vector<std::string>;
  const std::pair<GateGradients, Names> cases[] = {
      {GateGradients::kNone, {}},
      {GateGradients::kOp, {"gradients/Mul_grad/tuple/group_deps"}},
      {GateGradients::kGraph, {"tuple/group_deps"}}};
  std::vector<Tensor> results;
  for (const auto& [gate, gates] : cases) {
    Scope root;
    const Variable a = MakeVariable(root.WithName("a"), Const<float>(root, {1, 2}));
    const Variable b = MakeVariable(root.WithName("b"), Const<float>(root, {3, 4}));
    const Variable table =
        MakeVariable(root.WithName("table"), Const(root, TensorOf<float>({2, 1}, {5, 6})));
    const Output rows = ResourceGather(root, table.handle, Const<int64_t>(root, {1, 1}), DT_FLOAT);
    const Output product = ReduceSum(root, Mul(root, a.value, b.value));
    const Output loss = Add(root.WithName("loss"), product, ReduceSum(root, rows));
    const Operation train = GradientDescentOptimizer({.learning_rate = 0.5})
                                .Minimize(root, loss, {.gate_gradients = gate});
    ASSERT_OK(root.status());
    Names found;
    for (const auto& node : root.graph()->nodes()) {
      if (node == nullptr || node->name().find("group_deps") == std::string::npos) continue;
      // The sum's two gradients are one and the same tensor.
      if (node->name() == "gradients/loss_grad/tuple/group_deps") continue;
      found.push_back(node->name());
      // Everything that passes the gate waits for it.
      EXPECT_EQ(node->control_inputs().size(), gate == GateGradients::kGraph ? 3u : 2u);
      int after = 0;
      for (const Edge& edge : node->out_edges()) after += edge.dst->op() == "Identity";
      EXPECT_EQ(after, gate == GateGradients::kGraph ? 3 : 2);
    }
    EXPECT_EQ(found, gates);
    const Operation init = GlobalVariablesInitializer(root);
    ASSERT_OK_AND_ASSIGN(auto session, NewSession());
    ASSERT_OK(session->Extend(root));
    ASSERT_OK(session->Run({}, {}, {init}).status());
    ASSERT_OK(session->Run({}, {}, {train}).status());
    ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {a.value, b.value, table.value}));
    ExpectTensorEqual(out[0], TensorOf<float>({2}, {-0.5f, 0}));
    ExpectTensorEqual(out[1], TensorOf<float>({2}, {2.5f, 3}));
    ExpectTensorEqual(out[2], TensorOf<float>({2, 1}, {5, 5}));
  }
}

// The branch that is not taken has no gradient to wait for.
TEST(GradientOptionsTest, GatesLetConditionalsThrough) {
  for (const GateGradients gate :
       {GateGradients::kNone, GateGradients::kOp, GateGradients::kGraph}) {
    Scope root;
    const Output pred = Placeholder(root.WithName("pred"), DT_BOOL, {});
    const Variable w = MakeVariable(root.WithName("w"), Const<float>(root, {1, 2}));
    const Variable u = MakeVariable(root.WithName("u"), Const<float>(root, {3, 4}));
    const SwitchOutputs ways = Switch(root, w.value, pred);
    const SwitchOutputs others = Switch(root, u.value, pred);
    const Output product = Mul(root, ways.output_true, others.output_true);
    const Output square = Square(root, ways.output_false);
    const Output either = Merge(root, {square, product}).output;
    const Operation train = GradientDescentOptimizer({.learning_rate = 1})
                                .Minimize(root, ReduceSum(root, either), {.gate_gradients = gate});
    const Operation init = GlobalVariablesInitializer(root);
    ASSERT_OK(root.status());
    ASSERT_OK_AND_ASSIGN(auto session, NewSession());
    ASSERT_OK(session->Extend(root));
    for (const bool taken : {true, false}) {
      ASSERT_OK(session->Run({}, {}, {init}).status());
      ASSERT_OK(session->Run({{pred, Tensor::Scalar(taken)}}, {}, {train}).status());
      ASSERT_OK_AND_ASSIGN(const auto out, session->Run({}, {w.value, u.value}));
      ExpectTensorEqual(out[0], TensorOf<float>({2}, taken ? std::initializer_list<float>{-2, -2}
                                                           : std::initializer_list<float>{-1, -2}));
      ExpectTensorEqual(out[1], TensorOf<float>({2}, taken ? std::initializer_list<float>{2, 2}
                                                           : std::initializer_list<float>{3, 4}));
    }
  }
}

TEST(GradientOptionsTest, GradientsMayStandWithTheirOps) {
  for (const bool colocate : {false, true}) {
    Scope root;
    const Variable w = MakeVariable(root.WithName("w"), Const<float>(root, {1, 2}));
    const Output square = Square(root.WithName("square").WithDevice("/job:far"), w.value);
    GradientDescentOptimizer().Minimize(root, ReduceSum(root, square),
                                        {.colocate_gradients_with_ops = colocate});
    ASSERT_OK(root.status());
    const Node* const product = root.graph()->FindNode("gradients/square_grad/Mul");
    ASSERT_NE(product, nullptr);
    EXPECT_EQ(product->requested_device(), colocate ? "/job:far" : "");
  }
}

// --- Optimizers of one's own ---------------------------------------------------------------------

// Wraps another one: its gradients are those of the scaled loss, scaled back before they are
// applied.
class LossScaling : public Optimizer {
 public:
  LossScaling(Optimizer* wrapped, float scale)
      : Optimizer({.name = "LossScaling"}), wrapped_(wrapped), scale_(scale) {}

  std::vector<GradientAndVariable> ComputeGradients(ScopeAt at, Output loss,
                                                    const MinimizeOptions& options) override {
    return wrapped_->ComputeGradients(at, Mul(at, loss, Const(at, scale_)), options);
  }
  Operation ApplyGradients(ScopeAt at, const std::vector<GradientAndVariable>& gradients,
                           const MinimizeOptions& options) override {
    std::vector<GradientAndVariable> back = gradients;
    for (GradientAndVariable& pair : back) {
      if (auto* slices = std::get_if<IndexedSlices>(&pair.gradient)) {
        slices->values = Mul(at, slices->values, Const(at, 1 / scale_));
      } else if (HasGradient(pair.gradient)) {
        pair.gradient = Mul(at, std::get<Output>(pair.gradient), Const(at, 1 / scale_));
      }
    }
    return wrapped_->ApplyGradients(at, back, options);
  }
  Variable GetSlot(const Variable& variable, absl::string_view slot) const override {
    return wrapped_->GetSlot(variable, slot);
  }

 private:
  Optimizer* const wrapped_;
  const float scale_;
};

TEST(OwnOptimizerTest, MayWrapAnotherOne) {
  std::vector<Tensor> results;
  for (const bool wrap : {false, true}) {
    LinearLoss model({1, 2, 3});
    const Variable step = GlobalStep(model.root);
    MomentumOptimizer momentum({.learning_rate = 0.5, .momentum = 0.75});
    LossScaling scaling(&momentum, 1024);
    Optimizer& optimizer = wrap ? static_cast<Optimizer&>(scaling) : momentum;
    const Operation train =
        optimizer.Minimize(model.root, model.loss, {.global_step = step, .name = "step"});
    ASSERT_TRUE(train.valid()) << model.root.status();
    EXPECT_EQ(train.name(), "step");
    EXPECT_EQ(optimizer.GetSlot(model.w, "momentum").name, "w/Momentum");
    ASSERT_OK_AND_ASSIGN(auto out, model.Train(train, GradientTensors(), {step.value}));
    EXPECT_EQ(out[1].scalar<int64_t>(), 3);
    results.push_back(out[0]);
    if (!wrap) continue;
    // Powers of two: not one bit differs. The gradients that were computed are 1024 times as large.
    ExpectTensorEqual(results[1], results[0]);
    const auto pairs = optimizer.ComputeGradients(model.root, model.loss, {});
    ASSERT_EQ(pairs.size(), 1u);
    ASSERT_OK_AND_ASSIGN(const auto scaled,
                         model.session->Run({{model.gradient, TensorOf<float>({3}, {1, 2, 3})}},
                                            {std::get<Output>(pairs[0].gradient)}));
    ExpectTensorEqual(scaled[0], TensorOf<float>({3}, {1024, 2048, 3072}));
  }
}

// What a program needs to write for an optimizer: its data and one equation. Here variable -=
// learning_rate * sign(sum of all gradients so far).
class SignOfSum : public Optimizer {
 public:
  explicit SignOfSum(NumberOrOutput learning_rate)
      : Optimizer({.name = "SignOfSum",
                   .hyperparameters = {{"learning_rate", std::move(learning_rate)}},
                   .slots = {{"sum", 0}}}) {}

 protected:
  Operation ApplyDense(const Scope& scope, const Variable& variable, Output gradient) override {
    const Variable sum = GetSlot(variable, "sum");
    const Operation added = AssignAddVariableOp(scope, sum.handle, gradient);
    const Output now =
        ReadVariableOp(scope.WithControlDependencies({added}), sum.handle, sum.dtype);
    return AssignSubVariableOp(
        scope, variable.handle,
        Mul(scope, Sign(scope, now), Hyperparameter(scope, "learning_rate", variable)));
  }
};

TEST(OwnOptimizerTest, IsItsDataAndItsEquation) {
  LinearLoss model({1, 2, 3});
  SignOfSum optimizer(0.25);
  const Operation train = optimizer.Minimize(model.root, model.loss);
  EXPECT_EQ(SlotNames(model.root), std::vector<std::string>{"w/SignOfSum"});
  ASSERT_OK_AND_ASSIGN(const auto out, model.Train(train, GradientTensors()));
  // Sums: 0.5, 0.75, -1.25; -1, 2, 2.125; 0, 0, 1.
  ExpectTensorEqual(out[0], TensorOf<float>({3}, {0.75f, 1.75f, 2.75f}));

  SignOfSum infinite(std::numeric_limits<double>::infinity());
  LinearLoss other({1});
  infinite.Minimize(other.root, other.loss);
  EXPECT_STATUS(other.root.status(), absl::StatusCode::kInvalidArgument,
                "SignOfSum: learning_rate must be finite, got inf");
  TableLoss table;
  SignOfSum(0.5).Minimize(table.root, table.loss);
  EXPECT_STATUS(table.root.status(), absl::StatusCode::kUnimplemented,
                "SignOfSum: ApplySparse must be defined to update rows of "
                "'table', got none");
}

// --- Numbers that a dtype does not have ----------------------------------------------------------

// TensorFlow's 1e-8 in half is 0 as well; here somebody is told.
TEST(HyperparametersTest, NumbersTooSmallForADtypeAreZeroWithOneWarning) {
  Scope root;
  const Tensor half = Tensor::Scalar<Half>(ToHalf(1));
  const Variable a = MakeVariable(root.WithName("a"), Const(root, half));
  const Variable b = MakeVariable(root.WithName("b"), Const(root, half));
  const Variable c = MakeVariable(root.WithName("c"), Const(root, 1.0f));
  const Output loss = Add(root, Cast(root, Mul(root, a.value, b.value), DT_FLOAT), c.value);
  AdamOptimizer optimizer;
  ::testing::internal::CaptureStderr();
  optimizer.Minimize(root, loss);
  optimizer.Minimize(root, loss);
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_OK(root.status());
  const std::string told =
      "Adam: epsilon 1e-08 is too small for half and is 0 "
      "there (first for 'a'); give a larger one";
  const size_t first = log.find(told);
  ASSERT_NE(first, std::string::npos) << log;
  EXPECT_EQ(log.find("too small", first + told.size()), std::string::npos) << log;
  const Node* const epsilon = root.graph()->FindNode("Adam/update_a/epsilon");
  ASSERT_NE(epsilon, nullptr);
  ASSERT_OK_AND_ASSIGN(const Tensor value, GetAttr<Tensor>(*epsilon, "value"));
  EXPECT_EQ(ToFloat(value.scalar<Half>()), 0);
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
                  "GradientDescent: No gradients provided for any variable, check your graph for "
                  "ops that do not support gradients, between variables 'w' and loss 'Sum:0'; of "
                  "'w': 'Sum:0' does not depend on it; built at ");
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

TEST(OptimizerTest, AppliesNoEmptyListsOfGradients) {
  LinearLoss model({1});
  GradientDescentOptimizer().ApplyGradients(model.root, {});
  EXPECT_STATUS(model.root.status(), absl::StatusCode::kInvalidArgument,
                "GradientDescent: No variables provided.");
  LinearLoss other({1});
  GradientDescentOptimizer().ApplyGradients(other.root, {{Gradient(), other.w}});
  EXPECT_STATUS(other.root.status(), absl::StatusCode::kInvalidArgument,
                "GradientDescent: No gradients provided for any variable: "
                "'w'.; built at ");
}

TEST(OptimizerTest, TheUpdateHasTheOptimizersNameOrTheOneGiven) {
  LinearLoss model({1});
  const Variable step = GlobalStep(model.root);
  const Scope in = model.root.WithSubScope("in");
  GradientDescentOptimizer optimizer;
  const Operation plain = optimizer.Minimize(in, model.loss);
  const Operation counted = optimizer.Minimize(in, model.loss, {.global_step = step});
  const Operation named = optimizer.Minimize(in, model.loss, {.name = "named"});
  ASSERT_OK(model.root.status());
  EXPECT_EQ(plain.name(), "in/GradientDescent");
  EXPECT_EQ(plain.node()->op(), "NoOp");
  EXPECT_EQ(counted.name(), "in/GradientDescent_1");
  EXPECT_EQ(counted.node()->op(), "AssignAddVariableOp");
  EXPECT_EQ(named.name(), "in/named");
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
