// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/leaky_relu.h"

#include "ops/loops/number.h"

namespace millrace::math {
namespace {

template <typename T>
void LeakyRelu(const void* g_memory, const void* x_memory, float alpha, void* z_memory, int64_t n) {
  using W = Wide<T>;
  const T* g = static_cast<const T*>(g_memory);
  const T* x = static_cast<const T*>(x_memory);
  T* z = static_cast<T*>(z_memory);
  const W slope = static_cast<W>(alpha);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const W v = Load(g[i]);
    z[i] = Store<T>(Load(x[i]) > W(0) ? v : slope * v);
  }
}

}  // namespace

LeakyReluFn FindLeakyRelu(DType dtype) {
  return LoopFor<FloatTypes>(dtype, []<typename T>() -> LeakyReluFn { return &LeakyRelu<T>; });
}

}  // namespace millrace::math
