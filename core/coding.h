// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_CODING_H_
#define MILLRACE_CORE_CODING_H_

// Numbers as bytes: little-endian words, varints, and OrderedCode, whose byte order
// is the order of what it encodes (keys of tensor slices in a checkpoint's index).
//
// Get functions read from the front of `*in`, advance it and return true; when the bytes end
// early or encode nothing legal they return false and leave `*in` and the result as they were.
//
// Thread-safety: pure functions.

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/string_view.h"

namespace millrace {

static_assert(std::endian::native == std::endian::little, "files are read as they lie");

inline void EncodeFixed32(char* out, uint32_t value) { std::memcpy(out, &value, sizeof(value)); }
inline void EncodeFixed64(char* out, uint64_t value) { std::memcpy(out, &value, sizeof(value)); }
inline uint32_t DecodeFixed32(const char* in) {
  uint32_t value;
  std::memcpy(&value, in, sizeof(value));
  return value;
}
inline uint64_t DecodeFixed64(const char* in) {
  uint64_t value;
  std::memcpy(&value, in, sizeof(value));
  return value;
}

void PutFixed32(std::string* out, uint32_t value);
void PutFixed64(std::string* out, uint64_t value);
bool GetFixed32(absl::string_view* in, uint32_t* value);

inline constexpr size_t kMaxVarint32Bytes = 5;
inline constexpr size_t kMaxVarint64Bytes = 10;

void PutVarint32(std::string* out, uint32_t value);
void PutVarint64(std::string* out, uint64_t value);
size_t VarintLength(uint64_t value);

// These accept leading zeros (`85 00` is 5), as TensorFlow does, but no number that does not fit.
bool GetVarint32(absl::string_view* in, uint32_t* value);
bool GetVarint64(absl::string_view* in, uint64_t* value);

// OrderedCode: a sequence of the same types compares as bytes like the values do.
void PutOrderedUint(std::string* out, uint64_t value);
void PutOrderedInt(std::string* out, int64_t value);
void PutOrderedString(std::string* out, absl::string_view value);
// False for bytes that were not put so.
bool GetOrderedUint(absl::string_view* in, uint64_t* value);
bool GetOrderedString(absl::string_view* in, std::string* value);

}  // namespace millrace

#endif  // MILLRACE_CORE_CODING_H_
