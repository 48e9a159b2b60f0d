// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_UNIX_DIAL_H_
#define MILLRACE_DISTRIBUTED_LINK_UNIX_DIAL_H_

// DialUnix: takes up a UnixOffer of a peer that may be on this host.
//
// Does not wait. The peer must be a process of `user`, and gets the offer's nonce before anything
// else. An offer is of use once, whether or not the wire comes to be.
//
// Threads: any. Failure: a Status when the socket is not there (another host, another network
// namespace, the peer has ended, it has no room), when the peer is of another user, or when the
// system refuses; callers then stay on the link that they have. A peer that refuses the nonce
// closes the wire before it has sent a byte: a Link on it is lost before OnOpen, and that counts as
// refused.

#include <sys/types.h>
#include <unistd.h>

#include <memory>

#include "core/status.h"
#include "distributed/link/byte_wire.h"
#include "distributed/link/unix_offer.h"

namespace millrace {

// `user` is another one in tests.
StatusOr<std::unique_ptr<ByteWire>> DialUnix(const UnixOffer& offer, uid_t user = ::geteuid());

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_UNIX_DIAL_H_
