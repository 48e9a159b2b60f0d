// SPDX-License-Identifier: Apache-2.0
#include "net/http/http_server_options.h"

#include <microhttpd.h>

#include <cstdint>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/cores.h"

namespace millrace {

Status CheckHttpServerOptions(const HttpServerOptions& options) {
  if (options.addresses.empty()) {
    return InvalidArgument("HTTP server: addresses must name at least one, got none");
  }
  if (options.tls_key.empty() != options.tls_certificate.empty()) {
    return InvalidArgument("HTTP server: tls_key and tls_certificate must come together, got the ",
                           options.tls_key.empty() ? "certificate" : "key", " alone");
  }
  if (!options.client_ca.empty() && options.tls_key.empty()) {
    return InvalidArgument(
        "HTTP server: client_ca must come with tls_key and tls_certificate, got none of them");
  }
  constexpr int kMaxThreads = 1'024;
  if (options.num_threads < 0 || options.num_threads > kMaxThreads) {
    return InvalidArgument("HTTP server: num_threads must be in [0, ", kMaxThreads, "], got ",
                           options.num_threads);
  }
  constexpr int64_t kLeastHeader = 1'024, kMostHeader = int64_t{16} << 20;
  if (options.max_header_bytes < kLeastHeader || options.max_header_bytes > kMostHeader) {
    return InvalidArgument("HTTP server: max_header_bytes must be in [", kLeastHeader, ", ",
                           kMostHeader, "], got ", options.max_header_bytes);
  }
  for (const auto& [name, value] :
       {std::pair<absl::string_view, int64_t>{"max_body_bytes", options.max_body_bytes},
        {"max_inflate_ratio", options.max_inflate_ratio},
        {"max_bytes_of_bodies", options.max_bytes_of_bodies},
        {"max_bytes_of_replies", options.max_bytes_of_replies},
        {"max_connections", options.max_connections},
        {"max_connections_of_address", options.max_connections_of_address}}) {
    // Half of the largest number leaves room for sums.
    if (value < 1 || value > INT64_MAX / 2) {
      return InvalidArgument("HTTP server: ", name, " must be in [1, ", INT64_MAX / 2, "], got ",
                             value);
    }
  }
  for (const auto& [name, value] :
       {std::pair<absl::string_view, absl::Duration>{"idle_time", options.idle_time},
        {"header_time", options.header_time},
        {"body_time", options.body_time},
        {"reply_time", options.reply_time}}) {
    if (value <= absl::ZeroDuration()) {
      return InvalidArgument("HTTP server: ", name, " must be > 0, got ",
                             absl::FormatDuration(value));
    }
  }
  for (const auto& [name, value] :
       {std::pair<absl::string_view, absl::Duration>{"linger_time", options.linger_time},
        {"close_time", options.close_time}}) {
    if (value < absl::ZeroDuration()) {
      return InvalidArgument("HTTP server: ", name, " must be >= 0, got ",
                             absl::FormatDuration(value));
    }
  }
  return absl::OkStatus();
}

Status CheckHttpLibrary(bool needs_tls) {
  for (const auto& [feature, name] :
       {std::pair<MHD_FEATURE, absl::string_view>{MHD_FEATURE_EPOLL, "epoll"},
        {MHD_FEATURE_THREADS, "threads"},
        {MHD_FEATURE_AUTOSUPPRESS_SIGPIPE, "writes without SIGPIPE"},
        {MHD_FEATURE_TLS, "TLS"}}) {
    if (feature == MHD_FEATURE_TLS && !needs_tls) continue;
    if (MHD_is_feature_supported(feature) != MHD_YES) {
      return Unimplemented("HTTP server: libmicrohttpd must be built with ", name, ", got ",
                           MHD_get_version(), " without it");
    }
  }
  return absl::OkStatus();
}

int NumHttpLoops(const HttpServerOptions& options) {
  return options.num_threads > 0 ? options.num_threads : UsableCores();
}

}  // namespace millrace
