// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_CRC32C_H_
#define MILLRACE_CORE_CRC32C_H_

// CRC-32C (Castagnoli): the checksum of records, tables and tensors in files.
//
//   Crc32c("123456789") == 0xe3069283
//   ExtendCrc32c(Crc32c(a), b) == Crc32c(a + b)
//
// Files store checksums masked, because the checksum of bytes that contain their
// own checksum is useless.
//
// Thread-safety: pure functions.

#include <cstdint>

#include "absl/strings/string_view.h"

namespace millrace {

// The checksum of what `crc` is the checksum of, followed by `data`.
uint32_t ExtendCrc32c(uint32_t crc, absl::string_view data);

// Of a + b, from the checksums of both and the length of b: parts can be read by several threads.
//   JoinCrc32c(Crc32c(a), Crc32c(b), b.size()) == Crc32c(a + b)
uint32_t JoinCrc32c(uint32_t a, uint32_t b, uint64_t b_size);

inline uint32_t Crc32c(absl::string_view data) { return ExtendCrc32c(0, data); }

inline constexpr uint32_t kCrcMaskDelta = 0xa282ead8u;

constexpr uint32_t MaskCrc32c(uint32_t crc) { return ((crc >> 15) | (crc << 17)) + kCrcMaskDelta; }

constexpr uint32_t UnmaskCrc32c(uint32_t masked) {
  const uint32_t rotated = masked - kCrcMaskDelta;
  return (rotated >> 17) | (rotated << 15);
}

}  // namespace millrace

#endif  // MILLRACE_CORE_CRC32C_H_
