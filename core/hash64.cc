// SPDX-License-Identifier: Apache-2.0
#include "core/hash64.h"

#include <cstddef>
#include <cstring>

namespace millrace {

uint64_t Hash64(absl::string_view data, uint64_t seed) {
  constexpr uint64_t kMultiplier = 0xc6a4a7935bd1e995ull;
  constexpr int kShift = 47;
  size_t left = data.size();
  const char* p = data.data();
  uint64_t h = seed ^ (left * kMultiplier);
  for (; left >= 8; left -= 8, p += 8) {
    uint64_t k;  // little-endian, as x86-64 is
    std::memcpy(&k, p, sizeof(k));
    k *= kMultiplier;
    k ^= k >> kShift;
    k *= kMultiplier;
    h ^= k;
    h *= kMultiplier;
  }
  if (left > 0) {
    uint64_t tail = 0;
    std::memcpy(&tail, p, left);
    h ^= tail;
    h *= kMultiplier;
  }
  h ^= h >> kShift;
  h *= kMultiplier;
  h ^= h >> kShift;
  return h;
}

}  // namespace millrace
