// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_CLIENT_HTTP_CLIENT_H_
#define MILLRACE_SERVING_CLIENT_HTTP_CLIENT_H_

// HttpCall: one HTTP/1.1 request to a model server and its answer, without TLS.
//
// A connection for each call, closed behind it. An answer's body comes by its length, in chunks, or
// ends with the connection. Bounded: an answer's headers by 64 KiB, its body by `max_body_bytes`,
// the whole call by its deadline (a look-up of the host's name apart, which the system bounds).
//
// Thread-safety: functions, which block.
// Failure: Unavailable when nobody can be connected to; DeadlineExceeded; InvalidArgument for an
// address that is none and an answer that is none; ResourceExhausted beyond a bound; Unknown with
// the system's reason for a connection that breaks. An answer of any status code is OK.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/status.h"

namespace millrace {

struct HttpAsk {
  std::string method = "GET";
  std::string target = "/";  // "/v1/models/m:predict", escaped
  std::string body = "";     // JSON
  std::string token = "";    // shown as "Authorization: Bearer ..."; "": none
  absl::Time deadline;
  int64_t max_body_bytes = int64_t{1} << 30;  // of the answer
};

struct HttpAnswer {
  int status = 0;
  std::string body = "";
};

// `address`: "host:port" or "unix:/path".
StatusOr<HttpAnswer> HttpCall(const std::string& address, const HttpAsk& ask);

// A part of a target: all but letters, digits and "-._~" as %XX.
std::string UrlEscaped(absl::string_view part);

}  // namespace millrace

#endif  // MILLRACE_SERVING_CLIENT_HTTP_CLIENT_H_
