// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/batch_norm.h"

#include <algorithm>

#include "ops/loops/number.h"

namespace millrace::math {
namespace {

// Sums of f(element index, channel) for every channel. Inner loops run over channels, or over the
// elements of a channel in lanes.
template <typename F>
void SumChannels(const ChannelLayout& l, int64_t begin, int64_t end, double* sum, F f) {
  std::fill_n(sum, l.channels, 0.0);
  if (l.inner == 1) {
    for (int64_t o = begin; o < end; ++o) {
      const int64_t at = o * l.channels;
      for (int64_t c = 0; c < l.channels; ++c) sum[c] += static_cast<double>(f(at + c, c));
    }
    return;
  }
  constexpr int64_t kLanes = 8;
  for (int64_t o = begin; o < end; ++o) {
    for (int64_t c = 0; c < l.channels; ++c) {
      const int64_t at = (o * l.channels + c) * l.inner;
      double lanes[kLanes] = {};
      int64_t i = 0;
      for (; i + kLanes <= l.inner; i += kLanes) {
        for (int64_t k = 0; k < kLanes; ++k) lanes[k] += static_cast<double>(f(at + i + k, c));
      }
      for (; i < l.inner; ++i) lanes[0] += static_cast<double>(f(at + i, c));
      for (const double lane : lanes) sum[c] += lane;
    }
  }
}

// f(element index, channel) for every element.
template <typename F>
void ForEachElement(const ChannelLayout& l, int64_t begin, int64_t end, F f) {
  for (int64_t o = begin; o < end; ++o) {
    if (l.inner == 1) {
      const int64_t at = o * l.channels;
      for (int64_t c = 0; c < l.channels; ++c) f(at + c, c);
      continue;
    }
    for (int64_t c = 0; c < l.channels; ++c) {
      const int64_t at = (o * l.channels + c) * l.inner;
      for (int64_t i = 0; i < l.inner; ++i) f(at + i, c);
    }
  }
}

template <typename T>
void Sum(const ChannelLayout& l, const void* x_memory, int64_t begin, int64_t end, double* sum) {
  const T* x = static_cast<const T*>(x_memory);
  SumChannels(l, begin, end, sum, [x](int64_t i, int64_t) { return Load(x[i]); });
}

template <typename T>
void Squares(const ChannelLayout& l, const void* x_memory, const float* mean, int64_t begin,
             int64_t end, double* sum) {
  const T* x = static_cast<const T*>(x_memory);
  SumChannels(l, begin, end, sum, [x, mean](int64_t i, int64_t c) {
    const float centered = Load(x[i]) - mean[c];
    return centered * centered;
  });
}

template <typename T>
void Normalize(const ChannelLayout& l, const void* x_memory, const float* mean, const float* scale,
               const float* offset, void* y_memory, int64_t begin, int64_t end) {
  const T* x = static_cast<const T*>(x_memory);
  T* y = static_cast<T*>(y_memory);
  ForEachElement(l, begin, end, [=](int64_t i, int64_t c) {
    y[i] = Store<T>((Load(x[i]) - mean[c]) * scale[c] + offset[c]);
  });
}

template <typename T>
void GradientSums(const ChannelLayout& l, const void* g_memory, const void* x_memory,
                  const float* mean, int64_t begin, int64_t end, double* sum, double* products) {
  const T* g = static_cast<const T*>(g_memory);
  const T* x = static_cast<const T*>(x_memory);
  SumChannels(l, begin, end, sum, [g](int64_t i, int64_t) { return Load(g[i]); });
  SumChannels(l, begin, end, products,
              [=](int64_t i, int64_t c) { return Load(g[i]) * (Load(x[i]) - mean[c]); });
}

template <typename T>
void Gradient(const ChannelLayout& l, const void* g_memory, const void* x_memory, const float* mean,
              const float* a, const float* b, const float* d, void* dx_memory, int64_t begin,
              int64_t end) {
  const T* g = static_cast<const T*>(g_memory);
  const T* x = static_cast<const T*>(x_memory);
  T* dx = static_cast<T*>(dx_memory);
  ForEachElement(l, begin, end, [=](int64_t i, int64_t c) {
    dx[i] = Store<T>(Load(g[i]) * a[c] + (Load(x[i]) - mean[c]) * b[c] + d[c]);
  });
}

template <typename T>
const BatchNormLoops* LoopsOf() {
  static constexpr BatchNormLoops kLoops = {&Sum<T>, &Squares<T>, &Normalize<T>, &GradientSums<T>,
                                            &Gradient<T>};
  return &kLoops;
}

}  // namespace

const BatchNormLoops* FindBatchNorm(DType dtype) {
  return LoopFor<TypeList<float, Half, Bfloat16>>(dtype, []<typename T> { return LoopsOf<T>(); });
}

}  // namespace millrace::math
