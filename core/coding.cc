// SPDX-License-Identifier: Apache-2.0
#include "core/coding.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace millrace {
namespace {

uint8_t Byte(absl::string_view in, size_t i) { return static_cast<uint8_t>(in[i]); }

bool GetVarint(absl::string_view* in, uint64_t max, bool canonical, uint64_t* value) {
  uint64_t result = 0;
  for (size_t i = 0; i < kMaxVarint64Bytes && i < in->size(); ++i) {
    const uint64_t byte = Byte(*in, i);
    const uint64_t bits = byte & 0x7f;
    if (i == 9 && bits > 1) return false;  // beyond 64 bits
    result |= bits << (7 * i);
    if (byte < 0x80) {
      if (result > max || (canonical && i > 0 && byte == 0)) return false;
      in->remove_prefix(i + 1);
      *value = result;
      return true;
    }
  }
  return false;
}

bool GetVarintOf32Bits(absl::string_view* in, bool canonical, uint32_t* value) {
  uint64_t wide;
  if (!GetVarint(in, std::numeric_limits<uint32_t>::max(), canonical, &wide)) return false;
  *value = static_cast<uint32_t>(wide);
  return true;
}

// An ordered int is `length` bytes of two's complement whose first `length` bits are flipped, so
// that longer positive numbers come later and longer negative ones earlier.
constexpr size_t kMaxOrderedInt = 10;

void FlipLengthBits(size_t length, uint8_t* bytes) {
  for (size_t bit = 0; bit < length; ++bit) {
    bytes[bit / 8] = static_cast<uint8_t>(bytes[bit / 8] ^ (0x80u >> (bit % 8)));
  }
}

size_t OrderedIntLength(int64_t value) {
  uint64_t magnitude = static_cast<uint64_t>(value < 0 ? ~value : value);
  size_t length = 1;
  for (magnitude >>= 6; magnitude != 0; magnitude >>= 7) ++length;
  return length;
}

}  // namespace

void PutFixed32(std::string* out, uint32_t value) {
  char bytes[sizeof(value)];
  EncodeFixed32(bytes, value);
  out->append(bytes, sizeof(bytes));
}

void PutFixed64(std::string* out, uint64_t value) {
  char bytes[sizeof(value)];
  EncodeFixed64(bytes, value);
  out->append(bytes, sizeof(bytes));
}

bool GetFixed32(absl::string_view* in, uint32_t* value) {
  if (in->size() < sizeof(*value)) return false;
  *value = DecodeFixed32(in->data());
  in->remove_prefix(sizeof(*value));
  return true;
}

bool GetFixed64(absl::string_view* in, uint64_t* value) {
  if (in->size() < sizeof(*value)) return false;
  *value = DecodeFixed64(in->data());
  in->remove_prefix(sizeof(*value));
  return true;
}

void PutVarint32(std::string* out, uint32_t value) { PutVarint64(out, value); }

void PutVarint64(std::string* out, uint64_t value) {
  while (value >= 0x80) {
    out->push_back(static_cast<char>(value | 0x80));
    value >>= 7;
  }
  out->push_back(static_cast<char>(value));
}

size_t VarintLength(uint64_t value) {
  size_t length = 1;
  for (; value >= 0x80; value >>= 7) ++length;
  return length;
}

bool GetVarint32(absl::string_view* in, uint32_t* value) {
  return GetVarintOf32Bits(in, /*canonical=*/false, value);
}
bool GetVarint64(absl::string_view* in, uint64_t* value) {
  return GetVarint(in, std::numeric_limits<uint64_t>::max(), /*canonical=*/false, value);
}
bool GetCanonicalVarint32(absl::string_view* in, uint32_t* value) {
  return GetVarintOf32Bits(in, /*canonical=*/true, value);
}
bool GetCanonicalVarint64(absl::string_view* in, uint64_t* value) {
  return GetVarint(in, std::numeric_limits<uint64_t>::max(), /*canonical=*/true, value);
}

void PutOrderedUint(std::string* out, uint64_t value) {
  char bytes[8];
  size_t length = 0;
  for (; value != 0; value >>= 8) bytes[7 - length++] = static_cast<char>(value);
  out->push_back(static_cast<char>(length));
  out->append(bytes + 8 - length, length);
}

bool GetOrderedUint(absl::string_view* in, uint64_t* value) {
  if (in->empty()) return false;
  const size_t length = Byte(*in, 0);
  if (length > 8 || in->size() < 1 + length) return false;
  if (length > 0 && Byte(*in, 1) == 0) return false;
  uint64_t result = 0;
  for (size_t i = 1; i <= length; ++i) result = (result << 8) | Byte(*in, i);
  in->remove_prefix(1 + length);
  *value = result;
  return true;
}

void PutOrderedInt(std::string* out, int64_t value) {
  const size_t length = OrderedIntLength(value);
  uint8_t bytes[kMaxOrderedInt];
  for (size_t i = 0; i < length; ++i) {
    // Beyond 64 bits there is only the sign.
    const size_t shift = std::min<size_t>(8 * (length - 1 - i), 63);
    bytes[i] = static_cast<uint8_t>(static_cast<uint64_t>(value >> shift));
  }
  FlipLengthBits(length, bytes);
  out->append(reinterpret_cast<const char*>(bytes), length);
}

bool GetOrderedInt(absl::string_view* in, int64_t* value) {
  if (in->empty()) return false;
  // The first `length` bits are the opposite of the sign, the next one is the sign.
  const bool negative = (Byte(*in, 0) & 0x80) == 0;
  size_t length = 0;
  for (;; ++length) {
    if (length > kMaxOrderedInt || length / 8 >= in->size()) return false;
    const bool bit = (Byte(*in, length / 8) & (0x80u >> (length % 8))) != 0;
    if (bit == negative) break;
  }
  if (in->size() < length) return false;
  uint8_t bytes[kMaxOrderedInt];
  std::memcpy(bytes, in->data(), length);
  FlipLengthBits(length, bytes);
  uint64_t bits = negative ? ~uint64_t{0} : 0;
  for (size_t i = 0; i < length; ++i) bits = (bits << 8) | bytes[i];
  const int64_t result = static_cast<int64_t>(bits);
  if ((result < 0) != negative || OrderedIntLength(result) != length) return false;
  if (length > 8) {  // the bytes above the 64 bits hold the sign only
    std::string again;
    PutOrderedInt(&again, result);
    if (again != in->substr(0, length)) return false;
  }
  in->remove_prefix(length);
  *value = result;
  return true;
}

void PutOrderedString(std::string* out, absl::string_view value) {
  for (const char c : value) {
    out->push_back(c);
    if (c == '\0') out->push_back('\xff');
    if (c == '\xff') out->push_back('\0');
  }
  out->append("\0\1", 2);
}

bool GetOrderedString(absl::string_view* in, std::string* value) {
  std::string result;
  for (size_t i = 0; i + 1 < in->size(); ++i) {
    const uint8_t byte = Byte(*in, i);
    if (byte != 0x00 && byte != 0xff) {
      result.push_back((*in)[i]);
      continue;
    }
    const uint8_t next = Byte(*in, ++i);
    if (byte == 0x00 && next == 0x01) {
      in->remove_prefix(i + 1);
      *value = std::move(result);
      return true;
    }
    if (next != (byte ^ 0xff)) return false;
    result.push_back((*in)[i - 1]);
  }
  return false;
}

}  // namespace millrace
