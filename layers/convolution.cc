// SPDX-License-Identifier: Apache-2.0
#include "layers/convolution.h"

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"
#include "core/dtype.h"
#include "core/shape.h"
#include "ops/array/concat.h"
#include "ops/array/constant.h"
#include "ops/array/reshape.h"
#include "ops/array/slice.h"
#include "ops/math/cwise_binary.h"
#include "ops/nn/bias.h"
#include "ops/nn/conv.h"

namespace millrace {
namespace {

// The ops take int32 sizes.
constexpr int64_t kMaxSize = std::numeric_limits<int32_t>::max();

struct LayerNames {
  const char* layer;
  const char* default_name;
};

// Checks what all convolutions ask of their arguments; sets the number of channels and the padding
// as the ops write it.
bool CheckConvolution(const ScopeAt& at, const LayerNames& names, const Output& x, int rank,
                      int64_t filters, std::initializer_list<std::pair<const char*, Size2D>> sizes,
                      const std::string& padding_attr, int64_t* channels, std::string* padding) {
  const auto fail = [&](const auto&... parts) {
    LayerError(at, names.layer, names.default_name, parts...);
    return false;
  };
  if (!CheckLayerInput(at, names.layer, names.default_name, x, rank, rank)) return false;
  const PartialShape shape = at.scope.shape(x);
  if (!shape.has_rank() || shape.dim(rank - 1) < 1) {
    return fail("the channels (last dimension) of x must be known and >= 1, got shape ", shape,
                " of '", x.name(), "'");
  }
  *channels = shape.dim(rank - 1);
  const auto is_size = [](int64_t size) { return size >= 1 && size <= kMaxSize; };
  if (!is_size(filters)) return fail("filters must be in [1, 2^31), got ", filters);
  for (const auto& [name, size] : sizes) {
    if (is_size(size.rows) && is_size(size.columns)) continue;
    if (rank == 3) return fail(name, " must be in [1, 2^31), got ", size.columns);
    return fail(name, " must be in [1, 2^31), got [", size.rows, ",", size.columns, "]");
  }
  *padding = absl::AsciiStrToUpper(padding_attr);
  if (*padding == "VALID" || *padding == "SAME") return true;
  return fail("padding must be 'valid' or 'same', got '", padding_attr, "'");
}

// The layer's variables.
template <typename Attrs>
void MakeWeights(const ScopeAt& in, std::initializer_list<int64_t> kernel_dims, int64_t filters,
                 DType dtype, const Attrs& attrs, ConvolutionLayer* layer) {
  layer->kernel = MakeWeight(in, "kernel", kernel_dims, dtype,
                             {attrs.kernel_initializer, attrs.kernel_regularizer, attrs.trainable});
  if (!attrs.use_bias) return;
  layer->bias = MakeWeight(in, "bias", {filters}, dtype,
                           {attrs.bias_initializer, attrs.bias_regularizer, attrs.trainable});
}

void Finish(const ScopeAt& in, Output y, const Activation& activation, ConvolutionLayer* layer) {
  if (layer->bias.valid()) y = BiasAdd(in, y, layer->bias.value);
  static_cast<Output&>(*layer) = Activated(in, activation, y);
}

}  // namespace

ConvolutionLayer Conv2D(ScopeAt at, const Output& x, int64_t filters, Size2D kernel_size,
                        const Conv2DLayerAttrs& attrs) {
  int64_t channels = 0;
  std::string padding;
  if (!CheckConvolution(at, {"Conv2D", "conv2d"}, x, 4, filters,
                        {{"kernel_size", kernel_size},
                         {"strides", attrs.strides},
                         {"dilation_rate", attrs.dilation_rate}},
                        attrs.padding, &channels, &padding)) {
    return {};
  }
  const Scope scope = at.scope.CompositeScope("conv2d");
  const ScopeAt in(scope, at.where);
  ConvolutionLayer layer;
  MakeWeights(in, {kernel_size.rows, kernel_size.columns, channels, filters}, filters,
              WithoutRef(x.dtype()), attrs, &layer);
  if (!at.scope.ok()) return {};
  const Output y =
      Conv2D(in, x, layer.kernel.value,
             {.strides = {1, attrs.strides.rows, attrs.strides.columns, 1},
              .padding = padding,
              .dilations = {1, attrs.dilation_rate.rows, attrs.dilation_rate.columns, 1}});
  Finish(in, y, attrs.activation, &layer);
  return layer;
}

ConvolutionLayer Conv1D(ScopeAt at, const Output& x, int64_t filters, int64_t kernel_size,
                        const Conv1DLayerAttrs& attrs) {
  int64_t channels = 0;
  std::string padding;
  if (!CheckConvolution(at, {"Conv1D", "conv1d"}, x, 3, filters,
                        {{"kernel_size", {1, kernel_size}},
                         {"strides", {1, attrs.strides}},
                         {"dilation_rate", {1, attrs.dilation_rate}}},
                        attrs.padding, &channels, &padding)) {
    return {};
  }
  const Scope scope = at.scope.CompositeScope("conv1d");
  const ScopeAt in(scope, at.where);
  ConvolutionLayer layer;
  MakeWeights(in, {kernel_size, channels, filters}, filters, WithoutRef(x.dtype()), attrs, &layer);
  if (!at.scope.ok()) return {};
  // An image of one row.
  const Output image = ExpandDims(in, x, Const(in, int32_t{1}));
  const Output kernel = ExpandDims(in, layer.kernel.value, Const(in, int32_t{0}));
  const Output y = Conv2D(in, image, kernel,
                          {.strides = {1, 1, attrs.strides, 1},
                           .padding = padding,
                           .dilations = {1, 1, attrs.dilation_rate, 1}});
  Finish(in, Squeeze(in, y, {.squeeze_dims = {1}}), attrs.activation, &layer);
  return layer;
}

ConvolutionLayer Conv2DTranspose(ScopeAt at, const Output& x, int64_t filters, Size2D kernel_size,
                                 const Conv2DTransposeAttrs& attrs) {
  int64_t channels = 0;
  std::string padding;
  if (!CheckConvolution(at, {"Conv2DTranspose", "conv2d_transpose"}, x, 4, filters,
                        {{"kernel_size", kernel_size}, {"strides", attrs.strides}}, attrs.padding,
                        &channels, &padding)) {
    return {};
  }
  const Scope scope = at.scope.CompositeScope("conv2d_transpose");
  const ScopeAt in(scope, at.where);
  ConvolutionLayer layer;
  MakeWeights(in, {kernel_size.rows, kernel_size.columns, filters, channels}, filters,
              WithoutRef(x.dtype()), attrs, &layer);
  if (!at.scope.ok()) return {};
  // [batch, rows', columns', filters]: where the sizes are not known they are computed in the step.
  const PartialShape shape = at.scope.shape(x);
  const Output dynamic = ShapeOf(in, x);
  const auto element = [&](int32_t i) {
    return StridedSlice(in, dynamic, Const<int32_t>(in, {i}), Const<int32_t>(in, {i + 1}),
                        Const<int32_t>(in, {1}));
  };
  const auto size = [&](int i, int64_t stride, int64_t kernel) {
    const int64_t more = padding == "SAME" ? 0 : std::max<int64_t>(kernel - stride, 0);
    const auto number = [&](int64_t n) { return Const<int32_t>(in, {static_cast<int32_t>(n)}); };
    if (shape.dim(i) > (kMaxSize - more) / stride) {
      LayerError(in, "Conv2DTranspose", "sizes", "the output must be smaller than 2^31, got ",
                 shape.dim(i), " * ", stride, " + ", more, " for dimension ", i);
    } else if (shape.dim(i) >= 0) {
      return number(shape.dim(i) * stride + more);
    }
    return Add(in, Mul(in, element(i), number(stride)), number(more));
  };
  const Output sizes = ConcatV2(in,
                                {element(0), size(1, attrs.strides.rows, kernel_size.rows),
                                 size(2, attrs.strides.columns, kernel_size.columns),
                                 Const<int32_t>(in, {static_cast<int32_t>(filters)})},
                                Const(in, int32_t{0}));
  const Output y = Conv2DBackpropInput(
      in, sizes, layer.kernel.value, x,
      {.strides = {1, attrs.strides.rows, attrs.strides.columns, 1}, .padding = padding});
  Finish(in, y, attrs.activation, &layer);
  return layer;
}

}  // namespace millrace
