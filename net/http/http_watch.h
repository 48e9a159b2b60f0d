// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_HTTP_HTTP_WATCH_H_
#define MILLRACE_NET_HTTP_HTTP_WATCH_H_

// HttpWatch: the thread of an HttpServer that does what its library lacks: it accepts connections
// within bounds of all loops, keeps the deadlines, hears of clients that leave while a request runs
// (HttpConnection::OnDisconnect), and reads what clients still send after their connection ended.
//
// It sleeps as long as there is nothing to wait for.
//
// Thread-safety: all methods, one at a time. Lifetime: what it is given outlives it; End, or the
// destructor, joins the thread. Failure: Begin: ResourceExhausted for sockets and threads.

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/status.h"
#include "net/http/http_connection.h"
#include "net/http/http_connections.h"
#include "net/http/http_lingers.h"
#include "net/http/http_listener.h"
#include "net/http/http_loops.h"
#include "net/http/http_server.h"

namespace millrace {

class HttpWatch {
 public:
  HttpWatch(const HttpServerOptions* options, std::shared_ptr<HttpShared> shared,
            HttpConnections* connections, HttpLingers* lingers, HttpLoops* loops);
  ~HttpWatch() { End(); }

  // Connections come to the loops from now on.
  Status Begin(std::vector<HttpListener> listeners);
  bool is_running() const { return thread_.joinable(); }
  // Once it has returned no more are accepted. Those to which clients have connected by then are: a
  // close of the listener would reset them.
  void CloseListeners();
  // After the loops: closes sockets that are still read from.
  void End();

 private:
  // Of the thread.
  void Run();
  bool RunOnce(int tick_ms);
  void AcceptTheLast();
  void OnEvent(uint64_t what);
  bool Accept(size_t number);
  void Refuse(int fd, int status, absl::string_view text) const;
  void Tick(int64_t now_ns);
  void ListenFor(uint32_t events);

  const HttpServerOptions* const options_;
  const std::shared_ptr<HttpShared> shared_;
  HttpConnections* const connections_;
  HttpLingers* const lingers_;
  HttpLoops* const loops_;
  std::thread thread_;
  Notification listeners_closed_;

  // Of the thread, once it runs.
  std::vector<HttpListener> listeners_;
  int64_t next_tick_ns_ = 0;
  bool is_paused_ = false;  // no files left: does not accept until the next tick

  Mutex mu_;
  bool close_listeners_ ABSL_GUARDED_BY(mu_) = false;
  bool end_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace millrace

#endif  // MILLRACE_NET_HTTP_HTTP_WATCH_H_
