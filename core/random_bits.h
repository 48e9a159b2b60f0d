// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_RANDOM_BITS_H_
#define MILLRACE_CORE_RANDOM_BITS_H_

// Random bits for names: steps, sessions, incarnations, temporary files.
//
// From the operating system, so two processes never draw the same. Not for models:
// random ops have their own generator with seeds.
//
// Thread-safety: all functions, from any thread.

#include <cstdint>
#include <string>

namespace millrace {

// Uniform over all values but 0.
uint64_t RandomUint64();

// 16 hexadecimal digits of RandomUint64().
std::string RandomHexName();

// For tests: while one of these lives, RandomUint64() is a fixed sequence. At most one at a time.
class ScopedRandomSeed {
 public:
  explicit ScopedRandomSeed(uint64_t seed);
  ~ScopedRandomSeed();
  ScopedRandomSeed(const ScopedRandomSeed&) = delete;
  ScopedRandomSeed& operator=(const ScopedRandomSeed&) = delete;
};

}  // namespace millrace

#endif  // MILLRACE_CORE_RANDOM_BITS_H_
