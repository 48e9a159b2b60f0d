// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_UNIX_SAME_HOST_H_
#define MILLRACE_DISTRIBUTED_LINK_UNIX_SAME_HOST_H_

// UnixSameHost: the way between two tasks of one host by a Unix socket (unix_acceptor.h,
// unix_dial.h). Only processes of this user may take an offer, or be taken at their word.
//
// The socket is made with the first offer, so a task without links has none.
//
// Threads, lifetime, failure: as SameHost. An offer of another host is known by the host's boot id:
// nothing is dialled then. A host whose tasks do not share a network namespace is Unavailable.

#include <memory>

#include "distributed/link/same_host.h"
#include "distributed/link/unix_acceptor.h"

namespace millrace {

std::unique_ptr<SameHost> MakeUnixSameHost(UnixAcceptorOptions options = {});

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_UNIX_SAME_HOST_H_
