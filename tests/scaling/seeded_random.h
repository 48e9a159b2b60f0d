// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_SCALING_SEEDED_RANDOM_H_
#define MILLRACE_TESTS_SCALING_SEEDED_RANDOM_H_

// Random numbers that a seed decides, the same with every standard library (whose distributions
// differ, but not their engines).
//
// Thread-safety: thread-compatible. Failure: none.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <random>
#include <utility>
#include <vector>

namespace millrace::scaling {

// splitmix64's mixing of a number.
inline uint64_t Mixed(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Streams of another seed, purpose or number have nothing to do with each other.
inline std::mt19937_64 RandomOf(uint64_t seed, uint64_t purpose, uint64_t number = 0) {
  return std::mt19937_64(Mixed(Mixed(Mixed(seed) + purpose) + number));
}

// In [0, 1).
inline double Uniform(std::mt19937_64* random) {
  return static_cast<double>((*random)() >> 11) * 0x1.0p-53;
}

// Mean 0, deviation 1 (Box and Muller).
inline double Normal(std::mt19937_64* random) {
  const double radius = std::sqrt(-2 * std::log(1 - Uniform(random)));
  return radius * std::cos(2 * std::numbers::pi * Uniform(random));
}

template <typename T>
void Shuffle(std::vector<T>* values, std::mt19937_64* random) {
  for (size_t i = values->size(); i > 1; --i) {
    std::swap((*values)[i - 1], (*values)[(*random)() % i]);
  }
}

}  // namespace millrace::scaling

#endif  // MILLRACE_TESTS_SCALING_SEEDED_RANDOM_H_
