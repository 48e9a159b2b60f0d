// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_SUMMARY_IMAGE_SUMMARY_H_
#define MILLRACE_OPS_SUMMARY_IMAGE_SUMMARY_H_

// Images of a step for TensorBoard.

#include <cstdint>

#include "core/tensor.h"
#include "graph/node_builder.h"

namespace millrace {

struct ImageSummaryAttrs {
  int64_t max_images = 3;
  // Of pixels that are not finite; uint8, at least as many as the image has channels.
  Tensor bad_color = Tensor::Of<uint8_t>({255, 0, 0, 255});
};
// The first `max_images` of a batch `tensor` [n, height, width, channels] as PNGs in a serialized
// Summary, tagged `<tag>/image/0`, ... (`<tag>/image` where max_images is 1). Channels: 1 (grey), 3
// (RGB) or 4 (with alpha). uint8 is taken as it is; of floats each image is scaled so that 0 is 0
// and its maximum 255 or, when it has negative values, 0 is 128 and the largest magnitude 127 away.
inline Output ImageSummary(ScopeAt at, Output tag, Output tensor,
                           const ImageSummaryAttrs& attrs = {}) {
  return BuildOp(at, "ImageSummary", {tag, tensor}, "max_images", attrs.max_images, "bad_color",
                 attrs.bad_color);
}

}  // namespace millrace

#endif  // MILLRACE_OPS_SUMMARY_IMAGE_SUMMARY_H_
