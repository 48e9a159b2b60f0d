// SPDX-License-Identifier: Apache-2.0
#include "ops/summary/image_summary.h"

#include <png.h>

#include <algorithm>
#include <climits>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "proto/summary.pb.h"
#include "runtime/kernel.h"

namespace millrace {
namespace {

using Pixels = std::vector<uint8_t>;

struct ImageSummaryRule {
  int64_t max_images = 3;
  Tensor bad_color;

  Status Init(const NodeAttrs& attrs) {
    MR_RETURN_IF_ERROR(ReadAttrs(attrs, "max_images", &max_images, "bad_color", &bad_color));
    if (bad_color.dtype() != DT_UINT8 || bad_color.rank() != 1) {
      return InvalidArgument("bad_color must be a vector of uint8, got ", bad_color.dtype(),
                             bad_color.shape());
    }
    return absl::OkStatus();
  }

  StatusOr<PartialShape> operator()(RuleContext* c) const {
    MR_RETURN_IF_ERROR(c->InputWithRank(0, 0, "tag").status());
    MR_ASSIGN_OR_RETURN(const PartialShape images, c->InputWithRank(1, 4, "tensor"));
    const int64_t channels = images.dim(3);
    if (channels >= 0 && channels != 1 && channels != 3 && channels != 4) {
      return InvalidArgument("tensor must have 1, 3 or 4 channels, got shape ", images);
    }
    if (channels > bad_color.num_elements()) {
      return InvalidArgument("bad_color must have a value for each of ", channels,
                             " channels, got ", bad_color.num_elements());
    }
    for (const int i : {1, 2}) {
      if (images.dim(i) == 0) {
        return InvalidArgument("images must have pixels, got shape ", images);
      }
    }
    return PartialShape::Scalar();
  }
};

struct ImageSize {
  int64_t height, width, channels;
  size_t num_pixels() const { return static_cast<size_t>(height * width); }
  size_t num_values() const { return num_pixels() * static_cast<size_t>(channels); }
};

// Numbers in which images are scaled: halves have too few digits for 255 steps.
template <typename T>
using ScaleType = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <typename T>
ScaleType<T> ScalableOf(T value) {
  if constexpr (std::is_same_v<T, Half>) {
    return ToFloat(value);
  } else {
    return value;
  }
}

template <typename T>
Pixels Scaled(const T* values, const ImageSize& size, const uint8_t* bad_color) {
  using S = ScaleType<T>;
  constexpr S kNothing = static_cast<S>(1e-6);  // an image of less is black
  const size_t channels = static_cast<size_t>(size.channels);
  const auto is_finite = [&](size_t pixel) {
    for (size_t i = 0; i < channels; ++i) {
      if (!std::isfinite(ScalableOf(values[pixel * channels + i]))) return false;
    }
    return true;
  };
  S low = std::numeric_limits<S>::infinity(), high = -low;
  for (size_t pixel = 0; pixel < size.num_pixels(); ++pixel) {
    if (!is_finite(pixel)) continue;
    for (size_t i = 0; i < channels; ++i) {
      const S value = ScalableOf(values[pixel * channels + i]);
      low = std::min(low, value);
      high = std::max(high, value);
    }
  }
  const bool is_signed = low < 0;
  const S magnitude = is_signed ? std::max(std::abs(low), std::abs(high)) : high;
  const S range = is_signed ? S{127} : S{255}, offset = is_signed ? S{128} : S{0};
  const S scale = magnitude < kNothing ? S{0} : range / magnitude;
  Pixels pixels(size.num_values());
  for (size_t pixel = 0; pixel < size.num_pixels(); ++pixel) {
    uint8_t* out = pixels.data() + pixel * channels;
    if (!is_finite(pixel)) {
      std::copy_n(bad_color, channels, out);
      continue;
    }
    for (size_t i = 0; i < channels; ++i) {
      out[i] = static_cast<uint8_t>(ScalableOf(values[pixel * channels + i]) * scale + offset);
    }
  }
  return pixels;
}

StatusOr<std::string> EncodePng(const Pixels& pixels, const ImageSize& size) {
  png_image image = {};
  image.version = PNG_IMAGE_VERSION;
  image.width = static_cast<png_uint_32>(size.width);
  image.height = static_cast<png_uint_32>(size.height);
  image.format = size.channels == 1   ? PNG_FORMAT_GRAY
                 : size.channels == 3 ? PNG_FORMAT_RGB
                                      : PNG_FORMAT_RGBA;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(image);
  std::string png(bytes, '\0');
  const int written = png_image_write_to_memory(&image, png.data(), &bytes, /*convert_to_8_bit=*/0,
                                                pixels.data(), /*row_stride=*/0, nullptr);
  if (written == 0) return Internal("libpng does not write the image: ", image.message);
  png.resize(bytes);
  return png;
}

template <typename T>
Status AddImages(const Tensor& images, const std::string& tag, const ImageSummaryRule& rule,
                 tensorflow::Summary* summary) {
  const ImageSize size = {images.dim(1), images.dim(2), images.dim(3)};
  if (size.height > INT_MAX || size.width > INT_MAX || size.num_values() > INT_MAX) {
    return InvalidArgument("an image must have fewer than 2^31 values, got shape ", images.shape());
  }
  const T* values = images.raw<T>().data();
  for (int64_t i = 0; i < std::min(images.dim(0), rule.max_images); ++i) {
    Pixels pixels;
    if constexpr (std::is_same_v<T, uint8_t>) {
      pixels.assign(values, values + size.num_values());
    } else {
      pixels = Scaled(values, size, rule.bad_color.raw<uint8_t>().data());
    }
    values += size.num_values();
    MR_ASSIGN_OR_RETURN(std::string png, EncodePng(pixels, size));
    tensorflow::Summary::Value* value = summary->add_value();
    value->set_tag(rule.max_images == 1 ? absl::StrCat(tag, "/image")
                                        : absl::StrCat(tag, "/image/", i));
    tensorflow::Summary::Image* image = value->mutable_image();
    image->set_height(static_cast<int32_t>(size.height));
    image->set_width(static_cast<int32_t>(size.width));
    image->set_colorspace(static_cast<int32_t>(size.channels));
    image->set_encoded_image_string(std::move(png));
  }
  return absl::OkStatus();
}

template <typename T>
Status RunImageSummary(KernelContext* ctx, const ImageSummaryRule& rule) {
  tensorflow::Summary summary;
  MR_RETURN_IF_ERROR(
      AddImages<T>(ctx->input(1), ctx->input(0).raw_scalar<std::string>(), rule, &summary));
  MR_ASSIGN_OR_RETURN(Tensor * output, ctx->AllocateOutput(0));
  if (!summary.SerializeToString(output->mutable_raw<std::string>().data())) {
    return absl::ResourceExhaustedError("a summary must be smaller than 2 GiB, got more");
  }
  return absl::OkStatus();
}

const OpRegistration kImageSummary =
    OpSpec("ImageSummary", "tag: string, tensor: T -> summary: string",
           "max_images: int >= 1 = 3; T: {uint8, float, half, double} = DT_FLOAT; "
           "bad_color: tensor = { dtype: DT_UINT8 tensor_shape { dim { size: 4 } } "
           "int_val: 255 int_val: 0 int_val: 0 int_val: 255 }")
        .With(RuledKernelsFor<ImageSummaryRule, uint8_t, float, Half, double>(
            "T", []<typename T>() { return &RunImageSummary<T>; }))
        .NotDifferentiable();

}  // namespace
}  // namespace millrace
