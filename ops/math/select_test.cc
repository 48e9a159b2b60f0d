// SPDX-License-Identifier: Apache-2.0
#include "ops/math/select.h"

#include <limits>
#include <string>
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
