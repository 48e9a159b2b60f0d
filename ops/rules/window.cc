// SPDX-License-Identifier: Apache-2.0
#include "ops/rules/window.h"

#include <algorithm>
#include <string>

#include "absl/base/attributes.h"
#include "graph/attr.h"

namespace millrace {
namespace {

// Strides, dilations and window sizes stay below this, so that no product here overflows.
constexpr int64_t kMaxWindow = int64_t{1} << 31;

// Not inlined: GCC 12 takes the comparison of a short string that was moved for a use of unset
// bytes.
ABSL_ATTRIBUTE_NOINLINE bool Is(const std::string& a, absl::string_view b) { return a == b; }

constexpr const char* kAxisNames[2] = {"rows", "columns"};

// Positions of rows, columns and channels in the data format.
struct Layout {
  int rows, columns, channels;
};
Layout LayoutOf(bool channels_first) { return channels_first ? Layout{2, 3, 1} : Layout{1, 2, 3}; }

// Four numbers in [1, 2^31), those of batch and channels 1; gives those of rows and columns.
StatusOr<std::array<int64_t, 2>> RowsAndColumns(absl::string_view name,
                                                absl::Span<const int64_t> values,
                                                bool channels_first) {
  if (values.size() != 4) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, " must have 4 values, got ", values.size()));
  }
  for (size_t i = 0; i < 4; ++i) {
    if (values[i] < 1 || values[i] >= kMaxWindow) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, "[", i, "] must be in [1, 2147483647], got ", values[i]));
    }
  }
  const Layout layout = LayoutOf(channels_first);
  for (const int other : {0, layout.channels}) {
    if (values[static_cast<size_t>(other)] != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(name, "[", other, "], for the ", other == 0 ? "batch" : "channels",
                       ", must be 1, got ", values[static_cast<size_t>(other)]));
    }
  }
  return std::array<int64_t, 2>{values[static_cast<size_t>(layout.rows)],
                                values[static_cast<size_t>(layout.columns)]};
}

Status SetExplicitPaddings(absl::Span<const int64_t> values, WindowAttrs* attrs) {
  if (attrs->padding != Padding::kExplicit) {
    if (values.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("explicit_paddings must be empty unless padding is EXPLICIT, got ",
                     values.size(), " values"));
  }
  if (values.size() != 8) {
    return absl::InvalidArgumentError(
        absl::StrCat("explicit_paddings must have 8 values, got ", values.size()));
  }
  const Layout layout = LayoutOf(attrs->channels_first);
  for (size_t i = 0; i < 8; ++i) {
    const int dim = static_cast<int>(i / 2);
    const bool spatial = dim == layout.rows || dim == layout.columns;
    if (values[i] < 0 || values[i] >= kMaxWindow || (!spatial && values[i] != 0)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "explicit_paddings[", i, "] must be ",
          spatial ? "in [0, 2147483647]" : "0 for batch and channels", ", got ", values[i]));
    }
  }
  const int dims[2] = {layout.rows, layout.columns};
  for (size_t axis = 0; axis < 2; ++axis) {
    const size_t at = 2 * static_cast<size_t>(dims[axis]);
    attrs->axes[axis].explicit_before = values[at];
    attrs->axes[axis].explicit_after = values[at + 1];
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<SlidResult> SlideWindow(absl::string_view what, int64_t input, const WindowAxis& axis,
                                 Padding padding) {
  if (axis.size == 0 || axis.size >= kMaxWindow) {
    return absl::InvalidArgumentError(
        absl::StrCat("window ", what, " must be in [1, 2147483647], got ", axis.size));
  }
  SlidResult result;
  if (input < 0) return result;
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
  // Rounds towards zero: a window that is too large by less than a stride just has no output.
  result.output = (padded - extent + axis.stride) / axis.stride;
  if (padded - extent + axis.stride < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("Computed output size would be negative: ", what, " of the window (", extent,
                     " with dilation) must not be larger than those of the input, got ", padded));
  }
  return result;
}

Status SetStrides(absl::Span<const int64_t> strides, WindowAttrs* attrs) {
  MR_ASSIGN_OR_RETURN(const auto values, RowsAndColumns("strides", strides, attrs->channels_first));
  for (size_t i = 0; i < 2; ++i) attrs->axes[i].stride = values[i];
  return absl::OkStatus();
}

Status SetWindowSizes(absl::Span<const int64_t> ksize, WindowAttrs* attrs) {
  MR_ASSIGN_OR_RETURN(const auto values, RowsAndColumns("ksize", ksize, attrs->channels_first));
  for (size_t i = 0; i < 2; ++i) attrs->axes[i].size = values[i];
  return absl::OkStatus();
}

StatusOr<WindowAttrs> ReadWindowAttrs(const tensorflow::NodeDef& node) {
  WindowAttrs attrs;
  MR_ASSIGN_OR_RETURN(const std::string format, GetAttr<std::string>(node, "data_format"));
  attrs.channels_first = Is(format, "NCHW");
  if (!attrs.channels_first && !Is(format, "NHWC")) {
    return absl::InvalidArgumentError(
        absl::StrCat("data_format must be NHWC or NCHW, got ", format));
  }
  MR_ASSIGN_OR_RETURN(const std::string padding, GetAttr<std::string>(node, "padding"));
  if (Is(padding, "SAME")) {
    attrs.padding = Padding::kSame;
  } else if (Is(padding, "VALID")) {
    attrs.padding = Padding::kValid;
  } else if (Is(padding, "EXPLICIT")) {
    attrs.padding = Padding::kExplicit;
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("padding must be SAME, VALID or EXPLICIT, got ", padding));
  }
  using Ints = std::vector<int64_t>;
  if (HasAttr(node, "strides")) {
    MR_ASSIGN_OR_RETURN(const Ints strides, GetAttr<Ints>(node, "strides"));
    MR_RETURN_IF_ERROR(SetStrides(strides, &attrs));
  }
  if (HasAttr(node, "ksize")) {
    MR_ASSIGN_OR_RETURN(const Ints ksize, GetAttr<Ints>(node, "ksize"));
    MR_RETURN_IF_ERROR(SetWindowSizes(ksize, &attrs));
  }
  if (HasAttr(node, "dilations")) {
    MR_ASSIGN_OR_RETURN(const Ints dilations, GetAttr<Ints>(node, "dilations"));
    MR_ASSIGN_OR_RETURN(const auto values,
                        RowsAndColumns("dilations", dilations, attrs.channels_first));
    for (size_t i = 0; i < 2; ++i) attrs.axes[i].dilation = values[i];
  }
  if (HasAttr(node, "explicit_paddings")) {
    MR_ASSIGN_OR_RETURN(const Ints paddings, GetAttr<Ints>(node, "explicit_paddings"));
    MR_RETURN_IF_ERROR(SetExplicitPaddings(paddings, &attrs));
  }
  return attrs;
}

ImageShape ToImageShape(const PartialShape& shape, bool channels_first) {
  if (!shape.has_rank()) return ImageShape();
  const Layout layout = LayoutOf(channels_first);
  return ImageShape{shape.dim(0),
                    {shape.dim(layout.rows), shape.dim(layout.columns)},
                    shape.dim(layout.channels)};
}

StatusOr<PartialShape> FromImageShape(const ImageShape& image, bool channels_first) {
  if (channels_first) {
    return PartialShape::Make({image.batch, image.channels, image.size[0], image.size[1]});
  }
  return PartialShape::Make({image.batch, image.size[0], image.size[1], image.channels});
}

namespace {

Status CheckRank4(absl::string_view name, const PartialShape& shape) {
  if (!shape.has_rank() || shape.rank() == 4) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " must have rank 4, got shape ", shape.ToString()));
}

}  // namespace

StatusOr<ConvGeometry> SlideFilter(const WindowAttrs& attrs, const PartialShape& input,
                                   const PartialShape& filter) {
  MR_RETURN_IF_ERROR(CheckRank4("input", input));
  MR_RETURN_IF_ERROR(CheckRank4("filter", filter));
  ConvGeometry g;
  g.input = ToImageShape(input, attrs.channels_first);
  if (filter.has_rank()) {
    g.filter_size = {filter.dim(0), filter.dim(1)};
    g.filter_channels = filter.dim(2);
    g.output.channels = filter.dim(3);
  }
  if (g.input.channels >= 0 && g.filter_channels >= 0 && g.input.channels != g.filter_channels &&
      (g.filter_channels == 0 || g.input.channels % g.filter_channels != 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "filter expects ", g.filter_channels, " input channels (filter shape ", filter.ToString(),
        "), got ", g.input.channels, " (input shape ", input.ToString(), ")"));
  }
  g.output.batch = g.input.batch;
  for (size_t i = 0; i < 2; ++i) {
    WindowAxis axis = attrs.axes[i];
    axis.size = g.filter_size[i];
    MR_ASSIGN_OR_RETURN(const SlidResult slid,
                        SlideWindow(kAxisNames[i], g.input.size[i], axis, attrs.padding));
    g.output.size[i] = slid.output;
    g.pad_before[i] = slid.pad_before;
    g.pad_after[i] = slid.pad_after;
  }
  return g;
}

Status CheckOutputGradient(const WindowAttrs& attrs, const ConvGeometry& g,
                           const PartialShape& out_backprop) {
  MR_RETURN_IF_ERROR(CheckRank4("out_backprop", out_backprop));
  if (g.output.channels == 0) {
    return absl::InvalidArgumentError("filter must have at least 1 output channel, got 0");
  }
  MR_ASSIGN_OR_RETURN(const PartialShape expected, FromImageShape(g.output, attrs.channels_first));
  if (!expected.IsCompatibleWith(out_backprop)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "Size of out_backprop doesn't match computed: out_backprop must have shape ",
        expected.ToString(), " (input [", g.input.size[0], ",", g.input.size[1], "], filter [",
        g.filter_size[0], ",", g.filter_size[1], "], strides [", attrs.axes[0].stride, ",",
        attrs.axes[1].stride, "], dilations [", attrs.axes[0].dilation, ",", attrs.axes[1].dilation,
        "]), got ", out_backprop.ToString()));
  }
  return absl::OkStatus();
}

StatusOr<PoolGeometry> SlidePool(const WindowAttrs& attrs, const PartialShape& input) {
  MR_RETURN_IF_ERROR(CheckRank4("input", input));
  PoolGeometry g;
  g.input = ToImageShape(input, attrs.channels_first);
  g.output.batch = g.input.batch;
  g.output.channels = g.input.channels;
  for (size_t i = 0; i < 2; ++i) {
    const int64_t size = g.input.size[i];
    if (attrs.padding == Padding::kValid && size >= 0 && attrs.axes[i].size > size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "ksize must not be larger than the input without padding, got ", attrs.axes[i].size, " ",
          kAxisNames[i], " for input shape ", input.ToString()));
    }
    MR_ASSIGN_OR_RETURN(const SlidResult slid,
                        SlideWindow(kAxisNames[i], size, attrs.axes[i], attrs.padding));
    g.output.size[i] = slid.output;
    g.pad_before[i] = slid.pad_before;
  }
  return g;
}

}  // namespace millrace
