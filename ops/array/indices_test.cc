// SPDX-License-Identifier: Apache-2.0
#include "ops/array/indices.h"

#include <limits>
#include <string>
#include <utility>
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

TEST(Unique, NarrowTypesAreComparedByValue) {
  const auto halves = [](std::initializer_list<float> values) {
    std::vector<Half> narrow;
    for (const float v : values) narrow.push_back(ToHalf(v));
    return Tensor::Vector<Half>(narrow);
  };
  // The two zeros have other bits; NaN equals nothing.
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ASSERT_OK_AND_ASSIGN(std::vector<Tensor> out,
                       RunOp(OpCall("Unique").Input(halves({0, 1.5f, -0.0f, nan, 1.5f, nan}))));
  EXPECT_EQ(out[0].num_elements(), 4);
  ExpectTensorEqual(out[1], Ints({0, 1, 0, 2, 1, 3}));
  const Tensor brain = TensorOf<Bfloat16>({3}, {ToBfloat16(2), ToBfloat16(-1), ToBfloat16(2)});
  ASSERT_OK_AND_ASSIGN(out, RunOp(OpCall("UniqueWithCounts").Input(brain)));
  ExpectTensorEqual(out[0], TensorOf<Bfloat16>({2}, {ToBfloat16(2), ToBfloat16(-1)}));
  ExpectTensorEqual(out[2], Ints({2, 1}));
  ASSERT_OK_AND_ASSIGN(out, RunOp(OpCall("Unique").Input(TensorOf<int8_t>({3}, {-1, 4, -1}))));
  ExpectTensorEqual(out[0], TensorOf<int8_t>({2}, {-1, 4}));
}

OpCall Difference(Tensor x, Tensor y) {
  return OpCall("ListDiff").Input(std::move(x)).Input(std::move(y));
}

TEST(ListDiff, KeepsOrderAndRepetitions) {
  ASSERT_OK_AND_ASSIGN(std::vector<Tensor> out,
                       RunOp(Difference(Ints({5, 1, 2, 5, 3, 1, 4}), Ints({1, 3, 1, 9}))));
  ExpectTensorEqual(out[0], Ints({5, 2, 5, 4}));
  ExpectTensorEqual(out[1], Ints({0, 2, 3, 6}));
  ASSERT_OK_AND_ASSIGN(out, RunOp(Difference(TensorOf<std::string>({3}, {"b", "a", "b"}),
                                             TensorOf<std::string>({1}, {"a"}))
                                      .Attr("out_idx", DT_INT64)));
  ExpectTensorEqual(out[0], TensorOf<std::string>({2}, {"b", "b"}));
  ExpectTensorEqual(out[1], Longs({0, 2}));
  const Tensor halves = TensorOf<Half>({3}, {ToHalf(2), ToHalf(-0.0f), ToHalf(3)});
  ASSERT_OK_AND_ASSIGN(out, RunOp(Difference(halves, TensorOf<Half>({1}, {ToHalf(0)}))));
  ExpectTensorEqual(out[0], TensorOf<Half>({2}, {ToHalf(2), ToHalf(3)}));
  ExpectTensorEqual(out[1], Ints({0, 2}));
}

TEST(ListDiff, NanStaysAndEmptyListsAreLegal) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ASSERT_OK_AND_ASSIGN(
      std::vector<Tensor> out,
      RunOp(Difference(TensorOf<float>({3}, {nan, 1, nan}), TensorOf<float>({2}, {nan, 1}))));
  ExpectTensorEqual(out[1], Ints({0, 2}));
  ASSERT_OK_AND_ASSIGN(out, RunOp(Difference(Longs({}), Longs({1}))));
  ExpectTensorEqual(out[0], Longs({}));
  ExpectTensorEqual(out[1], Ints({}));
  ASSERT_OK_AND_ASSIGN(out, RunOp(Difference(Longs({7, 7}), Longs({}))));
  ExpectTensorEqual(out[0], Longs({7, 7}));
  ASSERT_OK_AND_ASSIGN(out, RunOp(Difference(Longs({7, 7}), Longs({7}))));
  ExpectTensorEqual(out[0], Longs({}));
}

TEST(ListDiff, RefusesWhatIsNoVector) {
  ExpectOpError(Difference(Int(1), Ints({1})), kInvalid, "x must be a vector, got shape []");
  ExpectOpError(Difference(Ints({1}), TensorOf<int32_t>({1, 1}, {1})), kInvalid,
                "y must be a vector, got shape [1,1]");
  EXPECT_SHAPE("ListDiff", {}, {"[5]", "[2]"}, "[?];[?]");
  EXPECT_SHAPE("ListDiff", {}, {"<unknown>", "<unknown>"}, "[?];[?]");
  EXPECT_SHAPE_ERROR("ListDiff", {}, {"[2,2]", "[2]"}, "x must be a vector");
  EXPECT_SHAPE_ERROR("ListDiff", {}, {"[2]", "[]"}, "y must be a vector");
  EXPECT_SHAPE_ERROR("ListDiff", {}, {"[2147483648]", "[1]"}, "use out_idx int64");
}

}  // namespace
}  // namespace millrace
