// SPDX-License-Identifier: Apache-2.0
#include "saver/block_checksums.h"

#include <algorithm>
#include <string>

#include "core/coding.h"
#include "core/crc32c.h"
#include "google/protobuf/unknown_field_set.h"

namespace millrace {
namespace {

constexpr int kField = 1001;

}  // namespace

void BlockChecksums::Add(absl::string_view bytes) {
  while (!bytes.empty()) {
    const absl::string_view piece =
        bytes.substr(0, static_cast<size_t>(kChecksumBlockBytes - size_));
    crc_ = ExtendCrc32c(crc_, piece);
    size_ += piece.size();
    bytes.remove_prefix(piece.size());
    if (size_ < kChecksumBlockBytes) return;
    before_ = JoinCrc32c(before_, crc_, size_);
    crcs_.push_back(crc_);
    crc_ = 0;
    size_ = 0;
  }
}

uint32_t BlockChecksums::total() const { return JoinCrc32c(before_, crc_, size_); }

void BlockChecksums::Store(tensorflow::BundleEntryProto* entry) const {
  std::string bytes;
  PutFixed32(&bytes, static_cast<uint32_t>(kChecksumBlockBytes));
  for (const uint32_t crc : crcs_) PutFixed32(&bytes, MaskCrc32c(crc));
  if (size_ > 0) PutFixed32(&bytes, MaskCrc32c(crc_));
  auto* const fields = entry->GetReflection()->MutableUnknownFields(entry);
  fields->DeleteByNumber(kField);
  fields->AddLengthDelimited(kField, bytes);
}

std::vector<uint32_t> BlockChecksumsOf(const tensorflow::BundleEntryProto& entry) {
  const auto& fields = entry.GetReflection()->GetUnknownFields(entry);
  std::vector<uint32_t> masked;
  for (int i = 0; i < fields.field_count(); ++i) {
    const auto& field = fields.field(i);
    if (field.number() != kField ||
        field.type() != google::protobuf::UnknownField::TYPE_LENGTH_DELIMITED) {
      continue;
    }
    absl::string_view bytes = field.length_delimited();
    uint32_t block_bytes = 0;
    const uint64_t size = static_cast<uint64_t>(std::max<int64_t>(entry.size(), 0));
    const uint64_t blocks = size / kChecksumBlockBytes + (size % kChecksumBlockBytes != 0 ? 1 : 0);
    if (!GetFixed32(&bytes, &block_bytes) || block_bytes != kChecksumBlockBytes ||
        bytes.size() / sizeof(uint32_t) != blocks || bytes.size() % sizeof(uint32_t) != 0) {
      continue;
    }
    masked.resize(static_cast<size_t>(blocks));
    for (uint32_t& crc : masked) GetFixed32(&bytes, &crc);
  }
  return masked;
}

}  // namespace millrace
