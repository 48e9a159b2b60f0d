// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_HTTP_HTTP_EXCHANGE_H_
#define MILLRACE_NET_HTTP_HTTP_EXCHANGE_H_

// HttpExchange: what an HttpServer does with a request, from its first line to its reply, told by
// the loop that reads it.
//
//   OnTarget -> OnHead -> OnBody ... -> OnEnd -> OnCompleted
//                                        OnEnd again once the answer is there, if the handler had
//                                        none when it returned
//
// Thread-safety: all methods, for different connections at a time; of one on its loop's thread.
// Lifetime: options and handler outlive it.
// Failure: a method that returns false, or throws, ends the connection.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "net/http/http_connection.h"
#include "net/http/http_server.h"
#include "net/http/received_request.h"

namespace millrace {

class HttpExchange {
 public:
  HttpExchange(const HttpServerOptions* options, const HttpHandler* handler,
               std::shared_ptr<HttpShared> shared)
      : options_(options), handler_(handler), shared_(std::move(shared)) {}

  void OnTarget(HttpConnection* c, const char* target) const;
  bool OnHead(const std::shared_ptr<HttpConnection>& c, absl::string_view method,
              absl::string_view version) const;
  bool OnBody(HttpConnection* c, absl::string_view piece) const;
  bool OnEnd(HttpConnection* c) const;
  // In order or not.
  void OnCompleted(HttpConnection* c) const;

 private:
  std::optional<HttpReply> WhyNot(HttpConnection* c, absl::string_view version,
                                  const std::vector<HttpField>& fields,
                                  HttpBodyLength* length) const;
  bool Queue(HttpConnection* c, HttpReply reply) const;

  const HttpServerOptions* const options_;
  const HttpHandler* const handler_;
  const std::shared_ptr<HttpShared> shared_;
};

}  // namespace millrace

#endif  // MILLRACE_NET_HTTP_HTTP_EXCHANGE_H_
