// SPDX-License-Identifier: Apache-2.0
#include "net/grpc_status.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "net/not_sent.h"
#include "net/status_payloads.h"

namespace millrace {
namespace {

grpc::Status ToGrpcOrThrow(const Status& status) {
  std::string message(status.message());
  // As long as gRPC writes it: it escapes what is not printable ASCII.
  size_t written = 0, length = 0;
  for (; length < message.size() && written < kMaxStatusMessage; ++length) {
    const char c = message[length];
    written += c >= ' ' && c <= '~' && c != '%' ? 1 : 3;
  }
  if (length < message.size()) {
    message.resize(length);
    message += " ... [truncated]";
  }
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), message, PayloadBytes(status));
}

// Calls that wait for a connection end with these: from gRPC's list of addresses, and from its
// resolver. It has no other mark.
bool HadNoConnection(absl::string_view message) {
  return absl::StrContains(message, "failed to connect to all addresses") ||
         absl::StrContains(message, "DNS resolution failed for ");
}

}  // namespace

Status FromGrpcStatus(const std::string& address, const grpc::Status& status, bool cancelled_here) {
  if (status.ok()) return absl::OkStatus();
  absl::StatusCode code = static_cast<absl::StatusCode>(status.error_code());
  const std::string& message = status.error_message();
  // The connection ended under the call; gRPC says Unknown to that.
  if (code == absl::StatusCode::kUnknown && message == "Stream removed") {
    code = absl::StatusCode::kUnavailable;
  }
  // A server that goes away cancels what is open; handlers that say Cancelled say why.
  if (code == absl::StatusCode::kCancelled && !cancelled_here &&
      (message.empty() || absl::EqualsIgnoreCase(message, "cancelled"))) {
    code = absl::StatusCode::kUnavailable;
  }
  // One with payloads is what the task itself says, of another one that it cannot reach.
  if (code == absl::StatusCode::kUnavailable && status.error_details().empty()) {
    Status unreachable = absl::UnavailableError(
        absl::StrCat("Task at ", address, " must be reachable, got: ", message));
    return HadNoConnection(message) ? AsNotSent(std::move(unreachable)) : unreachable;
  }
  if (code == absl::StatusCode::kResourceExhausted &&
      absl::StrContains(message, "Received message larger than max")) {
    return Status(code, absl::StrCat("Task at ", address, ": a request must be at most ",
                                     "ServerLimits::max_message_bytes there, got: ", message));
  }
  return WithPayloads(Status(code, message), status.error_details());
}

grpc::Status ToGrpcStatus(const Status& status) {
  if (status.ok()) return grpc::Status();
  try {
    return ToGrpcOrThrow(status);
  } catch (...) {
    return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string());
  }
}

}  // namespace millrace
