// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SAVER_BLOCK_CHECKSUMS_H_
#define MILLRACE_SAVER_BLOCK_CHECKSUMS_H_

// Block checksums: of each 256 KiB of a large stored tensor, so that a part of it can be checked by
// itself. They stand in the tensor's entry in the index, in a field that TensorFlow does not know
// and therefore passes over (and keeps, when it merges parts). Entries that TensorFlow has written
// have none.
//
//   field 1001 of BundleEntryProto, bytes: the blocks' size, then the masked CRC-32C of each block
//   of the tensor's data, the last one perhaps shorter; 4 bytes each, little-endian
//
// 16 KiB of index for a GiB.
//
// Thread-safety: thread-compatible. Failure: none.

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/tensor_bundle.pb.h"

namespace millrace {

inline constexpr uint64_t kChecksumBlockBytes = uint64_t{256} << 10;

// Computes those of data that comes piece by piece, and the checksum of all of it.
class BlockChecksums {
 public:
  void Add(absl::string_view bytes);
  // Of all bytes so far, not masked.
  uint32_t total() const;
  void Store(tensorflow::BundleEntryProto* entry) const;

 private:
  std::vector<uint32_t> crcs_;  // of whole blocks
  uint32_t before_ = 0;         // of all these
  uint32_t crc_ = 0;            // of the block that is not whole
  uint64_t size_ = 0;           // of it
};

// Those of an entry, masked. Empty: it has none, or of blocks of another size.
std::vector<uint32_t> BlockChecksumsOf(const tensorflow::BundleEntryProto& entry);

}  // namespace millrace

#endif  // MILLRACE_SAVER_BLOCK_CHECKSUMS_H_
