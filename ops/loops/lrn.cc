// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/lrn.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/loops/number.h"

namespace millrace::math {
namespace {

// windowed[c] = the sum of v[k] over |k - c| <= radius.
void SumWindows(const LrnShape& s, const std::vector<float>& v, std::vector<float>* windowed) {
  const int64_t radius = std::min(s.radius, s.channels);
  for (int64_t c = 0; c < s.channels; ++c) {
    const int64_t end = std::min(c + radius + 1, s.channels);
    float sum = 0;
    for (int64_t k = std::max<int64_t>(0, c - radius); k < end; ++k) {
      sum += v[static_cast<size_t>(k)];
    }
    (*windowed)[static_cast<size_t>(c)] = sum;
  }
}

template <typename T>
class Rows {
 public:
  explicit Rows(const LrnShape& s)
      : s_(s), n_(static_cast<size_t>(s.channels)), values_(n_), sums_(n_), norms_(n_) {}

  // bias + alpha * the windows' sums of squares.
  const std::vector<float>& Norms(const T* x) {
    for (size_t c = 0; c < n_; ++c) values_[c] = Load(x[c]) * Load(x[c]);
    SumWindows(s_, values_, &sums_);
    for (size_t c = 0; c < n_; ++c) norms_[c] = s_.bias + s_.alpha * sums_[c];
    return norms_;
  }

  void Forward(const T* x, T* y) {
    Norms(x);
    for (size_t c = 0; c < n_; ++c) y[c] = Store<T>(Load(x[c]) * std::pow(norms_[c], -s_.beta));
  }

  void Gradient(const T* g, const T* x, const T* y, T* dx) {
    Norms(x);
    for (size_t c = 0; c < n_; ++c) values_[c] = Load(g[c]) * Load(y[c]) / norms_[c];
    SumWindows(s_, values_, &sums_);
    for (size_t c = 0; c < n_; ++c) {
      dx[c] = Store<T>(Load(g[c]) * std::pow(norms_[c], -s_.beta) -
                       2 * s_.alpha * s_.beta * Load(x[c]) * sums_[c]);
    }
  }

 private:
  const LrnShape s_;
  const size_t n_;
  std::vector<float> values_, sums_, norms_;
};

template <typename T>
void Forward(const LrnShape& s, const void* x, void* y, int64_t rows) {
  Rows<T> work(s);
  for (int64_t r = 0; r < rows; ++r) {
    work.Forward(static_cast<const T*>(x) + r * s.channels, static_cast<T*>(y) + r * s.channels);
  }
}

template <typename T>
void Gradient(const LrnShape& s, const void* g, const void* x, const void* y, void* dx,
              int64_t rows) {
  Rows<T> work(s);
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = r * s.channels;
    work.Gradient(static_cast<const T*>(g) + at, static_cast<const T*>(x) + at,
                  static_cast<const T*>(y) + at, static_cast<T*>(dx) + at);
  }
}

template <typename T>
const LrnLoops* LoopsOf() {
  static constexpr LrnLoops kLoops = {&Forward<T>, &Gradient<T>};
  return &kLoops;
}

}  // namespace

const LrnLoops* FindLrn(DType dtype) {
  return LoopFor<TypeList<float, Half, Bfloat16>>(dtype, []<typename T> { return LoopsOf<T>(); });
}

}  // namespace millrace::math
