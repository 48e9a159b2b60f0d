// SPDX-License-Identifier: Apache-2.0
#include "ops/columns/zero_fraction.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

float Fraction(OpTestDevice* device, const std::vector<Tensor>& variables) {
  return RunOp1(OpCall("_ZeroFraction").Inputs({variables.begin(), variables.end()}).On(device))
      .scalar<float>();
}

TEST(ZeroFraction, CountsZerosOfAllVariables) {
  OpTestDevice device;
  std::vector<float> many(1001, 0.0f);
  many[0] = 1;
  many[1000] = -1;
  const Tensor a = device.VariableHandle("a", Tensor::Vector<float>(many)),
               b = device.VariableHandle(
                   "b", TensorOf<float>({2, 3}, {0, -0.0f, 1e-45f, std::nanf(""), 2, 0})),
               none = device.VariableHandle("none", TensorOf<float>({0, 3}, {}));
  EXPECT_EQ(Fraction(&device, {a}), 999.0f / 1001.0f);
  EXPECT_EQ(Fraction(&device, {b}), 0.5f);
  EXPECT_EQ(Fraction(&device, {a, none, b}), 1002.0f / 1007.0f);
  EXPECT_TRUE(std::isnan(Fraction(&device, {none})));
}

TEST(ZeroFraction, TakesFloatVariables) {
  OpTestDevice device;
  const Tensor ints = device.VariableHandle("ints", Tensor::Of<int32_t>({1}));
  ExpectOpError(OpCall("_ZeroFraction").Inputs({ints}).On(&device),
                absl::StatusCode::kInvalidArgument,
                "ints with dtype float, but its dtype is int32");
}

}  // namespace
}  // namespace millrace
