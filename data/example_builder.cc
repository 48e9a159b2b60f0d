// SPDX-License-Identifier: Apache-2.0
#include "data/example_builder.h"

#include <cstddef>
#include <cstring>

#include "core/coding.h"

namespace millrace::data {
namespace {

// Wire type of a field with a length.
constexpr uint32_t kLengthDelimited = 2;

void PutTag(std::string* out, int field) {
  PutVarint32(out, static_cast<uint32_t>(field) << 3 | kLengthDelimited);
}
void PutBytes(std::string* out, int field, absl::string_view bytes) {
  PutTag(out, field);
  PutVarint64(out, bytes.size());
  out->append(bytes.data(), bytes.size());
}
// Of a field with a number below 16.
size_t SizeOfBytes(size_t size) { return 1 + VarintLength(size) + size; }

// Field numbers: Feature's lists.
constexpr int kBytesList = 1, kFloatList = 2, kInt64List = 3;

}  // namespace

void ExampleBuilder::AddList(absl::string_view name, int field, absl::string_view list) {
  const size_t feature = SizeOfBytes(list.size());
  PutTag(&features_, 1);  // an entry of the map: key 1, value 2
  PutVarint64(&features_, SizeOfBytes(name.size()) + SizeOfBytes(feature));
  PutBytes(&features_, 1, name);
  PutTag(&features_, 2);
  PutVarint64(&features_, feature);
  PutBytes(&features_, field, list);
}

void ExampleBuilder::AddInts(absl::string_view name, absl::Span<const int64_t> values) {
  list_.clear();
  size_t size = 0;
  for (const int64_t value : values) size += VarintLength(static_cast<uint64_t>(value));
  if (!values.empty()) {
    PutTag(&list_, 1);
    PutVarint64(&list_, size);
    for (const int64_t value : values) PutVarint64(&list_, static_cast<uint64_t>(value));
  }
  AddList(name, kInt64List, list_);
}

void ExampleBuilder::AddFloats(absl::string_view name, absl::Span<const float> values) {
  list_.clear();
  if (!values.empty()) {
    PutBytes(&list_, 1,
             absl::string_view(reinterpret_cast<const char*>(values.data()),
                               values.size() * sizeof(float)));
  }
  AddList(name, kFloatList, list_);
}

void ExampleBuilder::AddTexts(absl::string_view name, absl::Span<const std::string> values) {
  list_.clear();
  for (const std::string& value : values) PutBytes(&list_, 1, value);
  AddList(name, kBytesList, list_);
}

absl::string_view ExampleBuilder::Finish() {
  example_.clear();
  PutBytes(&example_, 1, features_);
  features_.clear();
  return example_;
}

}  // namespace millrace::data
