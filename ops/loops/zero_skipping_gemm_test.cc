// SPDX-License-Identifier: Apache-2.0
// Products that leave zeros out: each element is the sum in the order of k, in every slice.
#include "ops/loops/zero_skipping_gemm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "gtest/gtest.h"
#include "ops/loops/gemm.h"

namespace millrace::math {
namespace {

// Numbers of both signs, `percent` of them not zero.
std::vector<float> Numbers(int64_t n, uint32_t percent, uint32_t seed) {
  std::vector<float> values(static_cast<size_t>(n));
  uint32_t state = seed;
  for (float& v : values) {
    state = state * 1664525u + 1013904223u;
    const bool is_zero = (state >> 8) % 100 >= percent;
    state = state * 1664525u + 1013904223u;
    v = is_zero ? 0 : static_cast<float>(state >> 8) / 8388608.0f - 1.0f + 1e-6f;
  }
  return values;
}

// The definition, element by element.
std::vector<float> Product(const GemmShape& s, const std::vector<float>& a,
                           const std::vector<float>& b) {
  const bool ta = s.a != Operand::kPlain, tb = s.b != Operand::kPlain;
  std::vector<float> c;
  for (int64_t i = 0; i < s.m; ++i) {
    for (int64_t j = 0; j < s.n; ++j) {
      float sum = 0;
      for (int64_t p = 0; p < s.k; ++p) {
        sum = std::fma(a[static_cast<size_t>(ta ? p * s.m + i : i * s.k + p)],
                       b[static_cast<size_t>(tb ? j * s.k + p : p * s.n + j)], sum);
      }
      c.push_back(sum);
    }
  }
  return c;
}

// Equal bits; a NaN is like any other, and 0 like -0.
void ExpectSame(const std::vector<float>& got, const std::vector<float>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isnan(wanted[i])) {
      ASSERT_TRUE(std::isnan(got[i])) << "element " << i << " must be NaN, got " << got[i];
    } else {
      ASSERT_EQ(got[i], wanted[i]) << "element " << i;
    }
  }
}

std::string Named(const GemmShape& s) {
  return std::to_string(s.m) + "x" + std::to_string(s.n) + "x" + std::to_string(s.k) +
         (s.a == Operand::kPlain ? "" : " a turned") + (s.b == Operand::kPlain ? "" : " b turned");
}

constexpr Operand kOperands[] = {Operand::kPlain, Operand::kTransposed};

// Of every remainder by 8, one and several panels, blocks of k and of rows.
constexpr int64_t kSizes[][3] = {{1, 1, 1},     {3, 7, 2},      {40, 100, 66}, {66, 100, 40},
                                 {17, 105, 65}, {129, 211, 64}, {5, 34, 513},  {200, 9, 128},
                                 {16, 104, 16}, {8, 8, 8},      {1, 64, 300},  {33, 23, 1},
                                 {5, 9, 0}};

TEST(ZeroSkippingGemmTest, AddsUpInTheOrderOfK) {
  for (const auto& [m, n, k] : kSizes) {
    for (const Operand ta : kOperands) {
      for (const Operand tb : kOperands) {
        for (const uint32_t percent : {0u, 30u, 100u}) {
          const GemmShape s = {m, n, k, ta, tb};
          SCOPED_TRACE(Named(s) + ", not zero: " + std::to_string(percent) + " %");
          const std::vector<float> a = Numbers(m * k, percent, 7), b = Numbers(k * n, 90, 11);
          std::vector<float> c(static_cast<size_t>(m * n), 99.0f);
          ZeroSkippingGemm(s, a.data(), b.data(), c.data(), 0, m, 0, n);
          ExpectSame(c, Product(s, a, b));
        }
      }
    }
  }
}

// A slice writes its own part of c and nothing else, with the same bits.
TEST(ZeroSkippingGemmTest, SlicesArePartsOfTheWhole) {
  for (const Operand ta : kOperands) {
    for (const Operand tb : kOperands) {
      const GemmShape s = {50, 130, 70, ta, tb};
      SCOPED_TRACE(Named(s));
      const std::vector<float> a = Numbers(s.m * s.k, 50, 3), b = Numbers(s.k * s.n, 100, 5);
      std::vector<float> whole(static_cast<size_t>(s.m * s.n));
      ZeroSkippingGemm(s, a.data(), b.data(), whole.data(), 0, s.m, 0, s.n);
      for (const auto& [m_begin, m_end, n_begin, n_end] :
           std::vector<std::array<int64_t, 4>>{{0, 16, 0, 130},
                                               {16, 50, 0, 130},
                                               {0, 50, 0, 48},
                                               {0, 50, 48, 130},
                                               {13, 29, 31, 60},
                                               {7, 7, 0, 130},
                                               {0, 50, 9, 9}}) {
        std::vector<float> part(whole.size(), 99.0f), wanted = part;
        ZeroSkippingGemm(s, a.data(), b.data(), part.data(), m_begin, m_end, n_begin, n_end);
        for (int64_t i = m_begin; i < m_end; ++i) {
          for (int64_t j = n_begin; j < n_end; ++j) {
            wanted[static_cast<size_t>(i * s.n + j)] = whole[static_cast<size_t>(i * s.n + j)];
          }
        }
        ExpectSame(part, wanted);
      }
    }
  }
}

// Zero times infinity is NaN, on both ways of the right operand, in its last columns too.
TEST(ZeroSkippingGemmTest, ZerosMeetWhatIsNotFinite) {
  const float bad[] = {std::numeric_limits<float>::infinity(),
                       -std::numeric_limits<float>::infinity(),
                       std::numeric_limits<float>::quiet_NaN()};
  for (const Operand ta : kOperands) {
    for (const Operand tb : kOperands) {
      for (const float value : bad) {
        for (const int64_t at : {int64_t{0}, int64_t{333}, int64_t{70 * 61 - 1}}) {
          const GemmShape s = {20, 61, 70, ta, tb};
          SCOPED_TRACE(Named(s) + ", " + std::to_string(value) + " at " + std::to_string(at));
          const std::vector<float> a = Numbers(s.m * s.k, 50, 3);
          std::vector<float> b = Numbers(s.k * s.n, 100, 5);
          b[static_cast<size_t>(at)] = value;
          std::vector<float> c(static_cast<size_t>(s.m * s.n));
          ZeroSkippingGemm(s, a.data(), b.data(), c.data(), 0, s.m, 0, s.n);
          ExpectSame(c, Product(s, a, b));
        }
      }
    }
  }
}

TEST(ZeroSkippingGemmTest, NumbersThatAreNotFiniteAreNotZero) {
  const GemmShape s = {16, 56, 16};
  std::vector<float> a(16 * 16, 0.0f);
  a[5] = std::numeric_limits<float>::quiet_NaN();
  a[16] = std::numeric_limits<float>::infinity();
  a[33] = std::numeric_limits<float>::denorm_min();
  const std::vector<float> b = Numbers(16 * 56, 100, 5);
  std::vector<float> c(16 * 56);
  ZeroSkippingGemm(s, a.data(), b.data(), c.data(), 0, 16, 0, 56);
  ExpectSame(c, Product(s, a, b));
}

TEST(SkipsZerosTest, LooksAtTheLeftOperand) {
  const std::vector<float> half = Numbers(1024 * 100, 50, 3), full = Numbers(1024 * 100, 100, 3),
                           most = Numbers(1024 * 100, 80, 3);
  for (const Operand tb : kOperands) {
    const GemmShape plain = {1024, 70, 100, Operand::kPlain, tb};
    EXPECT_TRUE(SkipsZeros(plain, half.data()));
    EXPECT_FALSE(SkipsZeros(plain, most.data()));
    EXPECT_FALSE(SkipsZeros(plain, full.data()));
  }
  EXPECT_TRUE(SkipsZeros({100, 70, 1024, Operand::kTransposed}, half.data()));
  EXPECT_FALSE(SkipsZeros({100, 70, 1024, Operand::kTransposed}, full.data()));
  // Narrow ones: turned ones want more zeros.
  const std::vector<float> fewer = Numbers(1024 * 100, 40, 3), more = Numbers(1024 * 100, 60, 3);
  EXPECT_TRUE(SkipsZeros({1024, 34, 100}, more.data()));
  EXPECT_TRUE(SkipsZeros({100, 34, 1024, Operand::kTransposed}, fewer.data()));
  EXPECT_FALSE(SkipsZeros({100, 34, 1024, Operand::kTransposed}, more.data()));
  // Small ones of few columns.
  EXPECT_TRUE(SkipsZeros({40, 16, 100}, half.data()));
  EXPECT_TRUE(SkipsZeros({70, 48, 40, Operand::kTransposed}, half.data()));
  // Too few columns, too large a right operand.
  EXPECT_FALSE(SkipsZeros({40, 8, 100}, half.data()));
  EXPECT_FALSE(SkipsZeros({1024, 10, 100}, half.data()));
  EXPECT_FALSE(SkipsZeros({40, 4096, 100}, half.data()));
}

// By way of FindGemm and of slices, however many are taken together.
TEST(SkipsZerosTest, ProductsTakeIt) {
  for (const Operand ta : kOperands) {
    const GemmShape s = ta == Operand::kPlain ? GemmShape{1024, 70, 100}
                                              : GemmShape{100, 70, 1024, Operand::kTransposed};
    SCOPED_TRACE(Named(s));
    const std::vector<float> a = Numbers(s.m * s.k, 50, 3), b = Numbers(s.k * s.n, 100, 5);
    const std::vector<float> wanted = Product(s, a, b);
    std::vector<float> c(wanted.size());
    FindGemm(DT_FLOAT)(s, a.data(), b.data(), c.data(), 0, s.m, 0, s.n);
    ExpectSame(c, wanted);
    const GemmSlices slices(s, DT_FLOAT);
    ASSERT_GE(slices.count(), 2);
    for (int64_t together = 1; together <= slices.count(); ++together) {
      std::vector<float> sliced(wanted.size());
      for (int64_t i = 0; i < slices.count(); i += together) {
        slices.RunAll(i, std::min(slices.count(), i + together), a.data(), b.data(), sliced.data());
      }
      ExpectSame(sliced, wanted);
    }
  }
}

}  // namespace
}  // namespace millrace::math
