// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_HTTP_HTTP_SERVER_H_
#define MILLRACE_NET_HTTP_HTTP_SERVER_H_

// HttpServer: HTTP/1.1 requests in, each answered once, at once or later, from any thread.
//
//   MR_ASSIGN_OR_RETURN(auto server,
//                       HttpServer::Start({.addresses = {"0.0.0.0:8501"}},
//                                         [](std::unique_ptr<HttpRequest> request) {
//                                           request->Answer(200, {}, "hello");
//                                         }));
//
// The handler gets whole requests, on the thread that read them; that thread serves other
// connections only after the handler returned. It answers there, or keeps the request and answers
// later. No connection has a thread: idle ones, slow senders and slow readers cost none.
//
//   idle -> headers -> body -> running -> answered -> idle
//                                 |          ^
//                                 +-> later -+      the handler returned and has not answered
//
// Always:
//   * each request that reaches the handler is answered once: one that is dropped, or whose handler
//     throws, is answered 500; one that is left when the server stops is answered 503;
//   * what is beyond a limit never reaches the handler: 400 malformed, 408 too slow, 413 body too
//     large, 414 and 431 headers too large, 429 and 503 too many bodies or connections, 501 and 505
//     other protocols, and the connection ends; a line without any target ends it without a word;
//   * a body costs what came of it, whatever its Content-Length says.
// Chunked and gzip bodies come plain (large gzip ones only where the handler wants it so), Expect:
// 100-continue is answered, HEAD is answered without the body, replies are gzipped for who asks,
// pipelined requests run one after the other.
//
// Behind it is GNU libmicrohttpd, by its manual: event loops over epoll in threads of its own,
// connections that leave their loop until the answer is there ("suspended"), header and body of a
// reply in one system call without a copy, TLS by GnuTLS, one pool of fixed size per connection.
// LGPL-2.1+: we link Debian's shared library. What it lacks is here: it sees no disconnect while a
// request runs, knows only an idle time, and its threads' bounds on connections are apart. One
// thread per server therefore accepts, keeps the deadlines and watches for clients that leave.
// Of 0.9.75, seen in tests: to a Content-Length that is no number it says 400 with its header
// twice.
//
// Thread-safety: all methods, from any thread; Stop not from a handler. Requests: one thread at a
// time.
// Lifetime: a request may outlive its server; its answer then goes nowhere. The handler is called
// until Stop returned, and goes with the server.
// Failure: Start: InvalidArgument for options that no server can have, FailedPrecondition for an
// address that is taken or not ours, Unimplemented where the library was built without what we
// need, ResourceExhausted for threads and sockets. SIGPIPE is never raised.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/status.h"

namespace millrace {

// Of a reply. A name or value with a line break makes the reply a 500.
using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

// A request, read to its end. Views are valid as long as the request, also after Answer.
class HttpRequest {
 public:
  virtual ~HttpRequest() = default;

  virtual absl::string_view method() const = 0;  // as sent; unknown ones, too
  // As sent, percent signs and all: "/v1/models/a%20b" and "x=1&y" of "/v1/models/a%20b?x=1&y".
  virtual absl::string_view path() const = 0;
  virtual absl::string_view query() const = 0;
  // The first one of this name, in any case; "": none.
  virtual absl::string_view header(absl::string_view name) const = 0;
  virtual absl::Span<const std::pair<absl::string_view, absl::string_view>> headers() const = 0;
  // Without its codings (chunked, gzip), unless it is_packed.
  virtual absl::string_view body() const = 0;
  // The body is still gzip: it has more than HttpServerOptions::max_gzip_bytes_on_loop, and Unpack
  // is the handler's to call, on a thread that may take its time.
  virtual bool is_packed() const { return false; }
  // Makes the body plain, within the server's limits. False: it cannot be, and the request has been
  // answered.
  virtual bool Unpack() { return true; }
  // "127.0.0.1:1234", "[::1]:1234", "unix".
  virtual absl::string_view peer() const = 0;

  // The body is sent from where it lies. Content-Length, Date and Connection are added; other
  // headers are the caller's. What follows the first Answer is dropped. Returns at once.
  virtual void Answer(int status, HttpHeaders headers, std::string body) = 0;

  // `gone` is called, at most once, when the client closes its side (an answer is still sent) or
  // the server stops waiting: on a thread of the server that must not be held up, or right here
  // when it is so already. It may still run when Answer returns, never start after it. One per
  // request; costs two system calls.
  virtual void OnDisconnect(absl::AnyInvocable<void()> gone) = 0;
};

// Exceptions that leave it answer 500.
using HttpHandler = std::function<void(std::unique_ptr<HttpRequest>)>;

struct HttpServerOptions {
  // "host:port", "[::1]:port", ":port" (all of IPv4), "unix:/path" (a socket that nobody listens on
  // is replaced). Port 0: a free one; addresses() says which.
  std::vector<std::string> addresses = {"127.0.0.1:0"};

  // PEM texts. With key and certificate all addresses speak TLS (1.2, 1.3) alone; with `client_ca`
  // as well a client without a certificate by it is answered 403.
  std::string tls_key = "", tls_certificate = "", client_ca = "";

  int num_threads = 0;  // 0: UsableCores()

  int64_t max_body_bytes = int64_t{128} << 20;  // as sent, and as inflated
  int64_t max_inflate_ratio = 1'000;            // see GunzipLimits
  // Larger ones come packed to the handler (HttpRequest::is_packed): a loop has other connections.
  int64_t max_gzip_bytes_on_loop = INT64_MAX;
  // Request line and headers, fewer when there are many small ones. Each connection has a pool of
  // twice as many bytes, which is most of what it costs.
  int64_t max_header_bytes = int64_t{16} << 10;
  int64_t max_bytes_of_bodies = int64_t{2} << 30;  // of all requests that are read or run
  // Of all replies that their clients have not taken yet; those of at most 4 KiB do not count. One
  // that has no room is a 503 instead.
  int64_t max_bytes_of_replies = int64_t{2} << 30;
  int max_connections = 10'000;             // files that are open, for one
  int max_connections_of_address = 10'000;  // of one IP address

  absl::Duration idle_time = absl::Seconds(120);   // between requests; while nothing is read
  absl::Duration header_time = absl::Seconds(20);  // from the request line to the last header
  absl::Duration body_time = absl::Seconds(120);   // for the whole body
  absl::Duration reply_time = absl::Seconds(600);  // for the client to take the whole reply

  // Of a server that stops: requests on connections that are idle are taken for so long, for one
  // may be on its way; then their clients have so long to close them.
  absl::Duration linger_time = absl::Milliseconds(500);
  absl::Duration close_time = absl::Milliseconds(500);

  // Replies of at least so many bytes, without a Content-Encoding, for clients that accept gzip.
  // INT64_MAX: none.
  int64_t min_gzip_bytes = 1'024;
};

class HttpServer {
 public:
  // Listens on all addresses before it returns.
  static StatusOr<std::unique_ptr<HttpServer>> Start(HttpServerOptions options,
                                                     HttpHandler handler);
  virtual ~HttpServer() = default;  // Stop(0)

  // As in the options, with the ports that they got.
  virtual const std::vector<std::string>& addresses() const = 0;
  // Of the first address; 0 for a unix socket.
  virtual int port() const = 0;
  // That are open now.
  virtual int num_connections() const = 0;

  // Accepts no more, and lets requests that have begun end for at most `drain`; then answers the
  // others 503 and ends all connections. Waits for handlers that are running. May be called again.
  //
  // A client that uses a connection again and again sees no reset, which it could not tell from a
  // request that ran: each reply says "Connection: close"; one that stays idle for `linger_time` is
  // closed in order, and what its client still sends is read and dropped for `close_time`. All of
  // it within `drain`.
  virtual void Stop(absl::Duration drain) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_NET_HTTP_HTTP_SERVER_H_
