// SPDX-License-Identifier: Apache-2.0
#include "layers/normalization.h"

#include <cmath>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "layers/testing/layer_test.h"
#include "ops/ops.h"
#include "proto/node_def.pb.h"
#include "runtime/session.h"

// covers: values: layers give the values of their formulas, TensorFlow's variable names, gradients
//   of finite differences, and train

namespace millrace {
namespace {

// Four examples of two features: means 2.5 and 10, variances 1.25 and 62.5.
Tensor Batch(std::initializer_list<int64_t> dims) {
  return TensorOf<float>(dims, {1, 0, 2, 20, 3, 5, 4, 15});
}

// The same with mean 0 and variance 1 (epsilon 1e-3), times gamma, plus beta.
Tensor Normalized(std::initializer_list<int64_t> dims, std::vector<double> mean,
                  std::vector<double> variance, double gamma = 1, double beta = 0) {
  Tensor t = *Batch(dims).Clone();
  size_t i = 0;
  for (float& v : t.mutable_flat<float>()) {
    const size_t c = i++ % 2;
    v = static_cast<float>(
        (static_cast<double>(v) - mean[c]) / std::sqrt(variance[c] + 1e-3) * gamma + beta);
  }
  return t;
}

constexpr double kTolerance = 1e-5;

// Of rank 2 (composed of ops) and of rank 4 (the fused op, whose averages take the unbiased
// variance).
TEST(BatchNormalization, TrainsWithTheBatchAndUsesTheAverages) {
  for (const bool fused : {false, true}) {
    SCOPED_TRACE(fused ? "fused" : "composed");
    Scope scope;
    const PartialShape shape = fused ? PartialShape{-1, 2, 1, 2} : PartialShape{-1, 2};
    const Tensor batch = fused ? Batch({2, 2, 1, 2}) : Batch({4, 2});
    const auto want = [&](std::vector<double> mean, std::vector<double> variance) {
      return fused ? Normalized({2, 2, 1, 2}, mean, variance, 2, 0.5)
                   : Normalized({4, 2}, mean, variance, 2, 0.5);
    };
    const Output x = Placeholder(scope, DT_FLOAT, shape);
    const BatchNormalizationAttrs attrs = {.momentum = 0.75,
                                           .beta_initializer = ConstantInitializer(0.5),
                                           .gamma_initializer = ConstantInitializer(2),
                                           .moving_mean_initializer = ConstantInitializer(1),
                                           .moving_variance_initializer = ConstantInitializer(3)};
    const BatchNormalizationLayer trained = BatchNormalization(scope, x, true, attrs);
    const BatchNormalizationLayer used = BatchNormalization(scope, x, false, attrs);
    ASSERT_OK(scope.status());
    EXPECT_EQ(
        trained.op().node()->graph()->FindNode("batch_normalization/FusedBatchNormV3") != nullptr,
        fused);
    EXPECT_EQ(scope.shape(trained).ToString(), fused ? "[?,2,1,2]" : "[?,2]");
    ASSERT_EQ(trained.updates.size(), 2u);
    EXPECT_TRUE(used.updates.empty());
    EXPECT_EQ(UpdateOps(scope).size(), 2u);
    EXPECT_EQ(UpdateOps(scope)[0].name(), "batch_normalization/AssignMovingAvg");
    EXPECT_EQ(UpdateOps(scope)[1].name(), "batch_normalization/AssignMovingAvg_1");
    const Operation step = TrainWithUpdates(scope, NoOp(scope));
    ASSERT_OK_AND_ASSIGN(const auto session, InitializedSession(scope));
    ASSERT_OK_AND_ASSIGN(std::vector<Tensor> out, session->Run({{x, batch}}, {trained, used}));
    ExpectTensorNear(out[0], want({2.5, 10}, {1.25, 62.5}), kTolerance, kTolerance);
    ExpectTensorNear(out[1], want({1, 1}, {3, 3}), kTolerance, kTolerance);
    ASSERT_OK(session->Run({{x, batch}}, {}, {step}));
    ASSERT_OK_AND_ASSIGN(out,
                         session->Run({}, {trained.moving_mean.value, trained.moving_variance.value,
                                           used.moving_mean.value}));
    const double n = fused ? 4.0 / 3 : 1;
    ExpectTensorNear(out[0], TensorOf<float>({2}, {0.75f + 0.25f * 2.5f, 0.75f + 2.5f}), kTolerance,
                     0);
    ExpectTensorNear(out[1],
                     TensorOf<float>({2}, {static_cast<float>(2.25 + 0.25 * 1.25 * n),
                                           static_cast<float>(2.25 + 0.25 * 62.5 * n)}),
                     kTolerance, 0);
    ExpectTensorNear(out[2], TensorOf<float>({2}, {1, 1}), 0, 0);
  }
}

TEST(BatchNormalization, AFlagOfTheGraphChoosesInTheStep) {
  Scope scope;
  const Output x = Placeholder(scope, DT_FLOAT, {-1, 2, 1, 2});
  const Output training = Placeholder(scope, DT_BOOL, PartialShape::Scalar());
  const BatchNormalizationLayer y = BatchNormalization(scope, x, training, {.momentum = 0.5});
  ASSERT_OK(scope.status());
  const Operation step = TrainWithUpdates(scope, NoOp(scope));
  ASSERT_OK_AND_ASSIGN(const auto session, InitializedSession(scope));
  const Tensor batch = Batch({2, 2, 1, 2});
  const Tensor yes = Tensor::Scalar<bool>(true), no = Tensor::Scalar<bool>(false);
  ASSERT_OK_AND_ASSIGN(std::vector<Tensor> out, session->Run({{x, batch}, {training, yes}}, {y}));
  ExpectTensorNear(out[0], Normalized({2, 2, 1, 2}, {2.5, 10}, {1.25, 62.5}), kTolerance,
                   kTolerance);
  // Without training nothing moves, whatever is in the batch.
  Tensor bad = *batch.Clone();
  bad.mutable_flat<float>()[0] = std::nanf("");
  ASSERT_OK(session->Run({{x, bad}, {training, no}}, {}, {step}));
  ASSERT_OK_AND_ASSIGN(out, session->Run({{x, batch}, {training, no}}, {y}));
  ExpectTensorNear(out[0], Normalized({2, 2, 1, 2}, {0, 0}, {1, 1}), kTolerance, kTolerance);
  ASSERT_OK(session->Run({{x, batch}, {training, yes}}, {}, {step}));
  ASSERT_OK_AND_ASSIGN(out, session->Run({{x, batch}, {training, no}}, {y}));
  ExpectTensorNear(out[0], Normalized({2, 2, 1, 2}, {1.25, 5}, {0.5 + 2.5 / 3, 0.5 + 125. / 3}),
                   kTolerance, kTolerance);
}

// The mean of nothing is NaN, which no average and no weight may take in.
TEST(BatchNormalization, OfAnEmptyBatchMovesNothing) {
  enum class Flag { kTrue, kFed };
  for (const bool image : {false, true}) {
    for (const Flag kind : {Flag::kTrue, Flag::kFed}) {
      SCOPED_TRACE(absl::StrCat(image ? "image" : "vector", kind == Flag::kFed ? ", fed" : ""));
      Scope scope;
      const Output x =
          Placeholder(scope, DT_FLOAT, image ? PartialShape{-1, 2, 1, 2} : PartialShape{-1, 2});
      const Output training = Placeholder(scope, DT_BOOL, PartialShape::Scalar());
      const BatchNormalizationLayer y =
          kind == Flag::kFed ? BatchNormalization(scope, x, training, {.momentum = 0.5})
                             : BatchNormalization(scope, x, true, {.momentum = 0.5});
      ASSERT_OK_AND_ASSIGN(
          const std::vector<Gradient> gradients,
          AddGradients(scope, {ReduceSum(scope, Square(scope, y))}, {y.gamma.value, y.beta.value}));
      const Operation step = TrainWithUpdates(scope, NoOp(scope));
      ASSERT_OK(scope.status());
      ASSERT_OK_AND_ASSIGN(const auto session, InitializedSession(scope));
      const auto run = [&](const Tensor& batch) {
        return session->Run(
            {{x, batch}, {training, Tensor::Scalar<bool>(true)}},
            {y, DenseGradient(scope, gradients[0]), DenseGradient(scope, gradients[1])}, {step});
      };
      const Tensor none = image ? TensorOf<float>({0, 2, 1, 2}, {}) : TensorOf<float>({0, 2}, {});
      ASSERT_OK_AND_ASSIGN(std::vector<Tensor> out, run(none));
      EXPECT_EQ(out[0].shape(), none.shape());
      ExpectTensorEqual(out[1], TensorOf<float>({2}, {0, 0}));
      ExpectTensorEqual(out[2], TensorOf<float>({2}, {0, 0}));
      const std::vector<FetchName> averages = {y.moving_mean.value, y.moving_variance.value};
      ASSERT_OK_AND_ASSIGN(out, session->Run({}, averages));
      ExpectTensorEqual(out[0], TensorOf<float>({2}, {0, 0}));
      ExpectTensorEqual(out[1], TensorOf<float>({2}, {1, 1}));
      ASSERT_OK(run(image ? Batch({2, 2, 1, 2}) : Batch({4, 2})).status());
      ASSERT_OK_AND_ASSIGN(out, session->Run({}, averages));
      ExpectTensorNear(out[0], TensorOf<float>({2}, {1.25f, 5}), kTolerance, 0);
    }
  }
}

TEST(BatchNormalization, OfAKnownBatchAsksNothingOfIt) {
  Scope scope;
  BatchNormalization(scope, Placeholder(scope, DT_FLOAT, {4, 2}), true);
  BatchNormalization(scope, Placeholder(scope, DT_FLOAT, {4, 2, 1, 2}), true);
  ASSERT_OK(scope.status());
  for (const auto& node : scope.graph()->nodes()) {
    if (node == nullptr) continue;
    EXPECT_TRUE(node->op() != "Select" && node->op() != "Greater") << node->name();
  }
}

TEST(UpdateOps, AreThoseOfTensorsTooAndNoneIsLost) {
  Scope scope;
  const Output tensor = Const(scope.WithName("tensor"), 1.0f);
  scope.AddToNodeCollection("update_ops", "tensor:0");
  ASSERT_EQ(UpdateOps(scope).size(), 1u);
  EXPECT_EQ(UpdateOps(scope)[0], tensor.op());
  scope.AddToNodeCollection("update_ops", "gone");
  EXPECT_TRUE(UpdateOps(scope).empty());
  EXPECT_STATUS(scope.status(), absl::StatusCode::kNotFound, "must be of the graph, got 'gone'");
}

TEST(BatchNormalization, NamesVariablesAsTensorFlowsLayers) {
  Scope scope;
  const Output x = Placeholder(scope, DT_FLOAT, {-1, 3});
  BatchNormalization(scope, x, true);
  const BatchNormalizationLayer bare =
      BatchNormalization(scope, x, true, {.center = false, .scale = false});
  ASSERT_OK(scope.status());
  EXPECT_EQ(NamesOf(scope, "variables"),
            std::vector<std::string>(
                {"batch_normalization/gamma", "batch_normalization/beta",
                 "batch_normalization/moving_mean", "batch_normalization/moving_variance",
                 "batch_normalization_1/moving_mean", "batch_normalization_1/moving_variance"}));
  EXPECT_EQ(NamesOf(scope, "trainable_variables"),
            std::vector<std::string>({"batch_normalization/gamma", "batch_normalization/beta"}));
  EXPECT_FALSE(bare.gamma.valid() || bare.beta.valid());
}

TEST(BatchNormalization, IsCutByAPartitioner) {
  for (const bool images : {false, true}) {
    Scope scope;
    const Output x =
        Placeholder(scope, DT_FLOAT, images ? PartialShape{-1, 1, 1, 3} : PartialShape{-1, 3});
    const BatchNormalizationLayer y =
        BatchNormalization(scope.WithName("norm"), x, false,
                           {.beta_initializer = ConstantInitializer(1),
                            .gamma_initializer = ConstantInitializer(2),
                            .partitioner = FixedSizePartitioner(2)});
    ASSERT_OK(scope.status());
    EXPECT_FALSE(y.gamma.valid() || y.beta.valid());
    // As in TensorFlow's checkpoints, moving averages stay whole.
    EXPECT_EQ(
        NamesOf(scope, "variables"),
        (std::vector<std::string>{"norm/gamma/part_0", "norm/gamma/part_1", "norm/beta/part_0",
                                  "norm/beta/part_1", "norm/moving_mean", "norm/moving_variance"}));
    const Shape shape = images ? Shape{1, 1, 1, 3} : Shape{1, 3};
    const Tensor rows = *Tensor::FromValues<float>(shape, {1, 2, 3});
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunInitialized(scope, {{x, rows}}, {y}));
    ExpectTensorNear(out[0], *Tensor::FromValues<float>(shape, {3, 5, 7}), 1e-2, 0);
  }
}

TEST(BatchNormalization, MovesAveragesOnTheirOwnDevice) {
  Scope root;
  const Scope model = root.WithDevice([](const tensorflow::NodeDef& def) {
    return std::string(def.op() == "VarHandleOp" ? "/job:ps/task:0" : "/job:worker");
  });
  const BatchNormalizationLayer y =
      BatchNormalization(model, Placeholder(model, DT_FLOAT, {-1, 4}), true);
  ASSERT_OK(root.status());
  EXPECT_EQ(y.node()->requested_device(), "/job:worker");
  for (const Operation& update : y.updates) {
    EXPECT_EQ(update.node()->requested_device(), "/job:ps/task:0");
    // What is sent there is the batch's mean or variance and nothing else.
    EXPECT_EQ(update.node()->input(1).node->requested_device(), "/job:ps/task:0");
  }
}

TEST(BatchNormalization, HalfKeepsFloatStatistics) {
  for (const bool fused : {false, true}) {
    Scope scope;
    const Output x =
        Placeholder(scope, DT_HALF, fused ? PartialShape{-1, 1, 1, 2} : PartialShape{-1, 2});
    const BatchNormalizationLayer y = BatchNormalization(scope, x, true);
    ASSERT_OK(scope.status());
    EXPECT_EQ(y.dtype(), DT_HALF);
    EXPECT_EQ(y.gamma.dtype, DT_FLOAT);
    EXPECT_EQ(y.moving_mean.dtype, DT_FLOAT);
  }
}

TEST(BatchNormalization, GradientsAreFiniteDifferences) {
  const Tensor value = TensorOf<double>({4, 2}, {1, 0, 2, 2, 3, 0.5, 4.5, 1.5});
  const Tensor gamma = TensorOf<double>({2}, {1.5, -0.5}), beta = TensorOf<double>({2}, {0.1, 2});
  for (const bool training : {true, false}) {
    Scope scope;
    const Output x = Placeholder(scope, DT_DOUBLE, {4, 2});
    const BatchNormalizationLayer y = BatchNormalization(scope, x, training);
    ExpectLayerGradientsMatch(scope, y, {{x, value}, {y.gamma.value, gamma}, {y.beta.value, beta}});
    Scope fed;
    const Output x2 = Placeholder(fed, DT_DOUBLE, {4, 2});
    const Output flag = Placeholder(fed, DT_BOOL, PartialShape::Scalar());
    const BatchNormalizationLayer y2 = BatchNormalization(fed, x2, flag);
    ExpectLayerGradientsMatch(fed, y2,
                              {{x2, value}, {y2.gamma.value, gamma}, {y2.beta.value, beta}},
                              {{flag, Tensor::Scalar<bool>(training)}});
  }
}

TEST(LayerNormalization, NormalizesEachExample) {
  Scope scope;
  const Output x = Placeholder(scope, DT_FLOAT, {-1, -1, 2});
  const LayerNormalizationLayer y =
      LayerNormalization(scope, x,
                         {.epsilon = 1,
                          .beta_initializer = ConstantInitializer(3),
                          .gamma_initializer = ConstantInitializer(2)});
  // Mean 2, variance 3; mean 0, variance 0.
  const float root = std::sqrt(3.0f) / 2;
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> out,
      RunInitialized(
          scope,
          {{x, TensorOf<float>({2, 1, 2}, {2 - std::sqrt(3.0f), 2 + std::sqrt(3.0f), 0, 0})}},
          {y}));
  ExpectTensorNear(out[0], TensorOf<float>({2, 1, 2}, {3 - 2 * root, 3 + 2 * root, 3, 3}),
                   kTolerance, 0);
  EXPECT_EQ(NamesOf(scope, "trainable_variables"),
            std::vector<std::string>({"layer_normalization/gamma", "layer_normalization/beta"}));
}

TEST(LayerNormalization, GradientsAreFiniteDifferences) {
  Scope scope;
  const Output x = Placeholder(scope, DT_DOUBLE, {2, 3});
  const LayerNormalizationLayer y = LayerNormalization(scope, x);
  ExpectLayerGradientsMatch(scope, y,
                            {{x, TensorOf<double>({2, 3}, {1, -1, 0.5, 2, 4, 3})},
                             {y.gamma.value, TensorOf<double>({3}, {1, -2, 0.5})},
                             {y.beta.value, TensorOf<double>({3}, {0, 1, 2})}});
}

TEST(Normalization, BadArgumentsAreErrorsOfTheScope) {
  const auto in = [](const Scope& s, const PartialShape& shape = {-1, 4}) {
    return Placeholder(s.WithName("x"), DT_FLOAT, shape);
  };
  ExpectBadCalls({
      {[&](const Scope& s) { return BatchNormalization(s, in(s), true, {.momentum = 1.5}); },
       "BatchNormalization 'm/batch_normalization': momentum must be in [0, 1], got 1.5"},
      {[&](const Scope& s) { return BatchNormalization(s, in(s), true, {.epsilon = 0}); },
       "epsilon must be > 0 and finite, got 0"},
      {[&](const Scope& s) { return BatchNormalization(s, in(s, {-1}), true); },
       "x must have rank >= 2, got shape [?]"},
      {[&](const Scope& s) {
         return BatchNormalization(s, in(s, {2, -1}), true);
       },
       "the last dimension of x must be known and >= 1, got shape [2,?]"},
      {[&](const Scope& s) { return BatchNormalization(s, in(s, PartialShape()), true); },
       "got shape <unknown>"},
      {[&](const Scope& s) { return BatchNormalization(s, in(s), Output()); },
       "training must be the output of a node, got an invalid Output"},
      {[&](const Scope& s) {
         return BatchNormalization(s, in(s),
                                   Placeholder(s.WithName("t"), DT_FLOAT, PartialShape::Scalar()));
       },
       "training must be bool, got float from 'm/t:0'"},
      {[&](const Scope& s) {
         return BatchNormalization(s, in(s), Placeholder(s.WithName("t"), DT_BOOL, {2}));
       },
       "training must have rank 0, got shape [2] of 'm/t:0'"},
      {[&](const Scope& s) { return LayerNormalization(s, in(s), {.epsilon = std::nan("")}); },
       "LayerNormalization 'm/layer_normalization': epsilon must be > 0 and finite, got nan"},
  });
  Scope scope;
  EXPECT_FALSE(TrainWithUpdates(scope, Operation()).valid());
  EXPECT_STATUS(scope.status(), absl::StatusCode::kInvalidArgument,
                "train must be an operation, got an invalid one");
}

}  // namespace
}  // namespace millrace
