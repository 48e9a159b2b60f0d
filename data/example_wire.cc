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

uint32_t FieldOf(FeatureKind kind) { return static_cast<uint32_t>(kind); }

// Calls on_bytes(packed or single bytes value) or on_number(reader) for the values of all lists.
template <typename OnBytes, typename OnSingle>
bool ForEachValue(const FeatureView& view, OnBytes on_bytes, WireType single, OnSingle on_single) {
  return ForEachMessage(view.fields, FieldOf(view.kind), [&](absl::string_view list) {
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

}  // namespace

bool ReadExample(absl::string_view example, std::vector<FeatureEntry>* entries) {
  return ForEachMessage(example, 1, [&](absl::string_view features) {
    return ForEachMessage(features, 1, [&](absl::string_view bytes) {
      FeatureEntry entry;
      Reader reader(bytes);
      while (!reader.done()) {
        uint32_t field;
        WireType type;
        if (!reader.Tag(&field, &type)) return false;
        if (field == 1 && type == kBytes) {
          if (!reader.Bytes(&entry.key)) return false;
        } else if (field == 2 && type == kBytes) {
          if (!reader.Bytes(&entry.feature)) return false;
        } else if (!reader.Skip(type, field)) {
          return false;
        }
      }
      entries->push_back(entry);
      return true;
    });
  });
}

bool ReadFeature(absl::string_view feature, FeatureView* view) {
  *view = FeatureView();
  Reader reader(feature);
  while (!reader.done()) {
    const char* begin = reader.position();
    uint32_t field;
    WireType type;
    if (!reader.Tag(&field, &type)) return false;
    if (field >= 1 && field <= 3 && type == kBytes &&
        view->kind != static_cast<FeatureKind>(field)) {
      // Another kind replaces what was there.
      view->kind = static_cast<FeatureKind>(field);
      view->fields = feature.substr(static_cast<size_t>(begin - feature.data()));
    }
    if (!reader.Skip(type, field)) return false;
  }
  return true;
}

bool CountValues(const FeatureView& view, int64_t* count) {
  *count = 0;
  switch (view.kind) {
    case FeatureKind::kNone:
      return true;
    case FeatureKind::kBytes:
      return ForEachValue(
          view,
          [&](absl::string_view) {
            ++*count;
            return true;
          },
          kBytes, [](Reader*) { return false; });
    case FeatureKind::kFloat:
      return ForEachValue(
          view,
          [&](absl::string_view packed) {
            *count += static_cast<int64_t>(packed.size() / 4);
            return packed.size() % 4 == 0;
          },
          kFixed32,
          [&](Reader* reader) {
            uint32_t ignored;
            ++*count;
            return reader->Fixed32(&ignored);
          });
    case FeatureKind::kInt64:
      return ForEachValue(
          view,
          [&](absl::string_view packed) {
            Reader values(packed);
            uint64_t ignored;
            while (!values.done()) {
              if (!values.Varint(&ignored)) return false;
              ++*count;
            }
            return true;
          },
          kVarint,
          [&](Reader* reader) {
            uint64_t ignored;
            ++*count;
            return reader->Varint(&ignored);
          });
  }
  return false;
}

void CopyValues(const FeatureView& view, absl::Span<std::string> out) {
  size_t at = 0;
  ForEachValue(
      view,
      [&](absl::string_view value) {
        if (at == out.size()) return false;
        out[at++].assign(value.data(), value.size());
        return true;
      },
      kBytes, [](Reader*) { return false; });
}

void CopyValues(const FeatureView& view, absl::Span<float> out) {
  size_t at = 0;
  ForEachValue(
      view,
      [&](absl::string_view packed) {
        const size_t n = std::min(packed.size() / 4, out.size() - at);
        if (n > 0) std::memcpy(out.data() + at, packed.data(), n * 4);
        at += n;
        return true;
      },
      kFixed32,
      [&](Reader* reader) {
        uint32_t bits;
        if (at == out.size() || !reader->Fixed32(&bits)) return false;
        std::memcpy(&out[at++], &bits, 4);
        return true;
      });
}

void CopyValues(const FeatureView& view, absl::Span<int64_t> out) {
  size_t at = 0;
  const auto read = [&](Reader* reader) {
    uint64_t value;
    if (at == out.size() || !reader->Varint(&value)) return false;
    out[at++] = static_cast<int64_t>(value);
    return true;
  };
  ForEachValue(
      view,
      [&](absl::string_view packed) {
        Reader values(packed);
        while (!values.done()) {
          if (!read(&values)) return false;
        }
        return true;
      },
      kVarint, read);
}

}  // namespace millrace
