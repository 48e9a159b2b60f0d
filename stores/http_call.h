// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_STORES_HTTP_CALL_H_
#define MILLRACE_STORES_HTTP_CALL_H_

// HttpCaller: calls of HTTP/1.1 to a store, each tried again while that can help.
//
// An attempt that found no server, lost its connection, stalled, or brought fewer bytes than its
// header promised is repeated; so is an answer of 429, 500, 502, 503 or 504, and any other for
// which `again` says so. Between two attempts the caller waits a random time up to
// first_backoff * 2^n, at most max_backoff, at least what Retry-After says (up to max_backoff).
// Therefore every call must be one that may be made twice: an attempt whose answer did not come may
// have had its effect.
//
// Connections are kept and used again. No redirect is followed; "." and ".." of a URL stay.
//
// Thread-safety: all methods, from any thread.
// Failure: the last answer, whatever its status, is a response and no error. Without an answer:
// Unavailable, with libcurl's reason; FailedPrecondition for a certificate that does not hold;
// ResourceExhausted for a body above max_body_bytes.

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/status.h"

namespace millrace {

struct HttpRequest {
  std::string method = "GET";
  std::string url = "";
  std::map<std::string, std::string> headers = {};  // names in lower case
  absl::string_view body = "";                      // borrowed until the call returns
  uint64_t max_body_bytes = uint64_t{64} << 20;     // of the answer
};

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
  int attempts = 1;  // of this object; libcurl makes one more on a kept connection that was closed

  // "" when it is not there.
  std::string header(const std::string& name) const;
};

struct HttpOptions {
  absl::Duration connect_timeout = absl::Seconds(10);
  // Without a byte in either direction. Whole seconds: so libcurl counts.
  absl::Duration stall_timeout = absl::Seconds(60);
  int max_attempts = 8;
  absl::Duration first_backoff = absl::Milliseconds(100);
  absl::Duration max_backoff = absl::Seconds(10);
  std::string ca_file = "";  // PEM; "": the system's
  Clock* clock = Clock::Real();
};

class HttpCaller {
 public:
  explicit HttpCaller(HttpOptions options);
  ~HttpCaller();  // after all calls
  HttpCaller(const HttpCaller&) = delete;
  HttpCaller& operator=(const HttpCaller&) = delete;

  // `prepare` makes the request of each attempt: signatures carry the time. `again` is asked about
  // each answer that is not repeated anyway, as long as an attempt is left.
  StatusOr<HttpResponse> Call(absl::FunctionRef<StatusOr<HttpRequest>()> prepare,
                              absl::FunctionRef<bool(const HttpResponse&)> again);
  StatusOr<HttpResponse> Call(const HttpRequest& request);

  Clock* clock() const { return options_.clock; }

 private:
  struct Handles;
  StatusOr<HttpResponse> Attempt(const HttpRequest& request, bool* may_help);

  const HttpOptions options_;
  const std::unique_ptr<Handles> handles_;
};

}  // namespace millrace

#endif  // MILLRACE_STORES_HTTP_CALL_H_
