// SPDX-License-Identifier: Apache-2.0
//
// Each optimizer against its equations, written in double as plain loops, and TensorFlow's names of
// its slots.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "runtime/session.h"
#include "train/adadelta.h"
#include "train/adagrad.h"
#include "train/adam.h"
#include "train/ftrl.h"
#include "train/gradient_descent.h"
#include "train/momentum.h"
#include "train/optimizer.h"
#include "train/proximal.h"
#include "train/rms_prop.h"
#include "train/testing/optimizer_losses.h"

// covers: values: FTRL gives the values of TensorFlow's tests
// covers: variables: optimizers follow TensorFlow's equations and slot names, dense and sparse, one
//   slot of a kind per variable however many updates and graphs; a hyperparameter may be a tensor
//   (a schedule, fed), one too small for a dtype is 0 with a warning; slots are found by name;
//   gradients may be gated, colocated, start from a gradient of the loss; an optimizer may wrap
//   another

namespace millrace {
namespace {

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
  // In step t the power is beta^t; after three steps it is beta^4.
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

// w = [1, -2, 3] after one step with the gradient [0.5, -1, 0.25].
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

}  // namespace
}  // namespace millrace
