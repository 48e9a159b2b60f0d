// SPDX-License-Identifier: Apache-2.0
#include "stores/s3_signature.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/sha256.h"

namespace millrace {
namespace {

constexpr absl::string_view kAlgorithm = "AWS4-HMAC-SHA256";
constexpr absl::string_view kService = "s3";
constexpr size_t kHmacBlock = 64;  // of SHA-256

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string UriEncode(absl::string_view text, bool keep_slash) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  std::string out;
  out.reserve(text.size());
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isalnum(byte) || c == '-' || c == '.' || c == '_' || c == '~' ||
        (c == '/' && keep_slash)) {
      out.push_back(c);
    } else {
      out.push_back('%');
      out.push_back(kDigits[byte >> 4]);
      out.push_back(kDigits[byte & 15]);
    }
  }
  return out;
}

std::string UriDecode(absl::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && HexDigit(text[i + 1]) >= 0 &&
        HexDigit(text[i + 2]) >= 0) {
      out.push_back(static_cast<char>(HexDigit(text[i + 1]) * 16 + HexDigit(text[i + 2])));
      i += 2;
    } else {
      out.push_back(text[i] == '+' ? ' ' : text[i]);
    }
  }
  return out;
}

std::string EncodedQuery(const QueryParameters& query) {
  QueryParameters encoded;
  encoded.reserve(query.size());
  for (const auto& [name, value] : query) {
    encoded.emplace_back(UriEncode(name, false), UriEncode(value, false));
  }
  std::sort(encoded.begin(), encoded.end());
  return absl::StrJoin(encoded, "&", absl::PairFormatter("="));
}

std::string HexOf(absl::string_view bytes) { return absl::BytesToHexString(bytes); }

StatusOr<std::string> HmacSha256(absl::string_view key, absl::string_view data) {
  std::string block(key);
  if (block.size() > kHmacBlock) {
    MR_ASSIGN_OR_RETURN(block, Sha256(key));
  }
  block.resize(kHmacBlock, '\0');
  std::string inner(kHmacBlock, '\0');
  std::string outer(kHmacBlock, '\0');
  for (size_t i = 0; i < kHmacBlock; ++i) {
    inner[i] = static_cast<char>(block[i] ^ 0x36);
    outer[i] = static_cast<char>(block[i] ^ 0x5c);
  }
  MR_ASSIGN_OR_RETURN(const std::string digest, Sha256(absl::StrCat(inner, data)));
  return Sha256(absl::StrCat(outer, digest));
}

Status SignS3Request(const S3Keys& keys, absl::string_view region, absl::Time now,
                     absl::string_view body_sha256, S3Request* request) {
  const std::string time = absl::FormatTime("%Y%m%dT%H%M%SZ", now, absl::UTCTimeZone());
  const std::string day = time.substr(0, 8);
  auto& headers = request->headers;
  headers["host"] = request->host;
  headers["x-amz-date"] = time;
  headers["x-amz-content-sha256"] = std::string(body_sha256);
  if (!keys.session_token.empty()) headers["x-amz-security-token"] = keys.session_token;

  std::string lines;
  std::string names;
  for (const auto& [name, value] : headers) {
    absl::StrAppend(&lines, name, ":", absl::StripAsciiWhitespace(value), "\n");
    absl::StrAppend(&names, names.empty() ? "" : ";", name);
  }
  MR_ASSIGN_OR_RETURN(const std::string canonical,
                      Sha256(absl::StrCat(request->method, "\n", UriEncode(request->path, true),
                                          "\n", EncodedQuery(request->query), "\n", lines, "\n",
                                          names, "\n", body_sha256)));
  const std::string scope = absl::StrCat(day, "/", region, "/", kService, "/aws4_request");
  std::string key = absl::StrCat("AWS4", keys.secret_access_key);
  for (const absl::string_view part :
       {absl::string_view(day), region, kService, absl::string_view("aws4_request")}) {
    MR_ASSIGN_OR_RETURN(key, HmacSha256(key, part));
  }
  MR_ASSIGN_OR_RETURN(
      const std::string signature,
      HmacSha256(key, absl::StrCat(kAlgorithm, "\n", time, "\n", scope, "\n", HexOf(canonical))));
  headers["authorization"] =
      absl::StrCat(kAlgorithm, " Credential=", keys.access_key_id, "/", scope,
                   ",SignedHeaders=", names, ",Signature=", HexOf(signature));
  return absl::OkStatus();
}

}  // namespace millrace
