// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_UNIX_WIRE_H_
#define MILLRACE_DISTRIBUTED_LINK_UNIX_WIRE_H_

// A ByteWire over a connected Unix socket (SOCK_STREAM): its bytes are the wire's bytes and nothing
// else, and it passes descriptors. How two tasks come to have one socket says unix_acceptor.h.
//
// Writing: the calling thread gives the pieces of a chain to the system where they lie. What the
// peer has no room for stays a reference, and a thread of the poller goes on when there is room.
// Reading: a thread of the poller reads straight into the user's place when that is large enough to
// be worth a call of its own, else through a buffer. It reads and writes in turns, a bounded number
// of times, and then lets other sockets have theirs.
//
// A descriptor leaves with the first byte of its piece and comes with the same byte; the user hears
// of it before that byte, unless that lies in its place. A peer that sends several with one byte
// breaks the wire.
//
// Threads, lifetime: as ByteWire. OnBytes, OnFilled, OnClosed and those OnWritten that come later
// are called on the poller's threads, and what they make ready is run there as a Visit.
// Failure: as ByteWire. The end of the peer's process, kill -9 too, closes the wire by_peer, after
// all bytes that it had written.

#include <memory>

#include "core/owned_fd.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/unix_poller.h"

namespace millrace {

// `socket` is closed after OnClosed at the latest; without Start with the wire. Whether it blocks
// does not matter. `poller` outlives the wire.
std::unique_ptr<ByteWire> MakeUnixWire(UnixPoller* poller, OwnedFd socket);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_UNIX_WIRE_H_
