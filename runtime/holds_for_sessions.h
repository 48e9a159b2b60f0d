// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUNTIME_HOLDS_FOR_SESSIONS_H_
#define MILLRACE_RUNTIME_HOLDS_FOR_SESSIONS_H_

// HoldsForSessions: a resource that keeps something for the session that took it, from one step to
// another (a shard of data, a lock), and wants it back when that session is over. What one step
// takes and gives back: step_loans.h.
//
//   class Shards : public Resource, public HoldsForSessions { ... };
//
// Who took something is StepContext::session_handle of the step whose kernel took it.
//
// Threads: SessionEnded comes from any thread, several at once, once for each session that ended
// while the resource was in its manager, also for sessions that never used it. Steps of that
// session may still be on their way to their end; they must not get anything more. It must not
// block, nor use the resource manager.

#include "absl/strings/string_view.h"

namespace millrace {

class HoldsForSessions {
 public:
  virtual void SessionEnded(absl::string_view session_handle) = 0;
  // Asked after SessionEnded: true when the resource was that session's alone. Its manager lets go
  // of it then.
  virtual bool EndedWithSession() const { return false; }

 protected:
  ~HoldsForSessions() = default;
};

}  // namespace millrace

#endif  // MILLRACE_RUNTIME_HOLDS_FOR_SESSIONS_H_
