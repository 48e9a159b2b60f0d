// SPDX-License-Identifier: Apache-2.0
#include "ops/array/tile.h"

#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "graph/node_builder.h"
#include "gtest/gtest.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }

TEST(Tile, RepeatsAlongEachDimension) {
  const Tensor x = TensorOf<int32_t>({1, 2}, {1, 2});
  ExpectTensorEqual(RunOp1(OpCall("Tile").Input(x).Input(Ints({2, 2}))),
                    TensorOf<int32_t>({2, 4}, {1, 2, 1, 2, 1, 2, 1, 2}));
  ExpectTensorEqual(RunOp1(OpCall("Tile").Input(x).Input(Ints({0, 1}))),
                    TensorOf<int32_t>({0, 2}, {}));
  ExpectTensorEqual(
      RunOp1(OpCall("Tile").Input(TensorOf<std::string>({2}, {"a", "b"})).Input(Ints({2}))),
      TensorOf<std::string>({4}, {"a", "b", "a", "b"}));
  EXPECT_SHAPE("Tile", {}, {"[2,?]", Ints({3, 3})}, "[6,?]");
  EXPECT_SHAPE("Tile", {}, {"<unknown>", "[2]"}, "[?,?]");
  ExpectOpError(OpCall("Tile").Input(x).Input(Ints({1, -3})), kInvalid,
                "multiples[1] must be >= 0, got -3");
  ExpectOpError(OpCall("Tile").Input(x).Input(Ints({1})), kInvalid,
                "multiples must have one element for each of the 2 dimensions, got 1");
  ExpectOpError(
      OpCall("Tile").Input(x).Input(Tensor::Vector<int64_t>({int64_t{1} << 40, int64_t{1} << 40})),
      kInvalid, "product of sizes");
}

TEST(TileGradients, MatchFiniteDifferences) {
  const Tensor x = TensorOf<double>({2, 3}, {1, -2, 3, 4, 5, -6});
  const auto ints = [](const Scope& s, std::initializer_list<int32_t> v) {
    return Const<int32_t>(s, v);
  };
  const BuildOutput builds[] = {
      [=](const Scope& s, const std::vector<Output>& in) {
        return Tile(s, in[0], ints(s, {2, 3}));
      },
  };
  for (const BuildOutput& build : builds) ExpectGradientsMatch(build, {x});
}

// The number of its elements is known, its shape is not: ConcatV2 along an axis that only a step
// knows. (No evaluator: constants and shape arithmetic are all that is followed.)
Output OtherThanItsShape(const Scope& scope, std::initializer_list<int32_t> values) {
  const Output axis = NodeBuilder(scope, "Abs").Input(Const(scope, int32_t{0})).Finish().output(0);
  std::vector<Output> parts;
  for (const int32_t value : values) parts.push_back(Const<int32_t>(scope, {value}));
  return ConcatV2(scope, parts, axis);
}

TEST(Tile, ShapeFunctionChecksTheLengthOfValuesToo) {
  Scope scope;
  Tile(scope, TestInput(scope, DT_FLOAT, {3, 4}), OtherThanItsShape(scope, {1, 1, 1, 1, 1, 1}));
  EXPECT_STATUS(scope.status(), kInvalid,
                "multiples must have one element for each of the 2 dimensions, got 6");
}

}  // namespace
}  // namespace millrace
