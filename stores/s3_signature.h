// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_STORES_S3_SIGNATURE_H_
#define MILLRACE_STORES_S3_SIGNATURE_H_

// SignS3Request: the headers by which a store of objects knows its caller (AWS Signature Version
// 4).
//
// What is signed: the method, the path, the query, every header of the request, the SHA-256 of the
// body, the time to the second. The signature of libcurl is not used: the one of Debian 12 (7.88.1)
// signs a query as it stands, neither sorted nor encoded, and no x-amz-content-sha256.
//
// Thread-safety: pure functions. Failure: Internal without SHA-256 (core/sha256.h).

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/status.h"

namespace millrace {

struct S3Keys {
  std::string access_key_id;
  std::string secret_access_key;
  std::string session_token = "";  // "": keys without an end
};

// Names and values as they are, not encoded.
using QueryParameters = std::vector<std::pair<std::string, std::string>>;

struct S3Request {
  std::string method = "GET";
  std::string host = "";   // with its port, where that is not the scheme's
  std::string path = "/";  // "/bucket/key", not encoded
  QueryParameters query = {};
  std::map<std::string, std::string> headers = {};  // names in lower case
};

// Every byte but letters, digits, "-", ".", "_", "~" as %XX; "/" stays where `keep_slash`.
std::string UriEncode(absl::string_view text, bool keep_slash);
// %XX as bytes; what is no %XX stays.
std::string UriDecode(absl::string_view text);
// "a=1&b=": encoded, then sorted.
std::string EncodedQuery(const QueryParameters& query);
std::string HexOf(absl::string_view bytes);
// 32 bytes (RFC 2104 with SHA-256).
StatusOr<std::string> HmacSha256(absl::string_view key, absl::string_view data);

// Adds host, x-amz-date, x-amz-content-sha256, x-amz-security-token and authorization.
// `body_sha256` is in hexadecimal.
Status SignS3Request(const S3Keys& keys, absl::string_view region, absl::Time now,
                     absl::string_view body_sha256, S3Request* request);

}  // namespace millrace

#endif  // MILLRACE_STORES_S3_SIGNATURE_H_
