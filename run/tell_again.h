// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUN_TELL_AGAIN_H_
#define MILLRACE_RUN_TELL_AGAIN_H_

// TellAgain: how often a task is told what only the caller can tell it: that a session or a run is
// over.
//
// A call that is not answered is made again after these pauses, then given up. Together the first
// two outlast the second that a broken connection waits before it is made again; the last is for a
// task that is just being started anew.
//
// A value: one object for each telling, used by one thread at a time. Failure: none.

#include <cstddef>
#include <iterator>
#include <optional>

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

class TellAgain {
 public:
  // How long to wait after a call that was not answered; nullopt: it was the last one.
  std::optional<absl::Duration> NextPause() {
    if (calls_ == std::size(kTellAgainAfter)) return std::nullopt;
    return kTellAgainAfter[calls_++];
  }

 private:
  size_t calls_ = 0;  // that were not answered
};

}  // namespace millrace

#endif  // MILLRACE_RUN_TELL_AGAIN_H_
