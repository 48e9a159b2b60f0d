// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_LOOPS_PHILOX_H_
#define MILLRACE_OPS_LOOPS_PHILOX_H_

// Philox: random numbers that are a function of a seed and a position (Philox 4x32-10, Salmon et
// al., SC 2011), and the distributions that TensorFlow makes of them.
//
// The generator is a counter of 128 bits under a key of 64 bits: block i is four 32-bit words that
// depend on nothing but key, counter + i. So any part of a long row of numbers may be made by any
// thread: the functions below fill the numbers of *groups* [first_group, ...) of a row that begins
// at the stream's position.
//
// Uniform and integer values have TensorFlow's bits. Normal values are within 1 ulp of what exact
// arithmetic makes of the same uniform values.
//
// Pure functions; a PhiloxStream is a value.

#include <array>
#include <cstdint>

#include "absl/types/span.h"

namespace millrace::math {

class PhiloxStream {
 public:
  using Block = std::array<uint32_t, 4>;

  // The seed is the key, seed2 the upper half of the counter.
  PhiloxStream() = default;
  PhiloxStream(uint64_t seed, uint64_t seed2);

  // Moves on by `blocks`. SkipWide: by blocks * times, which may need more than 64 bits.
  void Skip(uint64_t blocks) { SkipWide(blocks, 1); }
  void SkipWide(uint64_t blocks, uint64_t times);
  PhiloxStream At(uint64_t blocks) const {
    PhiloxStream moved = *this;
    moved.Skip(blocks);
    return moved;
  }
  // The block here; moves on by one.
  Block Next();

 private:
  Block counter_ = {0, 0, 0, 0};  // least significant word first
  std::array<uint32_t, 2> key_ = {0, 0};
};

// How many values one block (or one truncated group) gives.
template <typename T>
inline constexpr int64_t kPhiloxGroup = sizeof(T) == 8 ? 2 : 4;

// All of them: `out` begins with the first value of group `first_group`; its last group may be cut.
// T: float, double, Half, Bfloat16 where not said otherwise.

// Uniform over [0, 1).
template <typename T>
void PhiloxUniform(const PhiloxStream& stream, int64_t first_group, absl::Span<T> out);
// Uniform over [low, low + range) (range as unsigned, not 0; the remainder's bias is accepted, as
// in TensorFlow). T: int32_t, int64_t.
template <typename T>
void PhiloxUniformInt(const PhiloxStream& stream, int64_t first_group, T low, uint64_t range,
                      absl::Span<T> out);
// Mean 0, standard deviation 1 (Box and Muller's transform).
template <typename T>
void PhiloxNormal(const PhiloxStream& stream, int64_t first_group, absl::Span<T> out);
// The same without what is 2 or more away from 0. Each group has a stream of its own, 256 blocks
// (double: 128) behind the one before.
template <typename T>
void PhiloxTruncatedNormal(const PhiloxStream& stream, int64_t first_group, absl::Span<T> out);

// The transform of 32-bit words to a uniform float, for tests.
float PhiloxToFloat(uint32_t word);

}  // namespace millrace::math

#endif  // MILLRACE_OPS_LOOPS_PHILOX_H_
