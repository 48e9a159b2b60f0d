// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_LAYERS_POOLING_H_
#define MILLRACE_LAYERS_POOLING_H_

// Pooling of images, [batch, rows, columns, channels]: layers without variables.
//
//   Output x = MaxPooling2D(model, images, 2);   // halves rows and columns
//
// Padding is "valid" or "same" and never counts. Shapes may be unknown.

#include <optional>
#include <string>

#include "graph/scope.h"
#include "layers/convolution.h"

namespace millrace {

struct PoolingAttrs {
  std::optional<Size2D> strides = std::nullopt;  // as the pool otherwise
  std::string padding = "valid";
};

// The largest value of each window.
Output MaxPooling2D(ScopeAt at, const Output& x, Size2D pool_size, const PoolingAttrs& attrs = {});
// The mean of each window.
Output AveragePooling2D(ScopeAt at, const Output& x, Size2D pool_size,
                        const PoolingAttrs& attrs = {});

// One value per image and channel: [batch, channels].
Output GlobalAveragePooling2D(ScopeAt at, const Output& x);
Output GlobalMaxPooling2D(ScopeAt at, const Output& x);

}  // namespace millrace

#endif  // MILLRACE_LAYERS_POOLING_H_
