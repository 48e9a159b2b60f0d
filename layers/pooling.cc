// SPDX-License-Identifier: Apache-2.0
#include "layers/pooling.h"

#include "absl/strings/ascii.h"
#include "layers/weight.h"
#include "ops/math/reduction.h"
#include "ops/nn/pool.h"

namespace millrace {
namespace {

using PoolBuilder = Output (*)(ScopeAt at, Output input, const PoolAttrs& attrs);

Output Pooling(const ScopeAt& at, const char* layer, const char* default_name, PoolBuilder build,
               const Output& x, const Size2D& pool_size, const PoolingAttrs& attrs) {
  if (!CheckLayerInput(at, layer, default_name, x, 4, 4)) return Output();
  const std::string padding = absl::AsciiStrToUpper(attrs.padding);
  if (padding != "VALID" && padding != "SAME") {
    LayerError(at, layer, default_name, "padding must be 'valid' or 'same', got '", attrs.padding,
               "'");
    return Output();
  }
  // The op checks the sizes.
  const Size2D strides = attrs.strides.value_or(pool_size);
  const Scope scope = at.scope.CompositeScope(default_name);
  return build(ScopeAt(scope, at.where), x,
               {.ksize = {1, pool_size.rows, pool_size.columns, 1},
                .strides = {1, strides.rows, strides.columns, 1},
                .padding = padding});
}

Output GlobalPooling(const ScopeAt& at, const char* layer, const char* default_name,
                     const AxesReductionBuilder& reduce, const Output& x) {
  if (!CheckLayerInput(at, layer, default_name, x, 4, 4)) return Output();
  const Scope scope = at.scope.CompositeScope(default_name);
  return reduce(ScopeAt(scope, at.where), x, {1, 2});
}

}  // namespace

Output MaxPooling2D(ScopeAt at, const Output& x, Size2D pool_size, const PoolingAttrs& attrs) {
  return Pooling(at, "MaxPooling2D", "max_pooling2d", MaxPool, x, pool_size, attrs);
}
Output AveragePooling2D(ScopeAt at, const Output& x, Size2D pool_size, const PoolingAttrs& attrs) {
  return Pooling(at, "AveragePooling2D", "average_pooling2d", AvgPool, x, pool_size, attrs);
}

Output GlobalAveragePooling2D(ScopeAt at, const Output& x) {
  return GlobalPooling(at, "GlobalAveragePooling2D", "global_average_pooling2d", ReduceMean, x);
}
Output GlobalMaxPooling2D(ScopeAt at, const Output& x) {
  return GlobalPooling(at, "GlobalMaxPooling2D", "global_max_pooling2d", ReduceMax, x);
}

}  // namespace millrace
