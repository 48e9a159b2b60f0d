// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_COMPRESSION_H_
#define MILLRACE_CORE_COMPRESSION_H_

// Compression: how the bytes of a file of records or lines are packed. A value.

#include "absl/strings/string_view.h"
#include "core/status.h"

namespace millrace {

enum class Compression { kNone, kZlib, kGzip };

// "" (none), "ZLIB" or "GZIP", as in TensorFlow's attributes. InvalidArgument, which begins with
// `where`, otherwise.
StatusOr<Compression> ParseCompression(absl::string_view where, absl::string_view text);

}  // namespace millrace

#endif  // MILLRACE_CORE_COMPRESSION_H_
