// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_STOP_TIME_H_
#define MILLRACE_TRAIN_STOP_TIME_H_

// What ends in a bounded time, whatever it waits for: parts of a stop.
//
// Thread-safety: any thread. Failure: what does not end in time is left behind on its thread, and
// the log says so.

#include <memory>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/bounded_call.h"
#include "core/clock.h"
#include "runtime/session.h"

namespace millrace {

// What a stop may take, and when that is over.
struct StopTime {
  absl::Duration grace;
  absl::Time deadline;
};

// For what should return at once: closing a session, and what ends with its session.
inline constexpr absl::Duration kCloseTime = absl::Seconds(5);

// Whether `call` has ended by `deadline`. Says every 10 s that it waits, for `what`. `speaker`: who
// speaks in the log ("Supervisor").
bool AwaitAloud(absl::string_view speaker, Clock* clock, BoundedCall* call, absl::Time deadline,
                absl::string_view what);

// Closes the session, for kCloseTime at most; its own errors do not matter any more.
void CloseInTime(absl::string_view speaker, Clock* clock, std::shared_ptr<Session> session);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_STOP_TIME_H_
