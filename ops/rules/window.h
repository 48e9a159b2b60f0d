// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_RULES_WINDOW_H_
#define MILLRACE_OPS_RULES_WINDOW_H_

// The rules of sliding windows: which strides, paddings and shapes convolutions and poolings
// accept, and how large their outputs are.
//
//   output o covers input o * stride - pad_before + tap * dilation, tap = 0 ... size - 1
//   SAME:     output = ceil(input / stride), the odd cell of the padding comes after
//   VALID:    output = floor((input - extent) / stride) + 1 without padding,
//             extent = (size - 1) * dilation + 1; 0 for an extent that is larger than the input by
//             less than two strides
//   EXPLICIT: as VALID on the input with the padding that the attr names
//
// Sizes and strides are -1 where they are unknown. Index 0 stands for rows, 1 for columns, whatever
// the data format.
//
// Pure functions. Failure: InvalidArgument.

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "core/shape.h"
#include "core/status.h"
#include "graph/op_rule.h"

namespace millrace {

enum class Padding { kSame, kValid, kExplicit };

// One axis of a window.
struct WindowAxis {
  int64_t size = -1;  // taps
  int64_t stride = -1;
  int64_t dilation = 1;
  int64_t explicit_before = 0;  // for Padding::kExplicit
  int64_t explicit_after = 0;
};

struct SlidResult {
  int64_t output = -1;
  int64_t pad_before = 0;  // meaningful when input and size are known
  int64_t pad_after = 0;
};

// How often the window fits. `what` names the axis in messages ("rows"). A window without a tap and
// an output size below 0 are refused.
StatusOr<SlidResult> SlideWindow(absl::string_view what, int64_t input, const WindowAxis& axis,
                                 Padding padding);

// The attrs of a window, for rules to hold.
struct WindowAttrs {
  bool channels_first = false;  // NCHW
  Padding padding = Padding::kValid;
  std::array<WindowAxis, 2> axes;
  // Along the channels. Only poolings of the largest value have more than one tap there.
  WindowAxis depth = {.size = 1, .stride = 1};
  bool may_pool_depth = false;

  // Reads padding, data_format and, where the op has them, strides, ksize, dilations and
  // explicit_paddings, checked: four numbers each, >= 1 (paddings >= 0), below 2^31, and nothing
  // but 1 (0) for batch and channels (size and stride of these are free with may_pool_depth).
  Status Init(const NodeAttrs& attrs);
  // Sets a field of all axes from four numbers in the order of the data format.
  Status Set(int64_t WindowAxis::*field, absl::string_view name, absl::Span<const int64_t> values);
};

// A shape of rank 4 by meaning.
struct ImageShape {
  int64_t batch = -1;
  std::array<int64_t, 2> size = {-1, -1};  // rows, columns
  int64_t channels = -1;
};
// `shape` has rank 4, or no rank.
ImageShape ToImageShape(const PartialShape& shape, bool channels_first);
StatusOr<PartialShape> FromImageShape(const ImageShape& image, bool channels_first);

// A window over images: what is known of the window (with the sizes of a filter), input and output
// together.
struct WindowGeometry {
  WindowAttrs window;
  ImageShape input, output;
  int64_t filter_channels = -1;
  std::array<int64_t, 2> pad_before = {0, 0}, pad_after = {0, 0};

  StatusOr<PartialShape> InputShape() const { return FromImageShape(input, window.channels_first); }
  StatusOr<PartialShape> OutputShape() const {
    return FromImageShape(output, window.channels_first);
  }
};

// A convolution with a filter [rows, columns, input channels, output channels]. The only place that
// knows which inputs and filters fit.
StatusOr<WindowGeometry> SlideFilter(const WindowAttrs& attrs, const PartialShape& input,
                                     const PartialShape& filter);
// Has the gradient of the output the output's shape, and the filter an output channel?
Status CheckOutputGradient(const WindowGeometry& geometry, const PartialShape& out_backprop);

// A pooling. Windows along the channels do not overlap (the stride is the size), cover all of them,
// and are 1 x 1 along rows and columns.
StatusOr<WindowGeometry> SlidePool(const WindowAttrs& attrs, const PartialShape& input);

// The shape of rank 4 that int vector input i gives, as far as it is known.
StatusOr<PartialShape> ImageSizesInput(RuleContext* c, int i, absl::string_view name);

}  // namespace millrace

#endif  // MILLRACE_OPS_RULES_WINDOW_H_
