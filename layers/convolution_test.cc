// SPDX-License-Identifier: Apache-2.0
#include "layers/convolution.h"

#include <cmath>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "layers/pooling.h"
#include "layers/testing/layer_test.h"
#include "ops/ops.h"

// covers: values: layers give the values of their formulas, TensorFlow's variable names, gradients
//   of finite differences, and train

namespace millrace {
namespace {

Initializer Values(const Tensor& value) {
  return [value](ScopeAt at, const Shape&, DType) { return Const(at, value); };
}

// 1 ... n in this shape.
template <typename T>
Tensor Counting(const Shape& shape) {
  Tensor t = *Tensor::Allocate(DTypeOf<T>, shape);
  T value = 0;
  for (T& element : t.mutable_flat<T>()) element = ++value;
  return t;
}

StatusOr<Tensor> ValueOf(const Scope& scope, const Output& x, const Tensor& value,
                         const Output& y) {
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, RunInitialized(scope, {{x, value}}, {y}));
  return out[0];
}

TEST(Conv2D, SlidesItsKernelAndAddsTheBias) {
  struct Case {
    Conv2DLayerAttrs attrs;
    const char* shape;
    Tensor want;
  };
  // The image 1 ... 9, the kernel [[1, 2], [3, 4]].
  const Tensor kernel = TensorOf<float>({2, 2, 1, 1}, {1, 2, 3, 4});
  const Case cases[] = {
      {{}, "[?,2,2,1]", TensorOf<float>({1, 2, 2, 1}, {37, 47, 67, 77})},
      {{.padding = "same"},
       "[?,3,3,1]",
       TensorOf<float>({1, 3, 3, 1}, {37, 47, 21, 67, 77, 33, 23, 26, 9})},
      {{.strides = 2, .padding = "SAME"},
       "[?,2,2,1]",
       TensorOf<float>({1, 2, 2, 1}, {37, 21, 23, 9})},
      {{.strides = {1, 2}}, "[?,2,1,1]", TensorOf<float>({1, 2, 1, 1}, {37, 67})},
      {{.dilation_rate = 2}, "[?,1,1,1]", TensorOf<float>({1, 1, 1, 1}, {1 + 6 + 21 + 36})},
      {{.activation = Neg, .bias_initializer = ConstantInitializer(0.5)},
       "[?,2,2,1]",
       TensorOf<float>({1, 2, 2, 1}, {-37.5f, -47.5f, -67.5f, -77.5f})},
  };
  for (const Case& c : cases) {
    Scope scope;
    const Output x = Placeholder(scope, DT_FLOAT, {-1, 3, 3, 1});
    Conv2DLayerAttrs attrs = c.attrs;
    attrs.kernel_initializer = Values(kernel);
    const Output y = Conv2D(scope, x, 1, 2, attrs);
    EXPECT_EQ(scope.shape(y).ToString(), c.shape);
    ASSERT_OK_AND_ASSIGN(const Tensor got,
                         ValueOf(scope, x, Counting<float>(Shape{1, 3, 3, 1}), y));
    ExpectTensorNear(got, c.want, 1e-5, 0);
  }
}

TEST(Conv1D, SlidesItsKernelAlongTheSteps) {
  struct Case {
    Conv1DLayerAttrs attrs;
    Tensor want;
  };
  const Case cases[] = {
      {{}, TensorOf<float>({1, 3, 1}, {5, 8, 11})},
      {{.padding = "same"}, TensorOf<float>({1, 4, 1}, {5, 8, 11, 4})},
      {{.strides = 2}, TensorOf<float>({1, 2, 1}, {5, 11})},
      {{.dilation_rate = 2}, TensorOf<float>({1, 2, 1}, {7, 10})},
  };
  for (const Case& c : cases) {
    Scope scope;
    const Output x = Placeholder(scope, DT_FLOAT, {-1, -1, 1});
    Conv1DLayerAttrs attrs = c.attrs;
    attrs.kernel_initializer = Values(TensorOf<float>({2, 1, 1}, {1, 2}));
    const Output y = Conv1D(scope, x, 1, 2, attrs);
    ASSERT_OK_AND_ASSIGN(const Tensor got, ValueOf(scope, x, Counting<float>(Shape{1, 4, 1}), y));
    ExpectTensorNear(got, c.want, 1e-5, 0);
  }
}

TEST(Conv2DTranspose, SpreadsItsKernel) {
  struct Case {
    Conv2DTransposeAttrs attrs;
    const char* shape;
    Tensor want;
  };
  // Columns 1, 2 with the kernel [1, 10, 100].
  const Case cases[] = {
      {{}, "[?,1,4,1]", TensorOf<float>({1, 1, 4, 1}, {1, 12, 120, 200})},
      {{.strides = {1, 2}}, "[?,1,5,1]", TensorOf<float>({1, 1, 5, 1}, {1, 10, 102, 20, 200})},
      {{.strides = {1, 4}},
       "[?,1,8,1]",
       TensorOf<float>({1, 1, 8, 1}, {1, 10, 100, 0, 2, 20, 200, 0})},
      {{.padding = "same"}, "[?,1,2,1]", TensorOf<float>({1, 1, 2, 1}, {12, 120})},
      {{.strides = {1, 2}, .padding = "same"},
       "[?,1,4,1]",
       TensorOf<float>({1, 1, 4, 1}, {1, 10, 102, 20})},
  };
  for (const Case& c : cases) {
    for (const bool known : {true, false}) {
      Scope scope;
      const Output x = Placeholder(scope, DT_FLOAT,
                                   known ? PartialShape{-1, 1, 2, 1} : PartialShape{-1, -1, -1, 1});
      Conv2DTransposeAttrs attrs = c.attrs;
      attrs.kernel_initializer = Values(TensorOf<float>({1, 3, 1, 1}, {1, 10, 100}));
      const Output y = Conv2DTranspose(scope, x, 1, {1, 3}, attrs);
      EXPECT_EQ(scope.shape(y).ToString(), known ? c.shape : "[?,?,?,1]");
      ASSERT_OK_AND_ASSIGN(const Tensor got,
                           ValueOf(scope, x, Counting<float>(Shape{1, 1, 2, 1}), y));
      ExpectTensorNear(got, c.want, 1e-5, 0);
    }
  }
}

TEST(Convolutions, NameVariablesAsTensorFlowsLayers) {
  Scope scope;
  const Output image = Placeholder(scope, DT_FLOAT, {-1, 8, 8, 3});
  const ConvolutionLayer first = Conv2D(scope, image, 4, {3, 5});
  const ConvolutionLayer second = Conv2D(scope, first, 6, 3, {.use_bias = false});
  Conv2DTranspose(scope.WithName("up"), second, 2, 2);
  const ConvolutionLayer line = Conv1D(scope, Placeholder(scope, DT_FLOAT, {-1, 5, 2}), 7, 3);
  ASSERT_OK(scope.status());
  EXPECT_EQ(NamesOf(scope, "trainable_variables"),
            std::vector<std::string>({"conv2d/kernel", "conv2d/bias", "conv2d_1/kernel",
                                      "up/kernel", "up/bias", "conv1d/kernel", "conv1d/bias"}));
  EXPECT_EQ(first.kernel.shape.ToString(), "[3,5,3,4]");
  EXPECT_EQ(first.bias.shape.ToString(), "[4]");
  EXPECT_EQ(VariablesOf(scope)[3].shape.ToString(), "[2,2,2,6]");
  EXPECT_EQ(line.kernel.shape.ToString(), "[3,2,7]");
}

TEST(Convolutions, GradientsAreFiniteDifferences) {
  Scope scope;
  const Output x = Placeholder(scope, DT_DOUBLE, {1, 3, 4, 2});
  const ConvolutionLayer down =
      Conv2D(scope, x, 2, {2, 3}, {.strides = 2, .padding = "same", .activation = Tanh});
  const ConvolutionLayer up = Conv2DTranspose(scope, down, 1, 2, {.strides = {2, 1}});
  const auto small = [](const Shape& shape) {
    Tensor t = Counting<double>(shape);
    for (double& v : t.mutable_flat<double>()) v = std::sin(v);
    return t;
  };
  ExpectLayerGradientsMatch(scope, up,
                            {{x, small(Shape{1, 3, 4, 2})},
                             {down.kernel.value, small(Shape{2, 3, 2, 2})},
                             {down.bias.value, small(Shape{2})},
                             {up.kernel.value, small(Shape{2, 2, 1, 2})}});
  Scope line;
  const Output steps = Placeholder(line, DT_DOUBLE, {2, 3, 2});
  const ConvolutionLayer y = Conv1D(line, steps, 2, 2);
  ExpectLayerGradientsMatch(line, y,
                            {{steps, small(Shape{2, 3, 2})},
                             {y.kernel.value, small(Shape{2, 2, 2})},
                             {y.bias.value, small(Shape{2})}});
}

TEST(Convolutions, BadArgumentsAreErrorsOfTheScope) {
  const auto image = [](const Scope& s, const PartialShape& shape = {-1, 8, 8, 3}) {
    return Placeholder(s.WithName("x"), DT_FLOAT, shape);
  };
  ExpectBadCalls({
      {[&](const Scope& s) { return Conv2D(s, image(s), 0, 3); },
       "Conv2D 'm/conv2d': filters must be in [1, 2^31), got 0"},
      {[&](const Scope& s) {
         return Conv2D(s, image(s), 4, {3, 0});
       },
       "kernel_size must be in [1, 2^31), got [3,0]"},
      {[&](const Scope& s) { return Conv2D(s, image(s), 4, 3, {.strides = -1}); },
       "strides must be in [1, 2^31), got [-1,-1]"},
      {[&](const Scope& s) {
         return Conv2D(s, image(s), 4, 3, {.dilation_rate = {1, 0}});
       },
       "dilation_rate must be in [1, 2^31), got [1,0]"},
      {[&](const Scope& s) { return Conv2D(s, image(s), 4, 3, {.padding = "full"}); },
       "padding must be 'valid' or 'same', got 'full'"},
      {[&](const Scope& s) {
         return Conv2D(s, image(s, {8, 8, 3}), 4, 3);
       },
       "Conv2D 'm/conv2d': x must have rank 4, got shape [8,8,3] of 'm/x:0'"},
      {[&](const Scope& s) {
         return Conv2D(s, image(s, {1, 8, 8, -1}), 4, 3);
       },
       "the channels (last dimension) of x must be known and >= 1, got shape [1,8,8,?]"},
      {[&](const Scope& s) { return Conv2D(s, image(s, PartialShape()), 4, 3); },
       "must be known and >= 1, got shape <unknown>"},
      {[&](const Scope& s) {
         return Conv2D(s, image(s, {1, 1, 1, 1}), 4, 3);
       },
       "Conv2D 'm/conv2d/Conv2D': "},
      {[&](const Scope& s) {
         return Conv1D(s.WithName("c"), image(s, {1, 8, 3}), 4, 3, {.strides = 0});
       },
       "Conv1D 'm/c': strides must be in [1, 2^31), got 0"},
      {[&](const Scope& s) {
         return Conv2DTranspose(s, image(s, {1, 1 << 20, 2, 1}), 4, 3, {.strides = 1 << 20});
       },
       "the output must be smaller than 2^31, got 1048576 * 1048576 + 0 for dimension 1"},
      {[&](const Scope& s) {
         return MaxPooling2D(s, image(s, {1, 8}), 2);
       },
       "MaxPooling2D 'm/max_pooling2d': x must have rank 4, got shape [1,8]"},
      {[&](const Scope& s) { return MaxPooling2D(s, image(s), 0); },
       "MaxPool 'm/max_pooling2d/MaxPool': "},
      {[&](const Scope& s) { return AveragePooling2D(s, image(s), 2, {.padding = ""}); },
       "AveragePooling2D 'm/average_pooling2d': padding must be 'valid' or 'same', got ''"},
      {[&](const Scope& s) { return AveragePooling2D(s, image(s), 0); },
       "AvgPool 'm/average_pooling2d/AvgPool': "},
      {[&](const Scope& s) { return GlobalMaxPooling2D(s, image(s, {2})); },
       "GlobalMaxPooling2D 'm/global_max_pooling2d': x must have rank 4"},
  });
}

TEST(Pooling, TakesTheLargestOrTheMean) {
  Scope scope;
  const Output x = Placeholder(scope, DT_FLOAT, {-1, -1, -1, 1});
  const Tensor image = Counting<float>(Shape{1, 3, 3, 1});
  const std::pair<Output, Tensor> cases[] = {
      {MaxPooling2D(scope, x, 2), TensorOf<float>({1, 1, 1, 1}, {5})},
      {MaxPooling2D(scope, x, 2, {.strides = 1}), TensorOf<float>({1, 2, 2, 1}, {5, 6, 8, 9})},
      {MaxPooling2D(scope, x, 2, {.padding = "same"}), TensorOf<float>({1, 2, 2, 1}, {5, 6, 8, 9})},
      {AveragePooling2D(scope, x, {1, 3}), TensorOf<float>({1, 3, 1, 1}, {2, 5, 8})},
      {AveragePooling2D(scope, x, 2, {.padding = "same"}),
       TensorOf<float>({1, 2, 2, 1}, {3, 4.5f, 7.5f, 9})},
      {GlobalAveragePooling2D(scope, x), TensorOf<float>({1, 1}, {5})},
      {GlobalMaxPooling2D(scope, x), TensorOf<float>({1, 1}, {9})},
  };
  ASSERT_OK(scope.status());
  EXPECT_EQ(cases[0].first.name(), "max_pooling2d/MaxPool:0");
  for (const auto& [y, want] : cases) {
    ASSERT_OK_AND_ASSIGN(const Tensor got, ValueOf(scope, x, image, y));
    ExpectTensorNear(got, want, 1e-6, 0);
  }
}

}  // namespace
}  // namespace millrace
