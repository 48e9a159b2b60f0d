// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_RPC_H_
#define MILLRACE_NET_RPC_H_

// RPC: gRPC calls by method name whose messages are bytes, and the threads that poll for them.
//
// RpcChannel: the way to one address. RpcServer: one port, whose handlers run on the thread that
// took the call off the network. A handler says how long it may take (CallWeight): a light one
// answers at once or keeps the ServerCall and answers later; before any other runs, its thread
// gives up polling to another one (call_threads.h), so that kernels, graphs and files keep no
// poller. Every call ends: by its answer, its deadline, its CancellationManager, or the loss of the
// peer (keepalive 20 s).
//
// Thread-safety: all methods, from any thread. Callbacks come on pollers: they must not block.
// Failure: gRPC's status codes are Status codes; a connection that breaks is Unavailable. What a
// handler or a callback throws is its call's status: ResourceExhausted for want of memory, else
// Internal. A server that asks for a token answers Unauthenticated without it, before it reads the
// request. Peers that cannot agree on TLS are Unavailable; the reason is looked for when a call
// asks for it (peer_probe.h).

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/exceptions.h"
#include "core/status.h"
#include "net/call_limits.h"
#include "net/security.h"

namespace millrace {

// Messages that travel in gRPC's trailers are cut to this length.
inline constexpr size_t kMaxStatusMessage = 3072;
// Between two keepalive pings, and how long the answer may take.
inline constexpr absl::Duration kKeepalive = absl::Seconds(20);
inline constexpr absl::Duration kKeepaliveTimeout = absl::Seconds(10);

struct RpcOptions {
  absl::Time deadline = absl::InfiniteFuture();
  // Waits until the peer is there, instead of failing at once when it is not.
  bool wait_for_ready = false;
  // Cancels the call. May be null; outlives the call's `done`.
  CancellationManager* cancellation = nullptr;
  // Of unary calls: Unavailable is explained, and marked where the peer is sure to refuse us
  // (IsRefusal). That may take kProbeTime more, also beyond the deadline; not while many others are
  // being explained.
  bool asks_for_refusal = false;
};

class RpcChannel {
 public:
  // Must not throw, nor StreamDone.
  using UnaryDone = absl::AnyInvocable<void(const Status&, const grpc::ByteBuffer&)>;
  // Whether it expects another message. An error, or what it throws, ends the call, and is what
  // `done` hears.
  using OnMessage = absl::AnyInvocable<StatusOr<bool>(const grpc::ByteBuffer&)>;
  using StreamDone = absl::AnyInvocable<void(const Status&)>;

  virtual ~RpcChannel() = default;
  // `credentials`: what it shows, and whether it speaks TLS; null: ClusterCredentials(). When these
  // cannot be had, each call ends with the reason.
  static std::shared_ptr<RpcChannel> Make(const std::string& address,
                                          std::shared_ptr<const Credentials> credentials = nullptr);

  // `method`: "/package.Service/Method". `done` is called exactly once, on a poller, or in the
  // calling thread when the call could not begin. Both never throw.
  virtual void Unary(const std::string& method, const RpcOptions& options,
                     const grpc::ByteBuffer& request, UnaryDone done) = 0;
  // One request, several messages in answer, in order; then `done`.
  virtual void Stream(const std::string& method, const RpcOptions& options,
                      const grpc::ByteBuffer& request, OnMessage on_message, StreamDone done) = 0;
  // Blocks. Never on a poller.
  StatusOr<grpc::ByteBuffer> Call(const std::string& method, const RpcOptions& options,
                                  const grpc::ByteBuffer& request);

  virtual const std::string& address() const = 0;
};

// Calls begun by all channels of this process so far, by "host:port/package.Service/Method". For
// tests that count.
std::map<std::string, int64_t> RpcCallsBegun();

// An incoming call. Exactly one Finish; before it any number of Writes, each begun after
// `written` of the one before was called.
class ServerCall {
 public:
  virtual ~ServerCall() = default;
  virtual const std::string& method() const = 0;
  // InfiniteFuture when the client gave none.
  virtual absl::Time deadline() const = 0;
  // Started when the client has gone or cancelled; the callbacks run on a poller.
  virtual CancellationManager* cancellation() = 0;
  // Of its server.
  virtual const CallLimits& limits() const = 0;
  // The caller has proved that it belongs to the cluster, by a token or by a certificate.
  virtual bool is_from_member() const = 0;
  virtual void Write(const grpc::ByteBuffer& message, absl::AnyInvocable<void()> written) = 0;
  // The last message, then OK.
  virtual void Finish(const grpc::ByteBuffer& message) = 0;
  // Also when there is no memory; the text may be missing then.
  virtual void FinishWithStatus(const Status& status) = 0;
};

// Ends `call` with the message that `body` makes, a StatusOr<grpc::ByteBuffer>; with its error, or
// with what it throws.
template <typename Body>
void FinishWith(ServerCall* call, Body&& body) {
  const StatusOr<grpc::ByteBuffer> message = NoExceptions(call->method(), body);
  if (!message.ok()) return call->FinishWithStatus(message.status());
  call->Finish(*message);
}

// How long a handler may take.
enum class CallWeight {
  kLight,   // microseconds: runs on a poller
  kHeavy,   // runs kernels, decodes what may be large, builds graphs: a bounded number at once
  kUrgent,  // may take a while, too, but ends what others do: never waits behind heavy ones
};

class RpcServer {
 public:
  struct Handler {
    using Serve = std::function<void(std::shared_ptr<ServerCall>, const grpc::ByteBuffer&)>;
    Handler() = default;
    template <typename F>
    Handler(F f, CallWeight w = CallWeight::kHeavy) : serve(std::move(f)), weight(w) {}
    void operator()(std::shared_ptr<ServerCall> call, const grpc::ByteBuffer& request) const {
      serve(std::move(call), request);
    }
    Serve serve;
    CallWeight weight = CallWeight::kHeavy;
  };
  struct Options {
    std::string address;  // "host:port"; port 0: any
    std::map<std::string, Handler> handlers;
    // What the handlers use; lives as long as any of them runs.
    std::shared_ptr<const void> keep;
    int num_pollers = 4;
    int max_heavy_calls = 64;  // at once; the others wait
    // How long Shutdown waits for handlers.
    absl::Duration handler_bound = absl::Seconds(10);
    // What callers must show; null: nothing, and it speaks no TLS.
    std::shared_ptr<const Credentials> credentials;
    CallLimits limits = {};
  };

  // What a server has done for one of its methods so far.
  struct MethodCounts {
    int64_t calls = 0;     // taken up: admitted, with their request read
    int64_t messages = 0;  // sent in answer; a call that ends with a status alone sends none
  };

  virtual ~RpcServer() = default;
  // FailedPrecondition when the port is in use or the host not of this machine.
  static StatusOr<std::unique_ptr<RpcServer>> Start(Options options);
  virtual int port() const = 0;
  // By "/package.Service/Method", those that were called. For tests that count.
  virtual std::map<std::string, MethodCounts> counts() const = 0;
  // Ends all calls and joins the pollers. Whatever the handlers left open must be on its way to
  // Finish; answers may leave until `answers_until`, and for half a second at least. A handler that
  // does not return within the bound is named in the log and left behind. Idempotent; not on a
  // poller.
  virtual void Shutdown(absl::Time answers_until) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_NET_RPC_H_
