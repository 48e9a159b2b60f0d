// SPDX-License-Identifier: Apache-2.0
#include "examples/custom_op/gelu.h"

#include <limits>

#include "graph/gradient.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

// covers: graphs: a user's op has tested values and gradients

namespace millrace {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

OpCall GeluOf(const Tensor& x, bool approximate) {
  return OpCall("Gelu").Input(x).Attr("approximate", approximate);
}

// Values of Python's math.erfc and math.tanh.
TEST(Gelu, IsTheInputTimesTheNormalDistribution) {
  const Tensor x = TensorOf<double>({6}, {-10, -1, -0.5, 0.5, 3, 10});
  ExpectTensorNear(
      RunOp1(GeluOf(x, false)),
      TensorOf<double>({6}, {-7.619853024160593e-23, -0.15865525393145707, -0.15426876936299344,
                             0.34573123063700656, 2.99595030590511, 10.0}),
      1e-14, 0);
  ExpectTensorNear(RunOp1(GeluOf(x, true)),
                   TensorOf<double>({6}, {-0.0, -0.15880800939172324, -0.15428599017485606,
                                          0.34571400982514394, 2.996362607918227, 10.0}),
                   1e-14, 0);
  ExpectTensorNear(RunOp1(GeluOf(TensorOf<float>({1, 2}, {-1, 0.5f}), false)),
                   TensorOf<float>({1, 2}, {-0.15865525f, 0.34573123f}), 1e-6, 0);
}

TEST(Gelu, KeepsEmptyTensorsAndInfinities) {
  const Tensor x = TensorOf<double>({2}, {0, kInfinity});
  for (const bool approximate : {false, true}) {
    ExpectTensorEqual(RunOp1(GeluOf(x, approximate)), x);
    ExpectTensorEqual(RunOp1(GeluOf(TensorOf<float>({0, 3}, {}), approximate)),
                      TensorOf<float>({0, 3}, {}));
  }
  EXPECT_SHAPE("Gelu", {}, {"[2,?]"}, "[2,?]");
  EXPECT_SHAPE("Gelu", {}, {"<unknown>"}, "<unknown>");
}

TEST(Gelu, RefusesOtherTypes) {
  ExpectOpError(GeluOf(TensorOf<int32_t>({1}, {1}), false), absl::StatusCode::kInvalidArgument,
                "attr 'T' must be one of {float, double}, got int32");
}

TEST(Gelu, GradientsMatchFiniteDifferences) {
  const Tensor x = TensorOf<double>({2, 3}, {-3, -1, -0.1, 0, 0.7, 2});
  for (const bool approximate : {false, true}) {
    const auto gelu = [=](const Scope& s, const std::vector<Output>& in) {
      return custom_op::Gelu(s, in[0], {.approximate = approximate});
    };
    ExpectGradientsMatch(gelu, {x});
    // The gradient of the gradient.
    ExpectGradientsMatch(
        [=](const Scope& s, const std::vector<Output>& in) {
          const auto gradients = AddGradients(s, {gelu(s, in)}, in);
          return gradients.ok() ? std::get<Output>((*gradients)[0]) : Output();
        },
        {x});
  }
}

}  // namespace
}  // namespace millrace
