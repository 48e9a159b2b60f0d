// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/pool.h"

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "ops/array/constant.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;
constexpr float kInf = std::numeric_limits<float>::infinity();

OpCall WithAttrs(OpCall call, const PoolAttrs& attrs) {
  return call.Attr("ksize", attrs.ksize)
      .Attr("strides", attrs.strides)
      .Attr("padding", attrs.padding)
      .Attr("data_format", attrs.data_format);
}
PoolAttrs Window(int64_t rows, int64_t cols, int64_t stride_rows, int64_t stride_cols,
                 const char* padding) {
  return {
      .ksize = {1, rows, cols, 1}, .strides = {1, stride_rows, stride_cols, 1}, .padding = padding};
}

// Distinct values, so that a finite difference never changes which one is largest.
template <typename T>
Tensor Shuffled(const Shape& shape, uint32_t seed) {
  Tensor t = *Tensor::Allocate(DTypeOf<T>, shape);
  const absl::Span<T> values = t.mutable_flat<T>();
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<T>(i) / T(10);
  std::mt19937 random(seed);
  for (size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[random() % i]);
  return t;
}

TEST(MaxPool, TakesTheLargestOfEachWindow) {
  const Tensor x = TensorOf<float>({1, 3, 3, 1}, {1, 2, 3, 4, 5, 6, 9, 8, 7});
  ExpectTensorEqual(RunOp1(WithAttrs(OpCall("MaxPool").Input(x), Window(2, 2, 1, 1, "VALID"))),
                    TensorOf<float>({1, 2, 2, 1}, {5, 6, 9, 8}));
  ExpectTensorEqual(RunOp1(WithAttrs(OpCall("MaxPool").Input(x), Window(2, 2, 2, 2, "SAME"))),
                    TensorOf<float>({1, 2, 2, 1}, {5, 6, 9, 7}));
  ExpectTensorEqual(RunOp1(WithAttrs(OpCall("MaxPool").Input(x), Window(3, 3, 1, 1, "SAME"))),
                    TensorOf<float>({1, 3, 3, 1}, {5, 6, 6, 9, 9, 8, 9, 9, 8}));
}

TEST(MaxPool, PaddingNeverCounts) {
  const Tensor x = TensorOf<float>({1, 2, 2, 1}, {-5, -kInf, -3, -4});
  ExpectTensorEqual(RunOp1(WithAttrs(OpCall("MaxPool").Input(x), Window(3, 3, 2, 2, "SAME"))),
                    TensorOf<float>({1, 1, 1, 1}, {-3}));
  ExpectTensorEqual(RunOp1(WithAttrs(OpCall("MaxPool").Input(x), Window(1, 1, 1, 1, "SAME"))), x);
}

TEST(MaxPool, OtherTypes) {
  const PoolAttrs attrs = Window(1, 2, 1, 2, "VALID");
  ExpectTensorEqual(
      RunOp1(WithAttrs(OpCall("MaxPool").Input(TensorOf<int64_t>({1, 1, 2, 1}, {INT64_MIN, -7})),
                       attrs)),
      TensorOf<int64_t>({1, 1, 1, 1}, {-7}));
  ExpectTensorEqual(
      RunOp1(WithAttrs(OpCall("MaxPool").Input(TensorOf<uint8_t>({1, 1, 2, 1}, {200, 3})), attrs)),
      TensorOf<uint8_t>({1, 1, 1, 1}, {200}));
  ExpectTensorEqual(
      RunOp1(WithAttrs(
          OpCall("MaxPool").Input(TensorOf<Half>({1, 1, 2, 1}, {ToHalf(-2), ToHalf(-1)})), attrs)),
      TensorOf<Half>({1, 1, 1, 1}, {ToHalf(-1)}));
  ExpectTensorEqual(RunOp1(WithAttrs(OpCall("AvgPool").Input(TensorOf<Bfloat16>(
                                         {1, 1, 2, 1}, {ToBfloat16(2), ToBfloat16(1)})),
                                     attrs)),
                    TensorOf<Bfloat16>({1, 1, 1, 1}, {ToBfloat16(1.5f)}));
}

// More channels than are worked on at a time, more images than threads, and fewer.
TEST(Pool, ManyChannelsMatchAPlainReference) {
  for (const int64_t batch : {1, 5}) {
    const Tensor x = Shuffled<float>(ShapeOf({batch, 5, 4, 150}), 3);
    const PoolAttrs attrs = Window(3, 2, 2, 1, "VALID");
    const Tensor max = RunOp1(WithAttrs(OpCall("MaxPool").Input(x), attrs));
    const Tensor mean = RunOp1(WithAttrs(OpCall("AvgPool").Input(x), attrs));
    const Tensor grad = Shuffled<float>(max.shape(), 4);
    const Tensor dx =
        RunOp1(WithAttrs(OpCall("MaxPoolGrad").Input(x).Input(max).Input(grad), attrs));
    ASSERT_EQ(max.shape(), ShapeOf({batch, 2, 3, 150}));
    std::vector<float> want(static_cast<size_t>(x.num_elements()));
    const absl::Span<const float> in = x.flat<float>();
    size_t o = 0;
    for (int64_t n = 0; n < batch; ++n)
      for (int64_t r = 0; r < 2; ++r)
        for (int64_t c = 0; c < 3; ++c)
          for (int64_t k = 0; k < 150; ++k, ++o) {
            size_t best = 0;
            double sum = 0;
            for (int64_t i = 0; i < 3; ++i)
              for (int64_t j = 0; j < 2; ++j) {
                const size_t at = static_cast<size_t>(((n * 5 + 2 * r + i) * 4 + c + j) * 150 + k);
                if ((i == 0 && j == 0) || in[at] > in[best]) best = at;
                sum += static_cast<double>(in[at]);
              }
            ASSERT_EQ(max.flat<float>()[o], in[best]);
            ASSERT_NEAR(mean.flat<float>()[o], sum / 6, 1e-3);
            want[best] += grad.flat<float>()[o];
          }
    for (size_t i = 0; i < want.size(); ++i) ASSERT_EQ(dx.flat<float>()[i], want[i]);
  }
}

TEST(MaxPoolGrad, FirstOfEqualLargestGetsTheGradient) {
  const Tensor x = TensorOf<float>({1, 2, 2, 1}, {7, 7, 7, 7});
  const PoolAttrs attrs = Window(2, 2, 2, 2, "VALID");
  ExpectTensorEqual(RunOp1(WithAttrs(OpCall("MaxPoolGrad")
                                         .Input(x)
                                         .Input(TensorOf<float>({1, 1, 1, 1}, {7}))
                                         .Input(TensorOf<float>({1, 1, 1, 1}, {3})),
                                     attrs)),
                    TensorOf<float>({1, 2, 2, 1}, {3, 0, 0, 0}));
}

TEST(MaxPoolGrad, OverlappingWindowsAddUp) {
  const Tensor x = TensorOf<float>({1, 1, 3, 1}, {1, 5, 2});
  ExpectTensorEqual(RunOp1(WithAttrs(OpCall("MaxPoolGrad")
                                         .Input(x)
                                         .Input(TensorOf<float>({1, 1, 2, 1}, {5, 5}))
                                         .Input(TensorOf<float>({1, 1, 2, 1}, {10, 1})),
                                     Window(1, 2, 1, 1, "VALID"))),
                    TensorOf<float>({1, 1, 3, 1}, {0, 11, 0}));
}

TEST(MaxPoolGradGrad, GathersWhatBelongsToTheLargest) {
  const Tensor x = TensorOf<float>({1, 2, 2, 1}, {1, 4, 3, 2});
  ExpectTensorEqual(RunOp1(WithAttrs(OpCall("MaxPoolGradGrad")
                                         .Input(x)
                                         .Input(TensorOf<float>({1, 1, 1, 1}, {4}))
                                         .Input(TensorOf<float>({1, 2, 2, 1}, {10, 20, 30, 40})),
                                     Window(2, 2, 1, 1, "VALID"))),
                    TensorOf<float>({1, 1, 1, 1}, {20}));
}

TEST(MaxPoolV2, TakesItsWindowFromInputs) {
  const Tensor x = TensorOf<float>({1, 2, 2, 1}, {1, 4, 3, 2});
  const Tensor ksize = Tensor::Vector<int32_t>({1, 2, 1, 1});
  const Tensor strides = Tensor::Vector<int32_t>({1, 2, 1, 1});
  ExpectTensorEqual(
      RunOp1(OpCall("MaxPoolV2").Input(x).Input(ksize).Input(strides).Attr("padding", "VALID")),
      TensorOf<float>({1, 1, 2, 1}, {3, 4}));
  EXPECT_SHAPE("MaxPoolV2", {{"padding", "VALID"}}, {"[?,8,8,3]", ksize, strides}, "[?,4,8,3]");
  EXPECT_SHAPE("MaxPoolV2", {{"padding", "VALID"}}, {"[2,8,8,3]", "[4]", strides}, "[2,?,?,3]");
  EXPECT_SHAPE("MaxPoolV2", {{"padding", "SAME"}}, {"[2,8,8,3]", "[4]", strides}, "[2,4,8,3]");
  EXPECT_SHAPE_ERROR("MaxPoolV2", {{"padding", "VALID"}}, {"[2,8,8,3]", "[2,2]", strides},
                     "ksize must be a vector, got shape [2,2]");
  ExpectOpError(OpCall("MaxPoolV2")
                    .Input(x)
                    .Input(Tensor::Vector<int32_t>({1, 0, 1, 1}))
                    .Input(strides)
                    .Attr("padding", "VALID"),
                absl::StatusCode::kInvalidArgument, "ksize[1] must be in");
  ExpectOpError(OpCall("MaxPoolV2")
                    .Input(x)
                    .Input(ksize)
                    .Input(Tensor::Vector<int32_t>({1, 2}))
                    .Attr("padding", "VALID"),
                absl::StatusCode::kInvalidArgument, "strides must have 4 values, got 2");
  ExpectGradientsMatch(
      [&](const Scope& s, const std::vector<Output>& in) {
        return MaxPoolV2(s, in[0], Const(s, ksize), Const(s, strides));
      },
      {Shuffled<double>(ShapeOf({1, 4, 3, 2}), 1)});
}

PoolAttrs DepthWindow(int64_t n, const char* padding) {
  return {.ksize = {1, 1, 1, n}, .strides = {1, 1, 1, n}, .padding = padding};
}

TEST(MaxPool, AlongDepthTakesTheLargestOfNeighbouringChannels) {
  const Tensor x =
      TensorOf<float>({2, 1, 2, 4}, {1, 2, 3, 4, 8, 7, 6, 5, -1, -2, -4, -3, 0, 0, 9, 9});
  for (const char* padding : {"VALID", "SAME"}) {
    const PoolAttrs attrs = DepthWindow(2, padding);
    ExpectTensorEqual(RunOp1(WithAttrs(OpCall("MaxPool").Input(x), attrs)),
                      TensorOf<float>({2, 1, 2, 2}, {2, 4, 8, 6, -1, -3, 0, 9}));
    ExpectTensorEqual(RunOp1(WithAttrs(OpCall("MaxPool").Input(x), DepthWindow(4, padding))),
                      TensorOf<float>({2, 1, 2, 1}, {4, 8, -1, 9}));
    // Of equal ones the first gets the gradient.
    const Tensor y = TensorOf<float>({2, 1, 2, 2}, {2, 4, 8, 6, -1, -3, 0, 9});
    const Tensor g = TensorOf<float>({2, 1, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
    const Tensor dx =
        TensorOf<float>({2, 1, 2, 4}, {0, 1, 0, 2, 3, 0, 4, 0, 5, 0, 0, 6, 7, 0, 8, 0});
    ExpectTensorEqual(RunOp1(WithAttrs(OpCall("MaxPoolGrad").Input(x).Input(y).Input(g), attrs)),
                      dx);
    ExpectTensorEqual(
        RunOp1(WithAttrs(OpCall("MaxPoolGradGrad").Input(x).Input(y).Input(dx), attrs)), g);
  }
  const Tensor window = Tensor::Vector<int32_t>({1, 1, 1, 4});
  ExpectTensorEqual(
      RunOp1(OpCall("MaxPoolV2").Input(x).Input(window).Input(window).Attr("padding", "VALID")),
      TensorOf<float>({2, 1, 2, 1}, {4, 8, -1, 9}));
  ExpectTensorEqual(RunOp1(WithAttrs(OpCall("MaxPool").Input(TensorOf<float>({0, 2, 2, 4}, {})),
                                     DepthWindow(2, "VALID"))),
                    TensorOf<float>({0, 2, 2, 2}, {}));
  const Ints two = {1, 1, 1, 2};
  EXPECT_SHAPE("MaxPool", {{"ksize", two}, {"strides", two}, {"padding", "VALID"}}, {"[?,28,?,32]"},
               "[?,28,?,16]");
  EXPECT_SHAPE("MaxPool", {{"ksize", two}, {"strides", two}, {"padding", "SAME"}}, {"[2,?,3,?]"},
               "[2,?,3,?]");
  // What is not known yet may be a window along depth.
  EXPECT_SHAPE("MaxPoolV2", {{"padding", "VALID"}}, {"[2,8,8,6]", "[4]", "[4]"}, "[2,?,?,?]");
  EXPECT_SHAPE("MaxPoolV2", {{"padding", "VALID"}}, {"[2,8,8,4]", window, "[4]"}, "[2,?,?,1]");
}

// By less than two strides: as Conv2D.
TEST(Pool, AWindowLargerThanTheImageGivesNothing) {
  const PoolAttrs attrs = Window(3, 2, 1, 1, "VALID");
  const Tensor x = TensorOf<float>({1, 2, 2, 2}, {1, 2, 3, 4, 5, 6, 7, 8});
  const Tensor y = TensorOf<float>({1, 0, 1, 2}, {});
  for (const char* op : {"MaxPool", "AvgPool"}) {
    ExpectTensorEqual(RunOp1(WithAttrs(OpCall(op).Input(x), attrs)), y);
  }
  const Tensor zeros = *Tensor::Zeros(DT_FLOAT, x.shape());
  ExpectTensorEqual(RunOp1(WithAttrs(OpCall("MaxPoolGrad").Input(x).Input(y).Input(y), attrs)),
                    zeros);
  ExpectTensorEqual(
      RunOp1(WithAttrs(OpCall("AvgPoolGrad").Input(Tensor::Vector<int32_t>({1, 2, 2, 2})).Input(y),
                       attrs)),
      zeros);
  ExpectTensorEqual(RunOp1(WithAttrs(OpCall("MaxPoolGradGrad").Input(x).Input(y).Input(x), attrs)),
                    y);
  // A stride of the window's size, which then covers whole rows only.
  ExpectTensorEqual(RunOp1(WithAttrs(OpCall("MaxPoolGrad")
                                         .Input(x)
                                         .Input(TensorOf<float>({1, 1, 0, 2}, {}))
                                         .Input(TensorOf<float>({1, 1, 0, 2}, {})),
                                     Window(2, 4, 2, 4, "VALID"))),
                    zeros);
  EXPECT_SHAPE("MaxPool",
               {{"ksize", attrs.ksize}, {"strides", attrs.strides}, {"padding", attrs.padding}},
               {"[?,2,8,3]"}, "[?,0,7,3]");
  const Ints five = {1, 5, 1, 1}, two = {1, 2, 1, 1}, three = {1, 3, 1, 1};
  for (const char* op : {"MaxPool", "AvgPool"}) {
    EXPECT_SHAPE(op, {{"ksize", five}, {"strides", two}, {"padding", "VALID"}}, {"[1,2,4,3]"},
                 "[1,0,4,3]");
    EXPECT_SHAPE(op, {{"ksize", five}, {"strides", three}, {"padding", "VALID"}}, {"[1,0,4,3]"},
                 "[1,0,4,3]");
    EXPECT_SHAPE_ERROR(op, {{"ksize", five}, {"strides", two}, {"padding", "VALID"}}, {"[1,1,4,3]"},
                       "Computed output size would be negative");
  }
}

TEST(AvgPool, PaddingDoesNotCountInTheDivisor) {
  const Tensor x = TensorOf<float>({1, 3, 3, 1}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  ExpectTensorNear(RunOp1(WithAttrs(OpCall("AvgPool").Input(x), Window(2, 2, 2, 2, "SAME"))),
                   TensorOf<float>({1, 2, 2, 1}, {3, 4.5f, 7.5f, 9}), 1e-6, 0);
  ExpectTensorNear(RunOp1(WithAttrs(OpCall("AvgPoolGrad")
                                        .Input(Tensor::Vector<int32_t>({1, 3, 3, 1}))
                                        .Input(TensorOf<float>({1, 2, 2, 1}, {4, 2, 6, 5})),
                                    Window(2, 2, 2, 2, "SAME"))),
                   TensorOf<float>({1, 3, 3, 1}, {1, 1, 1, 1, 1, 1, 3, 3, 5}), 1e-6, 0);
}

TEST(Pool, EmptyTensors) {
  const PoolAttrs attrs = Window(2, 2, 2, 2, "SAME");
  const Tensor x = TensorOf<float>({0, 4, 4, 3}, {});
  const Tensor y = TensorOf<float>({0, 2, 2, 3}, {});
  ExpectTensorEqual(RunOp1(WithAttrs(OpCall("MaxPool").Input(x), attrs)), y);
  ExpectTensorEqual(RunOp1(WithAttrs(OpCall("AvgPool").Input(x), attrs)), y);
  ExpectTensorEqual(RunOp1(WithAttrs(OpCall("MaxPoolGrad").Input(x).Input(y).Input(y), attrs)), x);
  ExpectTensorEqual(
      RunOp1(WithAttrs(OpCall("AvgPoolGrad").Input(Tensor::Vector<int32_t>({0, 4, 4, 3})).Input(y),
                       attrs)),
      x);
  ExpectTensorEqual(
      RunOp1(WithAttrs(OpCall("MaxPool").Input(TensorOf<float>({2, 0, 4, 3}, {})), attrs)),
      TensorOf<float>({2, 0, 2, 3}, {}));
  ExpectTensorEqual(
      RunOp1(WithAttrs(OpCall("AvgPool").Input(TensorOf<float>({2, 4, 4, 0}, {})), attrs)),
      TensorOf<float>({2, 2, 2, 0}, {}));
}

TEST(Pool, ShapesOfPartlyKnownInputs) {
  const OpAttr ksize("ksize", Ints{1, 3, 3, 1}), strides("strides", Ints{1, 2, 2, 1});
  const OpAttr same("padding", "SAME"), valid("padding", "VALID");
  EXPECT_SHAPE("MaxPool", {ksize, strides, same}, {"[?,28,?,32]"}, "[?,14,?,32]");
  EXPECT_SHAPE("AvgPool", {ksize, strides, valid}, {"[2,28,5,?]"}, "[2,13,2,?]");
  EXPECT_SHAPE("MaxPool", {ksize, strides, same}, {"<unknown>"}, "[?,?,?,?]");
  EXPECT_SHAPE(
      "AvgPool",
      {{"ksize", Ints{1, 1, 3, 3}}, {"strides", Ints{1, 1, 2, 2}}, same, {"data_format", "NCHW"}},
      {"[?,3,28,27]"}, "[?,3,14,14]");
  EXPECT_SHAPE("MaxPoolGrad", {ksize, strides, same}, {"[?,28,28,1]", "<unknown>", "[?,?,?,?]"},
               "[?,28,28,1]");
  EXPECT_SHAPE("MaxPoolGradGrad", {ksize, strides, same},
               {"[?,28,28,1]", "<unknown>", "[2,28,28,1]"}, "[2,14,14,1]");
  EXPECT_SHAPE("AvgPoolGrad", {ksize, strides, same}, {"[4]", "[2,14,14,8]"}, "[2,?,?,8]");
  EXPECT_SHAPE("AvgPoolGrad", {ksize, strides, same},
               {Tensor::Vector<int32_t>({2, 28, 27, 8}), "<unknown>"}, "[2,28,27,8]");
}

TEST(Pool, KernelAndShapeFunctionRefuseTheSame) {
  struct Case {
    const char* op;
    Ints input;
    PoolAttrs attrs;
    const char* text;
  };
  const Ints image = {1, 4, 4, 3};
  const auto attrs = [](Ints ksize, Ints strides, const char* padding = "VALID") {
    return PoolAttrs{.ksize = ksize, .strides = strides, .padding = padding};
  };
  const Ints ones = {1, 1, 1, 1};
  const int64_t huge = int64_t{1} << 62;
  const Case cases[] = {
      {"MaxPool", image, attrs({1, 6, 2, 1}, ones),
       "Computed output size would be negative: rows of the window (6 with dilation) must not be "
       "larger than those of the input, got 4"},
      {"AvgPool", image, attrs({1, 2, 6, 1}, ones), "Computed output size would be negative"},
      {"MaxPool", {1, 0, 4, 3}, attrs({1, 2, 2, 1}, ones), "Computed output size would be"},
      {"MaxPool", image, attrs({1, 0, 2, 1}, ones), "ksize[1] must be in [1, 2147483647], got 0"},
      {"AvgPool", image, attrs({1, 2, -2, 1}, ones), "ksize[2] must be in"},
      {"MaxPool", image, attrs({1, huge, 2, 1}, ones, "SAME"), "ksize[1] must be in"},
      {"MaxPool", image, attrs({2, 2, 2, 1}, ones), "ksize[0], for the batch, must be 1, got 2"},
      {"AvgPool", image, attrs({1, 1, 1, 3}, ones), "ksize[3], for the channels, must be 1, got 3"},
      {"AvgPool", image, attrs({1, 1, 1, 3}, {1, 1, 1, 3}),
       "strides[3], for the channels, must be 1, got 3"},
      {"MaxPool", image, attrs({1, 1, 1, 3}, ones),
       "strides[3], for the channels, must be 3, the ksize there, got 1"},
      {"MaxPool", image, attrs({1, 2, 1, 3}, {1, 1, 1, 3}),
       "ksize[3], for the channels, must be 1 where rows or columns have a window or stride, got "
       "3"},
      {"MaxPool", image, attrs({1, 1, 1, 3}, {1, 1, 2, 3}), "have a window or stride, got 3"},
      {"MaxPool", image, attrs({1, 1, 1, 2}, {1, 1, 1, 2}),
       "ksize[3], for the channels, must divide the 3 channels of the input, got 2"},
      {"AvgPool", image, attrs({1, 2, 2, 1}, {1, 0, 1, 1}), "strides[1] must be in"},
      {"MaxPool", image, attrs({1, 2, 2, 1}, {1, 1, 1, 2}), "strides[3], for the channels"},
      {"MaxPool", image, attrs({1, 2, 2, 1, 1}, ones), "ksize must have 4 values, got 5"},
      {"MaxPool",
       {4, 4, 3},
       attrs({1, 2, 2, 1}, ones),
       "input must have rank 4, got shape [4,4,3]"},
      {"AvgPool", {}, attrs({1, 2, 2, 1}, ones), "input must have rank 4, got shape []"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    const Shape shape = *Shape::Make(c.input);
    ExpectOpError(WithAttrs(OpCall(c.op).Input(*Tensor::Zeros(DT_FLOAT, shape)), c.attrs),
                  absl::StatusCode::kInvalidArgument, c.text);
    EXPECT_SHAPE_ERROR(
        c.op,
        {{"ksize", c.attrs.ksize}, {"strides", c.attrs.strides}, {"padding", c.attrs.padding}},
        {shape.ToString()}, c.text);
  }
}

TEST(Pool, GradientsOfOtherShapesAreRefused) {
  const auto zeros = [](std::initializer_list<int64_t> dims) {
    return *Tensor::Zeros(DT_FLOAT, ShapeOf(dims));
  };
  const PoolAttrs attrs = Window(2, 2, 2, 2, "SAME");
  const Tensor x = zeros({1, 4, 4, 3}), y = zeros({1, 2, 2, 3});
  const auto expect = [&](OpCall call, const char* text) {
    ExpectOpError(WithAttrs(call, attrs), absl::StatusCode::kInvalidArgument, text);
  };
  expect(OpCall("MaxPoolGrad").Input(x).Input(y).Input(zeros({1, 2, 2, 2})),
         "grad must have shape [1,2,2,3], got [1,2,2,2]");
  expect(OpCall("MaxPoolGrad").Input(x).Input(zeros({1, 2, 3, 3})).Input(y),
         "orig_output must have shape [1,2,2,3], got [1,2,3,3]");
  expect(OpCall("MaxPoolGrad").Input(x).Input(y).Input(zeros({})), "grad must have shape");
  expect(OpCall("MaxPoolGradGrad").Input(x).Input(y).Input(y),
         "grad must have the shape of orig_input [1,4,4,3], got [1,2,2,3]");
  const auto shape = [](std::initializer_list<int32_t> dims) {
    return Tensor::Vector<int32_t>(dims);
  };
  expect(OpCall("AvgPoolGrad").Input(shape({1, 4, 4})).Input(y),
         "orig_input_shape must be a vector of 4 elements, got shape [3]");
  expect(OpCall("AvgPoolGrad").Input(shape({1, 4, 6, 3})).Input(y),
         "grad must have shape [1,2,3,3]");
  expect(OpCall("AvgPoolGrad").Input(shape({1, -4, 4, 3})).Input(y), "orig_input_shape");
  const int32_t low = -536870912;
  expect(OpCall("AvgPoolGrad").Input(shape({low, low, low, low})).Input(y), "orig_input_shape");
  const int32_t high = 536870912;
  expect(OpCall("AvgPoolGrad").Input(shape({high, high, high, high})).Input(y), "orig_input_shape");
  EXPECT_SHAPE_ERROR(
      "AvgPoolGrad",
      {{"ksize", Ints{1, 2, 2, 1}}, {"strides", Ints{1, 2, 2, 1}}, {"padding", "SAME"}},
      {shape({low, low, low, low}), "[1,2,2,3]"}, "orig_input_shape");
  EXPECT_SHAPE_ERROR(
      "MaxPoolGrad",
      {{"ksize", Ints{1, 2, 2, 1}}, {"strides", Ints{1, 2, 2, 1}}, {"padding", "SAME"}},
      {"[1,4,4,3]", "[1,2,2,3]", "[1,2,2,2]"}, "grad must have shape");
}

TEST(Pool, NchwIsUnimplemented) {
  PoolAttrs attrs{.ksize = {1, 1, 2, 2}, .strides = {1, 1, 2, 2}, .data_format = "NCHW"};
  for (const char* op : {"MaxPool", "AvgPool"}) {
    ExpectOpError(
        WithAttrs(OpCall(op).Input(*Tensor::Zeros(DT_FLOAT, ShapeOf({1, 3, 4, 4}))), attrs),
        absl::StatusCode::kUnimplemented, "data_format must be NHWC on CPU, got NCHW");
  }
}

TEST(PoolGradient, AlongDepthMatchesFiniteDifferences) {
  const Tensor x = Shuffled<double>(ShapeOf({2, 3, 2, 6}), 1);
  const PoolAttrs attrs = DepthWindow(3, "SAME");
  ExpectGradientsMatch(
      [&](const Scope& s, const std::vector<Output>& in) { return MaxPool(s, in[0], attrs); }, {x},
      {.eps = 1e-3});
  const Tensor y = RunOp1(WithAttrs(OpCall("MaxPool").Input(x), attrs));
  ExpectGradientsMatch(
      [&](const Scope& s, const std::vector<Output>& in) {
        return MaxPoolGrad(s, Const(s, x), Const(s, y), in[0], attrs);
      },
      {Shuffled<double>(y.shape(), 2)});
}

TEST(PoolGradient, MatchesFiniteDifferences) {
  const Tensor x = Shuffled<double>(ShapeOf({2, 5, 4, 2}), 1);
  for (const PoolAttrs& attrs : {Window(2, 2, 2, 2, "SAME"), Window(3, 2, 1, 1, "SAME"),
                                 Window(2, 3, 2, 1, "VALID"), Window(1, 1, 2, 2, "VALID")}) {
    ExpectGradientsMatch(
        [&](const Scope& s, const std::vector<Output>& in) { return MaxPool(s, in[0], attrs); },
        {x}, {.eps = 1e-3});
    ExpectGradientsMatch(
        [&](const Scope& s, const std::vector<Output>& in) { return AvgPool(s, in[0], attrs); },
        {x});
    const Tensor y = RunOp1(WithAttrs(OpCall("MaxPool").Input(x), attrs));
    const Tensor g = Shuffled<double>(y.shape(), 2);
    ExpectGradientsMatch(
        [&](const Scope& s, const std::vector<Output>& in) {
          return MaxPoolGrad(s, Const(s, x), Const(s, y), in[0], attrs);
        },
        {g});
    ExpectGradientsMatch(
        [&](const Scope& s, const std::vector<Output>& in) {
          return MaxPoolGradGrad(s, Const(s, x), Const(s, y), in[0], attrs);
        },
        {x});
    ExpectGradientsMatch(
        [&](const Scope& s, const std::vector<Output>& in) {
          return AvgPoolGrad(s, Const<int32_t>(s, {2, 5, 4, 2}), in[0], attrs);
        },
        {g});
  }
}

}  // namespace
}  // namespace millrace
