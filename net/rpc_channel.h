// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_NET_RPC_CHANNEL_H_
#define MILLRACE_NET_RPC_CHANNEL_H_

// RpcChannel: the way to one address: gRPC calls by method name whose messages are bytes.
//
// Every call ends: by its answer, its deadline, its CancellationManager, or the loss of the peer
// (keepalive 20 s). The channels of a process share their threads (client_threads.h).
//
// Thread-safety: all methods, from any thread. Callbacks come on pollers: they must not block.
// Failure: gRPC's status codes are Status codes (grpc_status.h); a connection that breaks is
// Unavailable, and marked where the call never had one (not_sent.h). What a callback throws is its
// call's status: ResourceExhausted for want of memory, else Internal. Peers that cannot agree on
// TLS are Unavailable; the reason is looked for when a call asks for it (peer_probe.h).

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/status.h"
#include "net/duplex_call.h"
#include "net/security.h"

namespace millrace {

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
  // Messages both ways, without a deadline; the call begins when it is started. Unavailable before
  // the peer was heard is explained, as with asks_for_refusal. Unimplemented by channels that have
  // no such calls.
  virtual std::shared_ptr<DuplexCall> Duplex(const std::string& method);
  // Blocks. Never on a poller.
  StatusOr<grpc::ByteBuffer> Call(const std::string& method, const RpcOptions& options,
                                  const grpc::ByteBuffer& request);

  virtual const std::string& address() const = 0;
};

// Calls begun by all channels of this process so far, by "host:port/package.Service/Method". For
// tests that count.
std::map<std::string, int64_t> RpcCallsBegun();

}  // namespace millrace

#endif  // MILLRACE_NET_RPC_CHANNEL_H_
