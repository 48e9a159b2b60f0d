// SPDX-License-Identifier: Apache-2.0
// An element's result has the same bits wherever a loop is cut and whatever its memory is aligned
// to; slices of a product cover it.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "gtest/gtest.h"
#include "ops/loops/binary.h"
#include "ops/loops/cast.h"
#include "ops/loops/gemm.h"
#include "ops/loops/leaky_relu.h"
#include "ops/loops/number.h"
#include "ops/loops/softmax.h"
#include "ops/loops/training.h"
#include "ops/loops/unary.h"

namespace millrace::math {
namespace {

constexpr int64_t kElements = 777;
// Ends of parts: single elements, within and across vectors of any width.
constexpr int64_t kCuts[] = {0, 1, 2, 5, 12, 29, 60, 127, 128, 391, 700, 776, kElements};

// Elements of any dtype at an address that is `shift` elements behind a multiple of 64 bytes.
class Elements {
 public:
  Elements(DType dtype, int64_t n, int64_t shift)
      : size_(static_cast<int64_t>(DTypeSize(dtype))),
        bytes_(static_cast<size_t>((n + shift) * size_ + 64)),
        begin_(Align(bytes_.data()) + shift * size_),
        n_(n) {}
  char* at(int64_t i) { return begin_ + i * size_; }
  std::string Bits() const { return std::string(begin_, static_cast<size_t>(n_ * size_)); }

 private:
  static char* Align(char* p) { return p + (64 - reinterpret_cast<uintptr_t>(p) % 64) % 64; }
  const int64_t size_;
  std::vector<char> bytes_;
  char* const begin_;
  const int64_t n_;
};

// Numbers of both signs and many sizes, never 0; small positive ones for integers.
void Fill(DType dtype, uint32_t seed, int64_t n, Elements* out) {
  std::vector<float> values(static_cast<size_t>(n));
  uint32_t state = seed;
  for (float& v : values) {
    state = state * 1664525u + 1013904223u;
    const float unit = static_cast<float>(state >> 8) / 16777216.0f;
    v = IsInteger(dtype)     ? 1 + static_cast<float>(state >> 29)
        : (state & 63u) == 0 ? unit * 300 - 150
                             : unit * 6 - 3 + 1e-3f;
  }
  FindCast(DT_FLOAT, dtype, false)(values.data(), out->at(0), n);
}

bool IsNumber(DType dtype) {
  return FindCast(DT_FLOAT, dtype, false) != nullptr && dtype != DT_BOOL;
}

// run(shift, begin, end, out) computes elements [begin, end) into `out`; all ways must agree.
template <typename Run>
void ExpectSameBitsHoweverCut(DType result, const std::string& what, Run run) {
  Elements whole(result, kElements, 0);
  run(0, 0, kElements, &whole);
  for (const int64_t shift : {0, 1, 3}) {
    Elements parts(result, kElements, shift);
    for (size_t i = 0; i + 1 < std::size(kCuts); ++i) run(shift, kCuts[i], kCuts[i + 1], &parts);
    EXPECT_EQ(whole.Bits(), parts.Bits()) << what << ", shifted by " << shift;
  }
}

std::string Name(const char* kind, int op, DType dtype) {
  return std::string(kind) + " " + std::to_string(op) + " of " + std::string(DTypeName(dtype));
}

TEST(CutTest, UnaryLoopsGiveTheSameBitsHoweverTheyAreCut) {
  for (int op = 0; op <= static_cast<int>(UnaryOp::kLogicalNot); ++op) {
    for (int number = 1; number <= kNumDTypes; ++number) {
      const DType dtype = static_cast<DType>(number);
      const UnaryFn fn = FindUnary(static_cast<UnaryOp>(op), dtype);
      if (fn == nullptr || !IsNumber(dtype)) continue;
      const bool to_bool = op >= static_cast<int>(UnaryOp::kIsNan);
      ExpectSameBitsHoweverCut(to_bool ? DT_BOOL : dtype, Name("unary", op, dtype),
                               [&](int64_t shift, int64_t begin, int64_t end, Elements* y) {
                                 Elements x(dtype, kElements, shift);
                                 Fill(dtype, 1, kElements, &x);
                                 fn(x.at(begin), y->at(begin), end - begin);
                               });
    }
  }
}

TEST(CutTest, UnaryLoopsInPlaceGiveTheSameBits) {
  for (const UnaryOp op : {UnaryOp::kExp, UnaryOp::kLog1p, UnaryOp::kSigmoid, UnaryOp::kElu,
                           UnaryOp::kSoftplus, UnaryOp::kErf, UnaryOp::kRsqrt}) {
    const UnaryFn fn = FindUnary(op, DT_FLOAT);
    Elements x(DT_FLOAT, kElements, 1), y(DT_FLOAT, kElements, 0);
    Fill(DT_FLOAT, 1, kElements, &x);
    fn(x.at(0), y.at(0), kElements);
    fn(x.at(0), x.at(0), kElements);
    EXPECT_EQ(x.Bits(), y.Bits()) << static_cast<int>(op);
  }
}

TEST(CutTest, BinaryLoopsGiveTheSameBitsHoweverTheyAreCut) {
  for (int op = 0; op <= static_cast<int>(BinaryOp::kSoftsignGrad); ++op) {
    for (int number = 1; number <= kNumDTypes; ++number) {
      const DType dtype = static_cast<DType>(number);
      const BinaryFn fn = FindBinary(static_cast<BinaryOp>(op), dtype);
      if (fn == nullptr || !IsNumber(dtype)) continue;
      const bool to_bool =
          op >= static_cast<int>(BinaryOp::kEqual) && op <= static_cast<int>(BinaryOp::kLogicalOr);
      for (const int scalar : {0, 1, 2}) {  // neither, x, y
        ExpectSameBitsHoweverCut(to_bool ? DT_BOOL : dtype, Name("binary", op, dtype),
                                 [&](int64_t shift, int64_t begin, int64_t end, Elements* z) {
                                   Elements x(dtype, kElements, shift), y(dtype, kElements, shift);
                                   Fill(dtype, 1, kElements, &x);
                                   Fill(dtype, 2, kElements, &y);
                                   EXPECT_TRUE(fn(x.at(scalar == 1 ? 0 : begin), scalar == 1,
                                                  y.at(scalar == 2 ? 0 : begin), scalar == 2,
                                                  z->at(begin), end - begin));
                                 });
      }
    }
  }
}

TEST(CutTest, LeakyReluGivesTheSameBitsHoweverItIsCut) {
  for (const DType dtype : {DT_FLOAT, DT_DOUBLE, DT_HALF, DT_BFLOAT16}) {
    const LeakyReluFn fn = FindLeakyRelu(dtype);
    ExpectSameBitsHoweverCut(dtype, std::string(DTypeName(dtype)),
                             [&](int64_t shift, int64_t begin, int64_t end, Elements* z) {
                               Elements g(dtype, kElements, shift), x(dtype, kElements, shift);
                               Fill(dtype, 1, kElements, &g);
                               Fill(dtype, 2, kElements, &x);
                               fn(g.at(begin), x.at(begin), 0.3f, z->at(begin), end - begin);
                             });
  }
}

TEST(CutTest, CastsGiveTheSameBitsHoweverTheyAreCut) {
  for (int from = 1; from <= kNumDTypes; ++from) {
    for (int to = 1; to <= kNumDTypes; ++to) {
      const DType x_type = static_cast<DType>(from), y_type = static_cast<DType>(to);
      if (!IsNumber(x_type)) continue;
      for (const bool truncate : {false, true}) {
        const CastFn fn = FindCast(x_type, y_type, truncate);
        if (fn == nullptr) continue;
        ExpectSameBitsHoweverCut(y_type, Name("cast to", to, x_type),
                                 [&](int64_t shift, int64_t begin, int64_t end, Elements* y) {
                                   Elements x(x_type, kElements, shift);
                                   Fill(x_type, 1, kElements, &x);
                                   fn(x.at(begin), y->at(begin), end - begin);
                                 });
      }
    }
  }
}

// update(arrays of the variable and two slots, gradient, n) on [begin, end).
template <typename E, typename Update>
void ExpectSameUpdateHoweverCut(const std::string& what, Update update) {
  constexpr DType kType = DTypeOf<E>;
  for (size_t written = 0; written < 3; ++written) {
    ExpectSameBitsHoweverCut(kType, what + " array " + std::to_string(written),
                             [&](int64_t shift, int64_t begin, int64_t end, Elements* out) {
                               std::vector<Elements> old;
                               std::vector<Elements> fresh;
                               UpdateArray<E> arrays[3];
                               for (uint32_t k = 0; k < 4; ++k) {
                                 old.emplace_back(kType, kElements, shift);
                                 Fill(kType, k + 1, kElements, &old.back());
                                 fresh.emplace_back(kType, kElements, shift);
                               }
                               // Sums of squares are positive.
                               const UnaryFn square = FindUnary(UnaryOp::kSquare, kType);
                               square(old[2].at(0), old[2].at(0), kElements);
                               for (size_t k = 0; k < 3; ++k) {
                                 Elements& to = k == written ? *out : fresh[k];
                                 arrays[k] = {reinterpret_cast<const E*>(old[k].at(begin)),
                                              reinterpret_cast<E*>(to.at(begin))};
                               }
                               update(arrays, reinterpret_cast<const E*>(old[3].at(begin)),
                                      end - begin);
                             });
  }
}

template <typename E>
void ExpectSameUpdates() {
  using W = Wide<E>;
  ExpectSameUpdateHoweverCut<E>("descent", [](UpdateArray<E>* a, const E* g, int64_t n) {
    GradientDescent<E>(a[0], g, W(0.1), n);
  });
  for (const bool nesterov : {false, true}) {
    ExpectSameUpdateHoweverCut<E>("adam", [=](UpdateArray<E>* a, const E* g, int64_t n) {
      Adam<E>(a[0], a[1], a[2], g, {W(0.01), W(0.9), W(0.999), W(1e-3)}, nesterov, n);
    });
    ExpectSameUpdateHoweverCut<E>("momentum", [=](UpdateArray<E>* a, const E* g, int64_t n) {
      Momentum<E>(a[0], a[1], g, W(0.1), W(0.9), nesterov, n);
    });
  }
  ExpectSameUpdateHoweverCut<E>("adagrad", [](UpdateArray<E>* a, const E* g, int64_t n) {
    Adagrad<E>(a[0], a[2], g, W(0.1), true, n);
  });
}

TEST(CutTest, UpdatesGiveTheSameBitsHoweverTheyAreCut) {
  ExpectSameUpdates<float>();
  ExpectSameUpdates<double>();
  ExpectSameUpdates<Half>();
  ExpectSameUpdates<Bfloat16>();
}

TEST(CutTest, ARowOfSoftmaxHasTheSameBitsAloneAndAmongOthers) {
  for (const DType dtype : {DT_FLOAT, DT_DOUBLE, DT_HALF, DT_BFLOAT16}) {
    const SoftmaxLoops& loops = *FindSoftmax(dtype);
    for (const int64_t columns : {1, 3, 10, 37}) {
      const int64_t rows = kElements / columns;
      Elements x(dtype, kElements, 0), together(dtype, kElements, 0), alone(dtype, kElements, 1);
      Fill(dtype, 1, kElements, &x);
      for (const auto loop : {loops.softmax, loops.log_softmax}) {
        loop(x.at(0), together.at(0), rows, columns);
        for (int64_t r = 0; r < rows; ++r) {
          loop(x.at(r * columns), alone.at(r * columns), 1, columns);
        }
        EXPECT_EQ(together.Bits(), alone.Bits()) << columns << " columns";
      }
    }
  }
}

// --- Products ------------------------------------------------------------------------------------

TEST(GemmSlicesTest, SlicesCoverTheProductOnce) {
  const int64_t sizes[][3] = {{1, 1, 1},      {3, 5, 7},      {17, 300, 40},  {300, 17, 40},
                              {129, 257, 65}, {1000, 90, 33}, {90, 1000, 33}, {256, 256, 256},
                              {1, 1000, 300}, {1000, 1, 300}, {65, 481, 700}, {500, 240, 1100}};
  for (const DType dtype : {DT_FLOAT, DT_DOUBLE}) {
    for (const auto& s : sizes) {
      for (const int64_t products : {1, 3}) {
        const GemmShape shape{s[0], s[1], s[2], Operand::kPlain, Operand::kTransposed};
        Elements a(dtype, s[0] * s[2], 0), b(dtype, s[1] * s[2], 0), c(dtype, s[0] * s[1], 0);
        Fill(dtype, 1, s[0] * s[2], &a);
        Fill(dtype, 2, s[1] * s[2], &b);
        std::memset(c.at(0), 0xff, static_cast<size_t>(s[0] * s[1]) * DTypeSize(dtype));  // NaN
        const GemmSlices slices(shape, dtype, products);
        for (int64_t i = slices.count(); i-- > 0;) slices.Run(i, a.at(0), b.at(0), c.at(0));
        const auto value = [dtype](Elements& e, int64_t i) {
          return dtype == DT_FLOAT ? static_cast<double>(*reinterpret_cast<float*>(e.at(i)))
                                   : *reinterpret_cast<double*>(e.at(i));
        };
        double worst = 0;
        for (int64_t i = 0; i < s[0]; ++i) {
          for (int64_t j = 0; j < s[1]; ++j) {
            double sum = 0, size = 0;
            for (int64_t p = 0; p < s[2]; ++p) {
              const double product = value(a, i * s[2] + p) * value(b, j * s[2] + p);
              sum += product;
              size += std::abs(product);
            }
            const double error = std::abs(value(c, i * s[1] + j) - sum) / size;
            worst = error <= worst ? worst : error;  // NaN stays
          }
        }
        EXPECT_LT(worst, 1e-5) << s[0] << "x" << s[1] << "x" << s[2];
      }
    }
  }
}

TEST(GemmSlicesTest, LargeProductsHaveSlicesForManyThreadsAndSmallOnesHaveNone) {
  EXPECT_EQ(GemmSlices({64, 64, 64}, DT_FLOAT).count(), 1);
  EXPECT_GE(GemmSlices({256, 256, 256}, DT_FLOAT).count(), 2);
  EXPECT_GE(GemmSlices({1024, 1024, 1024}, DT_FLOAT).count(), 2);
  EXPECT_GE(GemmSlices({4096, 4096, 4096}, DT_FLOAT).count(), 8);
  EXPECT_GE(GemmSlices({100'000, 10, 100}, DT_FLOAT).count(), 8);
  EXPECT_GE(GemmSlices({10, 100'000, 100}, DT_FLOAT).count(), 8);
  EXPECT_EQ(GemmSlices({256, 256, 256}, DT_FLOAT, /*products=*/64).count(), 1);
}

}  // namespace
}  // namespace millrace::math
