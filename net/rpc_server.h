// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_RPC_SERVER_H_
#define MILLRACE_NET_RPC_SERVER_H_

// RpcServer: one port: gRPC calls by method name whose messages are bytes, and the threads that
// poll for them.
//
// A handler runs on the thread that took the call off the network. It says how long it may take
// (CallWeight): a light one answers at once or keeps the ServerCall and answers later; before any
// other runs, its thread gives up polling to another one (call_threads.h), so that kernels, graphs
// and files keep no poller. Every call ends: by its answer, its deadline, or the loss of its client
// (keepalive 20 s).
//
// Thread-safety: all methods, from any thread. Callbacks come on pollers: they must not block.
// Failure: Status codes are gRPC's (grpc_status.h). What a handler or a callback throws is its
// call's status: ResourceExhausted for want of memory, else Internal. A server that asks for a
// token answers Unauthenticated without it, before it reads the request.

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/exceptions.h"
#include "core/status.h"
#include "net/call_limits.h"
#include "net/duplex_call.h"
#include "net/security.h"

namespace millrace {

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
  // "127.0.0.1:1234", "[::1]:1234", "unix"; "": not known. Valid as long as the call.
  virtual absl::string_view peer() const { return ""; }
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
    // "host:port"; port 0: any. Or "unix:/path": a socket that nobody listens on is replaced.
    std::string address;
    // Further ones, of both kinds.
    std::vector<std::string> more_addresses = {};
    // gRPC's own, by name ("grpc.max_connection_age_ms"); those that this class sets win.
    std::vector<std::pair<std::string, std::string>> channel_arguments = {};
    std::map<std::string, Handler> handlers;
    // Of calls with messages both ways. Called on a poller once the call was admitted, as all calls
    // are; starts the call, then or later. Not a method of `handlers`.
    std::map<std::string, std::function<void(std::shared_ptr<DuplexCall>)>> duplex_handlers;
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
  // FailedPrecondition when an address is in use or not of this machine; InvalidArgument for the
  // path of a unix socket that is empty or too long.
  static StatusOr<std::unique_ptr<RpcServer>> Start(Options options);
  // Of `address`; 0 for a unix socket.
  virtual int port() const = 0;
  // By "/package.Service/Method", those that were called. For tests that count.
  virtual std::map<std::string, MethodCounts> counts() const = 0;
  // Calls that wait now because max_heavy_calls run.
  virtual int num_waiting_calls() const = 0;
  // Ends all calls and joins the pollers. Whatever the handlers left open must be on its way to
  // Finish; answers may leave until `answers_until`, and for half a second at least. A handler that
  // does not return within the bound is named in the log and left behind. Idempotent; not on a
  // poller.
  virtual void Shutdown(absl::Time answers_until) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_NET_RPC_SERVER_H_
