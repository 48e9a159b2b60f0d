// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_DUPLEX_CALL_H_
#define MILLRACE_NET_DUPLEX_CALL_H_

// DuplexCall: a call on which both sides send messages, as bytes, for as long as they like.
//
// It is the same for who called (RpcChannel::Duplex) and who was called
// (RpcServer::Options::duplex_handlers).
//
//   made -> started -> closing -> ended
//
// The called side hears of a call with the caller's first message, or with its Close.
//
// Closing, by either side: messages that were written before still arrive and are still heard; then
// the call ends, at both sides. A side that does not follow within kFarewell is cut off.
//
// Threads. Start, Write and Close: any thread; they do not wait. OnMessage and OnEnded are called
// one at a time, OnWritten at any time, all on pollers: they must not block. What a message makes
// ready runs as a Visit (core/visit.h), after the thread has given up polling.
// Lifetime. A call must be started. From then on it keeps its user until OnEnded has returned.
// Failure. OnEnded comes exactly once, last. What a callback throws ends the call with its status.

#include <grpcpp/support/byte_buffer.h>

#include <memory>

#include "absl/time/time.h"
#include "core/status.h"

namespace millrace {

class DuplexCall {
 public:
  // How long a closed call may take to end. Messages that wait in buffers leave well within it.
  static constexpr absl::Duration kFarewell = absl::Seconds(2);

  class User {
   public:
    virtual ~User() = default;
    // In the order in which the peer wrote them.
    virtual void OnMessage(const grpc::ByteBuffer& message) = 0;
    // The message has left, and the next may be written.
    virtual void OnWritten() = 0;
    // `status` is an error. `by_peer`: the call had come to be, and this side did not close it: the
    // peer closed it, or its process or the connection ended. gRPC does not tell these apart on
    // both sides.
    virtual void OnEnded(const Status& status, bool by_peer) = 0;
    // Asked at Start. True: one that answers each message, by a Write from OnMessage or OnWritten.
    // It hears the next one, or the peer's end, when its answer has left: a peer that closes its
    // side early gets all its answers, and one that does not read them sends no more.
    virtual bool takes_turns() const { return false; }
  };

  virtual ~DuplexCall() = default;
  // Once, first. A call that cannot begin may end within it.
  virtual void Start(std::shared_ptr<User> user) = 0;
  // One at a time: the next after OnWritten, which does not come when the call is closed or broken.
  virtual void Write(const grpc::ByteBuffer& message) = 0;
  // More than once and at any time after Start.
  virtual void Close() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_NET_DUPLEX_CALL_H_
