// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TESTS_FAILURES_TCP_PROXY_H_
#define MILLRACE_TESTS_FAILURES_TCP_PROXY_H_

// TcpProxy: a port of this host behind which a task listens, and a network that can be broken.
//
//   MR_ASSIGN_OR_RETURN(auto proxy, TcpProxy::Start(ps_port));
//   ... others dial proxy->port() ...
//   proxy->Set(TcpProxy::Way::kIn, TcpProxy::Flow::kHeld);   // nothing arrives, answers do
//   proxy->Heal();
//
// Each way of all its connections is in one state:
//
//   kPasses     bytes are forwarded
//   kHeld       bytes stay where they are and arrive when it passes again, as TCP sends again what
//               a short break of the network has lost; new connections wait
//   kSwallowed  bytes are read and lost: the two ends disagree for good. Such a connection is reset
//               when the way passes again: no stream ever has a hole
//
// One proxy stands for one task as another one sees it, so a pair of tasks has two: what a sends to
// b is the way in of b's proxy for a, and the way out of a's proxy for b.
//
// Invariant: bytes of one way are forwarded in order, each once, or their connection is reset.
// Threads: one of its own. Thread-safety: all methods, from any thread; a state holds for whatever
// is read after the call.
// Failure: Unknown with the system's reason. A task that does not listen: the connection is reset.

#include <cstdint>
#include <memory>

#include "absl/time/time.h"
#include "core/status.h"

namespace millrace {

class TcpProxy {
 public:
  enum class Way { kIn, kOut };  // to the task, and from it
  enum class Flow { kPasses, kHeld, kSwallowed };

  // Listens on a free port of 127.0.0.1, forwards to `target_port` there.
  static StatusOr<std::unique_ptr<TcpProxy>> Start(int target_port);
  virtual ~TcpProxy() = default;  // resets all connections

  virtual int port() const = 0;
  // New connections go there: the task has another address, others know it under one name.
  virtual void SetTarget(int target_port) = 0;
  virtual void Set(Way way, Flow flow) = 0;
  // Bytes that are read from now on arrive so much later.
  virtual void Delay(absl::Duration delay) = 0;
  // Resets the connections that are open.
  virtual void Cut() = 0;
  // Both ways pass, without delay.
  virtual void Heal() = 0;

  // Forwarded so far.
  virtual int64_t bytes(Way way) const = 0;
  // Accepted so far.
  virtual int64_t connections() const = 0;
};

}  // namespace millrace

#endif  // MILLRACE_TESTS_FAILURES_TCP_PROXY_H_
