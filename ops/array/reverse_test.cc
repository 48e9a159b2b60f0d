// SPDX-License-Identifier: Apache-2.0
#include "ops/array/reverse.h"

#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }

// [[0 1 2 3], [10 11 12 13], [20 21 22 23]]
Tensor Grid() { return TensorOf<float>({3, 4}, {0, 1, 2, 3, 10, 11, 12, 13, 20, 21, 22, 23}); }

TEST(Reverse, TurnsDimensionsAround) {
  ExpectTensorEqual(RunOp1(OpCall("ReverseV2").Input(Grid()).Input(Ints({1}))),
                    TensorOf<float>({3, 4}, {3, 2, 1, 0, 13, 12, 11, 10, 23, 22, 21, 20}));
  ExpectTensorEqual(RunOp1(OpCall("ReverseV2").Input(Grid()).Input(Ints({-2, 1}))),
                    TensorOf<float>({3, 4}, {23, 22, 21, 20, 13, 12, 11, 10, 3, 2, 1, 0}));
  ExpectOpError(OpCall("ReverseV2").Input(Grid()).Input(Ints({2})), kInvalid,
                "axis[0] must be in [-2, 2), got 2");
  ExpectOpError(OpCall("ReverseV2").Input(Grid()).Input(Ints({1, -1})), kInvalid,
                "axis must name a dimension once, got 1 twice");
  EXPECT_SHAPE("ReverseV2", {}, {"[2,?]", Ints({0})}, "[2,?]");
}

TEST(ReverseGradients, MatchFiniteDifferences) {
  const Tensor x = TensorOf<double>({2, 3}, {1, -2, 3, 4, 5, -6});
  const auto ints = [](const Scope& s, std::initializer_list<int32_t> v) {
    return Const<int32_t>(s, v);
  };
  const BuildOutput builds[] = {
      [=](const Scope& s, const std::vector<Output>& in) {
        return ReverseV2(s, in[0], ints(s, {1}));
      },
  };
  for (const BuildOutput& build : builds) ExpectGradientsMatch(build, {x});
}

}  // namespace
}  // namespace millrace
