// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TELL_AGAIN_H_
#define MILLRACE_DISTRIBUTED_TELL_AGAIN_H_

// How often a task is told what only the caller can tell it: that a session or a run is over.
//
// A call that nobody has answered is made again after these pauses, then given up. Together the
// first two outlast the second that a broken connection waits before it is made again; the last is
// for a task that is just being started anew.

#include "absl/time/time.h"
#include "core/status.h"

namespace millrace {

inline constexpr absl::Duration kTellAgainAfter[] = {absl::Milliseconds(200), absl::Seconds(1),
                                                     absl::Seconds(5)};
// Of each call.
inline constexpr absl::Duration kTellTimeout = absl::Seconds(5);

// It may not have been heard.
inline bool IsUnanswered(const Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TELL_AGAIN_H_
