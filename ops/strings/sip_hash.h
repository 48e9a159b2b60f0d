// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_STRINGS_SIP_HASH_H_
#define MILLRACE_OPS_STRINGS_SIP_HASH_H_

// SipHash24: the keyed 64-bit hash of Aumasson and Bernstein (two rounds a word, four at the end).
//
// Who does not know the key cannot find strings of one hash faster than by trying. The values are
// part of models (StringToHashBucketStrong) and must never change. Any thread; cannot fail.

#include <bit>
#include <cstdint>
#include <cstring>

#include "absl/strings/string_view.h"

namespace millrace {

struct SipKey {
  uint64_t k0, k1;
};

inline uint64_t SipHash24(SipKey key, absl::string_view data) {
  // The constants are the letters of "somepseudorandomlygeneratedbytes".
  uint64_t v0 = key.k0 ^ 0x736f6d6570736575u, v1 = key.k1 ^ 0x646f72616e646f6du;
  uint64_t v2 = key.k0 ^ 0x6c7967656e657261u, v3 = key.k1 ^ 0x7465646279746573u;
  const auto round = [&] {
    v0 += v1;
    v2 += v3;
    v1 = std::rotl(v1, 13) ^ v0;
    v3 = std::rotl(v3, 16) ^ v2;
    v0 = std::rotl(v0, 32);
    v2 += v1;
    v0 += v3;
    v1 = std::rotl(v1, 17) ^ v2;
    v3 = std::rotl(v3, 21) ^ v0;
    v2 = std::rotl(v2, 32);
  };
  const auto word = [&](uint64_t m) {
    v3 ^= m;
    round();
    round();
    v0 ^= m;
  };
  const char* at = data.data();
  size_t left = data.size();
  for (; left >= 8; left -= 8, at += 8) {
    uint64_t m;
    std::memcpy(&m, at, 8);  // little-endian, like this machine
    word(m);
  }
  // What is left, and in the top byte how long it all is.
  uint64_t last = 0;
  if (left > 0) std::memcpy(&last, at, left);
  word(last | static_cast<uint64_t>(data.size()) << 56);
  v2 ^= 0xff;
  for (int i = 0; i < 4; ++i) round();
  return v0 ^ v1 ^ v2 ^ v3;
}

}  // namespace millrace

#endif  // MILLRACE_OPS_STRINGS_SIP_HASH_H_
