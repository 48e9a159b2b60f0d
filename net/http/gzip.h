// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_HTTP_GZIP_H_
#define MILLRACE_NET_HTTP_GZIP_H_

// Gzip (RFC 1952) for bodies of requests and replies.
//
// Reading trusts nothing: what comes out is bounded, by a size and by a ratio to what went in,
// while it comes; every member's checksum and length is compared; nothing may follow the last
// member.
//
// Thread-safety: all functions, from any thread; they share nothing.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "core/byte_budget.h"
#include "core/status.h"
#include "net/http/growing_bytes.h"

namespace millrace {

struct GunzipLimits {
  int64_t max_bytes = int64_t{128} << 20;
  // Bytes out per byte in; asked only of what is larger than kFreeBytes. Deflate cannot pass 1032;
  // JSON of one repeated number has 100 to 900.
  int64_t max_ratio = 1'000;
  static constexpr int64_t kFreeBytes = int64_t{1} << 20;
};

// One or several members. InvalidArgument for what is no gzip, is cut off, fails its checksum or
// has bytes behind it; OutOfRange beyond a limit, with at most twice its bytes reserved until then;
// ResourceExhausted when `budget` (null: none) or the system has no memory.
StatusOr<GrowingBytes> Gunzip(absl::string_view compressed, const GunzipLimits& limits,
                              std::shared_ptr<ByteBudget> budget = nullptr);

// One member, at zlib's fastest level. ResourceExhausted without memory.
StatusOr<std::string> Gzip(absl::string_view bytes);

// Whether a header Accept-Encoding takes a gzip reply (RFC 9110, 12.5.3): "gzip", "x-gzip" or "*"
// with a weight above 0. Empty: no.
bool AcceptsGzip(absl::string_view accept_encoding);

}  // namespace millrace

#endif  // MILLRACE_NET_HTTP_GZIP_H_
