// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/bias.h"

#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

OpCall Add(const Tensor& value, const Tensor& bias, const char* format = "NHWC") {
  return OpCall("BiasAdd").Input(value).Input(bias).Attr("data_format", format);
}

TEST(BiasAdd, AddsToTheLastDimension) {
  ExpectTensorEqual(
      RunOp1(Add(TensorOf<float>({2, 3}, {1, 2, 3, 4, 5, 6}), TensorOf<float>({3}, {10, 20, 30}))),
      TensorOf<float>({2, 3}, {11, 22, 33, 14, 25, 36}));
  ExpectTensorEqual(RunOp1(OpCall("BiasAddV1")
                               .Input(TensorOf<double>({1, 2, 1, 2}, {1, 2, 3, 4}))
                               .Input(TensorOf<double>({2}, {0.5, 0.25}))),
                    TensorOf<double>({1, 2, 1, 2}, {1.5, 2.25, 3.5, 4.25}));
}

TEST(BiasAdd, AddsToDimensionOneOfNchw) {
  ExpectTensorEqual(RunOp1(Add(TensorOf<float>({2, 2, 1, 2}, {1, 2, 3, 4, 5, 6, 7, 8}),
                               TensorOf<float>({2}, {10, 20}), "NCHW")),
                    TensorOf<float>({2, 2, 1, 2}, {11, 12, 23, 24, 15, 16, 27, 28}));
  ExpectTensorEqual(RunOp1(Add(TensorOf<int32_t>({1, 2, 3}, {1, 2, 3, 4, 5, 6}),
                               TensorOf<int32_t>({2}, {10, 20}), "NCHW")),
                    TensorOf<int32_t>({1, 2, 3}, {11, 12, 13, 24, 25, 26}));
}

TEST(BiasAdd, IntegersWrapAndHalfIsRounded) {
  ExpectTensorEqual(RunOp1(Add(TensorOf<uint8_t>({1, 1}, {250}), TensorOf<uint8_t>({1}, {10}))),
                    TensorOf<uint8_t>({1, 1}, {4}));
  ExpectTensorEqual(
      RunOp1(Add(TensorOf<int64_t>({1, 1}, {INT64_MAX}), TensorOf<int64_t>({1}, {1}))),
      TensorOf<int64_t>({1, 1}, {INT64_MIN}));
  ExpectTensorEqual(
      RunOp1(Add(TensorOf<Half>({1, 1}, {ToHalf(2048)}), TensorOf<Half>({1}, {ToHalf(1)}))),
      TensorOf<Half>({1, 1}, {ToHalf(2048)}));
}

TEST(BiasAdd, EmptyTensorsGiveEmptyTensors) {
  ExpectTensorEqual(RunOp1(Add(TensorOf<float>({0, 3}, {}), TensorOf<float>({3}, {1, 2, 3}))),
                    TensorOf<float>({0, 3}, {}));
  ExpectTensorEqual(RunOp1(Add(TensorOf<float>({2, 0}, {}), TensorOf<float>({0}, {}))),
                    TensorOf<float>({2, 0}, {}));
  ExpectTensorEqual(RunOp1(Add(TensorOf<float>({1, 0, 2}, {}), TensorOf<float>({0}, {}), "NCHW")),
                    TensorOf<float>({1, 0, 2}, {}));
}

TEST(BiasAdd, RefusesWhatDoesNotFit) {
  struct Case {
    std::initializer_list<int64_t> value, bias;
    const char* format;
    const char* text;
  };
  const Case cases[] = {
      {{2, 3},
       {2},
       "NHWC",
       "bias must have 3 elements, one for each channel of value [2,3], got 2"},
      {{2, 3, 4}, {4}, "NCHW", "bias must have 3 elements"},
      {{2, 3}, {1, 3}, "NHWC", "bias must be a vector, got shape [1,3]"},
      {{2, 3}, {}, "NHWC", "bias must be a vector, got shape []"},
      {{3}, {3}, "NHWC", "value must have at least rank 2, got rank 1"},
      {{}, {1}, "NHWC", "value must have at least rank 2, got rank 0"},
      {{2, 3}, {3}, "NCHW", "value must have at least rank 3 for NCHW, got rank 2"},
  };
  for (const Case& c : cases) {
    ASSERT_OK_AND_ASSIGN(const Tensor value, Tensor::Zeros(DT_FLOAT, ShapeOf(c.value)));
    ASSERT_OK_AND_ASSIGN(const Tensor bias, Tensor::Zeros(DT_FLOAT, ShapeOf(c.bias)));
    ExpectOpError(Add(value, bias, c.format), absl::StatusCode::kInvalidArgument, c.text);
    EXPECT_SHAPE_ERROR("BiasAdd", {{"data_format", c.format}},
                       {value.shape().ToString(), bias.shape().ToString()}, c.text);
  }
}

TEST(BiasAdd, ShapesMergeWhatIsKnown) {
  EXPECT_SHAPE("BiasAdd", {}, {"[?,?]", "[3]"}, "[?,3]");
  EXPECT_SHAPE("BiasAdd", {}, {"[2,?,3]", "<unknown>"}, "[2,?,3]");
  EXPECT_SHAPE("BiasAdd", {}, {"<unknown>", "[3]"}, "<unknown>");
  EXPECT_SHAPE("BiasAdd", {{"data_format", "NCHW"}}, {"[?,?,4,4]", "[3]"}, "[?,3,4,4]");
  EXPECT_SHAPE("BiasAddV1", {}, {"[?,3]", "[?]"}, "[?,3]");
  EXPECT_SHAPE("BiasAddGrad", {}, {"[?,3]"}, "[3]");
  EXPECT_SHAPE("BiasAddGrad", {{"data_format", "NCHW"}}, {"[?,5,?,3]"}, "[5]");
  EXPECT_SHAPE("BiasAddGrad", {}, {"<unknown>"}, "[?]");
  EXPECT_SHAPE_ERROR("BiasAddGrad", {}, {"[3]"}, "out_backprop must have at least rank 2");
}

TEST(BiasAddGrad, SumsAllButTheChannels) {
  ExpectTensorEqual(
      RunOp1(OpCall("BiasAddGrad").Input(TensorOf<float>({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}))),
      TensorOf<float>({2}, {16, 20}));
  ExpectTensorEqual(RunOp1(OpCall("BiasAddGrad")
                               .Input(TensorOf<float>({2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8}))
                               .Attr("data_format", "NCHW")),
                    TensorOf<float>({2}, {14, 22}));
  ExpectTensorEqual(RunOp1(OpCall("BiasAddGrad").Input(TensorOf<float>({0, 2}, {}))),
                    TensorOf<float>({2}, {0, 0}));
  ExpectTensorEqual(RunOp1(OpCall("BiasAddGrad").Input(TensorOf<float>({3, 0}, {}))),
                    TensorOf<float>({0}, {}));
}

// 100,001 rows of 3 channels: several blocks, rows left over, and a sum that a plain float
// accumulator would get wrong in the fourth digit.
TEST(BiasAddGrad, ManyRowsAreSummedAccurately) {
  constexpr int64_t kRows = 100001;
  for (const char* format : {"NHWC", "NCHW"}) {
    const bool last = std::string(format) == "NHWC";
    ASSERT_OK_AND_ASSIGN(
        Tensor g, Tensor::Allocate(DT_FLOAT, last ? ShapeOf({kRows, 3}) : ShapeOf({1, 3, kRows})));
    double want[3] = {0, 0, 0};
    absl::Span<float> values = g.mutable_flat<float>();
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < 3; ++c) {
        const float v = 0.1f + static_cast<float>(c) + static_cast<float>(r % 7) * 0.01f;
        values[static_cast<size_t>(last ? r * 3 + c : c * kRows + r)] = v;
        want[c] += static_cast<double>(v);
      }
    }
    const Tensor got = RunOp1(OpCall("BiasAddGrad").Input(g).Attr("data_format", format));
    ExpectTensorNear(got,
                     TensorOf<float>({3}, {static_cast<float>(want[0]), static_cast<float>(want[1]),
                                           static_cast<float>(want[2])}),
                     2e-6, 0);
  }
}

TEST(BiasAddGrad, SumDoesNotDependOnTheNumberOfThreads) {
  ASSERT_OK_AND_ASSIGN(Tensor g, Tensor::Allocate(DT_FLOAT, ShapeOf({5000, 37})));
  uint32_t state = 1;
  for (float& v : g.mutable_flat<float>()) {
    state = state * 1664525u + 1013904223u;
    v = static_cast<float>(state) * 1e-9f - 2.0f;
  }
  OpTestDevice one(1), four(4);
  ExpectTensorEqual(RunOp1(OpCall("BiasAddGrad").Input(g).On(&one)),
                    RunOp1(OpCall("BiasAddGrad").Input(g).On(&four)));
}

TEST(BiasGradient, MatchesFiniteDifferences) {
  const Tensor nhwc = TensorOf<double>({2, 3}, {1, 2, 3, 4, 5, 6});
  const Tensor nchw = TensorOf<double>({1, 2, 3}, {1, 2, 3, 4, 5, 6});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& x) { return BiasAdd(s, x[0], x[1]); },
      {nhwc, TensorOf<double>({3}, {1, 2, 3})});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& x) { return BiasAddV1(s, x[0], x[1]); },
      {nhwc, TensorOf<double>({3}, {1, 2, 3})});
  ExpectGradientsMatch(
      [](const Scope& s, const std::vector<Output>& x) {
        return BiasAdd(s, x[0], x[1], {.data_format = "NCHW"});
      },
      {nchw, TensorOf<double>({2}, {1, 2})});
  for (const char* format : {"NHWC", "NCHW"}) {
    ExpectGradientsMatch(
        [format](const Scope& s, const std::vector<Output>& x) {
          return BiasAddGrad(s, x[0], {.data_format = format});
        },
        {nchw});
  }
}

}  // namespace
}  // namespace millrace
