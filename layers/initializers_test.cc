// SPDX-License-Identifier: Apache-2.0
#include "layers/initializers.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "layers/testing/layer_test.h"
#include "layers/variable.h"
#include "ops/ops.h"

// covers: values: initialisers have the moments, bounds and seeds of TensorFlow's distributions

namespace millrace {
namespace {

// The initial value of a variable `w` of this shape.
StatusOr<Tensor> ValueOf(const Initializer& initializer, const Shape& shape,
                         DType dtype = DT_DOUBLE) {
  Scope scope;
  const Variable w = MakeVariable(scope.WithName("w"), shape, dtype, initializer);
  MR_RETURN_IF_ERROR(scope.status());
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, RunInitialized(scope, {}, {w.value}));
  return out[0];
}

struct Summary {
  double mean = 0, deviation = 0, lowest = 0, highest = 0;
};
Summary SummaryOf(const Tensor& values) {
  const absl::Span<const double> v = values.raw<double>();
  Summary s{.lowest = v[0], .highest = v[0]};
  double squares = 0;
  for (const double x : v) {
    s.mean += x;
    squares += x * x;
    s.lowest = std::min(s.lowest, x);
    s.highest = std::max(s.highest, x);
  }
  const double n = static_cast<double>(v.size());
  s.mean /= n;
  s.deviation = std::sqrt(squares / n - s.mean * s.mean);
  return s;
}

TEST(Initializers, ConstantsFill) {
  EXPECT_EQ(*ValueOf(ZerosInitializer(), Shape{2, 1}, DT_FLOAT), TensorOf<float>({2, 1}, {0, 0}));
  EXPECT_EQ(*ValueOf(OnesInitializer(), Shape{2}, DT_INT64), TensorOf<int64_t>({2}, {1, 1}));
  EXPECT_EQ(*ValueOf(ConstantInitializer(-2.5), Shape(), DT_DOUBLE), Tensor::Scalar<double>(-2.5));
  EXPECT_EQ(*ValueOf(OnesInitializer(), Shape{1}, DT_BOOL), TensorOf<bool>({1}, {true}));
  EXPECT_EQ(*ValueOf(ConstantInitializer(0.5), Shape{1}, DT_HALF),
            TensorOf<Half>({1}, {ToHalf(0.5f)}));
  EXPECT_EQ(*ValueOf(IdentityInitializer(3), Shape{2, 3}, DT_FLOAT),
            TensorOf<float>({2, 3}, {3, 0, 0, 0, 3, 0}));
  EXPECT_EQ(*ValueOf(IdentityInitializer(), Shape{3, 2}, DT_FLOAT),
            TensorOf<float>({3, 2}, {1, 0, 0, 1, 0, 0}));
}

// Mean, deviation and bounds that theory gives for 10,000 * 20 values. A sample's mean strays by
// deviation / sqrt(n), its deviation by less than deviation / sqrt(n): 6 of these are allowed.
TEST(Initializers, HaveTheirDistributions) {
  const Shape shape{100, 4, 50, 10};  // fan in 20,000, fan out 4,000, average 12,000
  const double kTruncated = 0.87962566103423978;
  const double infinity = std::numeric_limits<double>::infinity();
  const auto uniform = [](double variance) { return std::sqrt(3 * variance); };
  struct Case {
    const char* name;
    Initializer initializer;
    double mean, deviation, lowest, highest;
  };
  const double n = static_cast<double>(shape.num_elements());
  const std::vector<Case> cases = {
      {"uniform", RandomUniformInitializer({.minval = -1, .maxval = 3, .seed = 1}), 1,
       4 / std::sqrt(12), -1, 3},
      {"normal", RandomNormalInitializer({.mean = 2, .stddev = 3, .seed = 1}), 2, 3, -infinity,
       infinity},
      // Not corrected: the deviation of the values is smaller than stddev.
      {"truncated normal", TruncatedNormalInitializer({.mean = 2, .stddev = 3, .seed = 1}), 2,
       3 * kTruncated, 2 - 6, 2 + 6},
      {"variance scaling", VarianceScalingInitializer({.scale = 2, .seed = 1}), 0, 1e-2,
       -2e-2 / kTruncated, 2e-2 / kTruncated},
      {"untruncated, fan out",
       VarianceScalingInitializer({.scale = 4,
                                   .mode = FanMode::kFanOut,
                                   .distribution = ScalingDistribution::kNormal,
                                   .seed = 1}),
       0, std::sqrt(1e-3), -infinity, infinity},
      {"Glorot uniform", GlorotUniformInitializer({.seed = 1}), 0, std::sqrt(1 / 12e3),
       -uniform(1 / 12e3), uniform(1 / 12e3)},
      {"Glorot normal", GlorotNormalInitializer({.seed = 1}), 0, std::sqrt(1 / 12e3),
       -2 * std::sqrt(1 / 12e3) / kTruncated, 2 * std::sqrt(1 / 12e3) / kTruncated},
      {"He uniform", HeUniformInitializer({.seed = 1}), 0, 1e-2, -uniform(1e-4), uniform(1e-4)},
      {"He normal", HeNormalInitializer({.seed = 1}), 0, 1e-2, -2e-2 / kTruncated,
       2e-2 / kTruncated},
      {"LeCun uniform", LecunUniformInitializer({.seed = 1}), 0, std::sqrt(1 / 2e4),
       -uniform(1 / 2e4), uniform(1 / 2e4)},
      {"LeCun normal", LecunNormalInitializer({.seed = 1}), 0, std::sqrt(1 / 2e4),
       -2 * std::sqrt(1 / 2e4) / kTruncated, 2 * std::sqrt(1 / 2e4) / kTruncated},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    ASSERT_OK_AND_ASSIGN(const Tensor value, ValueOf(c.initializer, shape));
    ASSERT_EQ(value.shape(), shape);
    const Summary got = SummaryOf(value);
    EXPECT_NEAR(got.mean, c.mean, 6 * c.deviation / std::sqrt(n));
    EXPECT_NEAR(got.deviation, c.deviation, 6 * c.deviation / std::sqrt(n));
    EXPECT_GE(got.lowest, c.lowest);
    EXPECT_LE(got.highest, c.highest);
    if (std::isfinite(c.lowest)) {
      // The bounds are reached, too.
      EXPECT_NEAR(got.lowest, c.lowest, 1e-2 * (c.highest - c.lowest));
      EXPECT_NEAR(got.highest, c.highest, 1e-2 * (c.highest - c.lowest));
    }
  }
}

TEST(Initializers, FansAreThoseOfTheWholeVariable) {
  // Limit sqrt(3 / fan in): of a scalar 1, of a vector its length, of a matrix its rows.
  const Initializer lecun = LecunUniformInitializer({.seed = 5});
  const std::pair<InitialShape, double> cases[] = {
      {Shape{3000}, 3000},
      {Shape{300, 10}, 300},
      {InitialShape(Shape{300, 10}, Shape{1200, 10}), 1200},
      {Shape{5, 3, 20, 10}, 300},
  };
  for (const auto& [shape, fan] : cases) {
    Scope scope;
    const Output value = lecun(scope, shape, DT_DOUBLE);
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> out, RunInitialized(scope, {}, {value}));
    const double limit = std::sqrt(3 / fan);
    EXPECT_NEAR(SummaryOf(out[0]).highest, limit, 0.01 * limit) << fan;
    EXPECT_LE(SummaryOf(out[0]).highest, limit) << fan;
  }
}

TEST(Initializers, SeedsRepeatValues) {
  const Shape shape{3, 4};
  for (const auto& make : {+[](int64_t seed) { return GlorotUniformInitializer({.seed = seed}); },
                           +[](int64_t seed) { return TruncatedNormalInitializer({.seed = seed}); },
                           +[](int64_t seed) { return OrthogonalInitializer({.seed = seed}); }}) {
    EXPECT_EQ(*ValueOf(make(7), shape), *ValueOf(make(7), shape));
    EXPECT_NE(*ValueOf(make(7), shape), *ValueOf(make(8), shape));
    EXPECT_NE(*ValueOf(make(7), shape), *ValueOf(make(8), shape));
  }
  // Two values without a seed of their own differ, and repeat under the graph's.
  const auto two = [] {
    Scope scope;
    scope.SetGraphSeed(4);
    const Variable a = MakeVariable(scope, Shape{2}, DT_FLOAT, GlorotUniformInitializer());
    const Variable b = MakeVariable(scope, Shape{2}, DT_FLOAT, GlorotUniformInitializer());
    return *RunInitialized(scope, {}, {a.value, b.value});
  };
  const std::vector<Tensor> once = two(), again = two();
  EXPECT_NE(once[0], once[1]);
  EXPECT_EQ(once[0], again[0]);
  EXPECT_EQ(once[1], again[1]);
}

// TensorFlow's numbers for seeds (87654321, 1) (an op's own seed without a graph seed): the uniform
// values 0.23903739, 0.92039955, ... scaled to [-0.5, 1.5).
TEST(Initializers, DrawTensorFlowsNumbers) {
  ASSERT_OK_AND_ASSIGN(const Tensor got,
                       ValueOf(RandomUniformInitializer({.minval = -0.5, .maxval = 1.5, .seed = 1}),
                               Shape{4}, DT_FLOAT));
  ExpectTensorNear(got,
                   TensorOf<float>({4}, {0.23903739f * 2 - 0.5f, 0.92039955f * 2 - 0.5f,
                                         0.05051243f * 2 - 0.5f, 0.49574447f * 2 - 0.5f}),
                   1e-5, 1e-6);
}

TEST(Initializers, OrthogonalRowsOrColumnsHaveTheLengthOfTheGain) {
  const std::pair<Shape, bool> cases[] = {// by columns
                                          {Shape{7, 3}, true},
                                          {Shape{3, 7}, false},
                                          {Shape{2, 3, 4}, true},
                                          {Shape{1, 2, 5}, false},
                                          {Shape{4, 4}, true}};
  for (const auto& [shape, by_columns] : cases) {
    ASSERT_OK_AND_ASSIGN(const Tensor value,
                         ValueOf(OrthogonalInitializer({.gain = 2, .seed = 3}), shape));
    const size_t columns = static_cast<size_t>(shape.dim(shape.rank() - 1));
    const size_t rows = static_cast<size_t>(shape.num_elements()) / columns;
    const absl::Span<const double> v = value.raw<double>();
    const size_t count = by_columns ? columns : rows, length = by_columns ? rows : columns;
    const auto element = [&](size_t i, size_t k) {
      return by_columns ? v[k * columns + i] : v[i * columns + k];
    };
    for (size_t i = 0; i < count; ++i) {
      for (size_t j = 0; j < count; ++j) {
        double product = 0;
        for (size_t k = 0; k < length; ++k) product += element(i, k) * element(j, k);
        EXPECT_NEAR(product, i == j ? 4 : 0, 1e-9) << shape.ToString();
      }
    }
  }
  // The diagonal has either sign: without the correction Householder's method gives the same one.
  int positive = 0;
  for (int64_t seed = 1; seed <= 40; ++seed) {
    ASSERT_OK_AND_ASSIGN(const Tensor one,
                         ValueOf(OrthogonalInitializer({.seed = seed}), Shape{1, 1}));
    positive += one.raw<double>()[0] > 0 ? 1 : 0;
  }
  EXPECT_GT(positive, 8);
  EXPECT_LT(positive, 32);
}

TEST(Initializers, BadArgumentsAreErrorsOfTheScope) {
  struct Case {
    Initializer initializer;
    Shape shape;
    DType dtype;
    const char* text;
  };
  const double nan = std::nan("");
  const Shape matrix{2, 2};
  const Case cases[] = {
      {ConstantInitializer(1.5), matrix, DT_INT32,
       "Initializer 'm/w/Initializer': a number must be a value of the dtype int32, got 1.5"},
      {ConstantInitializer(2), matrix, DT_BOOL, "dtype bool, got 2"},
      {ZerosInitializer(), matrix, DT_STRING, "must be an integer, floating or complex one"},
      {IdentityInitializer(), Shape{2}, DT_FLOAT, "must be a matrix, got shape [2]"},
      {RandomUniformInitializer({.minval = 1, .maxval = 0}), matrix, DT_FLOAT,
       "minval must be <= maxval, both finite, got 1 and 0"},
      {RandomUniformInitializer({.minval = nan}), matrix, DT_FLOAT, "got nan and 1"},
      {RandomUniformInitializer(), matrix, DT_INT32, "must be floating, got int32"},
      {RandomNormalInitializer({.stddev = -1}), matrix, DT_FLOAT,
       "stddev must be >= 0 and finite, got -1"},
      {TruncatedNormalInitializer({.stddev = nan}), matrix, DT_FLOAT, "got nan"},
      {VarianceScalingInitializer({.scale = 0}), matrix, DT_FLOAT,
       "scale must be > 0 and finite, got 0"},
      {OrthogonalInitializer(), Shape{3}, DT_FLOAT, "must have rank >= 2, got shape [3]"},
      {OrthogonalInitializer(), matrix, DT_HALF, "must be float or double, got half"},
  };
  for (const Case& c : cases) {
    ExpectBadCalls({{[&](const Scope& s) {
                       return MakeVariable(s.WithName("w"), c.shape, c.dtype, c.initializer).value;
                     },
                     c.text}});
  }
}

TEST(Initializers, MakeHalfAndBfloat16) {
  for (const DType dtype : {DT_HALF, DT_BFLOAT16}) {
    EXPECT_OK(ValueOf(GlorotNormalInitializer({.seed = 1}), Shape{3, 3}, dtype));
  }
}

}  // namespace
}  // namespace millrace
