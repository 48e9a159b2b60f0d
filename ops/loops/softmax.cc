// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/softmax.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "ops/loops/number.h"
#include "ops/loops/unary.h"

namespace millrace::math {
namespace {

// Rows are worked on in blocks of about this many elements: they stay in the first cache, and one
// call of the vectorised exp serves many short rows.
constexpr int64_t kBlock = 4096;
constexpr int64_t kLanes = 16;

template <typename T>
Wide<T> Largest(const T* x, int64_t n) {
  using W = Wide<T>;
  W best = Load(x[0]);
  int64_t i = 0;
  if (n >= kLanes) {
    W lanes[kLanes];
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] = Load(x[l]);
    for (i = kLanes; i + kLanes <= n; i += kLanes) {
      for (int64_t l = 0; l < kLanes; ++l) {
        const W v = Load(x[i + l]);
        lanes[l] = v > lanes[l] ? v : lanes[l];
      }
    }
    for (const W v : lanes) best = v > best ? v : best;
  }
  for (; i < n; ++i) {
    const W v = Load(x[i]);
    best = v > best ? v : best;
  }
  return best;
}

// The sum of f(i) for i in [0, n), in lanes.
template <typename W, typename F>
W SumOf(int64_t n, F f) {
  W sum = 0;
  int64_t i = 0;
  if (n >= kLanes) {
    W lanes[kLanes] = {};
    for (; i + kLanes <= n; i += kLanes) {
      for (int64_t l = 0; l < kLanes; ++l) lanes[l] += f(i + l);
    }
    for (const W v : lanes) sum += v;
  }
  for (; i < n; ++i) sum += f(i);
  return sum;
}

// Calls before(row, shifted) with shifted = x - max(x) for each row, then replaces shifted by its
// exponential and calls after(row, exponentials, their sum). The exponentials are in `y` when that
// has their type, else in scratch memory.
template <typename T, typename Before, typename After>
void ForEachRow(const void* x_memory, void* y_memory, int64_t rows, int64_t n, Before before,
                After after) {
  using W = Wide<T>;
  static const UnaryFn exp = FindUnary(UnaryOp::kExp, DTypeOf<W>);
  const int64_t block = std::max<int64_t>(1, kBlock / n);
  std::vector<W> scratch;
  if constexpr (!std::is_same_v<T, W>) scratch.resize(static_cast<size_t>(block * n));
  for (int64_t first = 0; first < rows; first += block) {
    const int64_t count = std::min(block, rows - first);
    W* shifted;
    if constexpr (std::is_same_v<T, W>) {
      shifted = static_cast<W*>(y_memory) + first * n;
    } else {
      shifted = scratch.data();
    }
    for (int64_t r = 0; r < count; ++r) {
      const T* x = static_cast<const T*>(x_memory) + (first + r) * n;
      W* s = shifted + r * n;
      const W largest = Largest(x, n);
      for (int64_t i = 0; i < n; ++i) s[i] = Load(x[i]) - largest;
      before(first + r, s);
    }
    exp(shifted, shifted, count * n);
    for (int64_t r = 0; r < count; ++r) {
      const W* e = shifted + r * n;
      after(first + r, e, SumOf<W>(n, [e](int64_t i) { return e[i]; }));
    }
  }
}

template <typename T>
void Softmax(const void* x, void* y_memory, int64_t rows, int64_t n) {
  using W = Wide<T>;
  ForEachRow<T>(
      x, y_memory, rows, n, [](int64_t, const W*) {},
      [&](int64_t r, const W* e, W sum) {
        T* y = static_cast<T*>(y_memory) + r * n;
        const W scale = W(1) / sum;
        for (int64_t i = 0; i < n; ++i) y[i] = Store<T>(e[i] * scale);
      });
}

template <typename T>
void LogSoftmax(const void* x_memory, void* y_memory, int64_t rows, int64_t n) {
  using W = Wide<T>;
  static const UnaryFn exp = FindUnary(UnaryOp::kExp, DTypeOf<W>);
  std::vector<W> shifted(static_cast<size_t>(n)), exponentials(static_cast<size_t>(n));
  for (int64_t r = 0; r < rows; ++r) {
    const T* x = static_cast<const T*>(x_memory) + r * n;
    T* y = static_cast<T*>(y_memory) + r * n;
    const W largest = Largest(x, n);
    W* s = shifted.data();
    for (int64_t i = 0; i < n; ++i) s[i] = Load(x[i]) - largest;
    exp(s, exponentials.data(), n);
    const W* e = exponentials.data();
    const W log_sum = std::log(SumOf<W>(n, [e](int64_t i) { return e[i]; }));
    for (int64_t i = 0; i < n; ++i) y[i] = Store<T>(s[i] - log_sum);
  }
}

template <typename T>
void CrossEntropy(const void* x, const void* labels_memory, void* loss_memory,
                  void* backprop_memory, int64_t rows, int64_t n) {
  using W = Wide<T>;
  T* loss = static_cast<T*>(loss_memory);
  // Per row: sum(labels) and sum(labels * shifted). loss = log(sum of exponentials) * the first
  // - the second; both terms are >= 0 for labels >= 0, so nothing cancels.
  std::vector<W> weights(static_cast<size_t>(rows)), products(static_cast<size_t>(rows));
  ForEachRow<T>(
      x, backprop_memory, rows, n,
      [&](int64_t r, const W* s) {
        const T* t = static_cast<const T*>(labels_memory) + r * n;
        const size_t at = static_cast<size_t>(r);
        weights[at] = SumOf<W>(n, [t](int64_t i) { return Load(t[i]); });
        products[at] = SumOf<W>(n, [t, s](int64_t i) {
          const W label = Load(t[i]);
          return label == W(0) ? W(0) : label * s[i];
        });
      },
      [&](int64_t r, const W* e, W sum) {
        const T* t = static_cast<const T*>(labels_memory) + r * n;
        T* backprop = static_cast<T*>(backprop_memory) + r * n;
        const size_t at = static_cast<size_t>(r);
        loss[r] = Store<T>(std::log(sum) * weights[at] - products[at]);
        const W scale = W(1) / sum;
        for (int64_t i = 0; i < n; ++i) backprop[i] = Store<T>(e[i] * scale - Load(t[i]));
      });
}

template <typename T>
void SparseCrossEntropy(const void* x, IntSpan labels, void* loss_memory, void* backprop_memory,
                        int64_t rows, int64_t n) {
  using W = Wide<T>;
  T* loss = static_cast<T*>(loss_memory);
  std::vector<W> chosen(static_cast<size_t>(rows));
  ForEachRow<T>(
      x, backprop_memory, rows, n,
      [&](int64_t r, const W* s) {
        const size_t at = static_cast<size_t>(r);
        chosen[at] = s[labels[at]];
      },
      [&](int64_t r, const W* e, W sum) {
        T* backprop = static_cast<T*>(backprop_memory) + r * n;
        const size_t at = static_cast<size_t>(r);
        loss[r] = Store<T>(std::log(sum) - chosen[at]);
        const W scale = W(1) / sum;
        const W right = e[labels[at]] * scale - W(1);
        for (int64_t i = 0; i < n; ++i) backprop[i] = Store<T>(e[i] * scale);
        backprop[labels[at]] = Store<T>(right);
      });
}

template <typename T>
const SoftmaxLoops* LoopsOf() {
  static constexpr SoftmaxLoops kLoops = {&Softmax<T>, &LogSoftmax<T>, &CrossEntropy<T>,
                                          &SparseCrossEntropy<T>};
  return &kLoops;
}

}  // namespace

const SoftmaxLoops* FindSoftmax(DType dtype) {
  return LoopFor<FloatTypes>(dtype, []<typename T> { return LoopsOf<T>(); });
}

}  // namespace millrace::math
