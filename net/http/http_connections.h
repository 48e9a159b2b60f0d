// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_HTTP_HTTP_CONNECTIONS_H_
#define MILLRACE_NET_HTTP_HTTP_CONNECTIONS_H_

// HttpConnections: the connections of an HttpServer: how many there are, of which host and on which
// loop, and those that their loops know, by id.
//
//   Admit -> Begin -> End -> Leave
//     |                        ^
//     +------------------------+     its loop could not take it
//
// It also counts the sockets of connections that have ended and are still read from
// (http_lingers.h): a server that stops waits for these, too.
//
// Thread-safety: all methods, from any thread. Lifetime: the options outlive it.
// Failure: none; what has no memory throws and changes nothing.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "core/mutex.h"
#include "net/http/http_connection.h"
#include "net/http/http_server.h"

namespace millrace {

class HttpConnections {
 public:
  HttpConnections(const HttpServerOptions* options, std::shared_ptr<HttpShared> shared);

  // Counts one of this host ("": none, it has no bound of its own) on the loop with the fewest. The
  // status of its refusal, if it is one too many; else 0.
  int Admit(const std::string& host, size_t* loop);
  void Leave(size_t loop, const std::string& host);

  // The loop has begun with it, or is about to close its socket.
  std::shared_ptr<HttpConnection> Begin(MHD_Connection* mhd, int fd, std::string peer);
  void End(uint64_t id);

  // That were admitted and have not left.
  int num() const;
  // Null: it has ended.
  std::shared_ptr<HttpConnection> Find(uint64_t id) const;
  std::vector<std::shared_ptr<HttpConnection>> All() const;

  // From now on each Tick closes those that are idle.
  void CloseIdleOnes();
  // Cuts those that are late.
  void Tick(int64_t now_ns);

  void LingerBegan();
  void LingerEnded();

  // While the server drains: until there is none and no lingering socket; until these have ended.
  // Or the deadline has come.
  void AwaitNone(int64_t deadline_ns);
  void AwaitEndOf(absl::Span<const uint64_t> ids, int64_t deadline_ns);

 private:
  // Until a condition that holds when connections go, or the deadline.
  template <typename Condition>
  void WaitUntil(int64_t deadline_ns, Condition is_so) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const HttpServerOptions* const options_;
  const std::shared_ptr<HttpShared> shared_;

  mutable Mutex mu_;
  CondVar fewer_;  // signalled while the server drains
  bool closes_idle_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = HttpShared::kWakeId + 1;
  int num_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<int> num_of_loop_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, int> num_of_host_ ABSL_GUARDED_BY(mu_);
  size_t num_lingers_ ABSL_GUARDED_BY(mu_) = 0;
  // Those that their loops know.
  absl::flat_hash_map<uint64_t, std::shared_ptr<HttpConnection>> begun_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_NET_HTTP_HTTP_CONNECTIONS_H_
