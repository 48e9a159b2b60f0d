// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/softmax.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

TEST(Softmax, ProbabilitiesOfEachRow) {
  // exp(1, 2, 3) / their sum, computed by hand with 20 digits.
  const Tensor x = TensorOf<double>({2, 3}, {1, 2, 3, 1001, 1002, 1003});
  ExpectTensorNear(
      RunOp1(OpCall("Softmax").Input(x)),
      TensorOf<double>({2, 3}, {0.09003057317038046, 0.24472847105479764, 0.6652409557748218,
                                0.09003057317038046, 0.24472847105479764, 0.6652409557748218}),
      1e-14, 0);
  ExpectTensorNear(
      RunOp1(OpCall("LogSoftmax").Input(x)),
      TensorOf<double>({2, 3}, {-2.40760596444438, -1.4076059644443802, -0.4076059644443802,
                                -2.40760596444438, -1.4076059644443802, -0.4076059644443802}),
      1e-13, 0);
}

TEST(Softmax, AnyRankFromOne) {
  ExpectTensorNear(RunOp1(OpCall("Softmax").Input(TensorOf<float>({2}, {0, 0}))),
                   TensorOf<float>({2}, {0.5f, 0.5f}), 1e-6, 0);
  ExpectTensorNear(RunOp1(OpCall("Softmax").Input(TensorOf<float>({2, 1, 2}, {0, 0, 3, 3}))),
                   TensorOf<float>({2, 1, 2}, {0.5f, 0.5f, 0.5f, 0.5f}), 1e-6, 0);
  ExpectTensorNear(
      RunOp1(OpCall("Softmax").Input(TensorOf<Half>({2}, {ToHalf(60000), ToHalf(-60000)}))),
      TensorOf<Half>({2}, {ToHalf(1), ToHalf(0)}), 1e-3, 0);
}

TEST(Softmax, InfinitiesAndNanStayInTheirRow) {
  const Tensor x = TensorOf<float>({4, 2}, {-kInf, 0, kInf, 0, kNan, 0, 0, 0});
  const Tensor y = RunOp1(OpCall("Softmax").Input(x));
  ExpectTensorNear(y, TensorOf<float>({4, 2}, {0, 1, kNan, kNan, kNan, kNan, 0.5f, 0.5f}), 1e-6, 0);
  const Tensor z = RunOp1(OpCall("LogSoftmax").Input(x));
  EXPECT_EQ(z.flat<float>()[0], -kInf);
  EXPECT_EQ(z.flat<float>()[1], 0);
  EXPECT_TRUE(std::isnan(z.flat<float>()[3]));
}

// Rows of many lengths, around the widths that the loops work in.
TEST(Softmax, RowsOfAnyLengthMatchAPlainReference) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> values(-10, 10);
  for (const int64_t n : {1, 2, 10, 15, 16, 17, 33, 1000, 5000}) {
    ASSERT_OK_AND_ASSIGN(Tensor x, Tensor::Allocate(DT_FLOAT, ShapeOf({7, n})));
    for (float& v : x.mutable_flat<float>()) v = values(random);
    ASSERT_OK_AND_ASSIGN(Tensor want, Tensor::Allocate(DT_FLOAT, x.shape()));
    ASSERT_OK_AND_ASSIGN(Tensor want_log, Tensor::Allocate(DT_FLOAT, x.shape()));
    for (size_t r = 0; r < 7; ++r) {
      const size_t begin = r * static_cast<size_t>(n), end = begin + static_cast<size_t>(n);
      double sum = 0;
      for (size_t i = begin; i < end; ++i) sum += std::exp(static_cast<double>(x.flat<float>()[i]));
      for (size_t i = begin; i < end; ++i) {
        const double v = static_cast<double>(x.flat<float>()[i]);
        want.mutable_flat<float>()[i] = static_cast<float>(std::exp(v) / sum);
        want_log.mutable_flat<float>()[i] = static_cast<float>(v - std::log(sum));
      }
    }
    ExpectTensorNear(RunOp1(OpCall("Softmax").Input(x)), want, 4e-6, 0);
    ExpectTensorNear(RunOp1(OpCall("LogSoftmax").Input(x)), want_log, 2e-6, 2e-6);
  }
}

TEST(Softmax, EmptyTensorsStayEmpty) {
  for (const char* op : {"Softmax", "LogSoftmax"}) {
    for (const Shape& shape : {ShapeOf({0}), ShapeOf({0, 3}), ShapeOf({3, 0})}) {
      ASSERT_OK_AND_ASSIGN(const Tensor x, Tensor::Zeros(DT_FLOAT, shape));
      ExpectTensorEqual(RunOp1(OpCall(op).Input(x)), x);
    }
  }
}

TEST(Softmax, ScalarsAreRefused) {
  for (const char* op : {"Softmax", "LogSoftmax"}) {
    ExpectOpError(OpCall(op).Input(Tensor::Scalar(1.0f)), absl::StatusCode::kInvalidArgument,
                  "logits must have at least 1 dimension, got shape []");
    EXPECT_SHAPE_ERROR(op, {}, {"[]"}, "logits must have at least 1 dimension");
    EXPECT_SHAPE(op, {}, {"[?,3]"}, "[?,3]");
    EXPECT_SHAPE(op, {}, {"<unknown>"}, "<unknown>");
  }
}

TEST(SoftmaxGradient, MatchesFiniteDifferences) {
  const Tensor x = TensorOf<double>({2, 3}, {0.3, -1, 2, 0.5, 0.25, -0.75});
  const Tensor v = TensorOf<double>({4}, {0.3, -1, 2, 0.5});
  for (const Tensor& t : {x, v}) {
    ExpectGradientsMatch(
        [](const Scope& s, const std::vector<Output>& in) { return Softmax(s, in[0]); }, {t});
    ExpectGradientsMatch(
        [](const Scope& s, const std::vector<Output>& in) { return LogSoftmax(s, in[0]); }, {t});
  }
}

}  // namespace
}  // namespace millrace
