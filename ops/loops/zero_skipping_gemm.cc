// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/zero_skipping_gemm.h"

#include <immintrin.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "ops/loops/non_zeros.h"

namespace millrace::math {
namespace {

constexpr int64_t kLanes = 8;
using Vector = __m256;

// A row of c is held in registers, in panels of this many vectors at most: 13 accumulators, the
// number that they are multiplied with, and two to spare.
constexpr int kMaxVectors = 13;
constexpr int64_t kPanelColumns = kMaxVectors * kLanes;
// Of k, of a panel of b that is packed: 128 KiB of floats at most, in the second-level cache.
// Places in it are bytes.
constexpr int64_t kPanelRows = 256;
// Of a transposed left operand: examples that are turned and added up at a time, so that their rows
// of b are in the first-level cache; and rows of c whose sums are kept meanwhile.
constexpr int64_t kExamples = 64;
constexpr int64_t kSumRows = 128;
// Rows whose numbers are listed before any is added up. The loop over a list ends at a place that
// no processor foresees; what comes after it is begun anew, and that is to be little.
constexpr int64_t kListedRows = 16;

// Where in a row the numbers are that are not zero.
using Places = std::array<uint8_t, kPanelRows + kLanes>;

// The panels of a thread.
struct Scratch {
  alignas(64) float panel[kPanelRows * kPanelColumns];
  alignas(64) float turned[kSumRows * kExamples];
  alignas(64) float sums[kSumRows * kPanelColumns];
  std::array<Places, kListedRows> places;
};

Scratch* ScratchOfThread() {
  thread_local const auto scratch = std::make_unique<Scratch>();
  return scratch.get();
}

// --- Lists of what is not zero -------------------------------------------------------------------

static_assert(kPanelRows <= 256 && kExamples <= kPanelRows);

// For each mask of eight lanes the numbers of those that are set, in a byte each, lowest first.
constexpr std::array<uint64_t, 256> LanesOfMasks() {
  std::array<uint64_t, 256> lanes{};
  for (unsigned mask = 0; mask < 256; ++mask) {
    unsigned count = 0;
    for (unsigned lane = 0; lane < 8; ++lane) {
      if ((mask >> lane & 1) != 0) lanes[mask] |= uint64_t{lane} << (8 * count++);
    }
  }
  return lanes;
}
alignas(64) constexpr std::array<uint64_t, 256> kLanesOfMask = LanesOfMasks();

// Places of the numbers that are not zero among n <= kPanelRows, or of all; how many.
inline int64_t ListNonZeros(const float* values, int64_t n, bool all, Places* places) {
  constexpr uint64_t kEachByte = 0x0101010101010101;
  uint8_t* next = places->data();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    const unsigned mask = all ? 255 : NonZeroLanes(values + i);
    const uint64_t found = kLanesOfMask[mask] + kEachByte * static_cast<uint64_t>(i);
    std::memcpy(next, &found, sizeof(found));
    next += std::popcount(mask);
  }
  for (; i < n; ++i) {
    *next = static_cast<uint8_t>(i);
    next += all || values[i] != 0 ? 1 : 0;
  }
  return next - places->data();
}

// Those of `rows` rows, `stride` apart, kListedRows at most.
inline void ListRows(const float* values, int64_t stride, int64_t rows, int64_t n, bool all,
                     Places* places, int64_t* counts) {
  for (int64_t i = 0; i < rows; ++i) {
    counts[i] = ListNonZeros(values + i * stride, n, all, &places[i]);
  }
}

// --- Panels --------------------------------------------------------------------------------------

// out[j * out_stride + i] = in[i * in_stride + j] for i, j < 8.
inline void Turn8x8(const float* in, int64_t in_stride, float* out, int64_t out_stride) {
  Vector r[8], s[8];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(in + i * in_stride);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    s[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    s[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm256_shuffle_ps(s[4 * i], s[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm256_shuffle_ps(s[4 * i], s[4 * i + 2], 0xee);
    r[4 * i + 2] = _mm256_shuffle_ps(s[4 * i + 1], s[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm256_shuffle_ps(s[4 * i + 1], s[4 * i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(out + i * out_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(out + (i + 4) * out_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

// out[j, i] = in[i, j] for i < rows, j < columns. Blocks at the ends lie over those before them.
void Turn(const float* in, int64_t in_stride, int64_t rows, int64_t columns, float* out,
          int64_t out_stride) {
  if (rows < 8 || columns < 8) {
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) out[j * out_stride + i] = in[i * in_stride + j];
    }
    return;
  }
  for (int64_t block_row = 0; block_row < rows; block_row += 8) {
    const int64_t i = std::min(block_row, rows - 8);
    for (int64_t block_column = 0; block_column < columns; block_column += 8) {
      const int64_t j = std::min(block_column, columns - 8);
      Turn8x8(in + i * in_stride + j, in_stride, out + j * out_stride + i, out_stride);
    }
  }
}

// Bits that are set in lanes that are infinite or NaN.
inline __m256i NotFinite(Vector v) {
  const __m256i exponent = _mm256_set1_epi32(0x7f800000);
  return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_castps_si256(v), exponent), exponent);
}

// The lanes below `count` in [1, 8].
inline __m256i FirstLanes(int64_t count) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

// --- Rows ----------------------------------------------------------------------------------------

// sums = [sums +] the sum of values[places[q]] * panel[places[q], :] for q < count, kVectors wide.
template <int kVectors, bool kAdd>
inline void AddUp(const float* values, const uint8_t* places, int64_t count, const float* panel,
                  float* sums) {
  constexpr int64_t kStride = kVectors * kLanes;
  Vector acc[size_t{kVectors}];
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) {
    acc[v] = kAdd ? _mm256_load_ps(sums + v * kLanes) : _mm256_setzero_ps();
  }
  for (int64_t q = 0; q < count; ++q) {
    const int64_t p = places[q];
    const Vector x = _mm256_broadcast_ss(values + p);
    const float* const row = panel + p * kStride;
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) {
      acc[v] = _mm256_fmadd_ps(x, _mm256_load_ps(row + v * kLanes), acc[v]);
    }
  }
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) _mm256_store_ps(sums + v * kLanes, acc[v]);
}

// n floats in [1, 8], by stores that may overlap.
inline void CopyVector(const float* from, int64_t n, float* to) {
  if (n == kLanes) {
    _mm256_storeu_ps(to, _mm256_loadu_ps(from));
  } else if (n >= 4) {
    _mm_storeu_ps(to, _mm_loadu_ps(from));
    _mm_storeu_ps(to + n - 4, _mm_loadu_ps(from + n - 4));
  } else if (n >= 2) {
    std::memcpy(to, from, 2 * sizeof(float));
    std::memcpy(to + n - 2, from + n - 2, 2 * sizeof(float));
  } else {
    *to = *from;
  }
}

// Loops for panels of one width.
struct RowLoops {
  // Rows [k_begin, k_begin + rows) of op(b), columns [n_begin, n_begin + columns), as a panel: in
  // rows of the width, with zeros behind them. Whether they are finite.
  bool (*pack)(const GemmShape& s, const float* b, int64_t k_begin, int64_t rows, int64_t n_begin,
               int64_t columns, float* panel);
  // c[i, 0:columns] = a[i, :] * panel for rows i of a, [rows, k] with rows of a_stride numbers.
  void (*rows)(const float* a, int64_t a_stride, int64_t rows, int64_t k, bool all,
               const float* panel, int64_t columns, float* c, int64_t c_stride, bool add,
               Places* places);
  // sums[i, :] = [sums[i, :] +] turned[i, 0:examples] * panel for rows i.
  void (*sums)(const float* turned, int64_t rows, int64_t examples, bool all, const float* panel,
               float* sums, bool add, Places* places);
};

template <int kVectors>
struct RowsOf {
  static constexpr int64_t kStride = kVectors * kLanes;
  static constexpr int64_t kLast = kStride - kLanes;

  static bool Pack(const GemmShape& s, const float* b, int64_t k_begin, int64_t rows,
                   int64_t n_begin, int64_t columns, float* panel) {
    __m256i bad = _mm256_setzero_si256();
    if (s.b == Operand::kPlain) {
      const __m256i last_lanes = FirstLanes(columns - kLast);
      const float* from = b + k_begin * s.n + n_begin;
      for (int64_t p = 0; p < rows; ++p, from += s.n, panel += kStride) {
#pragma GCC unroll 16
        for (int64_t j = 0; j < kLast; j += kLanes) {
          const Vector v = _mm256_loadu_ps(from + j);
          bad = _mm256_or_si256(bad, NotFinite(v));
          _mm256_store_ps(panel + j, v);
        }
        const Vector v = _mm256_maskload_ps(from + kLast, last_lanes);
        bad = _mm256_or_si256(bad, NotFinite(v));
        _mm256_store_ps(panel + kLast, v);
      }
    } else {
      for (int64_t p = 0; p < rows; ++p) {
        _mm256_store_ps(panel + p * kStride + kLast, _mm256_setzero_ps());
      }
      Turn(b + n_begin * s.k + k_begin, s.k, columns, rows, panel, kStride);
      for (int64_t j = 0; j < rows * kStride; j += kLanes) {
        bad = _mm256_or_si256(bad, NotFinite(_mm256_load_ps(panel + j)));
      }
    }
    return _mm256_testz_si256(bad, bad) != 0;
  }

  static void Rows(const float* a, int64_t a_stride, int64_t rows, int64_t k, bool all,
                   const float* panel, int64_t columns, float* c, int64_t c_stride, bool add,
                   Places* places) {
    alignas(32) float sums[size_t{kStride}] = {};
    int64_t counts[kListedRows];
    const size_t bytes = static_cast<size_t>(columns) * sizeof(float);
    for (int64_t i = 0; i < rows; ++i, a += a_stride, c += c_stride) {
      const int64_t own = i % kListedRows;
      if (own == 0) {
        ListRows(a, a_stride, std::min(kListedRows, rows - i), k, all, places, counts);
      }
      if (add) {
        std::memcpy(sums, c, bytes);
        AddUp<kVectors, true>(a, places[own].data(), counts[own], panel, sums);
      } else {
        AddUp<kVectors, false>(a, places[own].data(), counts[own], panel, sums);
      }
      // All vectors but the last, which may reach beyond the columns.
#pragma GCC unroll 16
      for (int v = 0; v + 1 < kVectors; ++v) {
        _mm256_storeu_ps(c + v * kLanes, _mm256_load_ps(sums + v * kLanes));
      }
      CopyVector(sums + kLast, columns - kLast, c + kLast);
    }
  }

  static void Sums(const float* turned, int64_t rows, int64_t examples, bool all,
                   const float* panel, float* sums, bool add, Places* places) {
    int64_t counts[kListedRows];
    for (int64_t i = 0; i < rows; ++i, turned += kExamples, sums += kStride) {
      const int64_t own = i % kListedRows;
      if (own == 0) {
        ListRows(turned, kExamples, std::min(kListedRows, rows - i), examples, all, places, counts);
      }
      if (!add) {
        AddUp<kVectors, false>(turned, places[own].data(), counts[own], panel, sums);
      } else if (counts[own] > 0) {
        AddUp<kVectors, true>(turned, places[own].data(), counts[own], panel, sums);
      }
    }
  }

  static constexpr RowLoops kLoops = {&Pack, &Rows, &Sums};
};

template <int... kVectors>
const RowLoops& LoopsFor(int64_t vectors, std::integer_sequence<int, kVectors...>) {
  static constexpr const RowLoops* kLoops[] = {&RowsOf<kVectors + 1>::kLoops...};
  return *kLoops[vectors - 1];
}

// --- Products ------------------------------------------------------------------------------------

struct Part {
  int64_t m_begin, m_end, n_begin, columns, stride;
  const RowLoops* loops;
};

void PlainPart(const GemmShape& s, const float* a, const float* b, float* c, const Part& part) {
  Scratch* const scratch = ScratchOfThread();
  for (int64_t k = 0; k < s.k; k += kPanelRows) {
    const int64_t rows = std::min(kPanelRows, s.k - k);
    const bool finite = part.loops->pack(s, b, k, rows, part.n_begin, part.columns, scratch->panel);
    part.loops->rows(a + part.m_begin * s.k + k, s.k, part.m_end - part.m_begin, rows, !finite,
                     scratch->panel, part.columns, c + part.m_begin * s.n + part.n_begin, s.n,
                     k > 0, scratch->places.data());
  }
}

void TransposedPart(const GemmShape& s, const float* a, const float* b, float* c,
                    const Part& part) {
  Scratch* const scratch = ScratchOfThread();
  Places* const places = scratch->places.data();
  const bool at_once = s.k <= kExamples;
  for (int64_t m = part.m_begin; m < part.m_end; m += kSumRows) {
    const int64_t rows = std::min(kSumRows, part.m_end - m);
    float* const out = c + m * s.n + part.n_begin;
    for (int64_t k = 0; k < s.k; k += kExamples) {
      const int64_t examples = std::min(kExamples, s.k - k);
      const bool finite =
          part.loops->pack(s, b, k, examples, part.n_begin, part.columns, scratch->panel);
      Turn(a + k * s.m + m, s.m, examples, rows, scratch->turned, kExamples);
      if (at_once) {
        part.loops->rows(scratch->turned, kExamples, rows, examples, !finite, scratch->panel,
                         part.columns, out, s.n, /*add=*/false, places);
      } else {
        part.loops->sums(scratch->turned, rows, examples, !finite, scratch->panel, scratch->sums,
                         k > 0, places);
      }
    }
    for (int64_t i = 0; !at_once && i < rows; ++i) {
      std::memcpy(out + i * s.n, scratch->sums + i * part.stride,
                  static_cast<size_t>(part.columns) * sizeof(float));
    }
  }
}

// Numbers that are not zero in `count` rows, `step` apart.
int64_t CountInRows(const float* rows, int64_t step, int64_t count, int64_t columns) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) found += CountNonZeros(rows + i * step, columns);
  return found;
}

}  // namespace

bool SkipsZeros(const GemmShape& s, const float* a) {
  // In narrow products registers wait for sums, which counts when there are many rows; those with a
  // large right operand gain more from registers that are shared by rows. A small product is not
  // worth what oneDNN does before it begins: it takes memory and gives it back.
  constexpr int64_t kMinSide = 16, kMinColumns = 32, kWideColumns = 56, kFewRows = 256;
  constexpr int64_t kSmallProduct = 1 << 18;
  constexpr int64_t kMaxRightElements = 1 << 15;
  // Of the left operand: looked at, and not zero where leaving out pays, in percent; and a few rows
  // first, which show most operands without zeros.
  constexpr int64_t kSample = 16, kFirst = 4, kMostOfFirst = 90;
  constexpr int64_t kMostNonZero = 65, kMostOfTurnedAndNarrow = 50;
  const bool turned = s.a != Operand::kPlain;
  const bool is_small = s.m <= kFewRows && s.k <= kFewRows && s.m * s.n * s.k <= kSmallProduct;
  if (s.m < kMinSide || s.k < kMinSide || s.n < (is_small ? kMinSide : kMinColumns)) return false;
  if ((turned ? s.m : s.k) > kMaxRightElements / s.n) return false;
  const int64_t rows = turned ? s.k : s.m, columns = turned ? s.m : s.k;
  const int64_t first = CountInRows(a, columns, kFirst, columns);
  if (first * 100 > kMostOfFirst * kFirst * columns) return false;
  const int64_t count = std::min(rows, kSample);
  const int64_t found = CountInRows(a, rows / count * columns, count, columns);
  const bool pays_late = turned && !is_small && s.n < kWideColumns;
  return found * 100 <= (pays_late ? kMostOfTurnedAndNarrow : kMostNonZero) * count * columns;
}

void ZeroSkippingGemm(const GemmShape& s, const float* a, const float* b, float* c, int64_t m_begin,
                      int64_t m_end, int64_t n_begin, int64_t n_end) {
  if (m_begin >= m_end) return;
  if (s.k == 0) {
    for (int64_t i = m_begin; i < m_end; ++i)
      std::fill(c + i * s.n + n_begin, c + i * s.n + n_end, 0.0f);
    return;
  }
  // Panels of about the same width: 14 vectors are 7 and 7.
  const int64_t vectors = (n_end - n_begin + kLanes - 1) / kLanes;
  const int64_t panels = (vectors + kMaxVectors - 1) / kMaxVectors;
  for (int64_t p = 0; p < panels; ++p) {
    const int64_t begin = n_begin + vectors * p / panels * kLanes;
    const int64_t end = std::min(n_end, n_begin + vectors * (p + 1) / panels * kLanes);
    const int64_t width = (end - begin + kLanes - 1) / kLanes;
    const Part part = {
        m_begin,        m_end,
        begin,          end - begin,
        width * kLanes, &LoopsFor(width, std::make_integer_sequence<int, kMaxVectors>())};
    s.a == Operand::kPlain ? PlainPart(s, a, b, c, part) : TransposedPart(s, a, b, c, part);
  }
}

}  // namespace millrace::math
