// SPDX-License-Identifier: Apache-2.0
#include "layers/losses.h"

#include <cmath>
#include <functional>
#include <map>
#include <numbers>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "layers/regularizers.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "runtime/testing/op_test.h"

// covers: variables: losses follow TensorFlow's definitions: every reduction × shape of weights,
//   shapes known early or late, empty batches, zero weights, gradients; labels and predictions
//   never broadcast, also where their shapes show in the step only

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
using Values = std::vector<double>;

Tensor Floats(const std::vector<int64_t>& dims, const Values& values) {
  const std::vector<float> floats(values.begin(), values.end());
  return *Tensor::FromValues<float>(*Shape::Make(dims), absl::MakeConstSpan(floats));
}

using Build = std::function<Output(const Scope&, Output labels, Output predictions, LossAttrs)>;
template <typename Attrs>
Attrs With(Attrs attrs, const LossAttrs& common) {
  attrs.weights = common.weights;
  attrs.reduction = common.reduction;
  attrs.collection = common.collection;
  return attrs;
}

// The loss of these labels and predictions, all fed, with and without their shapes known.
void ExpectLoss(const Build& build, const Tensor& labels, const Tensor& predictions,
                const Tensor& want, const LossAttrs& attrs = {}, double tolerance = 1e-6) {
  for (const bool known : {true, false}) {
    SCOPED_TRACE(known ? "shapes are known" : "shapes are not known");
    Scope scope;
    const auto input = [&](const Tensor& t) {
      return known ? TestInput(scope, t.dtype(), PartialShape(t.shape()))
                   : TestInput(scope, t.dtype());
    };
    const Output y = input(labels), x = input(predictions);
    const Output loss = build(scope, y, x, attrs);
    ASSERT_OK(scope.status());
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                         EvaluateGraph(scope, {{y, labels}, {x, predictions}}, {loss}));
    ExpectTensorNear(got[0], want, tolerance, tolerance);
  }
}
Tensor FloatScalar(double value) { return Tensor::Scalar(static_cast<float>(value)); }

const Build kMeanSquared = [](const Scope& s, Output y, Output x, LossAttrs a) {
  return MeanSquaredError(s, y, x, a);
};
const Build kAbsolute = [](const Scope& s, Output y, Output x, LossAttrs a) {
  return AbsoluteDifference(s, y, x, a);
};
const Build kHuber = [](const Scope& s, Output y, Output x, LossAttrs a) {
  return HuberLoss(s, y, x, With(HuberLossAttrs{.delta = 1.5}, a));
};
const Build kLog = [](const Scope& s, Output y, Output x, LossAttrs a) {
  return LogLoss(s, y, x, With(LogLossAttrs{}, a));
};
const Build kHinge = [](const Scope& s, Output y, Output x, LossAttrs a) {
  return HingeLoss(s, y, x, a);
};
const Build kCosine = [](const Scope& s, Output y, Output x, LossAttrs a) {
  return CosineDistance(s, y, x, 1, a);
};
const Build kSigmoid = [](const Scope& s, Output y, Output x, LossAttrs a) {
  return SigmoidCrossEntropy(s, y, x, With(CrossEntropyAttrs{}, a));
};
const Build kSoftmax = [](const Scope& s, Output y, Output x, LossAttrs a) {
  return SoftmaxCrossEntropy(s, y, x, With(CrossEntropyAttrs{}, a));
};
const Build kPairwise = [](const Scope& s, Output y, Output x, LossAttrs a) {
  return MeanPairwiseSquaredError(s, y, x, {.weights = a.weights, .collection = a.collection});
};
const Build kLosses[] = {kMeanSquared, kAbsolute, kHuber,   kLog,     kHinge,
                         kCosine,      kSigmoid,  kSoftmax, kPairwise};

constexpr LossReduction kReductions[] = {LossReduction::kNone, LossReduction::kSum,
                                         LossReduction::kSumOverBatchSize, LossReduction::kMean,
                                         LossReduction::kSumByNonzeroWeights};

// --- Values --------------------------------------------------------------------------------------

// By their definitions, element by element in double.
TEST(Losses, FollowTheirDefinitions) {
  const Values y = {1, 0, 1, 0, 1, 1}, x = {0.25, 0.5, 0.75, 0.125, 0.9, 0.01};
  const auto expect = [&](const Build& build, const Values& predictions,
                          const std::function<double(double, double)>& definition) {
    Values losses;
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) {
      losses.push_back(definition(y[i], predictions[i]));
      sum += losses.back();
    }
    ExpectLoss(build, Floats({2, 3}, y), Floats({2, 3}, predictions), Floats({2, 3}, losses),
               {.reduction = LossReduction::kNone});
    ExpectLoss(build, Floats({2, 3}, y), Floats({2, 3}, predictions), FloatScalar(sum / 6));
  };
  const Values wide = {3, -2, 0.5, 0, -1, 2.5};
  expect(kMeanSquared, wide, [](double a, double b) { return (a - b) * (a - b); });
  expect(kAbsolute, wide, [](double a, double b) { return std::abs(a - b); });
  expect(kHuber, wide, [](double a, double b) {
    const double e = std::abs(a - b);
    return e <= 1.5 ? e * e / 2 : 1.5 * e - 1.5 * 1.5 / 2;
  });
  expect(kLog, x, [](double a, double b) {
    return -a * std::log(b + 1e-7) - (1 - a) * std::log(1 - b + 1e-7);
  });
  expect(kHinge, wide, [](double a, double b) { return std::max(0.0, 1 - (2 * a - 1) * b); });
  expect(kSigmoid, wide, [](double a, double b) {
    const double p = 1 / (1 + std::exp(-b));
    return -a * std::log(p) - (1 - a) * std::log(1 - p);
  });
}

TEST(Losses, CosineDistanceKeepsTheAxisAsOne) {
  const Tensor y = Floats({2, 2}, {1, 0, 0.6, 0.8}), x = Floats({2, 2}, {0.6, 0.8, 0.8, -0.6});
  ExpectLoss(kCosine, y, x, Floats({2, 1}, {0.4, 1}), {.reduction = LossReduction::kNone});
  ExpectLoss(kCosine, y, x, FloatScalar(0.7));
}

TEST(Losses, LogLossIsFiniteAtCertainty) {
  ExpectLoss(kLog, Floats({2}, {1, 0}), Floats({2}, {0, 1}), FloatScalar(-std::log(1e-7)), {},
             1e-5);
}

double SoftmaxLoss(const Values& labels, const Values& logits) {
  double sum = 0, loss = 0;
  for (const double z : logits) sum += std::exp(z);
  for (size_t i = 0; i < labels.size(); ++i) loss -= labels[i] * (logits[i] - std::log(sum));
  return loss;
}

TEST(Losses, SoftmaxCrossEntropyIsOfRows) {
  const Tensor y = Floats({2, 3}, {0, 1, 0, 0.25, 0.25, 0.5});
  const Tensor x = Floats({2, 3}, {1, 2, -1, 0, 3, 0.5});
  const double a = SoftmaxLoss({0, 1, 0}, {1, 2, -1}),
               b = SoftmaxLoss({0.25, 0.25, 0.5}, {0, 3, 0.5});
  ExpectLoss(kSoftmax, y, x, Floats({2}, {a, b}), {.reduction = LossReduction::kNone});
  ExpectLoss(kSoftmax, y, x, FloatScalar((a + b) / 2));
  // Ranks other than 2: the rest of the shape stays.
  ExpectLoss(kSoftmax, Floats({1, 2, 3}, {0, 1, 0, 0.25, 0.25, 0.5}),
             Floats({1, 2, 3}, {1, 2, -1, 0, 3, 0.5}), Floats({1, 2}, {a, b}),
             {.reduction = LossReduction::kNone});
  ExpectLoss(kSoftmax, Floats({3}, {0, 1, 0}), Floats({3}, {1, 2, -1}), FloatScalar(a),
             {.reduction = LossReduction::kNone});
}

TEST(Losses, SparseLabelsAreOneHotRows) {
  const Tensor x = Floats({2, 3}, {1, 2, -1, 0, 3, 0.5});
  const double a = SoftmaxLoss({0, 1, 0}, {1, 2, -1}), b = SoftmaxLoss({1, 0, 0}, {0, 3, 0.5});
  const Build sparse = [](const Scope& s, Output y, Output z, LossAttrs attrs) {
    return SparseSoftmaxCrossEntropy(s, y, z, attrs);
  };
  const LossAttrs none = {.reduction = LossReduction::kNone};
  ExpectLoss(sparse, Tensor::Vector<int64_t>({1, 0}), x, Floats({2}, {a, b}), none);
  ExpectLoss(sparse, Tensor::Vector<int32_t>({1, 0}), x, FloatScalar((a + b) / 2));
  ExpectLoss(sparse, TensorOf<int64_t>({1, 2}, {1, 0}), Floats({1, 2, 3}, {1, 2, -1, 0, 3, 0.5}),
             Floats({1, 2}, {a, b}), none);
}

// A column that is seen in the step only, against logits of which more or less is known.
TEST(Losses, SparseLabelsOfUnknownRankMayBeAColumn) {
  const PartialShape unknown;
  for (const PartialShape& logits_shape : {unknown, PartialShape({-1, 3}), PartialShape({2, 3})}) {
    SCOPED_TRACE(logits_shape.ToString());
    Scope scope;
    const Output y = TestInput(scope, DT_INT64, unknown);
    const Output x = TestInput(scope, DT_FLOAT, logits_shape);
    const Output loss = SparseSoftmaxCrossEntropy(scope, y, x);
    ASSERT_OK(scope.status());
    const Tensor logits = Floats({2, 3}, {1, 2, -1, 0, 3, 0.5});
    const double want =
        (SoftmaxLoss({0, 1, 0}, {1, 2, -1}) + SoftmaxLoss({1, 0, 0}, {0, 3, 0.5})) / 2;
    for (const Tensor& labels :
         {TensorOf<int64_t>({2, 1}, {1, 0}), Tensor::Vector<int64_t>({1, 0})}) {
      ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                           EvaluateGraph(scope, {{y, labels}, {x, logits}}, {loss}));
      ExpectTensorNear(got[0], FloatScalar(want), 1e-6, 1e-6);
    }
    for (const Tensor& labels :
         {TensorOf<int64_t>({1, 2}, {1, 0}), TensorOf<int64_t>({2, 2}, {1, 0, 0, 1}),
          Tensor::Vector<int64_t>({1, 0, 2})}) {
      EXPECT_STATUS(EvaluateGraph(scope, {{y, labels}, {x, logits}}, {loss}).status(), kInvalid,
                    labels.rank() == 2 && labels.dim(0) == 2 ? ""
                                                             : "labels must have the shape of "
                                                               "logits without its last");
    }
  }
}

// [batch, 1] labels and weights are common: what a column of a file is parsed into.
TEST(Losses, SparseLabelsAndWeightsMayHaveOneDimensionTooMany) {
  Scope scope;
  const Output y = TestInput(scope, DT_INT64, {-1, 1});
  const Output x = TestInput(scope, DT_FLOAT, {-1, 3});
  const Output w = TestInput(scope, DT_FLOAT, {-1, 1});
  const Output loss =
      SparseSoftmaxCrossEntropy(scope, y, x, {.weights = w, .reduction = LossReduction::kNone});
  const Output deep = TestInput(scope, DT_FLOAT, {-1, 3, 1});
  const Output flat = TestInput(scope, DT_INT64, {-1});
  const Output deep_loss =
      SparseSoftmaxCrossEntropy(scope, flat, deep, {.reduction = LossReduction::kNone});
  ASSERT_OK(scope.status());
  EXPECT_EQ(scope.shape(loss).ToString(), "[?]");
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got,
                       EvaluateGraph(scope,
                                     {{y, TensorOf<int64_t>({2, 1}, {1, 0})},
                                      {x, Floats({2, 3}, {1, 2, -1, 0, 3, 0.5})},
                                      {w, Floats({2, 1}, {2, 0})},
                                      {flat, Tensor::Vector<int64_t>({1})},
                                      {deep, Floats({1, 3, 1}, {1, 2, -1})}},
                                     {loss, deep_loss}));
  const double a = SoftmaxLoss({0, 1, 0}, {1, 2, -1});
  ExpectTensorNear(got[0], Floats({2}, {2 * a, 0}), 1e-6, 1e-6);
  ExpectTensorNear(got[1], Floats({1}, {a}), 1e-6, 1e-6);
}

TEST(Losses, SmoothedLabelsMoveTowardsTheUniformDistribution) {
  const Build sigmoid = [](const Scope& s, Output y, Output x, LossAttrs a) {
    return SigmoidCrossEntropy(s, y, x, With(CrossEntropyAttrs{.label_smoothing = 0.2}, a));
  };
  const auto of = [](double y, double x) {
    return -y * std::log(1 / (1 + std::exp(-x))) - (1 - y) * std::log(1 / (1 + std::exp(x)));
  };
  ExpectLoss(sigmoid, Floats({2}, {1, 0}), Floats({2}, {2, -3}),
             Floats({2}, {of(0.9, 2), of(0.1, -3)}), {.reduction = LossReduction::kNone});
  const Build softmax = [](const Scope& s, Output y, Output x, LossAttrs a) {
    return SoftmaxCrossEntropy(s, y, x, With(CrossEntropyAttrs{.label_smoothing = 0.4}, a));
  };
  ExpectLoss(softmax, Floats({1, 4}, {0, 1, 0, 0}), Floats({1, 4}, {1, 2, -1, 0}),
             FloatScalar(SoftmaxLoss({0.1, 0.7, 0.1, 0.1}, {1, 2, -1, 0})));
}

TEST(Losses, PairwiseErrorIsTheMeanOverPairsSummedOverExamples) {
  const Values y = {1, 9, 2, -5, -2, 6}, x = {4, 8, 12, 8, 1, 3};
  double want[2] = {};
  for (size_t row = 0; row < 2; ++row) {
    for (size_t i = 0; i < 3; ++i) {
      for (size_t j = i + 1; j < 3; ++j) {
        const double d = (y[3 * row + i] - y[3 * row + j]) - (x[3 * row + i] - x[3 * row + j]);
        want[row] += d * d / 3;
      }
    }
  }
  const Tensor labels = Floats({2, 3}, y), predictions = Floats({2, 3}, x);
  ExpectLoss(kPairwise, labels, predictions, FloatScalar(want[0] + want[1]));
  ExpectLoss(kPairwise, labels, predictions, FloatScalar(0.5 * (want[0] + want[1])),
             {.weights = 0.5});
  ExpectLoss(kPairwise, labels, predictions, FloatScalar(0), {.weights = 0});
  const Build by_example = [](const Scope& s, Output labels, Output predictions, LossAttrs) {
    return MeanPairwiseSquaredError(s, labels, predictions,
                                    {.weights = Const(s, TensorOf<float>({2, 1}, {0, 3}))});
  };
  ExpectLoss(by_example, labels, predictions, FloatScalar(3 * want[1]));
  // No pairs.
  ExpectLoss(kPairwise, Floats({2, 1}, {1, 2}), Floats({2, 1}, {3, 7}), FloatScalar(0));
  ExpectLoss(kPairwise, Floats({2}, {1, 2}), Floats({2}, {3, 7}), FloatScalar(0));
}

TEST(Losses, SigmoidCrossEntropyIsExactForLargeLogits) {
  ExpectLoss(kSigmoid, Floats({4}, {1, 0, 1, 0}), Floats({4}, {30, -30, -1e4, 1e4}),
             Floats({4}, {std::exp(-30), std::exp(-30), 1e4, 1e4}),
             {.reduction = LossReduction::kNone});
  Scope scope;
  const Output y = TestInput(scope, DT_FLOAT, {1}), x = TestInput(scope, DT_FLOAT, {1});
  const Output loss = SigmoidCrossEntropy(scope, y, x);
  ASSERT_OK_AND_ASSIGN(
      const auto got,
      EvaluateGraph(scope, {{y, Floats({1}, {1})}, {x, Floats({1}, {30})}}, {loss}));
  EXPECT_NEAR(got[0].scalar<float>() / std::exp(-30.0), 1, 1e-5);
}

TEST(Losses, OfEachElementAreNeitherWeightedNorReduced) {
  const Values y = {0, 1, 2, 5, 0.5, 0}, x = {0.5, -1, 0.25, 1.5, 2, -3};
  Scope scope;
  const Output labels = Const(scope, Floats({3, 2}, y)), logits = Const(scope, Floats({3, 2}, x));
  const Output sigmoid = SigmoidCrossEntropyWithLogits(scope, labels, logits);
  const Output poisson = LogPoissonLoss(scope.WithName("plain"), labels, logits);
  const Output full = LogPoissonLoss(scope, labels, logits, /*compute_full_loss=*/true);
  EXPECT_EQ(sigmoid.name(), "logistic_loss:0");
  EXPECT_EQ(poisson.name(), "plain:0");
  EXPECT_EQ(full.name(), "log_poisson_loss:0");
  EXPECT_TRUE(LossesOf(scope).empty());
  Values want_sigmoid, want_poisson, want_full;
  for (size_t i = 0; i < y.size(); ++i) {
    want_sigmoid.push_back(y[i] * std::log1p(std::exp(-x[i])) +
                           (1 - y[i]) * std::log1p(std::exp(x[i])));
    want_poisson.push_back(std::exp(x[i]) - x[i] * y[i]);
    const double stirling =
        y[i] * std::log(y[i]) - y[i] + 0.5 * std::log(2 * std::numbers::pi * y[i]);
    want_full.push_back(want_poisson.back() + (y[i] > 1 ? stirling : 0));
  }
  ASSERT_OK_AND_ASSIGN(const auto got, EvaluateGraph(scope, {}, {sigmoid, poisson, full}));
  ExpectTensorNear(got[0], Floats({3, 2}, want_sigmoid), 1e-5, 1e-6);
  ExpectTensorNear(got[1], Floats({3, 2}, want_poisson), 1e-5, 1e-6);
  ExpectTensorNear(got[2], Floats({3, 2}, want_full), 1e-5, 1e-6);

  const Tensor counts = TensorOf<double>({4}, {0.5, 1.5, 3, 7});
  const Tensor means = TensorOf<double>({4}, {0.5, -1, 0.25, 1.5});
  for (const bool compute_full_loss : {false, true}) {
    ExpectGradientsMatch(
        [=](const Scope& s, const std::vector<Output>& in) {
          return LogPoissonLoss(s, in[0], in[1], compute_full_loss);
        },
        {counts, means});
  }
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return SigmoidCrossEntropyWithLogits(s, in[0], in[1]);
      },
      {counts, means});
}

// --- Weights and reductions ----------------------------------------------------------------------

struct WeightsCase {
  const char* name;
  std::vector<int64_t> dims;  // of a tensor
  Values values;
};

TEST(Weights, AreBroadcastCountedAndDividedByInEveryReduction) {
  const Values losses = {1, -2, 3, 4, 0.5, -6};  // [2, 3]
  const WeightsCase cases[] = {
      {"scalar", {}, {2}},
      {"scalar zero", {}, {0}},
      {"by example", {2, 1}, {0.5, 3}},
      {"by example, some zero", {2, 1}, {0, 3}},
      {"by column", {1, 3}, {1, 0, 4}},
      {"one", {1, 1}, {5}},
      {"by element", {2, 3}, {1, 0, 2, 0, -1, 3}},
      {"all zero", {2, 3}, {0, 0, 0, 0, 0, 0}},
      {"that add up to zero", {1, 3}, {1, -1, 0}},
  };
  for (const WeightsCase& c : cases) {
    SCOPED_TRACE(c.name);
    double sum = 0, nonzero = 0, weights_sum = 0;
    Values weighted;
    for (size_t i = 0; i < 6; ++i) {
      const size_t row = c.dims.empty() || c.dims[0] == 1 ? 0 : i / 3;
      const size_t column = c.dims.empty() || c.dims[1] == 1 ? 0 : i % 3;
      const double w =
          c.values[row * (c.dims.empty() ? 0 : static_cast<size_t>(c.dims[1])) + column];
      weighted.push_back(losses[i] * w);
      sum += losses[i] * w;
      nonzero += w != 0;
      weights_sum += w;
    }
    const auto ratio = [](double a, double b) { return b == 0 ? 0 : a / b; };
    const std::map<LossReduction, Tensor> want = {
        {LossReduction::kNone, Floats({2, 3}, weighted)},
        {LossReduction::kSum, FloatScalar(sum)},
        {LossReduction::kSumOverBatchSize, FloatScalar(sum / 6)},
        {LossReduction::kMean, FloatScalar(ratio(sum, weights_sum))},
        {LossReduction::kSumByNonzeroWeights, FloatScalar(ratio(sum, nonzero))}};
    const Tensor weights = Floats(c.dims, c.values), values = Floats({2, 3}, losses);
    for (const auto& [reduction, expected] : want) {
      SCOPED_TRACE(static_cast<int>(reduction));
      // What is known of the shapes of weights and losses while the graph is built.
      const PartialShape unknown, known_weights(weights.shape()), known_losses({2, 3});
      const PartialShape batch_unknown({-1, 3}),
          half_known =
              weights.rank() == 2 ? PartialShape({-1, weights.dim(1)}) : PartialShape::Scalar();
      for (const auto& [w_shape, l_shape] :
           {std::pair(known_weights, known_losses), std::pair(half_known, batch_unknown),
            std::pair(known_weights, unknown), std::pair(unknown, known_losses),
            std::pair(unknown, unknown)}) {
        SCOPED_TRACE(absl::StrCat(w_shape.ToString(), " ", l_shape.ToString()));
        Scope scope;
        const Output w = TestInput(scope, DT_FLOAT, w_shape);
        const Output l = TestInput(scope, DT_FLOAT, l_shape);
        const Output loss = ComputeWeightedLoss(scope, l, {.weights = w, .reduction = reduction});
        ASSERT_OK(scope.status());
        ASSERT_OK_AND_ASSIGN(const auto got,
                             EvaluateGraph(scope, {{w, weights}, {l, values}}, {loss}));
        ExpectTensorNear(got[0], expected, 1e-6, 1e-6);
      }
      if (!c.dims.empty()) continue;
      Scope scope;
      const Output l = TestInput(scope, DT_FLOAT, {-1, 3});
      const Output loss =
          ComputeWeightedLoss(scope, l, {.weights = c.values[0], .reduction = reduction});
      ASSERT_OK_AND_ASSIGN(const auto got, EvaluateGraph(scope, {{l, values}}, {loss}));
      ExpectTensorNear(got[0], expected, 1e-6, 1e-6);
    }
  }
}

TEST(Weights, OfAnyNumberTypeAreTakenAsFloat) {
  Scope scope;
  const Output l = TestInput(scope, DT_DOUBLE, {3});
  const Output w = TestInput(scope, DT_BOOL, {3});
  const Output loss = ComputeWeightedLoss(scope, l, {.weights = w});
  ASSERT_OK(scope.status());
  EXPECT_EQ(loss.dtype(), DT_DOUBLE);
  ASSERT_OK_AND_ASSIGN(const auto got,
                       EvaluateGraph(scope,
                                     {{l, TensorOf<double>({3}, {1, 2, 4})},
                                      {w, TensorOf<bool>({3}, {true, false, true})}},
                                     {loss}));
  ExpectTensorEqual(got[0], Tensor::Scalar(2.5));
}

TEST(Weights, ThatDoNotFitAreRefusedWhileTheGraphIsBuilt) {
  const std::pair<PartialShape, PartialShape> cases[] = {
      {PartialShape({3}), PartialShape({2, 3})},       {PartialShape({2}), PartialShape({2, 3})},
      {PartialShape({1, 2, 3}), PartialShape({2, 3})}, {PartialShape({2, 2}), PartialShape({2, 3})},
      {PartialShape({3, 1}), PartialShape({2, 3})},    {PartialShape({-1}), PartialShape({-1, 3})},
      {PartialShape({-1, 2}), PartialShape({-1, 3})},  {PartialShape({1}), PartialShape::Scalar()},
  };
  for (const auto& [w, l] : cases) {
    Scope scope;
    const Output loss = ComputeWeightedLoss(scope.WithName("mine"), TestInput(scope, DT_FLOAT, l),
                                            {.weights = TestInput(scope, DT_FLOAT, w)});
    EXPECT_FALSE(loss.valid());
    EXPECT_STATUS(scope.status(), kInvalid,
                  absl::StrCat("ComputeWeightedLoss 'mine': weights must be a scalar or have the "
                               "rank of the losses with dimensions of 1 or theirs, got shape ",
                               w.ToString(), " for losses of shape ", l.ToString(), "; built at "));
  }
}

TEST(Weights, ThatDoNotFitAreRefusedInTheStepWhereShapesAreKnownOnlyThere) {
  const auto run = [](const PartialShape& w_shape, const PartialShape& l_shape,
                      const std::vector<int64_t>& w_dims, const std::vector<int64_t>& l_dims) {
    Scope scope;
    const Output w = TestInput(scope, DT_FLOAT, w_shape), l = TestInput(scope, DT_FLOAT, l_shape);
    const Output loss = ComputeWeightedLoss(scope, l, {.weights = w});
    EXPECT_OK(scope.status());
    const auto ones = [](const std::vector<int64_t>& dims) {
      const Shape shape = *Shape::Make(dims);
      return Floats(dims, Values(static_cast<size_t>(shape.num_elements()), 1));
    };
    return EvaluateGraph(scope, {{w, ones(w_dims)}, {l, ones(l_dims)}}, {loss}).status();
  };
  const char* const text = "assertion failed: [weights can not be broadcast to values.]";
  const PartialShape unknown, vector({-1}), matrix({-1, -1});
  EXPECT_OK(run(unknown, unknown, {}, {2, 3}));
  EXPECT_OK(run(unknown, unknown, {2, 1}, {2, 3}));
  EXPECT_STATUS(run(unknown, unknown, {3}, {2, 3}), kInvalid, text);
  EXPECT_STATUS(run(unknown, unknown, {1}, {2, 3}), kInvalid, text);
  EXPECT_STATUS(run(unknown, unknown, {1, 1, 1}, {2, 3}), kInvalid, text);
  EXPECT_STATUS(run(unknown, unknown, {1}, {}), kInvalid, text);
  EXPECT_STATUS(run(vector, unknown, {3}, {2, 3}), kInvalid, text);
  EXPECT_STATUS(run(matrix, matrix, {2, 2}, {2, 3}), kInvalid, text);
  // Losses are never broadcast to the weights.
  EXPECT_STATUS(run(vector, vector, {4}, {1}), kInvalid, text);
  EXPECT_STATUS(run(matrix, matrix, {4, 3}, {1, 3}), kInvalid, text);
}

// --- Empty batches, dtypes -----------------------------------------------------------------------

TEST(Losses, OfAnEmptyBatchAreZero) {
  for (const Build& build : kLosses) {
    for (const LossReduction reduction : kReductions) {
      if (reduction == LossReduction::kNone) continue;
      ExpectLoss(build, Floats({0, 3}, {}), Floats({0, 3}, {}), FloatScalar(0),
                 {.reduction = reduction});
      ExpectLoss(build, Floats({0, 3}, {}), Floats({0, 3}, {}), FloatScalar(0),
                 {.weights = 0.5, .reduction = reduction});
    }
  }
  Scope scope;
  const Output y = TestInput(scope, DT_FLOAT, {-1}), x = TestInput(scope, DT_FLOAT, {-1});
  const Output w = TestInput(scope, DT_FLOAT, {-1}), classes = TestInput(scope, DT_INT32, {-1});
  const Output logits = TestInput(scope, DT_FLOAT, {-1, 5});
  const std::vector<Output> losses = {
      MeanSquaredError(scope, y, x, {.weights = w}),
      MeanSquaredError(scope, y, x, {.weights = w, .reduction = LossReduction::kMean}),
      SparseSoftmaxCrossEntropy(scope, classes, logits, {.weights = w})};
  ASSERT_OK(scope.status());
  const Tensor none = Floats({0}, {});
  ASSERT_OK_AND_ASSIGN(const auto got, EvaluateGraph(scope,
                                                     {{y, none},
                                                      {x, none},
                                                      {w, none},
                                                      {classes, Tensor::Vector<int32_t>({})},
                                                      {logits, Floats({0, 5}, {})}},
                                                     losses));
  for (const Tensor& loss : got) ExpectTensorEqual(loss, FloatScalar(0));
}

TEST(Losses, TakeAnyNumbersAndGiveFloatOrTheDtypeOfTheLogits) {
  const Tensor y = Tensor::Vector<uint8_t>({1, 0}), x = Tensor::Vector<double>({3, -1});
  ExpectLoss(kMeanSquared, y, x, FloatScalar(2.5));
  ExpectLoss(kAbsolute, TensorOf<bool>({2}, {true, false}), Tensor::Vector<int64_t>({3, -1}),
             FloatScalar(1.5));
  ExpectLoss(kSigmoid, y, x,
             Tensor::Scalar((std::log1p(std::exp(-3)) + std::log1p(std::exp(-1))) / 2));
  const Tensor half = *Tensor::FromValues<Half>(ShapeOf({1, 2}), {ToHalf(0), ToHalf(0)});
  ExpectLoss(kSoftmax, TensorOf<int32_t>({1, 2}, {0, 1}), half,
             Tensor::Scalar<Half>(ToHalf(std::log(2.0f))), {}, 1e-3);
}

// --- Gradients -----------------------------------------------------------------------------------

TEST(Losses, HaveTheGradientsOfTheirDefinitions) {
  // Away from kinks of |x|, Huber's delta and the hinge.
  const Tensor y = Floats({2, 3}, {1, 0, 1, 0, 1, 0}),
               p = Floats({2, 3}, {0.3, 0.6, 0.8, 0.2, 0.7, 0.4});
  const Tensor rows = Floats({2, 3}, {0, 1, 0, 0.25, 0.25, 0.5});
  const Tensor weights = Floats({2, 1}, {0.5, 2});
  const Tensor wide = Floats({2, 3}, {3.25, -2.5, 0.5, 0.25, -1.5, 2.25});
  for (size_t i = 0; i < std::size(kLosses); ++i) {
    SCOPED_TRACE(i);
    const Build& build = kLosses[i];
    const bool is_softmax = i == 7, needs_probabilities = i == 3;
    const Tensor& x = needs_probabilities ? p : wide;
    const Tensor& labels = is_softmax ? rows : y;
    for (const LossReduction reduction : kReductions) {
      ExpectGradientsMatch(
          [&](const Scope& s, const std::vector<Output>& in) {
            return build(s, in[0], in[1], {.reduction = reduction});
          },
          {labels, x}, {.constant_inputs = {0}});
      if (is_softmax) continue;  // its weights are [batch]
      ExpectGradientsMatch(
          [&](const Scope& s, const std::vector<Output>& in) {
            return build(s, in[0], in[1], {.weights = in[2], .reduction = reduction});
          },
          {y, x, weights}, {.constant_inputs = {0}});
    }
  }
  ExpectGradientsMatch(
      [&](const Scope& s, const std::vector<Output>& in) {
        return SoftmaxCrossEntropy(s, in[0], in[1], {.label_smoothing = 0.25, .weights = in[2]});
      },
      {Floats({2, 3}, {0, 1, 0, 0, 0, 1}), wide, Floats({2}, {0.5, 2})}, {.constant_inputs = {0}});
  ExpectGradientsMatch(
      [&](const Scope& s, const std::vector<Output>& in) {
        return SparseSoftmaxCrossEntropy(s, in[0], in[1], {.weights = in[2]});
      },
      {Tensor::Vector<int64_t>({2, 0}), wide, Floats({2}, {0.5, 2})});
}

Tensor GradientOf(const Scope& scope, Output loss, Output x, const Tensor& value) {
  const StatusOr<std::vector<Gradient>> gradients = AddGradients(scope, {loss}, {x});
  EXPECT_OK(gradients.status());
  if (!gradients.ok()) return Tensor();
  const StatusOr<std::vector<Tensor>> got =
      EvaluateGraph(scope, {{x, value}}, {DenseGradient(scope, (*gradients)[0])});
  EXPECT_OK(got.status());
  return got.ok() ? (*got)[0] : Tensor();
}

// Where models begin: logits of 0.
TEST(Losses, SigmoidCrossEntropyAtZeroMovesByHalf) {
  Scope scope;
  const Output x = TestInput(scope, DT_FLOAT, {2});
  const Output loss = SigmoidCrossEntropy(scope, Const<float>(scope, {1, 0}), x,
                                          {.reduction = LossReduction::kSum});
  ExpectTensorEqual(GradientOf(scope, loss, x, Floats({2}, {0, 0})), Floats({2}, {-0.5, 0.5}));
}

TEST(Losses, HuberAtDeltaCountsItsGradientOnce) {
  Scope scope;
  const Output x = TestInput(scope, DT_FLOAT, {2});
  const Output loss = HuberLoss(scope, Const<float>(scope, {0, 0}), x,
                                {.delta = 2, .reduction = LossReduction::kSum});
  ExpectTensorEqual(GradientOf(scope, loss, x, Floats({2}, {2, -2})), Floats({2}, {2, -2}));
}

TEST(Losses, OfNothingButZeroWeightsPassZerosBack) {
  Scope scope;
  const Output x = TestInput(scope, DT_FLOAT, {2});
  const Output loss = MeanSquaredError(scope, Const<float>(scope, {1, 0}), x,
                                       {.weights = Const<float>(scope, {0, 0})});
  ExpectTensorEqual(GradientOf(scope, loss, x, Floats({2}, {5, 7})), Floats({2}, {0, 0}));
}

TEST(Losses, LabelsOfASoftmaxGetNoGradient) {
  Scope scope;
  const Output y = TestInput(scope, DT_FLOAT, {1, 2}), x = TestInput(scope, DT_FLOAT, {1, 2});
  const Output loss = SoftmaxCrossEntropy(scope, y, x);
  ASSERT_OK_AND_ASSIGN(const auto gradients, AddGradients(scope, {loss}, {y}));
  EXPECT_FALSE(HasGradient(gradients[0]));
}

// --- Collections and names -----------------------------------------------------------------------

TEST(Losses, StandInTensorFlowsScopesAndCollection) {
  Scope scope;
  const Output y = TestInput(scope, DT_FLOAT, {2, 3}), x = TestInput(scope, DT_FLOAT, {2, 3});
  const std::pair<Output, const char*> cases[] = {
      {MeanSquaredError(scope, y, x), "mean_squared_error/value:0"},
      {AbsoluteDifference(scope, y, x), "absolute_difference/value:0"},
      {HuberLoss(scope, y, x), "huber_loss/value:0"},
      {LogLoss(scope, y, x), "log_loss/value:0"},
      {HingeLoss(scope, y, x), "hinge_loss/value:0"},
      {CosineDistance(scope, y, x, -1), "cosine_distance_loss/value:0"},
      {SigmoidCrossEntropy(scope, y, x), "sigmoid_cross_entropy_loss/value:0"},
      {SoftmaxCrossEntropy(scope, y, x), "softmax_cross_entropy_loss/value:0"},
      {SparseSoftmaxCrossEntropy(scope, TestInput(scope, DT_INT32, {2}), x),
       "sparse_softmax_cross_entropy_loss/value:0"},
      {MeanPairwiseSquaredError(scope, y, x), "mean_pairwise_squared_error/value_2:0"},
      {ComputeWeightedLoss(scope, x), "weighted_loss/value:0"},
      {MeanSquaredError(scope, y, x), "mean_squared_error_1/value:0"},
      {MeanSquaredError(scope.WithName("mine"), y, x), "mine/value:0"},
  };
  MeanSquaredError(scope, y, x, {.collection = ""});
  MeanSquaredError(scope, y, x, {.collection = "others"});
  ASSERT_OK(scope.status());
  const std::vector<Output> losses = LossesOf(scope);
  ASSERT_EQ(losses.size(), std::size(cases));
  for (size_t i = 0; i < losses.size(); ++i) {
    EXPECT_EQ(losses[i].name(), cases[i].second);
    EXPECT_TRUE(losses[i] == cases[i].first);
  }
  EXPECT_EQ(LossesOf(scope, "others").size(), 1u);
}

// What runs in a step.
std::string OpsOf(const Scope& scope) {
  std::string ops;
  for (const auto& node : scope.graph()->nodes()) {
    if (node != nullptr && node->op() != "Const") absl::StrAppend(&ops, node->op(), " ");
  }
  return ops;
}

// A mean over everything costs few nodes: no check where shapes are known, no tensor of weights.
TEST(Losses, OfWeightOneAddOnlyTheReduction) {
  Scope scope;
  const Output y = TestInput(scope, DT_FLOAT, {4, 3}), x = TestInput(scope, DT_FLOAT, {4, 3});
  MeanSquaredError(scope, y, x);
  EXPECT_EQ(OpsOf(scope), "_OpTestInput _OpTestInput SquaredDifference Sum Size Cast DivNoNan ");
}

TEST(Losses, LookAtShapesInTheStepOnlyWhereTheyAreNotKnown) {
  const auto ops = [](const PartialShape& y_shape, const PartialShape& x_shape) {
    Scope scope;
    const Output y = TestInput(scope, DT_FLOAT, y_shape), x = TestInput(scope, DT_FLOAT, x_shape);
    AbsoluteDifference(scope, y, x, {.reduction = LossReduction::kNone});
    EXPECT_OK(scope.status());
    return OpsOf(scope);
  };
  EXPECT_EQ(ops({2}, {2}), "_OpTestInput _OpTestInput Sub Abs ");
  EXPECT_EQ(ops({-1, 3}, {-1, 3}),
            "_OpTestInput _OpTestInput Shape Shape Equal All Assert Identity Sub Abs ");
  // What one shape says of the other is known from there on.
  Scope scope;
  const Output y = TestInput(scope, DT_FLOAT, {4, 3}), x = TestInput(scope, DT_FLOAT);
  const Output loss = MeanSquaredError(scope, y, x, {.reduction = LossReduction::kNone});
  EXPECT_EQ(scope.shape(loss).ToString(), "[4,3]");
  // A tensor has its own shape; labels of a matrix are counted by the op.
  Scope same;
  const Output z = TestInput(same, DT_FLOAT);
  MeanSquaredError(same, z, z);
  SparseSoftmaxCrossEntropy(same, TestInput(same, DT_INT32, {-1}),
                            TestInput(same, DT_FLOAT, {-1, 3}));
  ASSERT_OK(same.status());
  EXPECT_EQ(OpsOf(same).find("Assert"), std::string::npos);
}

TEST(TotalLoss, AddsLossesAndRegularizationLosses) {
  Scope scope;
  const Output x = TestInput(scope, DT_FLOAT, {2});
  const Output zeros = Const<float>(scope, {0, 0});
  AbsoluteDifference(scope, zeros, x);
  MeanSquaredError(scope, zeros, x);
  AddRegularizationLoss(scope, L1(0.5), x);
  const Output total = TotalLoss(scope);
  const Output bare = TotalLoss(scope.WithName("bare"), {.add_regularization_losses = false});
  const Output regularization = RegularizationLoss(scope);
  ASSERT_OK(scope.status());
  EXPECT_EQ(total.name(), "total_loss:0");
  EXPECT_EQ(bare.name(), "bare:0");
  EXPECT_EQ(regularization.name(), "total_regularization_loss:0");
  ASSERT_OK_AND_ASSIGN(const auto got, EvaluateGraph(scope, {{x, Floats({2}, {3, -1})}},
                                                     {total, bare, regularization}));
  ExpectTensorEqual(got[0], FloatScalar(2 + 5 + 2));
  ExpectTensorEqual(got[1], FloatScalar(2 + 5));
  ExpectTensorEqual(got[2], FloatScalar(2));
}

TEST(TotalLoss, OfNothingIsAnErrorAndNoRegularizationIsZero) {
  Scope scope;
  const Output zero = RegularizationLoss(scope);
  ASSERT_OK_AND_ASSIGN(const auto got, EvaluateGraph(scope, {}, {zero}));
  ExpectTensorEqual(got[0], FloatScalar(0));
  EXPECT_FALSE(TotalLoss(scope).valid());
  EXPECT_STATUS(
      scope.status(), kInvalid,
      "TotalLoss: the graph must have losses in collection 'losses', got none; built at ");
}

TEST(TotalLoss, NamesAnEntryThatIsNoTensor) {
  for (const char* name : {"gone:0", "x:1", "a:b:c", "x:-1"}) {
    Scope scope;
    Placeholder(scope.WithName("x"), DT_FLOAT);
    scope.AddToNodeCollection("losses", name);
    EXPECT_TRUE(LossesOf(scope).empty());
    EXPECT_STATUS(scope.status(), absl::StatusCode::kNotFound,
                  absl::StrCat("collection 'losses': an entry must be a tensor of the graph, got '",
                               name, "'"));
  }
}

// --- Bad arguments -------------------------------------------------------------------------------

// Ones of this shape.
Tensor Ones(const std::vector<int64_t>& dims) {
  return Floats(dims, Values(static_cast<size_t>(Shape::Make(dims)->num_elements()), 1));
}

TEST(Losses, OfShapesThatDifferInTheStepOnlyEndIt) {
  struct Case {
    PartialShape y_shape, x_shape;
    std::vector<int64_t> y_dims, x_dims;
    const char* text;
  };
  const PartialShape unknown;
  const Case cases[] = {
      {{-1, 2}, {-1, 2}, {1, 2}, {3, 2}, " must have one shape, got] [1 2] [3 2]"},
      {{-1, 2}, {-1, 2}, {3, 2}, {1, 2}, " must have one shape, got] [3 2] [1 2]"},
      {{-1, -1}, {2, 3}, {2, 1}, {2, 3}, " must have one shape, got] [2 1] [2 3]"},
      {unknown, unknown, {3}, {3, 1}, " must have one shape, got] [3] [3 1]"},
      {unknown, unknown, {3, 1}, {3}, " must have one shape, got] [3 1] [3]"},
      {unknown, unknown, {1}, {1, 1}, " must have one shape, got] [1] [1 1]"},
      {unknown, {-1, -1}, {1, 3}, {2, 3}, " must have one shape, got] [1 3] [2 3]"},
      {unknown, {2, 3}, {}, {2, 3}, " must have one shape, got] [] [2 3]"},
  };
  for (const Build& build : kLosses) {
    for (const Case& c : cases) {
      Scope scope;
      const Output y = TestInput(scope, DT_FLOAT, c.y_shape);
      const Output x = TestInput(scope, DT_FLOAT, c.x_shape);
      const Output loss = build(scope.WithName("mine"), y, x, {});
      ASSERT_OK(scope.status());
      const Status status =
          EvaluateGraph(scope, {{y, Ones(c.y_dims)}, {x, Ones(c.x_dims)}}, {loss}).status();
      EXPECT_STATUS(status, kInvalid, c.text);
      EXPECT_STATUS(status, kInvalid, "Assert 'mine/assert_shapes/Assert': assertion failed: [");
    }
  }
}

TEST(Losses, SparseLabelsHaveTheShapeOfTheRows) {
  const auto run = [](const PartialShape& y_shape, const PartialShape& x_shape,
                      const std::vector<int64_t>& y_dims, const std::vector<int64_t>& x_dims) {
    Scope scope;
    const Output y = TestInput(scope, DT_INT64, y_shape), x = TestInput(scope, DT_FLOAT, x_shape);
    const Output loss = SparseSoftmaxCrossEntropy(scope, y, x);
    if (!scope.ok()) return scope.status();
    StatusOr<Tensor> labels = Tensor::Allocate(DT_INT64, *Shape::Make(y_dims));
    EXPECT_OK(labels);
    for (int64_t& label : labels->mutable_flat<int64_t>()) label = 0;
    return EvaluateGraph(scope, {{y, *labels}, {x, Ones(x_dims)}}, {loss}).status();
  };
  const std::string text = "labels must have the shape of logits without its last dimension, got";
  const PartialShape unknown;
  EXPECT_OK(run(unknown, unknown, {2, 3}, {2, 3, 4}));
  EXPECT_OK(run(unknown, unknown, {}, {4}));
  EXPECT_OK(run(unknown, unknown, {2, 3, 1}, {2, 3, 4}));
  EXPECT_OK(run({-1, -1}, {-1, -1, 4}, {2, 3}, {2, 3, 4}));
  EXPECT_OK(run(unknown, {-1, -1, 4}, {0, 3}, {0, 3, 4}));
  EXPECT_OK(run({-1}, {-1, 4}, {2}, {2, 4}));
  // As many labels as rows, in another order.
  EXPECT_STATUS(run({3, 2}, {2, 3, 4}, {}, {}), kInvalid,
                absl::StrCat(text, " shapes [3,2] and [2,3,4]; built at "));
  const std::string in_step = absl::StrCat("SparseSoftmaxCrossEntropy: ", text, "] [3 2] [2 3 4]");
  EXPECT_STATUS(run({-1, -1}, {-1, -1, 4}, {3, 2}, {2, 3, 4}), kInvalid, in_step);
  EXPECT_STATUS(run(unknown, unknown, {3, 2}, {2, 3, 4}), kInvalid, in_step);
  const std::string flat = absl::StrCat(text, "] [6] [2 3 4]");
  EXPECT_STATUS(run(unknown, unknown, {6}, {2, 3, 4}), kInvalid, flat);
  EXPECT_STATUS(run(unknown, {-1, -1, 4}, {6}, {2, 3, 4}), kInvalid, flat);
  EXPECT_STATUS(run(unknown, PartialShape::Scalar(), {}, {}), kInvalid,
                "logits must have a dimension of classes, got shape []");
  for (const std::vector<int64_t>& labels : {std::vector<int64_t>{1}, {3}, {2, 2}}) {
    EXPECT_FALSE(run(unknown, {-1, 4}, labels, {2, 4}).ok());
    EXPECT_FALSE(run(unknown, unknown, labels, {2, 4}).ok());
  }
}

TEST(Losses, BadArgumentsAreErrorsOfTheScope) {
  Scope other;
  const Output foreign = Placeholder(other.WithName("far"), DT_FLOAT, {2, 3});
  struct Case {
    std::function<void(const Scope& s, Output y, Output x)> build;
    const char* text;
  };
  const auto input = [](const Scope& s, DType dtype, const PartialShape& shape) {
    return Placeholder(s.WithName("in"), dtype, shape);
  };
  const Case cases[] = {
      {[&](const Scope& s, Output y, Output) {
         MeanSquaredError(s.WithName("l"), y, input(s, DT_FLOAT, {2, 1}));
       },
       "MeanSquaredError 'l': labels and predictions must have one shape, got [2,3] and [2,1]"},
      {[&](const Scope& s, Output y, Output) { HingeLoss(s, y, input(s, DT_FLOAT, {3})); },
       "HingeLoss 'hinge_loss': labels and logits must have one shape, got [2,3] and [3]"},
      {[&](const Scope& s, Output y, Output) {
         AbsoluteDifference(s, y, input(s, DT_STRING, {2, 3}));
       },
       "predictions must be numbers, got string from 'in:0'"},
      {[&](const Scope& s, Output y, Output) { LogLoss(s, y, Output()); },
       "LogLoss 'log_loss': predictions must be a tensor of the graph, got an invalid Output"},
      {[&](const Scope& s, Output y, Output) { HuberLoss(s, foreign, y); },
       "labels must be of the same graph, got 'far:0' of another"},
      {[](const Scope& s, Output y, Output x) { HuberLoss(s, y, x, {.delta = 0}); },
       "HuberLoss 'huber_loss': delta must be > 0, got 0"},
      {[](const Scope& s, Output y, Output x) { HuberLoss(s, y, x, {.delta = std::nan("")}); },
       "delta must be > 0, got nan"},
      {[](const Scope& s, Output y, Output x) { LogLoss(s, y, x, {.epsilon = -1}); },
       "epsilon must be >= 0, got -1"},
      {[](const Scope& s, Output y, Output x) {
         SigmoidCrossEntropy(s, y, x, {.label_smoothing = 1.5});
       },
       "label_smoothing must be in [0, 1], got 1.5"},
      {[](const Scope& s, Output y, Output x) {
         SoftmaxCrossEntropy(s, y, x, {.label_smoothing = std::nan("")});
       },
       "label_smoothing must be in [0, 1], got nan"},
      {[&](const Scope& s, Output y, Output) {
         SigmoidCrossEntropy(s, y, input(s, DT_INT32, {2, 3}));
       },
       "logits must be floating, got int32"},
      {[&](const Scope& s, Output, Output) {
         SoftmaxCrossEntropy(s, input(s, DT_FLOAT, PartialShape::Scalar()),
                             input(s, DT_FLOAT, PartialShape::Scalar()));
       },
       "logits must have a dimension of classes, got shape []"},
      {[](const Scope& s, Output y, Output x) { CosineDistance(s, y, x, 2); },
       "CosineDistance 'cosine_distance_loss': axis must be in [-2, 2), got 2"},
      {[](const Scope& s, Output y, Output x) { SparseSoftmaxCrossEntropy(s, y, x); },
       "labels must be int32 or int64, got float"},
      {[&](const Scope& s, Output, Output x) {
         SparseSoftmaxCrossEntropy(s, input(s, DT_INT32, {2, 3}), x);
       },
       "labels must have one dimension less than logits, got shapes [2,3] and [2,3]"},
      {[&](const Scope& s, Output y, Output x) {
         MeanSquaredError(s, y, x, {.weights = Output()});
       },
       "weights must be a tensor of the graph, got an invalid Output"},
      {[](const Scope& s, Output y, Output x) { HingeLoss(s, y, x, {.weights = std::nan("")}); },
       "HingeLoss 'hinge_loss': weights must be finite, got nan"},
      {[](const Scope& s, Output, Output x) { ComputeWeightedLoss(s, x, {.weights = HUGE_VAL}); },
       "ComputeWeightedLoss 'weighted_loss': weights must be finite, got inf"},
      {[&](const Scope& s, Output y, Output x) {
         MeanSquaredError(s, y, x, {.weights = input(s, DT_STRING, {})});
       },
       "weights must be numbers, got string"},
      {[&](const Scope& s, Output y, Output x) {
         MeanPairwiseSquaredError(s, y, x, {.weights = input(s, DT_FLOAT, {2})});
       },
       "MeanPairwiseSquaredError 'mean_pairwise_squared_error': weights must be a scalar or have"},
  };
  for (const Case& c : cases) {
    Scope scope;
    const Output y = TestInput(scope, DT_FLOAT, {2, 3});
    const Output x = TestInput(scope, DT_FLOAT, {2, 3});
    c.build(scope, y, x);
    EXPECT_STATUS(scope.status(), kInvalid, c.text);
    EXPECT_TRUE(LossesOf(scope).empty()) << c.text;
  }
}

TEST(Losses, ALabelOutsideTheClassesEndsTheStep) {
  Scope scope;
  const Output y = TestInput(scope, DT_INT64, {-1}), x = TestInput(scope, DT_FLOAT, {-1, 3});
  const Output loss = SparseSoftmaxCrossEntropy(scope, y, x);
  EXPECT_STATUS(
      EvaluateGraph(scope, {{y, Tensor::Vector<int64_t>({3})}, {x, Floats({1, 3}, {1, 2, 3})}},
                    {loss}),
      kInvalid, "3");
}

}  // namespace
}  // namespace millrace
