// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/top_k.h"

#include <limits>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

Tensor Int(int32_t v) { return Tensor::Scalar<int32_t>(v); }
Tensor Ints(std::initializer_list<int32_t> values) { return Tensor::Vector<int32_t>(values); }

TEST(TopK, FindsTheLargestOfEachRow) {
  const Tensor x = TensorOf<float>({2, 4}, {1, 4, 2, 4, 9, 8, 7, 6});
  ASSERT_OK_AND_ASSIGN(std::vector<Tensor> out, RunOp(OpCall("TopKV2").Input(x).Input(Int(3))));
  ExpectTensorEqual(out[0], TensorOf<float>({2, 3}, {4, 4, 2, 9, 8, 7}));
  ExpectTensorEqual(out[1], TensorOf<int32_t>({2, 3}, {1, 3, 2, 0, 1, 2}));
  ASSERT_OK_AND_ASSIGN(out, RunOp(OpCall("TopK").Input(Ints({3, 5, 4})).Attr("k", int64_t{1})));
  ExpectTensorEqual(out[0], Ints({5}));
  ExpectTensorEqual(out[1], Ints({1}));
  ASSERT_OK_AND_ASSIGN(out, RunOp(OpCall("TopKV2").Input(x).Input(Int(0))));
  ExpectTensorEqual(out[0], TensorOf<float>({2, 0}, {}));
  ExpectOpError(OpCall("TopKV2").Input(x).Input(Int(5)), kInvalid,
                "input must have at least k columns. Had 4, needed 5");
  ExpectOpError(OpCall("TopKV2").Input(x).Input(Int(-1)), kInvalid, "Need k >= 0, got -1");
  ExpectOpError(OpCall("TopKV2").Input(Tensor::Scalar<float>(1)).Input(Int(1)), kInvalid,
                "rank >= 1");
  EXPECT_SHAPE("TopKV2", {}, {"[2,?]", Int(3)}, "[2,3];[2,3]");
  EXPECT_SHAPE("TopKV2", {}, {"[2,5]", "[]"}, "[2,?];[2,?]");
}

TEST(TopK, NarrowTypesAreComparedByValue) {
  const auto half = [](float v) { return ToHalf(v); };
  const Tensor x = TensorOf<Half>({1, 4}, {half(-1), half(0.5f), half(-3), half(0.5f)});
  ASSERT_OK_AND_ASSIGN(std::vector<Tensor> out, RunOp(OpCall("TopKV2").Input(x).Input(Int(3))));
  ExpectTensorEqual(out[0], TensorOf<Half>({1, 3}, {half(0.5f), half(0.5f), half(-1)}));
  ExpectTensorEqual(out[1], TensorOf<int32_t>({1, 3}, {1, 3, 0}));
  const Tensor y = TensorOf<Bfloat16>({2}, {ToBfloat16(-8), ToBfloat16(2)});
  ASSERT_OK_AND_ASSIGN(out, RunOp(OpCall("TopKV2").Input(y).Input(Int(1))));
  ExpectTensorEqual(out[0], TensorOf<Bfloat16>({1}, {ToBfloat16(2)}));
}

TEST(TopK, RefusesRowsThatItsIndicesCannotName) {
  EXPECT_SHAPE_ERROR("TopKV2", {}, {"[1,2147483648]", "[]"},
                     "input must have at most 2147483647 columns, got shape [1,2147483648]");
}

TEST(InTopK, CountsLargerPredictions) {
  const Tensor p = TensorOf<float>({3, 3}, {1, 2, 3, 3, 3, 1, 5, 4, 6});
  ExpectTensorEqual(RunOp1(OpCall("InTopKV2").Input(p).Input(Ints({1, 1, 1})).Input(Int(2))),
                    TensorOf<bool>({3}, {true, true, false}));
  ExpectTensorEqual(RunOp1(OpCall("InTopK").Input(p).Input(Ints({2, 0, 3})).Attr("k", int64_t{1})),
                    TensorOf<bool>({3}, {true, true, false}));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ExpectTensorEqual(RunOp1(OpCall("InTopK")
                               .Input(TensorOf<float>({1, 2}, {1, nan}))
                               .Input(TensorOf<int64_t>({1}, {0}))
                               .Attr("k", int64_t{2})),
                    TensorOf<bool>({1}, {false}));
  ExpectTensorEqual(RunOp1(OpCall("InTopK")
                               .Input(TensorOf<float>({0, 2}, {}))
                               .Input(Ints({}))
                               .Attr("k", int64_t{2})),
                    TensorOf<bool>({0}, {}));
  ExpectOpError(OpCall("InTopK").Input(p).Input(Ints({1})).Attr("k", int64_t{1}), kInvalid,
                "targets must have one element for each of the 3 rows of predictions, got 1");
  ExpectOpError(
      OpCall("InTopK").Input(Tensor::Vector<float>({1})).Input(Ints({0})).Attr("k", int64_t{1}),
      kInvalid, "predictions must be a matrix, got shape [1]");
  EXPECT_SHAPE("InTopKV2", {}, {"[?,3]", "[5]", "[]"}, "[5]");
}

TEST(TopKGradient, GoesBackToWhereTheValuesWere) {
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& in) {
        return TopKV2(s, in[0], Const(s, int32_t{2})).values;
      },
      {TensorOf<double>({2, 1, 4}, {1, 4, 2, 3, 9, 8, 7, 6})});
}

}  // namespace
}  // namespace millrace
