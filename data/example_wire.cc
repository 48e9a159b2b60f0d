// SPDX-License-Identifier: Apache-2.0
#include "data/example_wire.h"

#include <algorithm>
#include <cstring>

namespace millrace {
namespace {

enum WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kGroup = 3, kEndGroup = 4, kFixed32 = 5 };

// Unknown groups in unknown groups: a bound against a stack that only an attack fills.
constexpr int kMaxGroups = 32;

class Reader {
 public:
  explicit Reader(absl::string_view bytes) : p_(bytes.data()), end_(p_ + bytes.size()) {}
  Reader(const char* begin, const char* end) : p_(begin), end_(end) {}

  bool done() const { return p_ == end_; }
  const char* position() const { return p_; }

  bool Varint(uint64_t* value) {
    uint64_t result = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (p_ == end_) return false;
      const uint64_t byte = static_cast<uint8_t>(*p_++);
      if (shift == 63 && byte > 1) return false;  // more than 64 bits
      result |= (byte & 0x7f) << shift;
      if (byte < 0x80) {
        *value = result;
        return true;
      }
    }
    return false;
  }

  bool Tag(uint32_t* field, WireType* type) {
    uint64_t tag;
    if (!Varint(&tag) || tag > UINT32_MAX || (tag >> 3) == 0 || (tag & 7) > kFixed32) return false;
    *field = static_cast<uint32_t>(tag >> 3);
    *type = static_cast<WireType>(tag & 7);
    return true;
  }

  // A length and that many bytes.
  bool Bytes(absl::string_view* bytes) {
    uint64_t size;
    if (!Varint(&size) || size > static_cast<uint64_t>(end_ - p_)) return false;
    *bytes = absl::string_view(p_, static_cast<size_t>(size));
    p_ += size;
    return true;
  }

  bool Fixed32(uint32_t* value) {
    if (end_ - p_ < 4) return false;
    std::memcpy(value, p_, 4);  // little-endian, like this machine
    p_ += 4;
    return true;
  }

  bool Skip(WireType type, uint32_t field, int depth = 0) {
    switch (type) {
      case kVarint: {
        uint64_t ignored;
        return Varint(&ignored);
      }
      case kFixed64:
        return SkipBytes(8);
      case kFixed32:
        return SkipBytes(4);
      case kBytes: {
        absl::string_view ignored;
        return Bytes(&ignored);
      }
      case kGroup:
        return depth < kMaxGroups && SkipGroup(field, depth);
      case kEndGroup:
        return false;
    }
    return false;
  }

 private:
  bool SkipBytes(int n) {
    if (end_ - p_ < n) return false;
    p_ += n;
    return true;
  }
  bool SkipGroup(uint32_t group, int depth) {
    uint32_t field;
    WireType type;
    while (Tag(&field, &type)) {
      if (type == kEndGroup) return field == group;
      if (!Skip(type, field, depth + 1)) return false;
    }
    return false;
  }

  const char* p_;
  const char* end_;
};

// Calls f(bytes) for each occurrence of length-delimited field `wanted`.
template <typename F>
bool ForEachMessage(absl::string_view message, uint32_t wanted, F f) {
  Reader reader(message);
  while (!reader.done()) {
    uint32_t field;
    WireType type;
    if (!reader.Tag(&field, &type)) return false;
    if (field == wanted && type == kBytes) {
      absl::string_view bytes;
      if (!reader.Bytes(&bytes) || !f(bytes)) return false;
    } else if (!reader.Skip(type, field)) {
      return false;
    }
  }
  return true;
}

// --- As writers write ----------------------------------------------------------------------------

constexpr char kFirstTag = 1 << 3 | kBytes, kSecondTag = 2 << 3 | kBytes,
               kThirdTag = 3 << 3 | kBytes;

// `tag`, a length of one or two bytes, and so many bytes; moves `*at` behind them. False for all
// else, also for what is legal and seldom.
inline bool PlainField(char tag, const char** at, const char* end, absl::string_view* bytes) {
  const char* p = *at;
  if (end - p < 2 || *p != tag) return false;
  size_t size = static_cast<uint8_t>(p[1]);
  p += 2;
  if (size >= 0x80) {
    if (p == end || static_cast<uint8_t>(*p) >= 0x80) return false;
    size = (size & 0x7f) | static_cast<size_t>(static_cast<uint8_t>(*p++)) << 7;
  }
  if (size > static_cast<size_t>(end - p)) return false;
  *bytes = absl::string_view(p, size);
  *at = p + size;
  return true;
}

bool CountVarints(absl::string_view bytes, int64_t* count) {
  size_t last_bytes = 0;
  for (const char c : bytes) last_bytes += static_cast<uint8_t>(c) < 0x80;
  *count = static_cast<int64_t>(last_bytes);
  if (last_bytes == bytes.size()) return true;
  Reader reader(bytes);
  for (uint64_t ignored; !reader.done();) {
    if (!reader.Varint(&ignored)) return false;
  }
  return true;
}

// False: it is to be read in the general way.
bool ReadPlainValues(absl::string_view feature, FeatureValues* values) {
  const char* at = feature.data();
  const char* end = at + feature.size();
  if (at == end || (*at != kFirstTag && *at != kSecondTag && *at != kThirdTag)) return false;
  values->kind = static_cast<FeatureKind>(*at >> 3);
  values->in_one_piece = true;
  values->count = 0;
  values->bytes = absl::string_view();
  absl::string_view list;
  if (!PlainField(*at, &at, end, &list) || at != end) return false;
  if (list.empty()) return true;
  at = list.data();
  if (!PlainField(kFirstTag, &at, end, &values->bytes) || at != end) return false;
  switch (values->kind) {
    case FeatureKind::kBytes:
      values->count = 1;
      return true;
    case FeatureKind::kFloat:
      values->count = static_cast<int64_t>(values->bytes.size() / 4);
      return values->bytes.size() % 4 == 0;
    case FeatureKind::kInt64:
      return CountVarints(values->bytes, &values->count);
    case FeatureKind::kNone:
      break;
  }
  return false;
}

// --- In general ----------------------------------------------------------------------------------

uint32_t FieldOf(FeatureKind kind) { return static_cast<uint32_t>(kind); }

bool ReadEntry(absl::string_view bytes, FeatureEntry* entry) {
  const char* at = bytes.data();
  const char* const end = at + bytes.size();
  if (PlainField(kFirstTag, &at, end, &entry->key) &&
      PlainField(kSecondTag, &at, end, &entry->feature) && at == end) {
    return true;
  }
  *entry = FeatureEntry();
  Reader reader(bytes);
  while (!reader.done()) {
    uint32_t field;
    WireType type;
    if (!reader.Tag(&field, &type)) return false;
    if (field == 1 && type == kBytes) {
      if (!reader.Bytes(&entry->key)) return false;
    } else if (field == 2 && type == kBytes) {
      if (!reader.Bytes(&entry->feature)) return false;
    } else if (!reader.Skip(type, field)) {
      return false;
    }
  }
  return true;
}

// Calls on_bytes(packed or single bytes value) or on_number(reader) for the values of all lists.
template <typename OnBytes, typename OnSingle>
bool ForEachValue(const FeatureValues& values, OnBytes on_bytes, WireType single,
                  OnSingle on_single) {
  return ForEachMessage(values.bytes, FieldOf(values.kind), [&](absl::string_view list) {
    Reader reader(list);
    while (!reader.done()) {
      uint32_t field;
      WireType type;
      if (!reader.Tag(&field, &type)) return false;
      if (field == 1 && type == kBytes) {
        absl::string_view bytes;
        if (!reader.Bytes(&bytes) || !on_bytes(bytes)) return false;
      } else if (field == 1 && type == single) {
        if (!on_single(&reader)) return false;
      } else if (!reader.Skip(type, field)) {
        return false;
      }
    }
    return true;
  });
}

// Of the lists in values->bytes.
bool CountValues(FeatureValues* values) {
  int64_t& count = values->count;
  switch (values->kind) {
    case FeatureKind::kNone:
      return true;
    case FeatureKind::kBytes:
      return ForEachValue(
          *values,
          [&](absl::string_view) {
            ++count;
            return true;
          },
          kBytes, [](Reader*) { return false; });
    case FeatureKind::kFloat:
      return ForEachValue(
          *values,
          [&](absl::string_view packed) {
            count += static_cast<int64_t>(packed.size() / 4);
            return packed.size() % 4 == 0;
          },
          kFixed32,
          [&](Reader* reader) {
            uint32_t ignored;
            ++count;
            return reader->Fixed32(&ignored);
          });
    case FeatureKind::kInt64:
      return ForEachValue(
          *values,
          [&](absl::string_view packed) {
            int64_t in_it = 0;
            const bool good = CountVarints(packed, &in_it);
            count += in_it;
            return good;
          },
          kVarint,
          [&](Reader* reader) {
            uint64_t ignored;
            ++count;
            return reader->Varint(&ignored);
          });
  }
  return false;
}

}  // namespace

bool FeatureEntries::Next(FeatureEntry* entry) {
  const auto fail = [&] {
    ok_ = false;
    at_ = end_;
    map_at_ = map_end_;
    return false;
  };
  for (;;) {
    uint32_t field;
    WireType type;
    absl::string_view bytes;
    if (map_at_ != map_end_) {
      if (!PlainField(kFirstTag, &map_at_, map_end_, &bytes)) {
        Reader reader(map_at_, map_end_);
        if (!reader.Tag(&field, &type)) return fail();
        const bool is_entry = field == 1 && type == kBytes;
        if (!(is_entry ? reader.Bytes(&bytes) : reader.Skip(type, field))) return fail();
        map_at_ = reader.position();
        if (!is_entry) continue;
      }
      return ReadEntry(bytes, entry) || fail();
    }
    if (at_ == end_) return false;
    Reader reader(at_, end_);
    if (!reader.Tag(&field, &type)) return fail();
    if (field == map_ && type == kBytes) {
      if (!reader.Bytes(&bytes)) return fail();
      map_at_ = bytes.data();
      map_end_ = map_at_ + bytes.size();
    } else if (!reader.Skip(type, field)) {
      return fail();
    }
    at_ = reader.position();
  }
}

bool ListFeatures::Next(absl::string_view* feature) {
  while (at_ != end_) {
    if (PlainField(kFirstTag, &at_, end_, feature)) return true;
    uint32_t field;
    WireType type;
    Reader reader(at_, end_);
    ok_ = reader.Tag(&field, &type);
    const bool is_feature = ok_ && field == 1 && type == kBytes;
    ok_ = ok_ && (is_feature ? reader.Bytes(feature) : reader.Skip(type, field));
    at_ = ok_ ? reader.position() : end_;
    if (is_feature && ok_) return true;
  }
  return false;
}

bool ReadValues(absl::string_view feature, FeatureValues* values) {
  if (ReadPlainValues(feature, values)) return true;
  *values = FeatureValues();
  Reader reader(feature);
  while (!reader.done()) {
    const char* begin = reader.position();
    uint32_t field;
    WireType type;
    if (!reader.Tag(&field, &type)) return false;
    if (field >= 1 && field <= 3 && type == kBytes &&
        values->kind != static_cast<FeatureKind>(field)) {
      // Another kind replaces what was there.
      values->kind = static_cast<FeatureKind>(field);
      values->bytes = feature.substr(static_cast<size_t>(begin - feature.data()));
    }
    if (!reader.Skip(type, field)) return false;
  }
  return CountValues(values);
}

void CopyValues(const FeatureValues& values, absl::Span<std::string> out) {
  if (values.in_one_piece) {
    if (!out.empty()) out[0].assign(values.bytes.data(), values.bytes.size());
    return;
  }
  size_t at = 0;
  ForEachValue(
      values,
      [&](absl::string_view value) {
        if (at == out.size()) return false;
        out[at++].assign(value.data(), value.size());
        return true;
      },
      kBytes, [](Reader*) { return false; });
}

void CopyValues(const FeatureValues& values, absl::Span<float> out) {
  size_t at = 0;
  const auto copy = [&](absl::string_view packed) {
    const size_t n = std::min(packed.size() / 4, out.size() - at);
    if (n > 0) std::memcpy(out.data() + at, packed.data(), n * 4);
    at += n;
    return true;
  };
  if (values.in_one_piece) {
    copy(values.bytes);
    return;
  }
  ForEachValue(values, copy, kFixed32, [&](Reader* reader) {
    uint32_t bits;
    if (at == out.size() || !reader->Fixed32(&bits)) return false;
    std::memcpy(&out[at++], &bits, 4);
    return true;
  });
}

void CopyValues(const FeatureValues& values, absl::Span<int64_t> out) {
  size_t at = 0;
  const auto read = [&](Reader* reader) {
    uint64_t value;
    if (at == out.size() || !reader->Varint(&value)) return false;
    out[at++] = static_cast<int64_t>(value);
    return true;
  };
  const auto copy = [&](absl::string_view packed) {
    Reader reader(packed);
    while (!reader.done()) {
      if (!read(&reader)) return false;
    }
    return true;
  };
  if (!values.in_one_piece) {
    ForEachValue(values, copy, kVarint, read);
  } else if (values.bytes.size() == out.size()) {  // each of one byte
    for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(values.bytes[i]);
  } else {
    copy(values.bytes);
  }
}

}  // namespace millrace
