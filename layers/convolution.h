// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_CONVOLUTION_H_
#define MILLRACE_LAYERS_CONVOLUTION_H_

// Convolutional layers of images and sequences, channels last.
//
//   Output x = Conv2D(model, images, 32, 5, {.padding = "same", .activation = Relu});
//
// x is floating; its channels must be known, other dimensions may be unknown. Variables have x's
// dtype: "conv2d/kernel", "conv2d/bias" and so on.
//
// Padding is "valid" (none) or "same" (so that a stride of 1 keeps the size), in small or large
// letters. The kernel is not flipped.

#include <cstdint>
#include <string>

#include "graph/scope.h"
#include "layers/initializers.h"
#include "layers/regularizers.h"
#include "layers/variable.h"
#include "layers/weight.h"

namespace millrace {

// Rows and columns of a window; one number for both: 3, {5, 1}.
struct Size2D {
  Size2D(int64_t both) : rows(both), columns(both) {}  // NOLINT
  Size2D(int64_t r, int64_t c) : rows(r), columns(c) {}
  int64_t rows, columns;
};

struct Conv2DLayerAttrs {
  Size2D strides = 1;
  std::string padding = "valid";
  Size2D dilation_rate = 1;
  Activation activation = {};
  bool use_bias = true;
  Initializer kernel_initializer = GlorotUniformInitializer();
  Initializer bias_initializer = ZerosInitializer();
  Regularizer kernel_regularizer = {};
  Regularizer bias_regularizer = {};
  bool trainable = true;
};

struct Conv1DLayerAttrs {
  int64_t strides = 1;
  std::string padding = "valid";
  int64_t dilation_rate = 1;
  Activation activation = {};
  bool use_bias = true;
  Initializer kernel_initializer = GlorotUniformInitializer();
  Initializer bias_initializer = ZerosInitializer();
  Regularizer kernel_regularizer = {};
  Regularizer bias_regularizer = {};
  bool trainable = true;
};

struct Conv2DTransposeAttrs {
  Size2D strides = 1;
  std::string padding = "valid";
  Activation activation = {};
  bool use_bias = true;
  Initializer kernel_initializer = GlorotUniformInitializer();
  Initializer bias_initializer = ZerosInitializer();
  Regularizer kernel_regularizer = {};
  Regularizer bias_regularizer = {};
  bool trainable = true;
};

// The output, to be used as any Output, with the layer's variables.
struct ConvolutionLayer : Output {
  Variable kernel;
  Variable bias;  // [filters]; invalid without one
};

// [batch, rows, columns, channels] -> [batch, rows', columns', filters]; the kernel is
// [kernel rows, kernel columns, channels, filters]. (The single op: ops/nn/conv.h.)
ConvolutionLayer Conv2D(ScopeAt at, const Output& x, int64_t filters, Size2D kernel_size,
                        const Conv2DLayerAttrs& attrs = {});

// [batch, steps, channels] -> [batch, steps', filters]; the kernel is [kernel, channels, filters].
ConvolutionLayer Conv1D(ScopeAt at, const Output& x, int64_t filters, int64_t kernel_size,
                        const Conv1DLayerAttrs& attrs = {});

// The transpose of a convolution (its gradient): images grow by the strides. With "same",
// rows' = rows * stride; with "valid", rows' = rows * stride + max(kernel rows - stride, 0). The
// kernel is [kernel rows, kernel columns, filters, channels].
ConvolutionLayer Conv2DTranspose(ScopeAt at, const Output& x, int64_t filters, Size2D kernel_size,
                                 const Conv2DTransposeAttrs& attrs = {});

}  // namespace millrace

#endif  // MILLRACE_LAYERS_CONVOLUTION_H_
