// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/bias.h"

#include <algorithm>
#include <complex>
#include <vector>

#include "ops/loops/number.h"

namespace millrace::math {
namespace {

template <typename T>
T Plus(T a, T b) {
  return Store<T>(WrapAdd(Load(a), Load(b)));
}

template <typename T>
void AddLast(const void* value_memory, const void* bias_memory, void* out_memory, int64_t rows,
             int64_t channels) {
  const T* value = static_cast<const T*>(value_memory);
  const T* bias = static_cast<const T*>(bias_memory);
  T* out = static_cast<T*>(out_memory);
  for (int64_t r = 0; r < rows; ++r, value += channels, out += channels) {
    for (int64_t c = 0; c < channels; ++c) out[c] = Plus(value[c], bias[c]);
  }
}

template <typename T>
void AddMiddle(const void* value_memory, const void* bias_memory, void* out_memory, int64_t begin,
               int64_t end, int64_t channels, int64_t plane) {
  for (int64_t p = begin; p < end; ++p) {
    const T* value = static_cast<const T*>(value_memory) + p * plane;
    T* out = static_cast<T*>(out_memory) + p * plane;
    const T bias = static_cast<const T*>(bias_memory)[p % channels];
    for (int64_t i = 0; i < plane; ++i) out[i] = Plus(value[i], bias);
  }
}

// Sums of at most this many elements are made one after the other.
constexpr int64_t kBlock = 512;
// Narrow rows are summed several at a time, as one row of at least this many elements.
constexpr int64_t kWideRow = 64;

template <typename T>
void SumLast(const void* value_memory, int64_t rows, int64_t channels, void* sums_memory) {
  using W = Wide<T>;
  const T* value = static_cast<const T*>(value_memory);
  W* sums = static_cast<W*>(sums_memory);
  std::fill_n(sums, channels, W());
  const int64_t together = std::max<int64_t>(1, kWideRow / channels);
  const int64_t width = together * channels;
  const int64_t groups = rows / together;
  if (together == 1 && rows <= kBlock) {
    for (int64_t r = 0; r < rows; ++r, value += channels) {
      for (int64_t c = 0; c < channels; ++c) sums[c] = WrapAdd(sums[c], Load(value[c]));
    }
    return;
  }
  std::vector<W> block(static_cast<size_t>(width));
  for (int64_t from = 0; from < groups; from += kBlock) {
    const int64_t to = std::min(from + kBlock, groups);
    std::fill(block.begin(), block.end(), W());
    for (int64_t g = from; g < to; ++g) {
      const T* row = value + g * width;
      W* b = block.data();
      for (int64_t i = 0; i < width; ++i) b[i] = WrapAdd(b[i], Load(row[i]));
    }
    for (int64_t k = 0; k < together; ++k) {
      const W* b = block.data() + k * channels;
      for (int64_t c = 0; c < channels; ++c) sums[c] = WrapAdd(sums[c], b[c]);
    }
  }
  for (int64_t r = groups * together; r < rows; ++r) {
    for (int64_t c = 0; c < channels; ++c) {
      sums[c] = WrapAdd(sums[c], Load(value[r * channels + c]));
    }
  }
}

template <typename T>
void SumMiddle(const void* value_memory, int64_t batch, int64_t channels, int64_t plane,
               int64_t begin, int64_t end, void* sums_memory) {
  using W = Wide<T>;
  W* sums = static_cast<W*>(sums_memory);
  constexpr int64_t kLanes = 16;
  for (int64_t c = begin; c < end; ++c) {
    W sum = W();
    for (int64_t n = 0; n < batch; ++n) {
      const T* value = static_cast<const T*>(value_memory) + (n * channels + c) * plane;
      for (int64_t from = 0; from < plane; from += kBlock * kLanes) {
        const int64_t to = std::min(from + kBlock * kLanes, plane);
        W lanes[kLanes] = {};
        int64_t i = from;
        for (; i + kLanes <= to; i += kLanes) {
          for (int64_t l = 0; l < kLanes; ++l) lanes[l] = WrapAdd(lanes[l], Load(value[i + l]));
        }
        for (; i < to; ++i) lanes[0] = WrapAdd(lanes[0], Load(value[i]));
        for (const W lane : lanes) sum = WrapAdd(sum, lane);
      }
    }
    sums[c] = sum;
  }
}

template <typename T>
void Finish(const void* sums_memory, int64_t blocks, int64_t channels, void* out_memory) {
  using W = Wide<T>;
  const W* sums = static_cast<const W*>(sums_memory);
  T* out = static_cast<T*>(out_memory);
  for (int64_t c = 0; c < channels; ++c) {
    W sum = W();
    for (int64_t b = 0; b < blocks; ++b) sum = WrapAdd(sum, sums[b * channels + c]);
    out[c] = Store<T>(sum);
  }
}

template <typename T>
const BiasLoops* LoopsOf() {
  static constexpr BiasLoops kLoops = {&AddLast<T>,   &AddMiddle<T>, &SumLast<T>,
                                       &SumMiddle<T>, &Finish<T>,    sizeof(Wide<T>)};
  return &kLoops;
}

}  // namespace

const BiasLoops* FindBias(DType dtype) {
  return LoopFor<NumberTypes>(dtype, []<typename T> { return LoopsOf<Signless<T>>(); });
}

}  // namespace millrace::math
