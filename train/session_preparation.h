// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_SESSION_PREPARATION_H_
#define MILLRACE_TRAIN_SESSION_PREPARATION_H_

// SessionPreparation: sessions are prepared on a thread of their own, so that a stop is heard while
// one is restored from storage that hangs.
//
//   preparation.Run(prepare, opened)     what `prepare` returns
//   preparation.Stop()                   ... or nothing, soon
//
// A second after Stop the session that is being prepared is closed, which ends what waits for
// servers; what still waits after kCloseTime more (for storage) is left behind with its thread.
//
// Thread-safety: Stop from any thread, Run from one at a time.
// Failure: that of `prepare`; what it throws comes out of Run. Without a thread it runs on the
// caller's.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/clock.h"
#include "core/status.h"
#include "runtime/session.h"
#include "train/session_manager.h"

namespace millrace {

class SessionPreparation {
 public:
  // `speaker`: who speaks in the log ("Supervisor").
  SessionPreparation(std::string speaker, Clock* clock);
  SessionPreparation(const SessionPreparation&) = delete;
  SessionPreparation& operator=(const SessionPreparation&) = delete;

  using Prepare = std::function<StatusOr<SessionManager::Ready>()>;
  // `prepare` ends with an error soon after the stop, unless it waits for servers or storage; it
  // must hold what it uses, for it may be left behind. `opened`: the session that it is at, null
  // before there is one; called by this thread. None: there was a stop, and no session is left.
  std::optional<StatusOr<SessionManager::Ready>> Run(
      Prepare prepare, const std::function<std::shared_ptr<Session>()>& opened);
  // Ends the Run that is under way, and soon all later ones that do not end by themselves.
  void Stop();

 private:
  struct State;
  const std::string speaker_;
  Clock* const clock_;
  const std::shared_ptr<State> state_;  // also of threads that are left behind
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_SESSION_PREPARATION_H_
