// SPDX-License-Identifier: Apache-2.0
#include "core/crc32c.h"

#include <nmmintrin.h>

#include <array>
#include <cstddef>
#include <cstring>

namespace millrace {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78u;  // 0x1edc6f41, bits reversed

// A linear map of checksums: image[i] is what bit i becomes.
using Matrix = std::array<uint32_t, 32>;

constexpr uint32_t Apply(const Matrix& m, uint32_t crc) {
  uint32_t sum = 0;
  for (size_t i = 0; crc != 0; ++i, crc >>= 1) {
    if (crc & 1u) sum ^= m[i];
  }
  return sum;
}

constexpr Matrix Squared(const Matrix& m) {
  Matrix square{};
  for (size_t i = 0; i < 32; ++i) square[i] = Apply(m, m[i]);
  return square;
}

// What `num_bytes` (a power of two) zero bytes do to a checksum.
constexpr Matrix ZeroBytes(size_t num_bytes) {
  Matrix m{};
  m[0] = kPolynomial;  // one zero bit
  for (size_t i = 1; i < 32; ++i) m[i] = uint32_t{1} << (i - 1);
  for (size_t bits = 1; bits < 8 * num_bytes; bits *= 2) m = Squared(m);
  return m;
}

// The same map as four look-ups.
struct ShiftTable {
  uint32_t image[4][256];

  constexpr explicit ShiftTable(size_t num_bytes) : image() {
    const Matrix m = ZeroBytes(num_bytes);
    for (uint32_t byte = 0; byte < 256; ++byte) {
      for (uint32_t place = 0; place < 4; ++place) {
        image[place][byte] = Apply(m, byte << (8 * place));
      }
    }
  }
  uint32_t operator()(uint32_t crc) const {
    return image[0][crc & 0xff] ^ image[1][(crc >> 8) & 0xff] ^ image[2][(crc >> 16) & 0xff] ^
           image[3][crc >> 24];
  }
};

// Of 2^i bytes of zeros each.
constexpr std::array<Matrix, 64> PowersOfZeroBytes() {
  std::array<Matrix, 64> powers{};
  powers[0] = ZeroBytes(1);
  for (size_t i = 1; i < 64; ++i) powers[i] = Squared(powers[i - 1]);
  return powers;
}
constexpr std::array<Matrix, 64> kPowersOfZeroBytes = PowersOfZeroBytes();

constexpr size_t kLong = 4096;
constexpr size_t kShort = 256;
constexpr ShiftTable kShiftLong(kLong);
constexpr ShiftTable kShiftShort(kShort);

uint64_t Word(const char* p) {
  uint64_t word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

// The instruction takes three cycles but a new one begins in each: three neighbouring stretches of
// `kStretch` bytes go side by side and are joined by shifting.
template <size_t kStretch>
uint32_t ThreeStretches(uint32_t crc, const char*& p, size_t& n, const ShiftTable& shift) {
  while (n >= 3 * kStretch) {
    uint64_t a = crc, b = 0, c = 0;
    for (size_t i = 0; i < kStretch; i += 8) {
      a = _mm_crc32_u64(a, Word(p + i));
      b = _mm_crc32_u64(b, Word(p + kStretch + i));
      c = _mm_crc32_u64(c, Word(p + 2 * kStretch + i));
    }
    crc = shift(static_cast<uint32_t>(a)) ^ static_cast<uint32_t>(b);
    crc = shift(crc) ^ static_cast<uint32_t>(c);
    p += 3 * kStretch;
    n -= 3 * kStretch;
  }
  return crc;
}

}  // namespace

uint32_t JoinCrc32c(uint32_t a, uint32_t b, uint64_t b_size) {
  // Bytes of zeros after `a`: for each bit of their number the map of so many.
  for (size_t i = 0; b_size != 0; ++i, b_size >>= 1) {
    if (b_size & 1u) a = Apply(kPowersOfZeroBytes[i], a);
  }
  return a ^ b;
}

uint32_t ExtendCrc32c(uint32_t crc, absl::string_view data) {
  const char* p = data.data();
  size_t n = data.size();
  crc = ~crc;
  crc = ThreeStretches<kLong>(crc, p, n, kShiftLong);
  crc = ThreeStretches<kShort>(crc, p, n, kShiftShort);
  uint64_t wide = crc;
  for (; n >= 8; p += 8, n -= 8) wide = _mm_crc32_u64(wide, Word(p));
  crc = static_cast<uint32_t>(wide);
  for (; n > 0; ++p, --n) crc = _mm_crc32_u8(crc, static_cast<unsigned char>(*p));
  return ~crc;
}

}  // namespace millrace
