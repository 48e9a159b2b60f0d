// SPDX-License-Identifier: Apache-2.0
#include "ops/nn/fused_batch_norm.h"

#include <cmath>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/testing/tensor_testing.h"
#include "graph/gradient.h"
#include "gtest/gtest.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "runtime/testing/op_test.h"

namespace millrace {
namespace {

constexpr float kEpsilon = 0.001f;
const char* const kForward[] = {"FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"};

Tensor Vector(std::initializer_list<float> values) { return Tensor::Vector<float>(values); }

OpCall Call(const std::string& op, std::initializer_list<Tensor> inputs, bool training,
            const char* format = "NHWC") {
  OpCall call(op);
  for (const Tensor& input : inputs) call.Input(input);
  return call.Attr("epsilon", kEpsilon).Attr("is_training", training).Attr("data_format", format);
}

Tensor Image(std::initializer_list<int64_t> dims, uint32_t seed) {
  Tensor t = *Tensor::Allocate(DT_FLOAT, ShapeOf(dims));
  for (float& v : t.mutable_flat<float>()) {
    seed = seed * 1664525u + 1013904223u;
    v = 100 + static_cast<float>(seed >> 16) / 32768.0f;
  }
  return t;
}

// The channel of element i of a shape.
size_t ChannelOf(const Shape& shape, const std::string& format, size_t i) {
  const size_t channels = static_cast<size_t>(format == "NHWC" ? shape.dim(3) : shape.dim(1));
  const size_t inner = format == "NHWC" ? 1 : static_cast<size_t>(shape.dim(2) * shape.dim(3));
  return i / inner % channels;
}

TEST(FusedBatchNorm, TrainingNormalisesWithTheBatch) {
  for (const char* op : kForward) {
    for (const char* format : {"NHWC", "NCHW"}) {
      SCOPED_TRACE(std::string(op) + " " + format);
      // The mean is a hundred times the spread: single-pass variances in float would be lost.
      const Tensor x =
          std::string(format) == "NHWC" ? Image({3, 20, 19, 2}, 1) : Image({3, 2, 20, 19}, 1);
      const Tensor scale = Vector({2, 0.5f}), offset = Vector({-1, 3});
      ASSERT_OK_AND_ASSIGN(
          const std::vector<Tensor> got,
          RunOp(Call(op, {x, scale, offset, Vector({}), Vector({})}, true, format)));
      ASSERT_EQ(got.size(), std::string(op) == "FusedBatchNormV3" ? 6u : 5u);
      const double n = 3 * 20 * 19;
      double mean[2] = {0, 0}, squares[2] = {0, 0};
      const absl::Span<const float> in = x.flat<float>();
      for (size_t i = 0; i < in.size(); ++i) {
        mean[ChannelOf(x.shape(), format, i)] += static_cast<double>(in[i]) / n;
      }
      for (size_t i = 0; i < in.size(); ++i) {
        const size_t c = ChannelOf(x.shape(), format, i);
        squares[c] += std::pow(static_cast<double>(in[i]) - mean[c], 2);
      }
      Tensor y = *Tensor::Allocate(DT_FLOAT, x.shape());
      for (size_t i = 0; i < in.size(); ++i) {
        const size_t c = ChannelOf(x.shape(), format, i);
        y.mutable_flat<float>()[i] = static_cast<float>(
            (static_cast<double>(in[i]) - mean[c]) / std::sqrt(squares[c] / n + 0.001) *
                static_cast<double>(scale.flat<float>()[c]) +
            static_cast<double>(offset.flat<float>()[c]));
      }
      const auto both = [](double a, double b) {
        return Vector({static_cast<float>(a), static_cast<float>(b)});
      };
      ExpectTensorNear(got[0], y, 1e-4, 1e-4);
      ExpectTensorNear(got[1], both(mean[0], mean[1]), 1e-6, 0);
      ExpectTensorNear(got[2], both(squares[0] / (n - 1), squares[1] / (n - 1)), 1e-4, 0);
      ExpectTensorNear(got[3], both(mean[0], mean[1]), 1e-6, 0);
      ExpectTensorNear(got[4], both(squares[0] / n, squares[1] / n), 1e-4, 0);
    }
  }
}

TEST(FusedBatchNorm, InferenceUsesWhatItIsGiven) {
  const Tensor x = TensorOf<float>({1, 1, 2, 2}, {1, 2, 3, 4});
  ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> got, RunOp(OpCall("FusedBatchNormV3")
                                                                .Input(x)
                                                                .Input(Vector({2, 1}))
                                                                .Input(Vector({10, 20}))
                                                                .Input(Vector({1, 2}))
                                                                .Input(Vector({3, 0.25f}))
                                                                .Attr("epsilon", 1.0f)
                                                                .Attr("is_training", false)));
  const float r = 1 / std::sqrt(1.25f);
  ExpectTensorNear(got[0], TensorOf<float>({1, 1, 2, 2}, {10, 20, 12, 20 + 2 * r}), 1e-6, 0);
  ExpectTensorEqual(got[1], Vector({1, 2}));
  ExpectTensorEqual(got[2], Vector({3, 0.25f}));
}

TEST(FusedBatchNorm, HalfImagesHaveFloatVectors) {
  const Tensor x = TensorOf<Half>({2, 1, 1, 1}, {ToHalf(1), ToHalf(3)});
  ASSERT_OK_AND_ASSIGN(
      const std::vector<Tensor> got,
      RunOp(Call("FusedBatchNormV2", {x, Vector({1}), Vector({0}), Vector({}), Vector({})}, true)));
  ExpectTensorNear(got[0], TensorOf<Half>({2, 1, 1, 1}, {ToHalf(-0.9995f), ToHalf(0.9995f)}), 1e-3,
                   0);
  ExpectTensorEqual(got[1], Vector({2}));
  ExpectTensorEqual(got[2], Vector({2}));
}

TEST(FusedBatchNorm, EmptyBatchesAndNoChannels) {
  const auto zeros = [](std::initializer_list<int64_t> dims) {
    return *Tensor::Zeros(DT_FLOAT, ShapeOf(dims));
  };
  ASSERT_OK_AND_ASSIGN(
      std::vector<Tensor> got,
      RunOp(Call("FusedBatchNorm",
                 {zeros({0, 2, 2, 1}), Vector({1}), Vector({0}), Vector({}), Vector({})}, true)));
  EXPECT_EQ(got[0].shape(), ShapeOf({0, 2, 2, 1}));
  EXPECT_TRUE(std::isnan(got[1].flat<float>()[0]));
  ASSERT_OK_AND_ASSIGN(
      got,
      RunOp(Call("FusedBatchNorm",
                 {zeros({1, 2, 2, 0}), Vector({}), Vector({}), Vector({}), Vector({})}, true)));
  EXPECT_EQ(got[0].shape(), ShapeOf({1, 2, 2, 0}));
  ASSERT_OK_AND_ASSIGN(
      got,
      RunOp(Call("FusedBatchNormGrad",
                 {zeros({0, 2, 2, 1}), zeros({0, 2, 2, 1}), Vector({1}), Vector({0}), Vector({1})},
                 true)));
  ExpectTensorEqual(got[1], Vector({0}));
  // The variance of an empty batch is NaN.
  const Tensor nan = Vector({std::nanf("")});
  ASSERT_OK_AND_ASSIGN(
      got, RunOp(Call("FusedBatchNormGrad",
                      {zeros({0, 2, 2, 1}), zeros({0, 2, 2, 1}), Vector({1}), nan, nan}, true)));
  ExpectTensorEqual(got[1], Vector({0}));
  ExpectTensorEqual(got[2], Vector({0}));
}

TEST(FusedBatchNorm, RefusesWhatDoesNotFit) {
  const Tensor x = *Tensor::Zeros(DT_FLOAT, ShapeOf({1, 2, 2, 3}));
  const Tensor ok = Vector({1, 2, 3}), none = Vector({}), two = Vector({1, 2});
  const Tensor matrix = *Tensor::Zeros(DT_FLOAT, ShapeOf({2, 3}));
  struct Case {
    const char* op;
    std::vector<Tensor> in;
    bool training;
    const char* text;
  };
  const Case cases[] = {
      {"FusedBatchNorm", {matrix, ok, ok, none, none}, true, "x must have rank 4, got shape [2,3]"},
      {"FusedBatchNorm",
       {x, two, ok, none, none},
       true,
       "scale must be a vector of the 3 channels, got shape [2]"},
      {"FusedBatchNormV3",
       {x, ok, matrix, none, none},
       true,
       "offset must be a vector of the 3 channels, got shape [2,3]"},
      {"FusedBatchNormV2", {x, ok, ok, two, ok}, false, "mean must be a vector of the 3 channels"},
      {"FusedBatchNorm", {x, ok, ok, ok, none}, false, "variance must be a vector of the 3"},
      {"FusedBatchNorm",
       {x, ok, ok, ok, none},
       true,
       "mean must be an empty vector for training, got shape [3]"},
      {"FusedBatchNormGrad",
       {matrix, x, ok, ok, ok},
       true,
       "y_backprop must have the shape of x [1,2,2,3], got [2,3]"},
      {"FusedBatchNormGrad", {x, x, ok, two, ok}, true, "reserve_space_1 must be a vector"},
      {"FusedBatchNormGradV2", {x, x, ok, ok, none}, false, "reserve_space_2 must be a vector"},
      {"FusedBatchNormGrad", {x, x, two, ok, ok}, true, "scale must be a vector"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.text);
    ExpectOpError(Call(c.op, {c.in[0], c.in[1], c.in[2], c.in[3], c.in[4]}, c.training),
                  absl::StatusCode::kInvalidArgument, c.text);
    EXPECT_SHAPE_ERROR(
        c.op, {{"is_training", c.training}},
        {c.in[0].shape().ToString(), c.in[1].shape().ToString(), c.in[2].shape().ToString(),
         c.in[3].shape().ToString(), c.in[4].shape().ToString()},
        c.text);
  }
}

TEST(FusedBatchNorm, ShapesTellTheChannels) {
  EXPECT_SHAPE("FusedBatchNorm", {}, {"[?,4,4,?]", "[3]", "[?]", "[0]", "[0]"},
               "[?,4,4,3];[3];[3];[3];[3]");
  EXPECT_SHAPE("FusedBatchNormV3", {{"data_format", "NCHW"}},
               {"[?,3,4,4]", "<unknown>", "[?]", "[0]", "[0]"}, "[?,3,4,4];[3];[3];[3];[3];[]");
  EXPECT_SHAPE("FusedBatchNormGrad", {}, {"[2,?,4,?]", "[?,4,4,?]", "[3]", "[?]", "[?]"},
               "[2,4,4,3];[3];[3];[0];[0]");
}

TEST(FusedBatchNormGradient, MatchesFiniteDifferences) {
  const Tensor x = TensorOf<float>({2, 2, 1, 2}, {1, -2, 3, 0.5f, -1, 2, 0, 4});
  const Tensor scale = Vector({2, 0.5f}), offset = Vector({-1, 3});
  const Tensor mean = Vector({0.5f, 1}), variance = Vector({2, 3});
  for (const FusedBatchNormBuilder& build : {FusedBatchNorm, FusedBatchNormV2, FusedBatchNormV3}) {
    for (const char* format : {"NHWC", "NCHW"}) {
      for (const bool training : {true, false}) {
        SCOPED_TRACE(std::string(format) + (training ? " training" : " inference"));
        ExpectGradientsMatch(
            [&](const Scope& s, const std::vector<Output>& in) {
              const Output m = training ? Const(s, Vector({})) : Const(s, mean);
              const Output v = training ? Const(s, Vector({})) : Const(s, variance);
              return build(s, in[0], in[1], in[2], m, v,
                           {.epsilon = 0.01f, .data_format = format, .is_training = training})
                  .y;
            },
            {std::string(format) == "NHWC" ? x : *x.Reshaped(ShapeOf({2, 2, 2, 1})), scale,
             offset});
      }
    }
  }
}

// Each gradient, and all of them, differentiated by y's gradient, x and scale.
TEST(FusedBatchNormGradient, SecondDerivativesMatchFiniteDifferences) {
  const Tensor x = TensorOf<float>({2, 2, 1, 2}, {1, -2, 3, 0.5f, -1, 2, 0, 4});
  const Tensor dy = TensorOf<float>({2, 2, 1, 2}, {0.5f, 1, -1, 2, 0.25f, -0.5f, 1, -2});
  const Tensor scale = Vector({2, 0.5f}), mean = Vector({0.5f, 1}), variance = Vector({2, 3});
  for (const char* format : {"NHWC", "NCHW"}) {
    for (const bool training : {true, false}) {
      for (int which = 0; which < 4; ++which) {
        SCOPED_TRACE(absl::StrCat(format, training ? " training " : " inference ", which));
        const FusedBatchNormAttrs attrs = {
            .epsilon = 0.01f, .data_format = format, .is_training = training};
        const auto build = [&](const Scope& s, const std::vector<Output>& in) {
          const Output none = Const(s, Vector({})), offset = Const(s, Vector({0, 0}));
          const FusedBatchNormOutputs norm =
              FusedBatchNormV3(s, in[1], in[2], offset, training ? none : Const(s, mean),
                               training ? none : Const(s, variance), attrs);
          const FusedBatchNormGradOutputs g =
              FusedBatchNormGradV3(s, in[0], in[1], in[2], norm.reserve_space_1,
                                   norm.reserve_space_2, norm.reserve_space_3, attrs);
          if (which < 3)
            return which == 0 ? g.x_backprop : which == 1 ? g.scale_backprop : g.offset_backprop;
          const Output flat = Reshape(s, g.x_backprop, Const<int32_t>(s, {-1}));
          return ConcatV2(s, {flat, g.scale_backprop, g.offset_backprop}, Const(s, 0));
        };
        const bool last = std::string(format) == "NHWC";
        const Shape other = ShapeOf({2, 2, 2, 1});
        ExpectGradientsMatch(
            build, {last ? dy : *dy.Reshaped(other), last ? x : *x.Reshaped(other), scale});
      }
    }
  }
}

}  // namespace
}  // namespace millrace
