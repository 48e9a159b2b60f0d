// SPDX-License-Identifier: Apache-2.0
#include "ops/rules/window.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace millrace {
namespace {

using Ints = std::vector<int64_t>;

// Strides, dilations and window sizes stay below this, so that no product here overflows.
constexpr int64_t kMaxWindow = int64_t{1} << 31;

constexpr const char* kAxisNames[2] = {"rows", "columns"};

// Positions of rows, columns and channels in the data format.
struct Layout {
  size_t axes[2];
  size_t channels;
};
Layout LayoutOf(bool channels_first) {
  return channels_first ? Layout{{2, 3}, 1} : Layout{{1, 2}, 3};
}

Status SetExplicitPaddings(const Ints& values, WindowAttrs* attrs) {
  if (attrs->padding != Padding::kExplicit) {
    if (values.empty()) return absl::OkStatus();
    return InvalidArgument("explicit_paddings must be empty unless padding is EXPLICIT, got ",
                           values.size(), " values");
  }
  if (values.size() != 8) {
    return InvalidArgument("explicit_paddings must have 8 values, got ", values.size());
  }
  const Layout layout = LayoutOf(attrs->channels_first);
  for (size_t i = 0; i < 8; ++i) {
    const bool spatial = i / 2 == layout.axes[0] || i / 2 == layout.axes[1];
    if (values[i] < 0 || values[i] >= kMaxWindow || (!spatial && values[i] != 0)) {
      return InvalidArgument("explicit_paddings[", i, "] must be ",
                             spatial ? "in [0, 2147483647]" : "0 for batch and channels", ", got ",
                             values[i]);
    }
  }
  for (size_t axis = 0; axis < 2; ++axis) {
    attrs->axes[axis].explicit_before = values[2 * layout.axes[axis]];
    attrs->axes[axis].explicit_after = values[2 * layout.axes[axis] + 1];
  }
  return absl::OkStatus();
}

// The window, its sizes known as far as they are, over both axes of the input.
StatusOr<WindowGeometry> Slide(const WindowAttrs& window, const ImageShape& input) {
  WindowGeometry g{.window = window, .input = input, .output = input};
  for (size_t i = 0; i < 2; ++i) {
    MR_ASSIGN_OR_RETURN(const SlidResult slid,
                        SlideWindow(kAxisNames[i], input.size[i], window.axes[i], window.padding));
    g.output.size[i] = slid.output;
    g.pad_before[i] = slid.pad_before;
    g.pad_after[i] = slid.pad_after;
  }
  return g;
}

// How many channels become one; -1 where it is not known.
int64_t ChannelsOfWindow(const WindowAttrs& window) {
  return std::max(window.depth.size, window.depth.stride);  // they are equal
}

Status CheckDepth(const WindowAttrs& window, const ImageShape& image) {
  const size_t at = LayoutOf(window.channels_first).channels;
  const int64_t size = window.depth.size, stride = window.depth.stride;
  if (size >= 0 && stride >= 0 && size != stride) {
    return InvalidArgument("strides[", at, "], for the channels, must be ", size,
                           ", the ksize there, got ", stride);
  }
  const int64_t channels = ChannelsOfWindow(window);
  if (channels <= 1) return absl::OkStatus();
  for (const WindowAxis& axis : window.axes) {
    if (axis.size <= 1 && axis.stride <= 1) continue;
    return InvalidArgument("ksize[", at, "], for the channels, must be 1 where rows or columns ",
                           "have a window or stride, got ", channels);
  }
  if (image.channels < 0 || image.channels % channels == 0) return absl::OkStatus();
  return InvalidArgument("ksize[", at, "], for the channels, must divide the ", image.channels,
                         " channels of the input, got ", channels);
}

Status CheckRank4(absl::string_view name, const PartialShape& shape) {
  if (!shape.has_rank() || shape.rank() == 4) return absl::OkStatus();
  return InvalidArgument(name, " must have rank 4, got shape ", shape);
}

}  // namespace

StatusOr<SlidResult> SlideWindow(absl::string_view what, int64_t input, const WindowAxis& axis,
                                 Padding padding) {
  if (axis.size == 0 || axis.size >= kMaxWindow) {
    return InvalidArgument("window ", what, " must be in [1, 2147483647], got ", axis.size);
  }
  SlidResult result;
  if (input < 0 || axis.stride < 0) return result;
  const int64_t extent = axis.size < 0 ? -1 : (axis.size - 1) * axis.dilation + 1;
  if (padding == Padding::kSame) {
    result.output = input / axis.stride + (input % axis.stride != 0 ? 1 : 0);
    if (extent >= 0 && result.output > 0) {
      const int64_t total =
          std::max<int64_t>((result.output - 1) * axis.stride + extent - input, 0);
      result.pad_before = total / 2;
      result.pad_after = total - result.pad_before;
    }
    return result;
  }
  if (padding == Padding::kExplicit) {
    result.pad_before = axis.explicit_before;
    result.pad_after = axis.explicit_after;
  }
  if (extent < 0) return result;
  const int64_t padded = input + result.pad_before + result.pad_after;
  // Rounds towards zero: a window that is too large by less than two strides just has no output.
  result.output = (padded - extent + axis.stride) / axis.stride;
  if (result.output < 0) {
    return InvalidArgument("Computed output size would be negative: ", what, " of the window (",
                           extent, " with dilation) must not be larger than those of the input, ",
                           "got ", padded);
  }
  return result;
}

Status WindowAttrs::Set(int64_t WindowAxis::*field, absl::string_view name,
                        absl::Span<const int64_t> values) {
  if (values.size() != 4) {
    return InvalidArgument(name, " must have 4 values, got ", values.size());
  }
  for (size_t i = 0; i < 4; ++i) {
    if (values[i] < 1 || values[i] >= kMaxWindow) {
      return InvalidArgument(name, "[", i, "] must be in [1, 2147483647], got ", values[i]);
    }
  }
  const Layout layout = LayoutOf(channels_first);
  for (const size_t other : {size_t{0}, layout.channels}) {
    if (values[other] != 1 && !(may_pool_depth && other == layout.channels)) {
      return InvalidArgument(name, "[", other, "], for the ", other == 0 ? "batch" : "channels",
                             ", must be 1, got ", values[other]);
    }
  }
  for (size_t axis = 0; axis < 2; ++axis) axes[axis].*field = values[layout.axes[axis]];
  depth.*field = values[layout.channels];
  return absl::OkStatus();
}

Status WindowAttrs::Init(const NodeAttrs& attrs) {
  std::string format, padding_name;
  MR_RETURN_IF_ERROR(ReadAttrs(attrs, "data_format", &format, "padding", &padding_name));
  channels_first = format != "NHWC";
  padding = padding_name == "SAME"    ? Padding::kSame
            : padding_name == "VALID" ? Padding::kValid
                                      : Padding::kExplicit;
  constexpr std::pair<const char*, int64_t WindowAxis::*> kFields[] = {
      {"strides", &WindowAxis::stride},
      {"ksize", &WindowAxis::size},
      {"dilations", &WindowAxis::dilation}};
  for (const auto& [name, field] : kFields) {
    if (!HasAttr(attrs.node(), name)) continue;
    MR_ASSIGN_OR_RETURN(const Ints values, GetAttr<Ints>(attrs, name));
    MR_RETURN_IF_ERROR(Set(field, name, values));
  }
  if (!HasAttr(attrs.node(), "explicit_paddings")) return absl::OkStatus();
  MR_ASSIGN_OR_RETURN(const Ints paddings, GetAttr<Ints>(attrs, "explicit_paddings"));
  return SetExplicitPaddings(paddings, this);
}

ImageShape ToImageShape(const PartialShape& shape, bool channels_first) {
  if (!shape.has_rank()) return ImageShape();
  const Layout layout = LayoutOf(channels_first);
  const absl::Span<const int64_t> dims = shape.dims();
  return {dims[0], {dims[layout.axes[0]], dims[layout.axes[1]]}, dims[layout.channels]};
}

StatusOr<PartialShape> FromImageShape(const ImageShape& image, bool channels_first) {
  if (channels_first) {
    return PartialShape::Make({image.batch, image.channels, image.size[0], image.size[1]});
  }
  return PartialShape::Make({image.batch, image.size[0], image.size[1], image.channels});
}

StatusOr<WindowGeometry> SlideFilter(const WindowAttrs& attrs, const PartialShape& input,
                                     const PartialShape& filter) {
  MR_RETURN_IF_ERROR(CheckRank4("input", input));
  MR_RETURN_IF_ERROR(CheckRank4("filter", filter));
  const PartialShape sizes = filter.has_rank() ? filter : PartialShape::UnknownOfRank(4);
  const ImageShape image = ToImageShape(input, attrs.channels_first);
  const int64_t channels = sizes.dim(2);
  if (image.channels >= 0 && channels >= 0 && image.channels != channels &&
      (channels == 0 || image.channels % channels != 0)) {
    return InvalidArgument("filter expects ", channels, " input channels (filter shape ", filter,
                           "), got ", image.channels, " (input shape ", input, ")");
  }
  WindowAttrs window = attrs;
  for (size_t i = 0; i < 2; ++i) window.axes[i].size = sizes.dims()[i];
  MR_ASSIGN_OR_RETURN(WindowGeometry g, Slide(window, image));
  g.filter_channels = channels;
  g.output.channels = sizes.dim(3);
  return g;
}

Status CheckOutputGradient(const WindowGeometry& g, const PartialShape& out_backprop) {
  MR_RETURN_IF_ERROR(CheckRank4("out_backprop", out_backprop));
  if (g.output.channels == 0) {
    return InvalidArgument("filter must have at least 1 output channel, got 0");
  }
  MR_ASSIGN_OR_RETURN(const PartialShape expected, g.OutputShape());
  if (expected.IsCompatibleWith(out_backprop)) return absl::OkStatus();
  const auto& [rows, columns] = g.window.axes;
  return InvalidArgument(
      "Size of out_backprop doesn't match computed: out_backprop must have shape ", expected,
      " (input [", g.input.size[0], ",", g.input.size[1], "], filter [", rows.size, ",",
      columns.size, "], strides [", rows.stride, ",", columns.stride, "], dilations [",
      rows.dilation, ",", columns.dilation, "]), got ", out_backprop);
}

StatusOr<WindowGeometry> SlidePool(const WindowAttrs& attrs, const PartialShape& input) {
  MR_RETURN_IF_ERROR(CheckRank4("input", input));
  const ImageShape image = ToImageShape(input, attrs.channels_first);
  MR_RETURN_IF_ERROR(CheckDepth(attrs, image));
  MR_ASSIGN_OR_RETURN(WindowGeometry g, Slide(attrs, image));
  const int64_t channels = ChannelsOfWindow(attrs);
  if (channels < 0) {
    g.output.channels = -1;
  } else if (image.channels >= 0) {
    g.output.channels = image.channels / channels;
  }
  return g;
}

StatusOr<PartialShape> ImageSizesInput(RuleContext* c, int i, absl::string_view name) {
  if (!c->input(i).IsCompatibleWith(PartialShape{4})) {
    return InvalidArgument(name, " must be a vector of 4 elements, got shape ", c->input(i));
  }
  if (const Tensor* sizes = c->input_tensor(i)) {
    const StatusOr<Shape> shape = Shape::Make(sizes->ints().ToVector());
    if (!shape.ok()) return Prefixed(name, shape.status());
    return PartialShape(*shape);
  }
  MR_ASSIGN_OR_RETURN(const PartialShape shape, c->input_as_shape(i));
  return shape.has_rank() ? shape : PartialShape::UnknownOfRank(4);
}

}  // namespace millrace
