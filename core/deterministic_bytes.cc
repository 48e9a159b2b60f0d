// SPDX-License-Identifier: Apache-2.0
#include "core/deterministic_bytes.h"

#include <google/protobuf/io/coded_stream.h>

#include <cstddef>
#include <cstdint>
#include <limits>

namespace millrace {

std::string DeterministicBytes(const google::protobuf::MessageLite& message) {
  const size_t size = message.ByteSizeLong();
  if (size > static_cast<size_t>(std::numeric_limits<int>::max())) return std::string();
  std::string bytes(size, '\0');
  // What CodedOutputStream does, without its destructor: that aborts when maps could not be sorted
  // for want of memory.
  google::protobuf::io::EpsCopyOutputStream stream(bytes.data(), static_cast<int>(size),
                                                   /*deterministic=*/true);
  message._InternalSerialize(reinterpret_cast<uint8_t*>(bytes.data()), &stream);
  return bytes;
}

}  // namespace millrace
