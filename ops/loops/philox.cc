// SPDX-License-Identifier: Apache-2.0
#include "ops/loops/philox.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/dtype.h"

namespace millrace::math {
namespace {

using Block = PhiloxStream::Block;

constexpr double kTwoPi = 6.283185307179586476925286766559;
constexpr double kTruncation = 2;

// 23 random bits below the leading one of a number in [1, 2).
float ToUniformFloat(uint32_t word) {
  const uint32_t bits = (uint32_t{127} << 23) | (word & 0x7fffffu);
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value - 1.0f;
}
double ToUniformDouble(uint32_t high, uint32_t low) {
  const uint64_t bits =
      (uint64_t{1023} << 52) | (static_cast<uint64_t>(high & 0xfffffu) << 32) | low;
  double value;
  std::memcpy(&value, &bits, sizeof(value));
  return value - 1.0;
}

template <typename T>
struct Uniform;
template <>
struct Uniform<float> {
  static void Make(const Block& words, float* out) {
    for (size_t i = 0; i < 4; ++i) out[i] = ToUniformFloat(words[i]);
  }
};
template <>
struct Uniform<double> {
  static void Make(const Block& words, double* out) {
    out[0] = ToUniformDouble(words[0], words[1]);
    out[1] = ToUniformDouble(words[2], words[3]);
  }
};
template <>
struct Uniform<Half> {
  static void Make(const Block& words, Half* out) {
    for (size_t i = 0; i < 4; ++i) out[i] = ToHalf(static_cast<float>(words[i] & 0x3ffu) / 1024.0f);
  }
};
template <>
struct Uniform<Bfloat16> {
  static void Make(const Block& words, Bfloat16* out) {
    for (size_t i = 0; i < 4; ++i)
      out[i] = ToBfloat16(static_cast<float>(words[i] & 0x7fu) / 128.0f);
  }
};

// Two normal values of two uniform ones. The smallest uniform value keeps the logarithm finite.
struct Pair {
  double sine, cosine;
};
Pair BoxMuller(double uniform, double angle) {
  const double radius = std::sqrt(-2.0 * std::log(uniform));
  return {radius * std::sin(angle), radius * std::cos(angle)};
}
Pair NormalOfWords(uint32_t x0, uint32_t x1) {
  constexpr float kSmallest = 1.0e-7f;
  const float uniform = std::max(ToUniformFloat(x0), kSmallest);
  const float angle = static_cast<float>(kTwoPi * static_cast<double>(ToUniformFloat(x1)));
  return BoxMuller(static_cast<double>(uniform), static_cast<double>(angle));
}
Pair NormalOfWords(const Block& words) {
  constexpr double kSmallest = 1.0e-7;
  const double uniform = std::max(ToUniformDouble(words[0], words[1]), kSmallest);
  return BoxMuller(uniform, kTwoPi * ToUniformDouble(words[2], words[3]));
}

float Narrow(double value, float*) { return static_cast<float>(value); }
double Narrow(double value, double*) { return value; }
Half Narrow(double value, Half*) { return ToHalf(static_cast<float>(value)); }
Bfloat16 Narrow(double value, Bfloat16*) { return ToBfloat16(static_cast<float>(value)); }

// Whether a truncated distribution keeps the value: decided in the precision that it is made in.
template <typename T>
bool Keeps(double value) {
  if constexpr (std::is_same_v<T, double>) return std::abs(value) < kTruncation;
  return std::abs(static_cast<float>(value)) < static_cast<float>(kTruncation);
}

// Calls make(block, T[group]) for each group and copies what `out` has room for.
template <typename T, typename Make>
void FillGroups(const PhiloxStream& stream, int64_t first_group, absl::Span<T> out,
                const Make& make) {
  constexpr size_t kGroup = static_cast<size_t>(kPhiloxGroup<T>);
  PhiloxStream at = stream.At(static_cast<uint64_t>(first_group));
  size_t i = 0;
  for (; i + kGroup <= out.size(); i += kGroup) make(at.Next(), out.data() + i);
  if (i < out.size()) {
    T last[kGroup];
    make(at.Next(), last);
    std::copy(last, last + (out.size() - i), out.data() + i);
  }
}

template <typename T>
void NormalGroup(const Block& words, T* out) {
  if constexpr (std::is_same_v<T, double>) {
    const Pair pair = NormalOfWords(words);
    out[0] = pair.sine;
    out[1] = pair.cosine;
  } else {
    for (size_t i = 0; i < 4; i += 2) {
      const Pair pair = NormalOfWords(words[i], words[i + 1]);
      out[i] = Narrow(pair.sine, out);
      out[i + 1] = Narrow(pair.cosine, out);
    }
  }
}

template <typename T>
void TruncatedGroup(PhiloxStream stream, T* out) {
  constexpr size_t kGroup = static_cast<size_t>(kPhiloxGroup<T>);
  size_t n = 0;
  const auto keep = [&](const Pair& pair) {
    for (const double value : {pair.sine, pair.cosine}) {
      if (n < kGroup && Keeps<T>(value)) out[n++] = Narrow(value, out);
    }
  };
  while (n < kGroup) {
    const Block words = stream.Next();
    if constexpr (std::is_same_v<T, double>) {
      keep(NormalOfWords(words));
    } else {
      keep(NormalOfWords(words[0], words[1]));
      keep(NormalOfWords(words[2], words[3]));
    }
  }
}

}  // namespace

PhiloxStream::PhiloxStream(uint64_t seed, uint64_t seed2)
    : counter_{0, 0, static_cast<uint32_t>(seed2), static_cast<uint32_t>(seed2 >> 32)},
      key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)} {}

void PhiloxStream::SkipWide(uint64_t blocks, uint64_t times) {
  __extension__ using Wide = unsigned __int128;
  Wide counter = 0;
  for (size_t i = 4; i-- > 0;) counter = (counter << 32) | counter_[i];
  counter += static_cast<Wide>(blocks) * times;
  for (uint32_t& word : counter_) {
    word = static_cast<uint32_t>(counter);
    counter >>= 32;
  }
}

PhiloxStream::Block PhiloxStream::Next() {
  constexpr uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
  constexpr int kRounds = 10;
  Block c = counter_;
  uint32_t k0 = key_[0], k1 = key_[1];
  for (int round = 0; round < kRounds; ++round) {
    const uint64_t p = kMultiplier0 * c[0], q = kMultiplier1 * c[2];
    c = {static_cast<uint32_t>(q >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(q),
         static_cast<uint32_t>(p >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(p)};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  for (uint32_t& word : counter_) {
    if (++word != 0) break;
  }
  return c;
}

template <typename T>
void PhiloxUniform(const PhiloxStream& stream, int64_t first_group, absl::Span<T> out) {
  FillGroups(stream, first_group, out,
             [](const Block& words, T* values) { Uniform<T>::Make(words, values); });
}

template <typename T>
void PhiloxUniformInt(const PhiloxStream& stream, int64_t first_group, T low, uint64_t range,
                      absl::Span<T> out) {
  using U = std::make_unsigned_t<T>;
  const U span = static_cast<U>(range);
  FillGroups(stream, first_group, out, [=](const Block& words, T* values) {
    for (size_t i = 0; i < static_cast<size_t>(kPhiloxGroup<T>); ++i) {
      U word;
      if constexpr (sizeof(T) == 8) {
        word = words[2 * i] | static_cast<uint64_t>(words[2 * i + 1]) << 32;
      } else {
        word = words[i];
      }
      values[i] = static_cast<T>(static_cast<U>(low) + word % span);
    }
  });
}

template <typename T>
void PhiloxNormal(const PhiloxStream& stream, int64_t first_group, absl::Span<T> out) {
  FillGroups(stream, first_group, out,
             [](const Block& words, T* values) { NormalGroup(words, values); });
}

template <typename T>
void PhiloxTruncatedNormal(const PhiloxStream& stream, int64_t first_group, absl::Span<T> out) {
  constexpr size_t kGroup = static_cast<size_t>(kPhiloxGroup<T>);
  constexpr uint64_t kBlocksPerGroup = 64 * kGroup;
  for (size_t i = 0; i < out.size(); i += kGroup, ++first_group) {
    PhiloxStream at = stream;
    at.SkipWide(static_cast<uint64_t>(first_group), kBlocksPerGroup);
    T values[kGroup];
    TruncatedGroup(at, values);
    std::copy(values, values + std::min(kGroup, out.size() - i), out.data() + i);
  }
}

float PhiloxToFloat(uint32_t word) { return ToUniformFloat(word); }

#define MR_PHILOX(T)                                                           \
  template void PhiloxUniform<T>(const PhiloxStream&, int64_t, absl::Span<T>); \
  template void PhiloxNormal<T>(const PhiloxStream&, int64_t, absl::Span<T>);  \
  template void PhiloxTruncatedNormal<T>(const PhiloxStream&, int64_t, absl::Span<T>);
MR_PHILOX(float)
MR_PHILOX(double)
MR_PHILOX(Half)
MR_PHILOX(Bfloat16)
#undef MR_PHILOX
template void PhiloxUniformInt<int32_t>(const PhiloxStream&, int64_t, int32_t, uint64_t,
                                        absl::Span<int32_t>);
template void PhiloxUniformInt<int64_t>(const PhiloxStream&, int64_t, int64_t, uint64_t,
                                        absl::Span<int64_t>);

}  // namespace millrace::math
