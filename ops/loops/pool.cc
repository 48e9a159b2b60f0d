// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/pool.h"

#include <algorithm>
#include <type_traits>

#include "ops/loops/number.h"

namespace millrace::math {
namespace {

// Channels that are worked on together, in arrays on the stack.
constexpr int64_t kChunk = 64;

// The cells of the image that the window of output o covers along one axis.
struct Cells {
  int64_t begin, end;
};
Cells CellsOf(int64_t o, int64_t stride, int64_t pad, int64_t window, int64_t size) {
  const int64_t from = o * stride - pad;
  return {std::max<int64_t>(from, 0), std::min(from + window, size)};
}

// Calls f(pixel, k) for the k-th cell of the window, by rows and then columns.
template <typename F>
inline void ForEachCell(const PoolShape& s, Cells rows, Cells cols, F f) {
  int32_t k = 0;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    for (int64_t c = cols.begin; c < cols.end; ++c) f(r * s.in_cols + c, k++);
  }
}

Cells RowsOf(const PoolShape& s, int64_t r) {
  return CellsOf(r, s.stride_rows, s.pad_top, s.window_rows, s.in_rows);
}
Cells ColsOf(const PoolShape& s, int64_t c) {
  return CellsOf(c, s.stride_cols, s.pad_left, s.window_cols, s.in_cols);
}

// Which cell of the window is largest, for n <= kChunk channels from x on.
template <typename T>
inline void FindLargest(const PoolShape& s, Cells rows, Cells cols, const T* x, int64_t n,
                        int32_t* which) {
  Wide<T> best[kChunk];
  ForEachCell(s, rows, cols, [&](int64_t pixel, int32_t k) {
    const T* in = x + pixel * s.channels;
    if (k == 0) {
      for (int64_t i = 0; i < n; ++i) best[i] = Load(in[i]);
      for (int64_t i = 0; i < n; ++i) which[i] = 0;
      return;
    }
    for (int64_t i = 0; i < n; ++i) {
      const Wide<T> v = Load(in[i]);
      const bool greater = v > best[i];
      best[i] = greater ? v : best[i];
      which[i] = greater ? k : which[i];
    }
  });
}

template <typename T>
void Max(const PoolShape& s, const void* input, void* output, int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const Cells rows = RowsOf(s, r);
    for (int64_t c = 0; c < s.out_cols; ++c) {
      const Cells cols = ColsOf(s, c);
      T* out = static_cast<T*>(output) + (r * s.out_cols + c) * s.channels;
      for (int64_t from = 0; from < s.channels; from += kChunk) {
        const int64_t n = std::min(kChunk, s.channels - from);
        const T* x = static_cast<const T*>(input) + from;
        Wide<T> best[kChunk];
        ForEachCell(s, rows, cols, [&](int64_t pixel, int32_t k) {
          const T* in = x + pixel * s.channels;
          if (k == 0) {
            for (int64_t i = 0; i < n; ++i) best[i] = Load(in[i]);
            return;
          }
          for (int64_t i = 0; i < n; ++i) {
            const Wide<T> v = Load(in[i]);
            best[i] = v > best[i] ? v : best[i];
          }
        });
        for (int64_t i = 0; i < n; ++i) out[from + i] = Store<T>(best[i]);
      }
    }
  }
}

// Zeros channels [begin, end) of every pixel.
template <typename T>
void ZeroChannels(const PoolShape& s, T* result, int64_t begin, int64_t end) {
  const int64_t pixels = s.in_rows * s.in_cols;
  if (begin == 0 && end == s.channels) {
    std::fill_n(result, pixels * s.channels, T());
    return;
  }
  for (int64_t p = 0; p < pixels; ++p) {
    std::fill(result + p * s.channels + begin, result + p * s.channels + end, T());
  }
}

// kAdds: windows overlap, so what they give adds up; otherwise each pixel is written at most once.
template <typename T, bool kAdds>
void GiveToLargest(const PoolShape& s, const void* input, const void* grad, T* result,
                   int64_t begin, int64_t end) {
  for (int64_t r = 0; r < s.out_rows; ++r) {
    const Cells rows = RowsOf(s, r);
    for (int64_t c = 0; c < s.out_cols; ++c) {
      const Cells cols = ColsOf(s, c);
      const T* g = static_cast<const T*>(grad) + (r * s.out_cols + c) * s.channels;
      for (int64_t from = begin; from < end; from += kChunk) {
        const int64_t n = std::min(kChunk, end - from);
        int32_t which[kChunk];
        FindLargest(s, rows, cols, static_cast<const T*>(input) + from, n, which);
        ForEachCell(s, rows, cols, [&](int64_t pixel, int32_t k) {
          T* to = result + pixel * s.channels + from;
          for (int64_t i = 0; i < n; ++i) {
            if constexpr (kAdds) {
              const Wide<T> given = which[i] == k ? Load(g[from + i]) : Wide<T>();
              to[i] = Store<T>(WrapAdd(Load(to[i]), given));
            } else {
              to[i] = which[i] == k ? g[from + i] : T();
            }
          }
        });
      }
    }
  }
}

template <typename T>
void MaxGradient(const PoolShape& s, const void* input, const void* grad, void* result_memory,
                 int64_t begin, int64_t end) {
  T* result = static_cast<T*>(result_memory);
  const bool overlap = s.stride_rows < s.window_rows || s.stride_cols < s.window_cols;
  const bool tiled = s.stride_rows == s.window_rows && s.stride_cols == s.window_cols &&
                     RowsOf(s, s.out_rows - 1).end == s.in_rows &&
                     ColsOf(s, s.out_cols - 1).end == s.in_cols;
  if (!tiled) ZeroChannels(s, result, begin, end);
  if (overlap) {
    GiveToLargest<T, true>(s, input, grad, result, begin, end);
  } else {
    GiveToLargest<T, false>(s, input, grad, result, begin, end);
  }
}

template <typename T>
void MaxSelect(const PoolShape& s, const void* input, const void* values, void* output,
               int64_t begin, int64_t end) {
  for (int64_t r = begin; r < end; ++r) {
    const Cells rows = RowsOf(s, r);
    for (int64_t c = 0; c < s.out_cols; ++c) {
      const Cells cols = ColsOf(s, c);
      T* out = static_cast<T*>(output) + (r * s.out_cols + c) * s.channels;
      for (int64_t from = 0; from < s.channels; from += kChunk) {
        const int64_t n = std::min(kChunk, s.channels - from);
        int32_t which[kChunk];
        FindLargest(s, rows, cols, static_cast<const T*>(input) + from, n, which);
        ForEachCell(s, rows, cols, [&](int64_t pixel, int32_t k) {
          const T* v = static_cast<const T*>(values) + pixel * s.channels + from;
          for (int64_t i = 0; i < n; ++i) out[from + i] = which[i] == k ? v[i] : out[from + i];
        });
      }
    }
  }
}

template <typename T>
void Mean(const PoolShape& s, const void* input, void* output, int64_t begin, int64_t end) {
  using W = Wide<T>;
  for (int64_t r = begin; r < end; ++r) {
    const Cells rows = RowsOf(s, r);
    for (int64_t c = 0; c < s.out_cols; ++c) {
      const Cells cols = ColsOf(s, c);
      const W count =
          static_cast<W>(std::max<int64_t>(1, (rows.end - rows.begin) * (cols.end - cols.begin)));
      T* out = static_cast<T*>(output) + (r * s.out_cols + c) * s.channels;
      for (int64_t from = 0; from < s.channels; from += kChunk) {
        const int64_t n = std::min(kChunk, s.channels - from);
        const T* x = static_cast<const T*>(input) + from;
        W sum[kChunk] = {};
        ForEachCell(s, rows, cols, [&](int64_t pixel, int32_t) {
          const T* in = x + pixel * s.channels;
          for (int64_t i = 0; i < n; ++i) sum[i] += Load(in[i]);
        });
        for (int64_t i = 0; i < n; ++i) out[from + i] = Store<T>(sum[i] / count);
      }
    }
  }
}

template <typename T>
void MeanGradient(const PoolShape& s, const void* grad, void* result_memory, int64_t begin,
                  int64_t end) {
  using W = Wide<T>;
  T* result = static_cast<T*>(result_memory);
  ZeroChannels(s, result, begin, end);
  for (int64_t r = 0; r < s.out_rows; ++r) {
    const Cells rows = RowsOf(s, r);
    for (int64_t c = 0; c < s.out_cols; ++c) {
      const Cells cols = ColsOf(s, c);
      const W share = W(1) / static_cast<W>(std::max<int64_t>(
                                 1, (rows.end - rows.begin) * (cols.end - cols.begin)));
      const T* g = static_cast<const T*>(grad) + (r * s.out_cols + c) * s.channels;
      ForEachCell(s, rows, cols, [&](int64_t pixel, int32_t) {
        T* to = result + pixel * s.channels;
        for (int64_t i = begin; i < end; ++i) to[i] = Store<T>(Load(to[i]) + Load(g[i]) * share);
      });
    }
  }
}

template <typename T>
const PoolLoops* LoopsOf() {
  if constexpr (std::is_integral_v<T>) {
    static constexpr PoolLoops kLoops = {&Max<T>, &MaxGradient<T>, &MaxSelect<T>, nullptr, nullptr};
    return &kLoops;
  } else {
    static constexpr PoolLoops kLoops = {&Max<T>, &MaxGradient<T>, &MaxSelect<T>, &Mean<T>,
                                         &MeanGradient<T>};
    return &kLoops;
  }
}

}  // namespace

const PoolLoops* FindPool(DType dtype) {
  return LoopFor<RealTypes>(dtype, []<typename T> { return LoopsOf<T>(); });
}

}  // namespace millrace::math
