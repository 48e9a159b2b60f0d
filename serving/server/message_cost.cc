// SPDX-License-Identifier: Apache-2.0
#include "serving/server/message_cost.h"

#include <grpcpp/support/slice.h>

#include <algorithm>
#include <cstddef>

namespace millrace {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

constexpr int kMostDepth = 100;     // protobuf's
constexpr int64_t kTextBytes = 40;  // a std::string and the pointer to it
constexpr int64_t kNumberBytes = 8;
constexpr int64_t kUnknownBytes = 16;  // a field that the message does not have is kept, too
// A message without fields, and what each of its fields takes in it: lists, texts, numbers.
constexpr int64_t kMessageBytes = 48;
constexpr int64_t kListBytes = 24;

// Of what gRPC received. No two bytes take more than 400.
constexpr int64_t kNotLookedAt = 1 << 20;
constexpr int64_t kAlwaysTaken = 64 << 20;
constexpr int64_t kMostOfByte = 8;

enum WireType { kVarint = 0, kFixed64 = 1, kLengthDelimited = 2, kGroup = 3, kFixed32 = 5 };

bool TakeVarint(absl::string_view* bytes, uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 64 && !bytes->empty(); shift += 7) {
    const auto byte = static_cast<uint8_t>(bytes->front());
    bytes->remove_prefix(1);
    *value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

bool Skip(absl::string_view* bytes, size_t count) {
  if (bytes->size() < count) return false;
  bytes->remove_prefix(count);
  return true;
}

// Of an empty one.
int64_t BytesOf(const Descriptor& type) {
  int64_t bytes = kMessageBytes;
  for (int i = 0; i < type.field_count(); ++i) {
    bytes += type.field(i)->is_repeated() ? kListBytes : kNumberBytes;
  }
  return bytes;
}

// Is it written as a number of this form? What is not is kept as an unknown field.
bool IsNumber(const FieldDescriptor& field) {
  return field.cpp_type() != FieldDescriptor::CPPTYPE_STRING &&
         field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE;
}

// Of numbers one after the other.
int64_t PackedBytes(const FieldDescriptor& field, absl::string_view bytes) {
  switch (field.type()) {
    case FieldDescriptor::TYPE_FIXED32:
    case FieldDescriptor::TYPE_SFIXED32:
    case FieldDescriptor::TYPE_FLOAT:
    case FieldDescriptor::TYPE_FIXED64:
    case FieldDescriptor::TYPE_SFIXED64:
    case FieldDescriptor::TYPE_DOUBLE:
      return static_cast<int64_t>(bytes.size());
    default:
      break;
  }
  // The last byte of each has no high bit.
  const auto count = static_cast<int64_t>(
      std::count_if(bytes.begin(), bytes.end(), [](char c) { return (c & 0x80) == 0; }));
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return count;
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_ENUM:
      return count * 4;
    default:
      return count * kNumberBytes;
  }
}

class Cost {
 public:
  explicit Cost(int64_t most) : most_(most) {}

  // False: the rest need not be looked at.
  bool Add(const Descriptor* type, absl::string_view bytes, int depth) {
    while (!bytes.empty()) {
      uint64_t tag, value;
      if (depth == 0 || !TakeVarint(&bytes, &tag)) return false;
      const FieldDescriptor* const field = type->FindFieldByNumber(static_cast<int>(tag >> 3));
      const int64_t of_number =
          field == nullptr || !IsNumber(*field) ? kUnknownBytes : kNumberBytes;
      switch (tag & 7) {
        case kVarint:
          if (!TakeVarint(&bytes, &value)) return false;
          cost_ += of_number;
          break;
        case kFixed64:
        case kFixed32:
          if (!Skip(&bytes, (tag & 7) == kFixed64 ? 8 : 4)) return false;
          cost_ += of_number;
          break;
        case kLengthDelimited: {
          if (!TakeVarint(&bytes, &value) || value > bytes.size()) return false;
          const absl::string_view inside = bytes.substr(0, static_cast<size_t>(value));
          bytes.remove_prefix(inside.size());
          if (!AddDelimited(field, inside, depth)) return false;
          break;
        }
        default:
          has_group_ = (tag & 7) == kGroup;
          return false;
      }
      if (cost_ > most_) return false;
    }
    return true;
  }
  bool is_too_much() const { return cost_ > most_; }
  bool has_group() const { return has_group_; }

 private:
  bool AddDelimited(const FieldDescriptor* field, absl::string_view inside, int depth) {
    if (field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      const Descriptor* const type = field->message_type();
      cost_ += BytesOf(*type);
      // An entry holds its value from the beginning.
      const FieldDescriptor* const value = type->map_value();  // null: it is no entry
      if (value != nullptr && value->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
        cost_ += BytesOf(*value->message_type());
      }
      return Add(type, inside, depth - 1);
    }
    // A single number is not written so: it is kept as a text that is unknown.
    if (field != nullptr && field->is_packable()) {
      cost_ += PackedBytes(*field, inside);
      return true;
    }
    if (field == nullptr || IsNumber(*field)) cost_ += kUnknownBytes;
    cost_ += kTextBytes + static_cast<int64_t>(inside.size());
    return true;
  }

  const int64_t most_;
  int64_t cost_ = 0;
  bool has_group_ = false;
};

}  // namespace

Status CheckMessageCost(const Descriptor& type, absl::string_view bytes, int64_t most) {
  Cost cost(most);
  cost.Add(&type, bytes, kMostDepth);
  if (cost.is_too_much()) {
    return InvalidArgument("a ", type.full_name(), " may take at most ", most,
                           " bytes of memory, got ", bytes.size(), " that take more");
  }
  if (cost.has_group()) {
    return InvalidArgument("a ", type.full_name(), " must be without groups, got one");
  }
  return absl::OkStatus();
}

Status CheckReceivedCost(const Descriptor& type, const grpc::ByteBuffer& bytes) {
  const auto size = static_cast<int64_t>(bytes.Length());
  if (size < kNotLookedAt) return absl::OkStatus();
  grpc::Slice whole;
  if (!bytes.DumpToSingleSlice(&whole).ok()) {
    return InvalidArgument(type.full_name(),
                           ": the message must be well formed, got bytes that "
                           "cannot be read");
  }
  const absl::string_view text(reinterpret_cast<const char*>(whole.begin()), whole.size());
  return CheckMessageCost(type, text, kAlwaysTaken + kMostOfByte * size);
}

}  // namespace millrace
