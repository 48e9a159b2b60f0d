// SPDX-License-Identifier: Apache-2.0
#include "core/coding.h"

#include <algorithm>
#include <limits>

namespace millrace {
namespace {

bool GetVarint(absl::string_view* in, uint64_t max, uint64_t* value) {
  uint64_t result = 0;
  for (size_t i = 0; i < kMaxVarint64Bytes && i < in->size(); ++i) {
    const uint64_t byte = static_cast<uint8_t>((*in)[i]);
    const uint64_t bits = byte & 0x7f;
    if (i == 9 && bits > 1) return false;  // beyond 64 bits
    result |= bits << (7 * i);
    if (byte < 0x80) {
      if (result > max) return false;
      in->remove_prefix(i + 1);
      *value = result;
      return true;
    }
  }
  return false;
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
  uint64_t wide;
  if (!GetVarint(in, std::numeric_limits<uint32_t>::max(), &wide)) return false;
  *value = static_cast<uint32_t>(wide);
  return true;
}
bool GetVarint64(absl::string_view* in, uint64_t* value) {
  return GetVarint(in, std::numeric_limits<uint64_t>::max(), value);
}
void PutOrderedUint(std::string* out, uint64_t value) {
  char bytes[8];
  size_t length = 0;
  for (; value != 0; value >>= 8) bytes[7 - length++] = static_cast<char>(value);
  out->push_back(static_cast<char>(length));
  out->append(bytes + 8 - length, length);
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

void PutOrderedString(std::string* out, absl::string_view value) {
  for (const char c : value) {
    out->push_back(c);
    if (c == '\0') out->push_back('\xff');
    if (c == '\xff') out->push_back('\0');
  }
  out->append("\0\1", 2);
}

bool GetOrderedUint(absl::string_view* in, uint64_t* value) {
  if (in->empty()) return false;
  const size_t length = static_cast<uint8_t>((*in)[0]);
  if (length > sizeof(*value) || in->size() <= length) return false;
  *value = 0;
  for (size_t i = 1; i <= length; ++i) *value = *value << 8 | static_cast<uint8_t>((*in)[i]);
  in->remove_prefix(1 + length);
  return true;
}

bool GetOrderedString(absl::string_view* in, std::string* value) {
  value->clear();
  for (size_t i = 0; i + 1 < in->size(); ++i) {
    const char c = (*in)[i];
    if (c != '\0' && c != '\xff') {
      value->push_back(c);
      continue;
    }
    const char next = (*in)[++i];
    if (c == '\0' && next == '\1') {
      in->remove_prefix(i + 1);
      return true;
    }
    if (next != (c == '\0' ? '\xff' : '\0')) return false;
    value->push_back(c);
  }
  return false;
}

}  // namespace millrace
