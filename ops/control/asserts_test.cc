// SPDX-License-Identifier: Apache-2.0
#include "ops/control/asserts.h"

#include <limits>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

OpCall Call(bool condition, std::vector<OpInput> data) {
  return OpCall("Assert").Input(Tensor::Scalar<bool>(condition)).Inputs(std::move(data));
}

TEST(Assert, ShowsItsDataWhenTheConditionIsFalse) {
  ASSERT_OK(RunOp(Call(true, {Tensor::Scalar("unused")})));
  ExpectOpError(
      Call(false, {Tensor::Scalar("x must be small"), TensorOf<float>({5}, {1, 2.5f, 3, 4, 5}),
                   TensorOf<int32_t>({2, 2}, {1, 2, 3, 4}), TensorOf<bool>({0}, {})}),
      kInvalid, "assertion failed: [x must be small] [1 2.5 3...] [[1 2][3...]...] []");
  ExpectOpError(
      Call(false, {TensorOf<int8_t>({2, 2}, {1, 2, 3, 4})}).Attr("summarize", int64_t{-1}),
      kInvalid, "assertion failed: [[1 2][3 4]]");
  ExpectOpError(OpCall("Assert").Input(TensorOf<bool>({1}, {true})).Inputs({Tensor::Scalar("a")}),
                kInvalid, "condition must be a scalar, got shape [1]");
}

TEST(CheckNumerics, FindsNaNAndInfinity) {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto call = [](Tensor t) {
    return OpCall("CheckNumerics").Input(std::move(t)).Attr("message", std::string("loss"));
  };
  const Tensor good = TensorOf<float>({2}, {1, -2});
  ExpectTensorEqual(RunOp1(call(good)), good);
  ExpectTensorEqual(RunOp1(call(TensorOf<double>({0}, {}))), TensorOf<double>({0}, {}));
  ExpectOpError(call(TensorOf<float>({2}, {1, nan})), kInvalid, "loss : Tensor had NaN values");
  ExpectOpError(call(TensorOf<float>({2}, {-inf, 1})), kInvalid, "loss : Tensor had Inf values");
  ExpectOpError(call(TensorOf<float>({2}, {inf, nan})), kInvalid,
                "loss : Tensor had Inf and NaN values");
  ExpectOpError(call(TensorOf<Half>({1}, {ToHalf(inf)})), kInvalid, "Inf values");
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) { return CheckNumerics(s, in[0], "x"); },
      {TensorOf<double>({2}, {1, 2})});
}

TEST(Print, WritesItsDataAndPassesTheInputOn) {
  ::testing::internal::CaptureStderr();
  const Tensor x = TensorOf<float>({2}, {1, 2});
  const Tensor y = RunOp1(OpCall("Print")
                              .Input(x)
                              .Inputs({x, Tensor::Scalar("a")})
                              .Attr("message", std::string("x = ")));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "x = [1 2][a]\n");
  ExpectTensorEqual(y, x);
  ::testing::internal::CaptureStderr();
  RunOp1(OpCall("Print").Input(x).Inputs({x}).Attr("first_n", int64_t{0}));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return Print(s, in[0], {in[0]}, {.first_n = 0});
      },
      {TensorOf<double>({2}, {1, 2})});
}

}  // namespace
}  // namespace millrace
