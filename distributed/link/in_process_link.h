// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_IN_PROCESS_LINK_H_
#define MILLRACE_DISTRIBUTED_LINK_IN_PROCESS_LINK_H_

// A link of two tasks in one process: tensors are handed over, no byte is copied or encoded.
//
// What one end sends is given to the other one in the sending thread, one message at a time and in
// order; while one thread delivers in a direction, others only add to its queue. So no credit and
// no parts are needed, and OnReceived comes as soon as the peer's OnTensors has returned.
//
// Threads, lifetime, failure: as Link. Send, Flush and Close call both ends. A message that a call
// of an end sends back is delivered within that call, or after it when its direction is being
// delivered. An end that throws, which it must not, loses the link at both ends.

#include <cstdint>
#include <memory>
#include <utility>

#include "distributed/link/link.h"

namespace millrace {

struct InProcessLinkOptions {
  // Of tensors that wait, behind a cork or for another thread to deliver them, and are no edges of
  // steps; and of messages without tensors.
  int64_t max_queued_bytes = int64_t{4} << 30;
  int64_t max_queued_message_bytes = int64_t{16} << 20;
};

// Opens a link between two tasks: both have had OnOpen when this returns, `first` before `second`.
// What the ends are called with tells who the other one is.
std::pair<std::shared_ptr<Link>, std::shared_ptr<Link>> OpenInProcessLink(
    const LinkPeer& first_task, std::shared_ptr<LinkEnd> first, const LinkPeer& second_task,
    std::shared_ptr<LinkEnd> second, const InProcessLinkOptions& options = {});

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_IN_PROCESS_LINK_H_
