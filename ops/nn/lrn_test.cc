// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/lrn.h"

#include <cmath>
#include <variant>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

TEST(LRN, DividesByThePowerOfTheNeighboursSquares) {
  const Tensor x = TensorOf<float>({1, 1, 2, 3}, {1, 2, 3, 4, 0, -1});
  const OpCall call = OpCall("LRN")
                          .Input(x)
                          .Attr("depth_radius", int64_t{1})
                          .Attr("bias", 2.0f)
                          .Attr("alpha", 0.5f)
                          .Attr("beta", 0.75f);
  const auto y = [](double v, double squares) {
    return static_cast<float>(v / std::pow(2 + 0.5 * squares, 0.75));
  };
  ExpectTensorNear(
      RunOp1(call),
      TensorOf<float>({1, 1, 2, 3}, {y(1, 5), y(2, 14), y(3, 13), y(4, 16), 0, y(-1, 1)}), 1e-6, 0);
  ExpectTensorNear(RunOp1(OpCall("LRN").Input(TensorOf<Half>({1, 1, 1, 1}, {ToHalf(2)}))),
                   TensorOf<Half>({1, 1, 1, 1}, {ToHalf(0.894427f)}), 1e-3, 0);
}

TEST(LRN, ARadiusBeyondTheChannelsTakesThemAll) {
  const Tensor x = TensorOf<float>({1, 1, 1, 2}, {3, 4});
  ExpectTensorNear(
      RunOp1(OpCall("LRN").Input(x).Attr("depth_radius", INT64_MAX).Attr("bias", 0.0f)),
      TensorOf<float>({1, 1, 1, 2}, {0.6f, 0.8f}), 1e-6, 0);
}

TEST(LRN, EmptyTensors) {
  const Tensor x = TensorOf<float>({0, 2, 2, 3}, {}), y = TensorOf<float>({1, 2, 2, 0}, {});
  ExpectTensorEqual(RunOp1(OpCall("LRN").Input(x)), x);
  ExpectTensorEqual(RunOp1(OpCall("LRNGrad").Input(y).Input(y).Input(y)), y);
}

TEST(LRN, RefusesWhatDoesNotFit) {
  const Tensor x = *Tensor::Zeros(DT_FLOAT, ShapeOf({1, 2, 2, 3}));
  const Tensor vector = TensorOf<float>({3}, {1, 2, 3});
  ExpectOpError(OpCall("LRN").Input(vector), absl::StatusCode::kInvalidArgument,
                "input must have rank 4, got shape [3]");
  ExpectOpError(OpCall("LRN").Input(x).Attr("depth_radius", int64_t{-1}),
                absl::StatusCode::kInvalidArgument, "depth_radius must be >= 0, got -1");
  ExpectOpError(
      OpCall("LRNGrad").Input(x).Input(*Tensor::Zeros(DT_FLOAT, ShapeOf({1, 2, 2, 4}))).Input(x),
      absl::StatusCode::kInvalidArgument, "inputs must have the same shape, got [1,2,2,3] and");
  EXPECT_SHAPE_ERROR("LRN", {}, {"[3]"}, "input must have rank 4");
  EXPECT_SHAPE_ERROR("LRNGrad", {}, {"[1,2,2,3]", "[?,?,?,4]", "<unknown>"}, "the same shape");
  EXPECT_SHAPE("LRN", {}, {"<unknown>"}, "[?,?,?,?]");
  EXPECT_SHAPE("LRNGrad", {}, {"[1,?,2,?]", "[?,2,?,?]", "[?,?,?,3]"}, "[1,2,2,3]");
}

TEST(LRNGradient, MatchesFiniteDifferences) {
  const Tensor x = TensorOf<float>({1, 1, 2, 4}, {1, -2, 0.5f, 3, 0.25f, 1.5f, -1, 2});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return LRN(s, in[0], {.depth_radius = 1, .bias = 1.5f, .alpha = 0.5f, .beta = 0.75f});
      },
      {x});
  ExpectGradientsMatch([](const Scope& s, const std::vector<Output>& in) { return LRN(s, in[0]); },
                       {x});
}

TEST(LRNGradient, ASecondDerivativeIsRefused) {
  Scope scope;
  const Output x = TestInput(scope, DT_FLOAT, {1, 1, 1, 2});
  ASSERT_OK_AND_ASSIGN(const std::vector<Gradient> first,
                       AddGradients(scope, {LRN(scope, x)}, {x}));
  EXPECT_STATUS(AddGradients(scope, {std::get<Output>(first[0])}, {x}),
                absl::StatusCode::kUnimplemented, "the gradient of LRN has no gradient");
}

}  // namespace
}  // namespace millrace
