// SPDX-License-Identifier: Apache-2.0
#include "ops/array/transpose.h"

#include <complex>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }
OpCall Call(Tensor x, Tensor perm) {
  return OpCall("Transpose").Input(std::move(x)).Input(std::move(perm));
}

TEST(Transpose, PermutesDimensions) {
  const Tensor x = TensorOf<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  ExpectTensorEqual(RunOp1(Call(x, Ints({1, 0}))), TensorOf<float>({3, 2}, {1, 4, 2, 5, 3, 6}));
  const Tensor s = TensorOf<std::string>({2, 1, 2}, {"a", "b", "c", "d"});
  ExpectTensorEqual(RunOp1(Call(s, TensorOf<int64_t>({3}, {2, 1, 0}))),
                    TensorOf<std::string>({2, 1, 2}, {"a", "c", "b", "d"}));
  ExpectTensorEqual(RunOp1(Call(Tensor::Scalar<float>(1), Ints({}))), Tensor::Scalar<float>(1));
  ExpectTensorEqual(RunOp1(Call(TensorOf<float>({0, 3}, {}), Ints({1, 0}))),
                    TensorOf<float>({3, 0}, {}));
}

TEST(Transpose, LargeImagesChangeLayout) {
  std::vector<int16_t> values(2 * 37 * 41 * 5);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<int16_t>(i);
  ASSERT_OK_AND_ASSIGN(const Tensor nhwc,
                       Tensor::FromValues<int16_t>(ShapeOf({2, 37, 41, 5}), values));
  const Tensor nchw = RunOp1(Call(nhwc, Ints({0, 3, 1, 2})));
  ASSERT_EQ(nchw.shape(), ShapeOf({2, 5, 37, 41}));
  size_t i = 0;
  for (size_t n = 0; n < 2; ++n) {
    for (size_t c = 0; c < 5; ++c) {
      for (size_t h = 0; h < 37; ++h) {
        for (size_t w = 0; w < 41; ++w) {
          ASSERT_EQ(nchw.flat<int16_t>()[i++], values[((n * 37 + h) * 41 + w) * 5 + c]);
        }
      }
    }
  }
}

TEST(Transpose, DimensionsOfOneMoveWithoutACopy) {
  const Tensor x = TensorOf<float>({2, 1, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor y = RunOp1(Call(x, Ints({1, 0, 2})));
  EXPECT_EQ(y.shape(), ShapeOf({1, 2, 3}));
  EXPECT_TRUE(y.SharesBufferWith(x));
}

TEST(Transpose, RefusesWhatIsNoPermutation) {
  const Tensor x = TensorOf<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  ExpectOpError(Call(x, Ints({0})), kInvalid,
                "perm must have one element for each of the 2 dimensions, got 1");
  ExpectOpError(Call(x, Ints({0, 2})), kInvalid, "perm[1] must be in [0, 2), got 2");
  ExpectOpError(Call(x, Ints({0, -1})), kInvalid, "perm[1] must be in [0, 2), got -1");
  ExpectOpError(Call(x, Ints({1, 1})), kInvalid, "perm must have each index once, got 1");
  EXPECT_SHAPE("Transpose", {}, {"[2,?]", Ints({1, 0})}, "[?,2]");
  EXPECT_SHAPE("Transpose", {}, {"[2,?]", "[2]"}, "[?,?]");
  EXPECT_SHAPE("Transpose", {}, {"<unknown>", "[3]"}, "[?,?,?]");
  EXPECT_SHAPE("Transpose", {}, {"<unknown>", "<unknown>"}, "<unknown>");
  EXPECT_SHAPE_ERROR("Transpose", {}, {"[2,3]", "[3]"}, "one element for each of the 2");
}

TEST(ConjugateTranspose, Conjugates) {
  const Tensor x = TensorOf<std::complex<float>>({1, 2}, {{1, 2}, {3, 4}});
  ExpectTensorEqual(RunOp1(OpCall("ConjugateTranspose").Input(x).Input(Ints({1, 0}))),
                    TensorOf<std::complex<float>>({2, 1}, {{1, -2}, {3, -4}}));
}

TEST(InvertPermutation, IsItsOwnInverse) {
  ExpectTensorEqual(RunOp1(OpCall("InvertPermutation").Input(Ints({2, 0, 1}))), Ints({1, 2, 0}));
  ExpectTensorEqual(RunOp1(OpCall("InvertPermutation").Input(TensorOf<int64_t>({2}, {1, 0}))),
                    TensorOf<int64_t>({2}, {1, 0}));
  ExpectTensorEqual(RunOp1(OpCall("InvertPermutation").Input(Ints({}))), Ints({}));
  ExpectOpError(OpCall("InvertPermutation").Input(Ints({0, 0})), kInvalid,
                "x must have each index once, got 0 at [0] and at [1]");
  ExpectOpError(OpCall("InvertPermutation").Input(TensorOf<int32_t>({1, 1}, {0})), kInvalid,
                "x must be a vector");
  EXPECT_SHAPE_ERROR("InvertPermutation", {}, {Ints({0, 2})}, "x[1] must be in [0, 2), got 2");
}

TEST(TransposeGradients, MatchFiniteDifferences) {
  const Tensor x = TensorOf<double>({2, 1, 3}, {1, -2, 3, 4, 5, -6});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return Transpose(s, in[0], Const<int32_t>(s, {2, 0, 1}));
      },
      {x});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return ConjugateTranspose(s, in[0], Const<int32_t>(s, {1, 0}));
      },
      {TensorOf<std::complex<double>>({1, 2}, {{1, 2}, {3, 4}})});
}

}  // namespace
}  // namespace millrace
