// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/gemm.h"

#include <Eigen/Core>
#include <algorithm>
#include <complex>
#include <string>

#include "dnnl.h"
#include "ops/loops/number.h"
#include "ops/loops/zero_skipping_gemm.h"

extern "C" void omp_set_num_threads(int);

namespace millrace::math {
namespace {

template <typename T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <typename T>
using In = Eigen::Map<const Matrix<T>>;
template <typename T>
using Out = Eigen::Map<Matrix<T>, 0, Eigen::OuterStride<>>;

// Below this many multiplications the call into oneDNN costs more than the product.
constexpr int64_t kTinyProduct = 2048;

// to[i] += x * from[i]
inline void AddMultiple(float x, const float* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; ++i) to[i] += x * from[i];
}

// Of two vectors, in lanes that are added up at the end.
inline float Dot(const float* a, const float* b, int64_t n) {
  constexpr int64_t kLanes = 8;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t l = 0; l < kLanes; ++l) lanes[l] += a[i + l] * b[i + l];
  }
  float sum = 0;
  for (; i < n; ++i) sum += a[i] * b[i];
  for (const float lane : lanes) sum += lane;
  return sum;
}

void TinyGemm(const GemmShape& s, const float* a, const float* b, float* c, int64_t m_begin,
              int64_t m_end, int64_t n_begin, int64_t n_end) {
  const bool ta = s.a != Operand::kPlain;
  const bool tb = s.b != Operand::kPlain && s.k > 1;  // a column is a row
  const int64_t a_row = ta ? 1 : s.k, a_col = ta ? s.m : 1;
  const int64_t m = m_end - m_begin, n = n_end - n_begin;
  if (s.n == 1 && ta) {
    std::fill_n(c + m_begin, m, 0.0f);
    for (int64_t p = 0; p < s.k; ++p) AddMultiple(b[p], a + p * s.m + m_begin, m, c + m_begin);
    return;
  }
  for (int64_t i = m_begin; i < m_end; ++i) {
    float* const row = c + i * s.n;
    if (!ta && (tb || s.n == 1)) {
      for (int64_t j = n_begin; j < n_end; ++j) row[j] = Dot(a + i * s.k, b + j * s.k, s.k);
    } else if (s.k == 1) {
      const float x = a[i * a_row];
      for (int64_t j = n_begin; j < n_end; ++j) row[j] = 0.0f + x * b[j];
    } else if (!tb) {
      std::fill_n(row + n_begin, n, 0.0f);
      for (int64_t p = 0; p < s.k; ++p) {
        AddMultiple(a[i * a_row + p * a_col], b + p * s.n + n_begin, n, row + n_begin);
      }
    } else {
      for (int64_t j = n_begin; j < n_end; ++j) {
        float sum = 0;
        for (int64_t p = 0; p < s.k; ++p) sum += a[i * a_row + p * a_col] * b[j * s.k + p];
        row[j] = sum;
      }
    }
  }
}

void FloatGemm(const GemmShape& s, const void* a_memory, const void* b_memory, void* c_memory,
               int64_t m_begin, int64_t m_end, int64_t n_begin, int64_t n_end) {
  const float* a = static_cast<const float*>(a_memory);
  const float* b = static_cast<const float*>(b_memory);
  float* c = static_cast<float*>(c_memory);
  const int64_t m = m_end - m_begin;
  const int64_t n = n_end - n_begin;
  if (m <= 0 || n <= 0) return;
  if (m * n * s.k <= kTinyProduct) {
    return TinyGemm(s, a, b, c, m_begin, m_end, n_begin, n_end);
  }
  if (SkipsZeros(s, a)) return ZeroSkippingGemm(s, a, b, c, m_begin, m_end, n_begin, n_end);
  const bool ta = s.a != Operand::kPlain;
  const bool tb = s.b != Operand::kPlain;
  const int64_t lda = ta ? s.m : s.k;
  const int64_t ldb = tb ? s.k : s.n;
  UseOneOpenMpThread();
  const dnnl_status_t status =
      dnnl_sgemm(ta ? 'T' : 'N', tb ? 'T' : 'N', m, n, s.k, 1.0f, a + m_begin * (ta ? 1 : lda), lda,
                 b + n_begin * (tb ? ldb : 1), ldb, 0.0f, c + m_begin * s.n + n_begin, s.n);
  if (status != dnnl_success) {
    throw GemmError("oneDNN's sgemm ended with status " + std::to_string(status));
  }
}

// op(matrix)[row..row+rows, col..col+cols] as a plain matrix of W. `stride` is the length of a
// stored row.
template <typename T, typename W>
Matrix<W> PlainBlock(Operand op, const T* matrix, int64_t stride, int64_t row, int64_t rows,
                     int64_t col, int64_t cols) {
  Matrix<W> block(rows, cols);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      const int64_t at =
          op == Operand::kPlain ? (row + i) * stride + col + j : (col + j) * stride + row + i;
      W value = Load(matrix[at]);
      if constexpr (kIsComplex<W>) {
        if (op == Operand::kAdjoint) value = std::conj(value);
      }
      block(i, j) = value;
    }
  }
  return block;
}

// Types off the hot path: the slice's operands are copied into plain matrices of the type that
// computes, so that one product per type is compiled.
template <typename T>
void CopyingGemm(const GemmShape& s, const void* a, const void* b, void* c_memory, int64_t m_begin,
                 int64_t m_end, int64_t n_begin, int64_t n_end) {
  using W = Wide<T>;
  const int64_t m = m_end - m_begin;
  const int64_t n = n_end - n_begin;
  if (m <= 0 || n <= 0) return;
  const Matrix<W> left = PlainBlock<T, W>(s.a, static_cast<const T*>(a),
                                          s.a == Operand::kPlain ? s.k : s.m, m_begin, m, 0, s.k);
  const Matrix<W> right = PlainBlock<T, W>(s.b, static_cast<const T*>(b),
                                           s.b == Operand::kPlain ? s.n : s.k, 0, s.k, n_begin, n);
  const Matrix<W> product = left * right;
  T* c = static_cast<T*>(c_memory);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) c[(m_begin + i) * s.n + n_begin + j] = Store<T>(product(i, j));
  }
}

void DoubleGemm(const GemmShape& s, const void* a_memory, const void* b_memory, void* c_memory,
                int64_t m_begin, int64_t m_end, int64_t n_begin, int64_t n_end) {
  const int64_t m = m_end - m_begin;
  const int64_t n = n_end - n_begin;
  if (m <= 0 || n <= 0) return;
  Out<double> c(static_cast<double*>(c_memory) + m_begin * s.n + n_begin, m, n,
                Eigen::OuterStride<>(s.n));
  const bool ta = s.a != Operand::kPlain;
  const bool tb = s.b != Operand::kPlain;
  const In<double> a(static_cast<const double*>(a_memory), ta ? s.k : s.m, ta ? s.m : s.k);
  const In<double> b(static_cast<const double*>(b_memory), tb ? s.n : s.k, tb ? s.k : s.n);
  if (ta && tb) {
    c.noalias() = a.middleCols(m_begin, m).transpose() * b.middleRows(n_begin, n).transpose();
  } else if (ta) {
    c.noalias() = a.middleCols(m_begin, m).transpose() * b.middleCols(n_begin, n);
  } else if (tb) {
    c.noalias() = a.middleRows(m_begin, m) * b.middleRows(n_begin, n).transpose();
  } else {
    c.noalias() = a.middleRows(m_begin, m) * b.middleCols(n_begin, n);
  }
}

}  // namespace

void UseOneOpenMpThread() {
  thread_local bool done = false;
  if (done) return;
  omp_set_num_threads(1);
  done = true;
}

GemmFn FindGemm(DType dtype) {
  switch (dtype) {
    case DT_FLOAT:
      return &FloatGemm;
    case DT_DOUBLE:
      return &DoubleGemm;
    // Products of integers do not depend on the sign, and unsigned overflow is defined.
    case DT_INT32:
      return &CopyingGemm<uint32_t>;
    case DT_INT64:
      return &CopyingGemm<uint64_t>;
    case DT_HALF:
      return &CopyingGemm<Half>;
    case DT_BFLOAT16:
      return &CopyingGemm<Bfloat16>;
    case DT_COMPLEX64:
      return &CopyingGemm<std::complex<float>>;
    case DT_COMPLEX128:
      return &CopyingGemm<std::complex<double>>;
    default:
      return nullptr;
  }
}

// Measured on one core of an AVX-512 machine, rounded: nanoseconds for one multiplication and
// addition.
double GemmCostNs(const GemmShape& s, DType dtype) {
  const double products = static_cast<double>(s.m) * static_cast<double>(s.n) *
                          static_cast<double>(std::max<int64_t>(1, s.k));
  switch (dtype) {
    case DT_FLOAT:
      return products * 0.01;
    case DT_DOUBLE:
      return products * 0.04;
    case DT_HALF:
    case DT_BFLOAT16:
      return products * 0.02;
    default:
      return products * 0.3;
  }
}

GemmSlices::GemmSlices(const GemmShape& shape, DType dtype, int64_t products)
    : shape_(shape), gemm_(FindGemm(dtype)) {
  // Measured on one thread: slices at least as wide as this lose nothing that counts; four narrower
  // ones lose up to 5 %, eight up to 10 %.
  constexpr int64_t kSlices = 4, kFreeSide = 512;
  // Of a product that is cheap, slices gain nothing.
  constexpr double kMinSliceNs = 10e3;
  // oneDNN's kernels make 48 columns (AVX2: 24) of 8 rows or more at a time: columns cost least
  // when they are cut there. Rows are cut where there are far more of them.
  constexpr int64_t kColumnUnit = 48, kRowUnit = 16;
  // Where the other operand leaves the second-level cache, reading it again costs more: two slices
  // of 512 lose 3 %, four of 256 lose 8 %.
  constexpr int64_t kCachedElements = 256 * 1024, kMinSide = 448;
  by_rows_ = shape.m > 2 * shape.n || (shape.n < 2 * kColumnUnit && shape.m >= 2 * kRowUnit);
  unit_ = by_rows_ ? kRowUnit : kColumnUnit;
  const int64_t side = by_rows_ ? shape.m : shape.n;
  const int64_t other = (by_rows_ ? shape.n : shape.m) * shape.k;
  units_ = (side + unit_ - 1) / unit_;
  const double whole_ns = GemmCostNs(shape, dtype);
  count_ = std::min(units_, std::max(kSlices, side / kFreeSide) / std::max<int64_t>(1, products));
  count_ = std::min(count_, static_cast<int64_t>(std::min(whole_ns / kMinSliceNs, 1e9)));
  if (other > kCachedElements) count_ = std::min(count_, std::max<int64_t>(2, side / kMinSide));
  count_ = std::max<int64_t>(1, count_);
  cost_ns_ = whole_ns / static_cast<double>(count_);
}

void GemmSlices::Run(int64_t i, const void* a, const void* b, void* c) const {
  RunFromTo(i, i + 1, a, b, c);
}

void GemmSlices::RunAll(int64_t begin, int64_t end, const void* a, const void* b, void* c) const {
  // Slices that lie together are one where that changes no sum.
  if (begin + 1 < end && gemm_ == &FloatGemm && SkipsZeros(shape_, static_cast<const float*>(a))) {
    return RunFromTo(begin, end, a, b, c);
  }
  for (int64_t i = begin; i < end; ++i) Run(i, a, b, c);
}

void GemmSlices::RunFromTo(int64_t first, int64_t last, const void* a, const void* b,
                           void* c) const {
  const int64_t side = by_rows_ ? shape_.m : shape_.n;
  const int64_t begin = std::min(side, units_ * first / count_ * unit_);
  const int64_t end = std::min(side, units_ * last / count_ * unit_);
  if (by_rows_) {
    gemm_(shape_, a, b, c, begin, end, 0, shape_.n);
  } else {
    gemm_(shape_, a, b, c, 0, shape_.m, begin, end);
  }
}

}  // namespace millrace::math
