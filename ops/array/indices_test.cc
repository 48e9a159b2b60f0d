// SPDX-License-Identifier: Apache-2.0
#include "ops/array/indices.h"

#include <limits>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Int(int32_t v) { return Tensor::Scalar<int32_t>(v); }
Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }
Tensor Longs(std::initializer_list<int64_t> values) { return Tensor::Vector<int64_t>(values); }

OpCall OneHotCall(Tensor indices, int32_t depth, Tensor on, Tensor off, int64_t axis) {
  return OpCall("OneHot")
      .Input(std::move(indices))
      .Input(Int(depth))
      .Input(std::move(on))
      .Input(std::move(off))
      .Attr("axis", axis);
}

TEST(OneHot, SetsTheElementOfEachIndex) {
  const Tensor one = Tensor::Scalar<float>(1), zero = Tensor::Scalar<float>(0);
  ExpectTensorEqual(RunOp1(OneHotCall(Longs({1, -1, 3}), 3, one, zero, -1)),
                    TensorOf<float>({3, 3}, {0, 1, 0, 0, 0, 0, 0, 0, 0}));
  ExpectTensorEqual(RunOp1(OneHotCall(Ints({1, 0}), 3, one, zero, 0)),
                    TensorOf<float>({3, 2}, {0, 1, 1, 0, 0, 0}));
  ExpectTensorEqual(RunOp1(OneHotCall(Tensor::Scalar<uint8_t>(1), 2, Tensor::Scalar("on"),
                                      Tensor::Scalar("off"), -1)),
                    TensorOf<std::string>({2}, {"off", "on"}));
  ExpectTensorEqual(
      RunOp1(OneHotCall(TensorOf<int32_t>({2, 2}, {0, 1, 1, 0}), 2, Int(5), Int(4), 1)),
      TensorOf<int32_t>({2, 2, 2}, {5, 4, 4, 5, 4, 5, 5, 4}));
  ExpectTensorEqual(RunOp1(OneHotCall(Ints({}), 3, one, zero, -1)), TensorOf<float>({0, 3}, {}));
  ExpectOpError(OneHotCall(Ints({0}), -1, one, zero, -1), kInvalid, "depth must be >= 0, got -1");
  ExpectOpError(OneHotCall(Ints({0}), 1, one, zero, 2), kInvalid, "axis must be in [-1, 1], got 2");
  ExpectOpError(OneHotCall(Ints({0}), 1, TensorOf<float>({1}, {1}), zero, -1), kInvalid,
                "on_value must be a scalar, got shape [1]");
  EXPECT_SHAPE("OneHot", {{"axis", int64_t{1}}}, {"[2,?]", Int(4), "[]", "[]"}, "[2,4,?]");
  EXPECT_SHAPE("OneHot", {}, {"[2,?]", "[]", "[]", "[]"}, "[2,?,?]");
}

TEST(Where, ListsCoordinatesInOrder) {
  ExpectTensorEqual(
      RunOp1(OpCall("Where").Input(TensorOf<bool>({2, 2}, {true, false, true, true}))),
      TensorOf<int64_t>({3, 2}, {0, 0, 1, 0, 1, 1}));
  ExpectTensorEqual(RunOp1(OpCall("Where").Input(TensorOf<float>({3}, {0, -1, 2}))),
                    TensorOf<int64_t>({2, 1}, {1, 2}));
  ExpectTensorEqual(RunOp1(OpCall("Where").Input(TensorOf<bool>({0}, {}))),
                    TensorOf<int64_t>({0, 1}, {}));
  ExpectTensorEqual(RunOp1(OpCall("Where").Input(Tensor::Scalar<bool>(true))),
                    TensorOf<int64_t>({1, 0}, {}));
  EXPECT_SHAPE("Where", {}, {"[2,?]"}, "[?,2]");
  EXPECT_SHAPE("Where", {}, {"<unknown>"}, "[?,?]");
}

TEST(Unique, KeepsTheOrderOfFirstAppearance) {
  ASSERT_OK_AND_ASSIGN(std::vector<Tensor> out,
                       RunOp(OpCall("UniqueWithCounts").Input(Ints({7, 3, 7, 5, 3, 7}))));
  ExpectTensorEqual(out[0], Ints({7, 3, 5}));
  ExpectTensorEqual(out[1], Ints({0, 1, 0, 2, 1, 0}));
  ExpectTensorEqual(out[2], Ints({3, 2, 1}));
  ASSERT_OK_AND_ASSIGN(out, RunOp(OpCall("Unique")
                                      .Input(TensorOf<std::string>({3}, {"b", "a", "b"}))
                                      .Attr("out_idx", DT_INT64)));
  ExpectTensorEqual(out[0], TensorOf<std::string>({2}, {"b", "a"}));
  ExpectTensorEqual(out[1], Longs({0, 1, 0}));
  ASSERT_OK_AND_ASSIGN(out, RunOp(OpCall("Unique").Input(Longs({}))));
  EXPECT_EQ(out[0].num_elements(), 0);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ASSERT_OK_AND_ASSIGN(out, RunOp(OpCall("Unique").Input(TensorOf<float>({4}, {nan, 1, nan, 1}))));
  EXPECT_EQ(out[0].num_elements(), 3);
  ExpectTensorEqual(out[1], Ints({0, 1, 2, 1}));
  ExpectOpError(OpCall("Unique").Input(TensorOf<float>({1, 1}, {1})), kInvalid,
                "x must be a vector, got shape [1,1]");
  EXPECT_SHAPE("UniqueWithCounts", {}, {"[5]"}, "[?];[5];[?]");
}

}  // namespace
}  // namespace millrace
