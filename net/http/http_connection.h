// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_HTTP_HTTP_CONNECTION_H_
#define MILLRACE_NET_HTTP_HTTP_CONNECTION_H_

// HttpConnection: what a connection of an HttpServer is doing, and the reply that it waits for.
//
//   kIdle -> kHeaders -> kBody -> kRunning -> kAnswered -> kIdle
//                                    |            ^
//                                    +-> kLater -> kResumed
//
// The thread of the connection's loop does all of these but one: kLater -> kResumed is the
// answer's, or the server's that stops. From kLater on the connection is out of its loop
// ("suspended"), so the library neither reads nor closes it until it is resumed.
//
// Thread-safety: the methods, from any thread; those marked "loop", and the members below them, on
// the loop's thread.
// Lifetime: shared by its server and its request, which may outlive the server. The socket and
// `mhd` are the library's until Closed().
// Failure: none. What comes too late does nothing.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/byte_budget.h"
#include "core/mutex.h"
#include "core/owned_fd.h"
#include "net/http/gzip.h"
#include "net/http/http_server.h"

struct MHD_Connection;

namespace millrace {

class ReceivedRequest;

int64_t SteadyNs();
// Of deadlines; never 0, which means none.
int64_t DeadlineNs(absl::Duration from_now);

struct HttpReply {
  int status = 500;
  HttpHeaders headers = {};
  std::string body = "";
  bool close = false;  // the connection after it
};
// As JSON. `text`: our own, without quotes.
HttpReply HttpErrorReply(int status, absl::string_view text);
// Puts a whole error reply on a socket where the library would not take one. It fits into the
// socket's buffer, where at most the end of an earlier reply is; what does not is lost.
void SendRawReply(int fd, int status, absl::string_view text);

// What a connection, and a request that outlives the server, needs of it.
struct HttpShared {
  // What the watch says besides the id of a connection, which is above the first and has none of
  // these bits.
  static constexpr uint64_t kWakeId = 0;
  static constexpr uint64_t kListenerBit = uint64_t{1} << 62;
  static constexpr uint64_t kLingerBit = uint64_t{1} << 63;

  explicit HttpShared(const HttpServerOptions& options);
  // Ends the wait of the watching thread, which takes the wakes.
  void Wake() const;
  void TakeWakes() const;

  const std::shared_ptr<ByteBudget> bodies;
  const std::shared_ptr<ByteBudget> replies;
  const absl::Duration close_time;
  const OwnedFd watch;  // epoll; the thread of http_watch.h waits for it
  const OwnedFd wake;   // an eventfd in it
  const int64_t min_gzip_bytes;
  const GunzipLimits gunzip;
  const bool is_tls;
  // These are set before the server takes the lock of each connection: what a connection does under
  // its lock after that sees them.
  std::atomic<bool> draining{false};  // replies end their connections
  std::atomic<bool> ending{false};    // nothing waits for an answer
};

class HttpConnection {
 public:
  enum class Phase { kIdle, kHeaders, kBody, kRunning, kLater, kResumed, kAnswered };

  HttpConnection(std::shared_ptr<HttpShared> shared, uint64_t id, MHD_Connection* mhd, int fd,
                 std::string peer);

  // ---- Of requests

  // Which request this is. Others' answers are dropped.
  uint64_t request_number();
  void Answer(uint64_t request, HttpReply reply);
  void OnDisconnect(uint64_t request, absl::AnyInvocable<void()> gone);

  // ---- Of the server

  // The client closed its side.
  void Gone();
  // The server drains, and has waited long enough for requests of idle connections: nothing is
  // written to one that is idle any more, so that its client closes it. A request that crosses this
  // is not run. Does nothing while one has come.
  void CloseIfIdle();
  // The server waits no longer. True when that gave the request its reply.
  bool End();
  // 408 if it was read, and no more reading and writing.
  void CutIfLate(int64_t now_ns);
  // For a reply in the middle of a body, which the library does not take. Not of TLS.
  void RefuseRaw(int status, absl::string_view text);
  // Of the socket, by the caller to be closed; -1: there is none.
  int DuplicateSocket();

  // ---- Of the loop

  // `deadline_ns` 0: none.
  void Enter(Phase phase, int64_t deadline_ns);
  // Its client has been told that it ends: no request of it may run, for none can be answered.
  bool is_half_closed();
  // After the handler: the reply, if it is there by now; else the connection leaves its loop.
  std::optional<HttpReply> ReplyOrSuspend();
  // The reply for which the connection came back.
  std::optional<HttpReply> ReplyOfResumed();
  // A reply is on its way.
  void Answered(int64_t deadline_ns);
  // The request has ended, in order or not.
  void Completed(int64_t deadline_ns);
  // Just before the library closes the socket.
  void Closed();

  const std::shared_ptr<HttpShared> shared;
  const uint64_t id;
  MHD_Connection* const mhd;
  const std::string peer;

  std::string target;                        // as sent
  std::unique_ptr<ReceivedRequest> reading;  // until its handler has it
  std::optional<HttpReply> refusal;          // takes the handler's place; the body is dropped
  bool may_be_sending = false;               // when the connection ends
  bool is_known = false;                     // the client's certificate has been looked at

  ~HttpConnection();

 private:
  bool IsRunning(uint64_t request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Under the lock, so that no one stops the loops while the library is in here.
  void Resume() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::AnyInvocable<void()> TakeGone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Unwatch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  int fd_ ABSL_GUARDED_BY(mu_);  // -1: closed
  Phase phase_ ABSL_GUARDED_BY(mu_) = Phase::kIdle;
  int64_t deadline_ns_ ABSL_GUARDED_BY(mu_) = 0;  // 0: none
  uint64_t request_ ABSL_GUARDED_BY(mu_) = 0;     // counts: an old request answers nothing
  std::optional<HttpReply> reply_ ABSL_GUARDED_BY(mu_);
  absl::AnyInvocable<void()> gone_ ABSL_GUARDED_BY(mu_);
  bool watched_ ABSL_GUARDED_BY(mu_) = false;
  bool has_gone_ ABSL_GUARDED_BY(mu_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace millrace

#endif  // MILLRACE_NET_HTTP_HTTP_CONNECTION_H_
