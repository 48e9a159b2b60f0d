// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_HTTP_HTTP_LINGERS_H_
#define MILLRACE_NET_HTTP_HTTP_LINGERS_H_

// HttpLingers: sockets of connections that have ended while their clients may still be sending.
//
// Their bytes are read and dropped for two seconds: an end of the connection with unread bytes
// would throw away the reply, too (RFC 9112, 9.6).
//
// Thread-safety: Add, from any thread; the others on the watching thread (http_watch.h).
// Lifetime: CloseAll after the last Add. Failure: what has no room is closed at once; its client
// may see a reset.

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "core/mutex.h"
#include "net/http/http_connection.h"
#include "net/http/http_connections.h"

namespace millrace {

class HttpLingers {
 public:
  HttpLingers(std::shared_ptr<HttpShared> shared, HttpConnections* connections)
      : shared_(std::move(shared)), connections_(connections) {}

  // Takes the socket, and wakes the watching thread.
  void Add(int fd);

  // Those that were added since: the watch says kLingerBit and their number.
  void WatchNewOnes();
  bool empty() const { return until_.empty(); }
  void OnReadable(int fd);
  void CloseOldOnes(int64_t now_ns);
  void CloseAll();

 private:
  void Close(int fd);

  const std::shared_ptr<HttpShared> shared_;
  HttpConnections* const connections_;  // which counts them
  std::map<int, int64_t> until_;        // by socket
  Mutex mu_;
  std::vector<int> new_ones_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_NET_HTTP_HTTP_LINGERS_H_
