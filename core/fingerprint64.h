// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_FINGERPRINT64_H_
#define MILLRACE_CORE_FINGERPRINT64_H_

// Fingerprint64: FarmHash's 64-bit fingerprint of bytes, which is part of models.
//
// StringToHashBucketFast, crossed columns and the out-of-vocabulary buckets of tables turn strings
// to ids by it, so its values are the same in every process, on every machine and in TensorFlow,
// and must never change. Not for adversarial keys. Any thread; cannot fail.

#include <cstdint>

#include "absl/strings/string_view.h"

namespace millrace {

uint64_t Fingerprint64(absl::string_view data);

// The bucket of `data` among `num_buckets` >= 1: the fingerprint, unsigned, modulo their number.
inline int64_t FingerprintBucket(absl::string_view data, int64_t num_buckets) {
  return static_cast<int64_t>(Fingerprint64(data) % static_cast<uint64_t>(num_buckets));
}

// The fingerprint of two things in this order, made of theirs: what crosses of several columns hash
// by. Not symmetric.
constexpr uint64_t FingerprintCat64(uint64_t first, uint64_t second) {
  constexpr uint64_t kMultiplier = 0xc6a4a7935bd1e995u;
  const auto mix = [](uint64_t x) { return x ^ (x >> 47); };
  uint64_t result = first ^ kMultiplier;
  result ^= mix(second * kMultiplier) * kMultiplier;
  result *= kMultiplier;
  result = mix(result) * kMultiplier;
  return mix(result);
}

}  // namespace millrace

#endif  // MILLRACE_CORE_FINGERPRINT64_H_
