// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_GRPC_WIRE_H_
#define MILLRACE_DISTRIBUTED_LINK_GRPC_WIRE_H_

// A ByteWire over one gRPC call of both directions, /millrace.Link/Connect. A message is what one
// Write was given, as bytes; where messages begin and end means nothing.
//
// Pieces of a ByteChain leave from where they lie. The call's metadata are those of all calls, so
// its server asks for the token, the certificate and the version before it reads a byte.
//
// A wire closes as its call does (net/duplex_call.h): what was written before Close arrives, which
// a farewell needs. `by_peer` is said when the call had come to be and this side did not close it:
// gRPC does not tell a process that ended from a connection that broke on both sides.
//
// Threads, lifetime, failure: as ByteWire. A task that is not reached is Unavailable, one that has
// no links FailedPrecondition, one that refuses what is shown Unauthenticated.

#include <memory>

#include "distributed/link/byte_wire.h"
#include "net/duplex_call.h"
#include "net/rpc_channel.h"

namespace millrace {

inline constexpr char kLinkMethod[] = "/millrace.Link/Connect";

// The connection may outlive the channel.
std::unique_ptr<ByteWire> DialGrpcWire(RpcChannel* channel);
// For RpcServer::Options::duplex_handlers. The wire must be started.
std::unique_ptr<ByteWire> AcceptGrpcWire(std::shared_ptr<DuplexCall> call);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_GRPC_WIRE_H_
