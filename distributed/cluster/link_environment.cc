// SPDX-License-Identifier: Apache-2.0
#include "distributed/cluster/link_environment.h"

#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

namespace millrace {
namespace {

// Links, and none of them within a host.
constexpr absl::string_view kGrpcLinks = "grpc";

absl::string_view Variable(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? "" : text;
}

}  // namespace

StatusOr<bool> UnixLinksOfEnvironment() {
  const absl::string_view wire = Variable("MILLRACE_WIRE");
  if (!wire.empty() && wire != "links" && wire != "unix" && wire != kGrpcLinks) {
    return InvalidArgument("MILLRACE_WIRE must be 'links', 'unix' or 'grpc', got '", wire, "'");
  }
  const absl::string_view value = Variable("MILLRACE_UNIX_LINKS");
  if (!value.empty() && value != "0" && value != "1") {
    return InvalidArgument("MILLRACE_UNIX_LINKS must be '0' or '1', got '", value, "'");
  }
  return value != "0" && wire != kGrpcLinks;
}

StatusOr<int64_t> LinkSharedBytesOfEnvironment(int64_t otherwise) {
  const absl::string_view value = Variable("MILLRACE_LINK_SHARED_BYTES");
  if (value.empty()) return otherwise;
  int64_t bytes = 0;
  if (!absl::SimpleAtoi(value, &bytes) || bytes < 0) {
    return InvalidArgument("MILLRACE_LINK_SHARED_BYTES must be >= 0, got '", value, "'");
  }
  return bytes;
}

}  // namespace millrace
