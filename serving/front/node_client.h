// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_FRONT_NODE_CLIENT_H_
#define MILLRACE_SERVING_FRONT_NODE_CLIENT_H_

// NodeClient: HTTP/1.1 requests to one server on a unix socket, over connections that are kept.
//
// An exchange tells what a caller must know before it asks elsewhere: whether any byte of the
// request went out. A kept connection that its server has closed is found before a byte is written;
// then a new one is made.
//
// Bounds: kMaxHeaderBytes of a reply's head, `max_reply_bytes` of its body, `max_kept` connections
// that wait for the next request, each at most kKeptTime.
//
// Thread-safety: all methods, from any thread; an exchange blocks its own. SIGPIPE is never raised.
// Lifetime: outlives its exchanges.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "core/owned_fd.h"

namespace millrace {

struct NodeReply {
  int status = 0;
  std::vector<std::pair<std::string, std::string>> headers = {};  // names in small letters
  std::string body = "";

  // "": none.
  absl::string_view header(absl::string_view name) const;
};

struct NodeExchange {
  enum class Result {
    kReplied,
    kRefused,   // nobody listens there, or takes a byte; not a byte was sent
    kNotSent,   // no connection for another reason; not a byte was sent
    kBroken,    // the connection ended, or the reply is none, after bytes were sent
    kTimedOut,  // the deadline came after bytes were sent
  };
  Result result = Result::kNotSent;
  std::string why = "";  // without a reply
  NodeReply reply = {};
};

class NodeClient {
 public:
  static constexpr size_t kMaxHeaderBytes = size_t{64} << 10;
  // Less than servers wait (HttpServerOptions::idle_time).
  static constexpr absl::Duration kKeptTime = absl::Seconds(30);

  // `path` fits into a sockaddr_un.
  explicit NodeClient(std::string path, size_t max_kept = 64,
                      size_t max_reply_bytes = size_t{1} << 30)
      : path_(std::move(path)), max_kept_(max_kept), max_reply_bytes_(max_reply_bytes) {}
  NodeClient(const NodeClient&) = delete;
  NodeClient& operator=(const NodeClient&) = delete;

  // Posts `body`; `deadline` by the system's clock. `target`, `content_type` and `accept` ("": no
  // such header) have no line breaks.
  NodeExchange Post(absl::string_view target, absl::string_view content_type,
                    absl::string_view body, absl::Time deadline, absl::string_view accept = "");
  NodeExchange Get(absl::string_view target, absl::Time deadline);

  // For a server that is about to end: it need not wait for them.
  void DropKept();
  // Does somebody listen there? Sends nothing.
  bool CanConnect() const;

 private:
  struct Kept {
    OwnedFd fd;
    absl::Time since;
  };
  // Not open: none; `error` is the system's number.
  OwnedFd Connect(int* error) const;
  OwnedFd TakeKept();
  void Keep(OwnedFd fd);
  NodeExchange Ask(absl::string_view head, absl::string_view body, absl::Time deadline);

  const std::string path_;
  const size_t max_kept_, max_reply_bytes_;
  Mutex mu_;
  std::vector<Kept> kept_ ABSL_GUARDED_BY(mu_);  // the last one was used last
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_FRONT_NODE_CLIENT_H_
