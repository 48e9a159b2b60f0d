// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_TESTING_UNIX_PAIR_H_
#define MILLRACE_DISTRIBUTED_LINK_TESTING_UNIX_PAIR_H_

// UnixPair: two links over a Unix socket, in this process, which found each other by an offer as
// two tasks of a host do.
//
// Failure: a pair that does not open, or does not settle within a minute, fails the test.

#include <cstdint>
#include <memory>

#include "distributed/link/link.h"
#include "distributed/link/testing/link_kinds.h"

namespace millrace {

// The ps offers, the worker dials. Each end has a pool of so many bytes.
std::unique_ptr<LinkPair> MakeUnixPair(const LinkPeer& worker, const LinkPeer& ps,
                                       int64_t max_pool_bytes = 0);

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_TESTING_UNIX_PAIR_H_
