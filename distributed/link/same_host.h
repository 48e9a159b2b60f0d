// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_LINK_SAME_HOST_H_
#define MILLRACE_DISTRIBUTED_LINK_SAME_HOST_H_

// SameHost: the second way between two tasks when both are on one host, as LinkTable needs it.
//
// The task that dials a link offers it in HELLO. The task that was dialled takes it before it
// answers, and its HELLO says so: from then on both know which link carries steps.
//
// Threads: all methods, from any thread; none of them waits. Lifetime: it outlives who uses it.
// Failure: a Status; the tasks then stay on the link that they have.

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "core/status.h"
#include "distributed/link/byte_wire.h"

namespace millrace {

class SameHost {
 public:
  // The wire, not started, of the task that has taken an offer; or why none came.
  using Came = absl::AnyInvocable<void(StatusOr<std::unique_ptr<ByteWire>> wire)>;

  virtual ~SameHost() = default;
  // What HELLO says to one task. Of use once. `came` is called once unless this fails, on any
  // thread, without a lock; also after Close.
  virtual StatusOr<std::string> Offer(Came came) = 0;
  // A wire, not started, to the task that has made the offer. It is that task if it speaks at all:
  // one that refuses closes the wire. NotFound: the offer is of another host.
  virtual StatusOr<std::unique_ptr<ByteWire>> Take(const std::string& offer) = 0;
  // Looks at the clock; every few seconds while links come to be.
  virtual void Tick() = 0;
  // Nothing is offered any more, and what was offered cannot be taken.
  virtual void Close() = 0;
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_LINK_SAME_HOST_H_
