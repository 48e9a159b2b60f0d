// SPDX-License-Identifier: Apache-2.0
#include "ops/math/bucketize.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

// covers: values: buckets count the boundaries at or below a value

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

OpCall Call(Tensor input, std::vector<float> boundaries) {
  return OpCall("Bucketize").Input(std::move(input)).Attr("boundaries", boundaries);
}
OpCall CallWithInput(Tensor input, Tensor boundaries) {
  return OpCall("BucketizeWithInputBoundaries")
      .Input(std::move(input))
      .Input(std::move(boundaries));
}

TEST(Bucketize, CountsTheBoundariesThatAreNotAbove) {
  const std::vector<float> boundaries = {0, 3, 8, 11};
  const float inf = std::numeric_limits<float>::infinity();
  ExpectTensorEqual(RunOp1(Call(Tensor::Of<float>({-5, 10000, 150, 10, 5, 100}), {0, 10, 100})),
                    Tensor::Of<int32_t>({0, 3, 3, 2, 1, 3}));
  ExpectTensorEqual(RunOp1(Call(Tensor::Of<int32_t>({{-1, 0}, {2, 3}, {11, 12}}), boundaries)),
                    Tensor::Of<int32_t>({{0, 1}, {1, 2}, {4, 4}}));
  ExpectTensorEqual(RunOp1(Call(Tensor::Of<int64_t>({7, 8}), boundaries)),
                    Tensor::Of<int32_t>({2, 3}));
  ExpectTensorEqual(RunOp1(Call(Tensor::Vector<double>({2.999, 3.0, -0.0}), boundaries)),
                    Tensor::Of<int32_t>({1, 2, 1}));
  // As std::upper_bound has it: a NaN is below nothing.
  ExpectTensorEqual(RunOp1(Call(Tensor::Of<float>({std::nanf(""), inf, -inf}), boundaries)),
                    Tensor::Of<int32_t>({4, 4, 0}));
  ExpectTensorEqual(RunOp1(Call(Tensor::Of<float>({1, 2, 3}), {2, 2})),
                    Tensor::Of<int32_t>({0, 2, 2}));
  ExpectTensorEqual(RunOp1(Call(Tensor::Of<float>({1}), {})), Tensor::Of<int32_t>({0}));
  ExpectTensorEqual(RunOp1(Call(TensorOf<float>({0, 2}, {}), boundaries)),
                    TensorOf<int32_t>({0, 2}, {}));
  // Integers are compared as floats: 2^24 + 1 is none.
  ExpectTensorEqual(RunOp1(Call(Tensor::Of<int32_t>({16777217, 16777218}), {16777218})),
                    Tensor::Of<int32_t>({0, 1}));
}

TEST(Bucketize, FindsAsTheStandardLibraryDoesForAnyNumberOfBoundaries) {
  std::vector<float> x;
  for (int i = -400; i < 1400; ++i) x.push_back(static_cast<float>(i) * 0.25f);
  x.push_back(std::nanf(""));
  const Tensor input = Tensor::Vector<float>(x);
  for (const int m : {1, 2, 3, 7, 23, 24, 25, 26, 64, 100, 257}) {
    std::vector<float> boundaries;
    for (int k = 0; k < m; ++k) boundaries.push_back(static_cast<float>(k * 100 / m));
    std::vector<int32_t> expected;
    for (const float v : x) {
      expected.push_back(static_cast<int32_t>(
          std::upper_bound(boundaries.begin(), boundaries.end(), v) - boundaries.begin()));
    }
    ExpectTensorEqual(RunOp1(Call(input, boundaries)), Tensor::Vector<int32_t>(expected));
    ExpectTensorEqual(RunOp1(CallWithInput(input, Tensor::Vector<float>(boundaries))),
                      Tensor::Vector<int32_t>(expected));
  }
}

TEST(Bucketize, RefusesBoundariesWithoutOrder) {
  ExpectOpError(Call(Tensor::Of<float>({1}), {0, 8, 3}), kInvalid,
                "boundaries must be sorted: boundaries[2] must be >= 8, got 3");
  ExpectOpError(Call(Tensor::Of<float>({1}), {0, std::nanf("")}), kInvalid,
                "boundaries[1] must be a number, got NaN");
  ExpectOpError(CallWithInput(Tensor::Of<float>({1}), Tensor::Of<float>({5, 4})), kInvalid,
                "boundaries must be sorted");
  ExpectTensorEqual(
      RunOp1(CallWithInput(Tensor::Of<float>({1, 5, 6}), Tensor::Of<float>({{5, 6}}))),
      Tensor::Vector<int32_t>({0, 1, 2}));
  EXPECT_SHAPE("Bucketize", {{"boundaries", std::vector<float>{1}}}, {"[2,?]"}, "[2,?]");
  EXPECT_SHAPE_ERROR("Bucketize", {{"boundaries", std::vector<float>{1, 0}}}, {"[2]"},
                     "boundaries must be sorted");
  EXPECT_SHAPE("BucketizeWithInputBoundaries", {}, {"[2,?]", "[?]"}, "[2,?]");
}

}  // namespace
}  // namespace millrace
