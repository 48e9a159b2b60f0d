// SPDX-License-Identifier: Apache-2.0
#include "ops/math/select.h"

#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Call(const Tensor& condition, const Tensor& t, const Tensor& e) {
  return RunOp1(OpCall("Select").Input(condition).Input(t).Input(e));
}

TEST(Select, ChoosesElementsRowsOrAll) {
  const Tensor t = TensorOf<float>({2, 2}, {1, 2, 3, 4});
  const Tensor e = TensorOf<float>({2, 2}, {5, 6, 7, 8});
  ExpectTensorEqual(Call(TensorOf<bool>({2, 2}, {true, false, false, true}), t, e),
                    TensorOf<float>({2, 2}, {1, 6, 7, 4}));
  ExpectTensorEqual(Call(Tensor::Vector<bool>({false, true}), t, e),
                    TensorOf<float>({2, 2}, {5, 6, 3, 4}));
  ExpectTensorEqual(Call(Tensor::Scalar<bool>(true), t, e), t);
  ExpectTensorEqual(Call(Tensor::Scalar<bool>(false), t, e), e);
  ExpectTensorEqual(
      Call(TensorOf<bool>({0}, {}), TensorOf<int8_t>({0, 3}, {}), TensorOf<int8_t>({0, 3}, {})),
      TensorOf<int8_t>({0, 3}, {}));
  ExpectTensorEqual(
      Call(Tensor::Vector<bool>({false, true}), TensorOf<std::string>({2}, {"a", "b"}),
           TensorOf<std::string>({2}, {"c", "d"})),
      TensorOf<std::string>({2}, {"c", "b"}));
  ExpectTensorEqual(Call(Tensor::Vector<bool>({true}), TensorOf<Half>({1}, {ToHalf(1)}),
                         TensorOf<Half>({1}, {ToHalf(2)})),
                    TensorOf<Half>({1}, {ToHalf(1)}));
}

TEST(Select, RefusesOtherShapes) {
  const Tensor t = TensorOf<float>({2, 2}, {1, 2, 3, 4});
  ExpectOpError(OpCall("Select").Input(Tensor::Vector<bool>({true})).Input(t).Input(t), kInvalid,
                "Number of batches of 'then' must match size of 'cond', but saw: 2 vs. 1");
  ExpectOpError(OpCall("Select").Input(TensorOf<bool>({1, 2}, {true, true})).Input(t).Input(t),
                kInvalid, "[1,2]");
  ExpectOpError(
      OpCall("Select").Input(Tensor::Scalar<bool>(true)).Input(t).Input(Tensor::Vector<float>({1})),
      kInvalid, "'then' and 'else' must have the same size, but received: [2,2] vs. [1]");
  ExpectOpError(OpCall("Select")
                    .Input(Tensor::Vector<bool>({true}))
                    .Input(Tensor::Scalar<float>(1))
                    .Input(Tensor::Scalar<float>(1)),
                kInvalid, "[1]");
  EXPECT_SHAPE("Select", {}, {"[2]", "[?,3]", "[?,?]"}, "[2,3]");
  EXPECT_SHAPE("Select", {}, {"[]", "[?,3]", "[2,?]"}, "[2,3]");
  EXPECT_SHAPE("Select", {}, {"[2,3]", "<unknown>", "<unknown>"}, "[2,3]");
  EXPECT_SHAPE("Select", {}, {"[2]", "<unknown>", "<unknown>"}, "<unknown>");
  EXPECT_SHAPE_ERROR("Select", {}, {"[2]", "[3,3]", "[3,3]"}, "3 vs. 2");
  EXPECT_SHAPE_ERROR("Select", {}, {"[]", "[3]", "[2]"}, "[3] vs. [2]");
}

TEST(Select, GradientsMatch) {
  for (const Tensor& condition :
       {TensorOf<bool>({2, 2}, {true, false, false, true}), Tensor::Vector<bool>({false, true}),
        Tensor::Scalar<bool>(true)}) {
    ExpectGradientsMatch(
        BuildOutput([&](const Scope& s, const std::vector<Output>& in) {
          return Select(s, Const(s, condition), in[0], in[1]);
        }),
        {TensorOf<double>({2, 2}, {1, 2, 3, 4}), TensorOf<double>({2, 2}, {5, 6, 7, 8})});
  }
}

Tensor CallV2(const Tensor& condition, const Tensor& t, const Tensor& e) {
  return RunOp1(OpCall("SelectV2").Input(condition).Input(t).Input(e));
}

TEST(SelectV2, BroadcastsAllThree) {
  const Tensor t = TensorOf<float>({2, 2}, {1, 2, 3, 4});
  const Tensor e = TensorOf<float>({2, 2}, {5, 6, 7, 8});
  const Tensor column = TensorOf<bool>({2, 1}, {true, false});
  ExpectTensorEqual(CallV2(TensorOf<bool>({2, 2}, {true, false, false, true}), t, e),
                    TensorOf<float>({2, 2}, {1, 6, 7, 4}));
  // A vector chooses along the last axis, where Select takes rows.
  ExpectTensorEqual(CallV2(Tensor::Vector<bool>({false, true}), t, e),
                    TensorOf<float>({2, 2}, {5, 2, 7, 4}));
  ExpectTensorEqual(CallV2(column, t, e), TensorOf<float>({2, 2}, {1, 2, 7, 8}));
  ExpectTensorEqual(CallV2(column, t, Tensor::Scalar<float>(0)),
                    TensorOf<float>({2, 2}, {1, 2, 0, 0}));
  ExpectTensorEqual(CallV2(column, Tensor::Vector<float>({1, 2, 3}), Tensor::Scalar<float>(0)),
                    TensorOf<float>({2, 3}, {1, 2, 3, 0, 0, 0}));
  // Along the last axis each operand may stay while others go on.
  const Tensor flags = Tensor::Vector<bool>({true, false, true});
  const Tensor one = Tensor::Scalar<float>(7), zero = Tensor::Scalar<float>(0);
  ExpectTensorEqual(CallV2(flags, one, zero), Tensor::Vector<float>({7, 0, 7}));
  ExpectTensorEqual(CallV2(flags, one, Tensor::Vector<float>({1, 2, 3})),
                    Tensor::Vector<float>({7, 2, 7}));
  ExpectTensorEqual(CallV2(flags, Tensor::Vector<float>({1, 2, 3}), zero),
                    Tensor::Vector<float>({1, 0, 3}));
  ExpectTensorEqual(
      CallV2(flags, TensorOf<float>({2, 1}, {1, 2}), TensorOf<float>({1, 3}, {7, 8, 9})),
      TensorOf<float>({2, 3}, {1, 8, 1, 2, 8, 2}));
  ExpectTensorEqual(CallV2(TensorOf<bool>({2, 1, 1}, {false, true}),
                           TensorOf<int16_t>({1, 2, 1}, {1, 2}), TensorOf<int16_t>({2}, {8, 9})),
                    TensorOf<int16_t>({2, 2, 2}, {8, 9, 8, 9, 1, 1, 2, 2}));
  ExpectTensorEqual(
      CallV2(column, TensorOf<std::string>({2}, {"a", "b"}), Tensor::Scalar<std::string>("-")),
      TensorOf<std::string>({2, 2}, {"a", "b", "-", "-"}));
}

TEST(SelectV2, OneConditionChoosesATensor) {
  const Tensor t = TensorOf<float>({2, 2}, {1, 2, 3, 4});
  const Tensor row = Tensor::Vector<float>({5, 6});
  ExpectTensorEqual(CallV2(Tensor::Scalar<bool>(true), t, row), t);
  ExpectTensorEqual(CallV2(Tensor::Scalar<bool>(false), t, row),
                    TensorOf<float>({2, 2}, {5, 6, 5, 6}));
  ExpectTensorEqual(CallV2(TensorOf<bool>({1, 1, 1}, {true}), t, row),
                    TensorOf<float>({1, 2, 2}, {1, 2, 3, 4}));
  ExpectTensorEqual(CallV2(Tensor::Scalar<bool>(false), Tensor::Scalar<Half>(ToHalf(1)),
                           Tensor::Scalar<Half>(ToHalf(2))),
                    Tensor::Scalar<Half>(ToHalf(2)));
}

TEST(SelectV2, EmptyTensors) {
  ExpectTensorEqual(CallV2(TensorOf<bool>({0, 1}, {}), Tensor::Vector<float>({1, 2, 3}),
                           Tensor::Scalar<float>(0)),
                    TensorOf<float>({0, 3}, {}));
  ExpectTensorEqual(CallV2(Tensor::Vector<bool>({true}), TensorOf<float>({2, 0}, {}),
                           TensorOf<float>({2, 1}, {1, 2})),
                    TensorOf<float>({2, 0}, {}));
}

TEST(SelectV2, LargeTensorsAreChosenInParts) {
  constexpr int64_t kRows = 300, kColumns = 1000;
  Tensor condition = *Tensor::Zeros(DT_BOOL, ShapeOf({kRows, 1}));
  Tensor t = *Tensor::Zeros(DT_INT32, ShapeOf({kColumns}));
  for (int64_t i = 0; i < kRows; i += 2) {
    condition.mutable_flat<bool>()[static_cast<size_t>(i)] = true;
  }
  for (int64_t i = 0; i < kColumns; ++i) {
    t.mutable_flat<int32_t>()[static_cast<size_t>(i)] = static_cast<int32_t>(i);
  }
  const Tensor out = CallV2(condition, t, Tensor::Scalar<int32_t>(-1));
  ASSERT_EQ(out.shape(), ShapeOf({kRows, kColumns}));
  for (int64_t i = 0; i < kRows * kColumns; ++i) {
    ASSERT_EQ(out.flat<int32_t>()[static_cast<size_t>(i)],
              i / kColumns % 2 == 0 ? static_cast<int32_t>(i % kColumns) : -1)
        << i;
  }
}

TEST(SelectV2, RefusesShapesThatDoNotFit) {
  const char* const text = "condition [3], then [2,2], and else [] must be broadcastable";
  ExpectOpError(OpCall("SelectV2")
                    .Input(Tensor::Vector<bool>({true, true, false}))
                    .Input(TensorOf<float>({2, 2}, {1, 2, 3, 4}))
                    .Input(Tensor::Scalar<float>(1)),
                kInvalid, text);
  EXPECT_SHAPE_ERROR("SelectV2", {}, {"[3]", "[2,2]", "[]"}, text);
  EXPECT_SHAPE_ERROR("SelectV2", {}, {"[]", "[2]", "[3]"},
                     "condition [], then [2], and else [3] must be broadcastable");
  EXPECT_SHAPE("SelectV2", {}, {"[2,1]", "[3]", "[]"}, "[2,3]");
  EXPECT_SHAPE("SelectV2", {}, {"[?,1]", "[?,3]", "[5,1,1]"}, "[5,?,3]");
  EXPECT_SHAPE("SelectV2", {}, {"<unknown>", "[2]", "[2]"}, "<unknown>");
}

TEST(SelectV2, GradientsAreSummedOverRepeatedAxes) {
  const Tensor square = TensorOf<double>({2, 2}, {1, 2, 3, 4});
  const Tensor row = Tensor::Vector<double>({5, 6}), one = Tensor::Scalar<double>(7);
  for (const Tensor& condition :
       {TensorOf<bool>({2, 2}, {true, false, false, true}), Tensor::Vector<bool>({false, true}),
        TensorOf<bool>({2, 1}, {false, true}), TensorOf<bool>({2, 1, 1}, {false, true}),
        Tensor::Scalar<bool>(true)}) {
    for (const auto& [t, e] : {std::pair(square, square), std::pair(square, row),
                               std::pair(one, square), std::pair(row, one)}) {
      ExpectGradientsMatch(BuildOutput([&](const Scope& s, const std::vector<Output>& in) {
                             return SelectV2(s, Const(s, condition), in[0], in[1]);
                           }),
                           {t, e});
    }
  }
}

TEST(ClipByValue, LimitsToTheBounds) {
  const auto call = [](const Tensor& t, const Tensor& low, const Tensor& high) {
    return RunOp1(OpCall("ClipByValue").Input(t).Input(low).Input(high));
  };
  const Tensor t = Tensor::Vector<float>({-5, 0.5, 5});
  ExpectTensorEqual(call(t, Tensor::Scalar<float>(-1), Tensor::Scalar<float>(1)),
                    Tensor::Vector<float>({-1, 0.5, 1}));
  ExpectTensorEqual(call(t, Tensor::Vector<float>({-9, 1, 0}), Tensor::Vector<float>({-6, 2, 9})),
                    Tensor::Vector<float>({-6, 1, 5}));
  ExpectTensorEqual(call(Tensor::Vector<int32_t>({-5, 5}), Tensor::Scalar<int32_t>(0),
                         Tensor::Scalar<int32_t>(3)),
                    Tensor::Vector<int32_t>({0, 3}));
  ExpectTensorEqual(
      call(TensorOf<float>({0}, {}), Tensor::Scalar<float>(0), Tensor::Scalar<float>(3)),
      TensorOf<float>({0}, {}));
  ExpectOpError(OpCall("ClipByValue")
                    .Input(t)
                    .Input(Tensor::Vector<float>({1, 2}))
                    .Input(Tensor::Scalar<float>(1)),
                kInvalid, "clip_value_min must be a scalar or have the shape of t, [3], got [2]");
  EXPECT_SHAPE("ClipByValue", {}, {"[2,?]", "[]", "[]"}, "[2,?]");
  EXPECT_SHAPE_ERROR("ClipByValue", {}, {"[2]", "[]", "[3]"}, "clip_value_max");
  ExpectGradientsMatch(BuildOutput([](const Scope& s, const std::vector<Output>& in) {
                         return ClipByValue(s, in[0], in[1], in[2]);
                       }),
                       {Tensor::Vector<double>({-5, 0.5, 5}), Tensor::Scalar<double>(-1),
                        Tensor::Scalar<double>(1)});
}

}  // namespace
}  // namespace millrace
