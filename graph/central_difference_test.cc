// SPDX-License-Identifier: Apache-2.0
#include "graph/central_difference.h"

#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// All that IsTrainable names.
std::vector<Tensor> OfEachType() {
  return {TensorOf<float>({2}, {1.5f, -2}),
          TensorOf<double>({2}, {1.5, -2}),
          TensorOf<Half>({2}, {ToHalf(1.5f), ToHalf(-2)}),
          TensorOf<Bfloat16>({2}, {ToBfloat16(1.5f), ToBfloat16(-2)}),
          TensorOf<std::complex<float>>({1}, {{1.5f, -2}}),
          TensorOf<std::complex<double>>({1}, {{1.5, -2}})};
}

TEST(CentralDifference, ReadsAndWritesTheNumbersOfEachType) {
  for (Tensor& t : OfEachType()) {
    SCOPED_TRACE(DTypeName(t.dtype()));
    ASSERT_EQ(NumComponents(t), 2u);
    EXPECT_EQ(Component(t, 0), 1.5);
    EXPECT_EQ(Component(t, 1), -2);
    SetComponent(&t, 1, 0.25);
    EXPECT_EQ(Component(t, 0), 1.5);
    EXPECT_EQ(Component(t, 1), 0.25);
  }
  Tensor ints = TensorOf<int32_t>({1}, {7});
  EXPECT_TRUE(std::isnan(Component(ints, 0)));
  SetComponent(&ints, 0, 1);
  ExpectTensorEqual(ints, TensorOf<int32_t>({1}, {7}));
}

TEST(CentralDifference, DrawsWeightsOfWhichNoneIsSmall) {
  for (const Tensor& t : OfEachType()) {
    SCOPED_TRACE(DTypeName(t.dtype()));
    std::mt19937 random(1), same(1);
    ASSERT_OK_AND_ASSIGN(const Tensor weights, DrawnWeights(t, &random));
    ASSERT_OK_AND_ASSIGN(const Tensor again, DrawnWeights(t, &same));
    ExpectTensorEqual(weights, again);
    EXPECT_EQ(weights.shape(), t.shape());
    for (size_t i = 0; i < NumComponents(weights); ++i) {
      EXPECT_GE(std::abs(Component(weights, i)), 0.5);
      EXPECT_LE(std::abs(Component(weights, i)), 1.5);
    }
  }
}

TEST(CentralDifference, SumsAllNumbersOfAllOutputs) {
  ASSERT_OK_AND_ASSIGN(
      const double sum,
      WeightedSum({TensorOf<float>({2}, {1, 2}), TensorOf<std::complex<double>>({}, {{3, 4}})},
                  {TensorOf<float>({2}, {10, 1}), TensorOf<std::complex<double>>({}, {{2, -1}})}));
  EXPECT_EQ(sum, 10 + 2 + 6 - 4);
  EXPECT_STATUS(WeightedSum({TensorOf<float>({1}, {1})}, {TensorOf<float>({2}, {10, 1})}),
                absl::StatusCode::kInvalidArgument,
                "the shape of output 0 must not depend on the inputs' values, got [2] and, a step "
                "away, [1]");
}

// Of x^2 - 3 x at 2 it is 1 for each step, for the curvature is even; in float, too, where 2 + 0.01
// is no number.
TEST(CentralDifference, IsThatOfTheOneNumberThatIsMoved) {
  const auto at = [](const Tensor& x, double step) {
    return CentralDifference(x, 1, step, [](const Tensor& moved) -> StatusOr<double> {
      EXPECT_EQ(Component(moved, 0), 100);
      const double v = Component(moved, 1);
      return v * v - 3 * v;
    });
  };
  EXPECT_NEAR(at(TensorOf<double>({2}, {100, 2}), 1e-5).value(), 1, 1e-9);
  EXPECT_NEAR(at(TensorOf<float>({2}, {100, 2}), 1e-2).value(), 1, 1e-6);
  EXPECT_NEAR(at(TensorOf<std::complex<float>>({1}, {{100, 2}}), 1e-2).value(), 1, 1e-6);
  EXPECT_STATUS(at(TensorOf<double>({2}, {100, 1e30}), 1e-5), absl::StatusCode::kInvalidArgument,
                "the step must be large enough to change 1e+30, got 1e-05");
  EXPECT_STATUS(CentralDifference(TensorOf<double>({1}, {1}), 0, 1e-5,
                                  [](const Tensor&) -> StatusOr<double> {
                                    return absl::NotFoundError("of the function");
                                  }),
                absl::StatusCode::kNotFound, "of the function");
}

TEST(CentralDifference, ComparesRelativelyAboveOne) {
  EXPECT_EQ(RelativeDifference(0.5, 0.25), 0.25);
  EXPECT_EQ(RelativeDifference(-3, -2), 1.0 / 3);
  EXPECT_EQ(RelativeDifference(100, -100), 2);
  for (const auto& [a, b] : std::vector<std::pair<double, double>>{
           {kNan, 1}, {1, kNan}, {kNan, kNan}, {kInfinity, 1}, {kInfinity, kInfinity}}) {
    EXPECT_EQ(RelativeDifference(a, b), kInfinity) << a << " " << b;
  }
}

}  // namespace
}  // namespace millrace
