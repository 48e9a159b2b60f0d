// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_PEER_LINKS_H_
#define MILLRACE_DISTRIBUTED_LINK_PEER_LINKS_H_

// PeerLinks: how a task finds its links to others, as its worker and its master need it.
//
// Thread-safety: all methods, from any thread. Lifetime: it outlives who uses it; what was asked
// for is answered before it is destroyed. Failure: why there is no link; Unavailable when the task
// cannot be reached.

#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "core/status.h"
#include "distributed/link/link.h"

namespace millrace {

class PeerLinks {
 public:
  using Got = absl::AnyInvocable<void(StatusOr<std::shared_ptr<Link>>)>;

  virtual ~PeerLinks() = default;
  // The link to `task`, which is dialled when there is none. `got` is called once, in the calling
  // thread when the link is open, else in any; it must neither block nor throw.
  virtual void Get(absl::string_view task, Got got) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_PEER_LINKS_H_
