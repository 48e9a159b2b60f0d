// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_DETERMINISTIC_BYTES_H_
#define MILLRACE_CORE_DETERMINISTIC_BYTES_H_

// A message as bytes to compare, to hash or to keep: its maps are sorted, so equal messages are
// equal bytes. (Protobuf promises that for one build of it, not between versions.)
//
// Pure function. Empty for a message of 2 GiB or more, which protobuf cannot write.

#include <google/protobuf/message_lite.h>

#include <string>

namespace millrace {

std::string DeterministicBytes(const google::protobuf::MessageLite& message);

}  // namespace millrace

#endif  // MILLRACE_CORE_DETERMINISTIC_BYTES_H_
