// SPDX-License-Identifier: Apache-2.0
#include "saver/block_checksums.h"

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/crc32c.h"
#include "google/protobuf/unknown_field_set.h"
#include "gtest/gtest.h"
#include "proto/tensor_bundle.pb.h"

// covers: values: block checksums find a flipped byte in data that comes in any pieces

namespace millrace {
namespace {

std::string Data(size_t size) {
  std::string data(size, '\0');
  for (size_t i = 0; i < size; ++i) data[i] = static_cast<char>(i * 2654435761u >> 13);
  return data;
}

std::vector<uint32_t> Expected(absl::string_view data) {
  std::vector<uint32_t> masked;
  for (; !data.empty(); data.remove_prefix(std::min<size_t>(kChecksumBlockBytes, data.size()))) {
    masked.push_back(MaskCrc32c(Crc32c(data.substr(0, kChecksumBlockBytes))));
  }
  return masked;
}

TEST(BlockChecksumsTest, OfDataThatComesInAnyPieces) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{kChecksumBlockBytes - 1},
                            size_t{kChecksumBlockBytes}, size_t{3 * kChecksumBlockBytes + 17}}) {
    const std::string data = Data(size);
    for (const size_t piece : {size_t{1000}, size_t{kChecksumBlockBytes}, data.size() + 1}) {
      BlockChecksums checksums;
      for (absl::string_view rest = data; !rest.empty();
           rest.remove_prefix(std::min(piece, rest.size()))) {
        checksums.Add(rest.substr(0, piece));
      }
      EXPECT_EQ(checksums.total(), Crc32c(data));
      tensorflow::BundleEntryProto entry;
      entry.set_size(static_cast<int64_t>(size));
      checksums.Store(&entry);
      checksums.Store(&entry);
      tensorflow::BundleEntryProto parsed;
      ASSERT_TRUE(parsed.ParseFromString(entry.SerializeAsString()));
      EXPECT_EQ(BlockChecksumsOf(parsed), Expected(data)) << size << " " << piece;
    }
  }
}

TEST(BlockChecksumsTest, WhatIsNotOfThisDataIsNone) {
  tensorflow::BundleEntryProto entry;
  entry.set_size(2 * kChecksumBlockBytes);
  EXPECT_TRUE(BlockChecksumsOf(entry).empty());
  BlockChecksums checksums;
  checksums.Add(Data(2 * kChecksumBlockBytes));
  checksums.Store(&entry);
  EXPECT_EQ(BlockChecksumsOf(entry).size(), 2u);
  // Of other data than the entry's.
  for (const int64_t size : {int64_t{0}, int64_t{-1}, int64_t{kChecksumBlockBytes},
                             int64_t{2 * kChecksumBlockBytes + 1}, INT64_MAX}) {
    entry.set_size(size);
    EXPECT_TRUE(BlockChecksumsOf(entry).empty()) << size;
  }
  // Blocks of another size, and no text of it.
  for (const std::string& bytes :
       {std::string("\0\0\2\0\1\2\3\4", 8), std::string("\0\0", 2), std::string()}) {
    tensorflow::BundleEntryProto other;
    other.set_size(kChecksumBlockBytes);
    other.GetReflection()->MutableUnknownFields(&other)->AddLengthDelimited(1001, bytes);
    EXPECT_TRUE(BlockChecksumsOf(other).empty());
  }
}

}  // namespace
}  // namespace millrace
