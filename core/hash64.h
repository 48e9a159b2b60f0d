// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_HASH64_H_
#define MILLRACE_CORE_HASH64_H_

// Hash64: the 64-bit hash that is part of TensorFlow's formats.
//
// Frame ids and the op StringToHashBucket use it, so its values are the same in every process and
// must never change. A murmur-style hash over little-endian words; not for adversarial keys. Any
// thread; cannot fail.

#include <cstdint>

#include "absl/strings/string_view.h"

namespace millrace {

inline constexpr uint64_t kHash64DefaultSeed = 0xDECAFCAFFEull;

uint64_t Hash64(absl::string_view data, uint64_t seed = kHash64DefaultSeed);

}  // namespace millrace

#endif  // MILLRACE_CORE_HASH64_H_
