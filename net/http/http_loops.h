// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_HTTP_HTTP_LOOPS_H_
#define MILLRACE_NET_HTTP_HTTP_LOOPS_H_

// HttpLoops: the event loops of libmicrohttpd, each with its thread, which read requests and write
// replies. What they say of a connection goes to HttpConnections, of a request to HttpExchange.
//
// Thread-safety: Add, from any thread, between Start and Stop.
// Lifetime: what it is given outlives it. Stop, or the destructor, ends all connections; no
// connection may be suspended then (HttpShared::ending).
// Failure: Start: InvalidArgument for keys and certificates that the library does not take,
// ResourceExhausted for threads.

#include <sys/socket.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "core/status.h"
#include "net/http/http_connection.h"
#include "net/http/http_connections.h"
#include "net/http/http_exchange.h"
#include "net/http/http_lingers.h"
#include "net/http/http_server.h"

namespace millrace {

class HttpLoops {
 public:
  HttpLoops(const HttpServerOptions* options, std::shared_ptr<HttpShared> shared,
            const HttpExchange* exchange, HttpConnections* connections, HttpLingers* lingers);
  ~HttpLoops();

  Status Start();
  // Takes the socket of a connection that was admitted to this loop. False: it is closed.
  bool Add(size_t loop, int fd, const sockaddr* address, socklen_t size);
  void Stop();

 private:
  struct Loop;
  class LibraryLog;

  const HttpServerOptions* const options_;
  const std::shared_ptr<HttpShared> shared_;
  const HttpExchange* const exchange_;
  HttpConnections* const connections_;
  HttpLingers* const lingers_;
  const std::unique_ptr<LibraryLog> log_;  // before loops_, which write to it
  std::vector<std::unique_ptr<Loop>> loops_;
};

}  // namespace millrace

#endif  // MILLRACE_NET_HTTP_HTTP_LOOPS_H_
