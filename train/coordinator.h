// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_COORDINATOR_H_
#define MILLRACE_TRAIN_COORDINATOR_H_

// Coordinator: lets a loop and the threads that serve it end together.
//
//   Coordinator coordinator;
//   coordinator.Start("reader", [](const Coordinator& c) -> Status {
//     while (!c.ShouldStop()) MR_RETURN_IF_ERROR(ReadMore());
//     return absl::OkStatus();
//   });
//   while (!coordinator.ShouldStop()) ... one step ...
//   coordinator.RequestStop();
//   return coordinator.Join();                            // the first error of anybody
//
// Anybody may ask for the stop; the first error that comes with it is kept and is what Join
// returns. OutOfRange, the end of data, is no error. A thread that ends with an error asks for the
// stop with it.
//
//   running -> stopping    RequestStop, by anybody; an error of a thread
//   stopping -> running    ClearStop, by the owner, when no thread is left
//   stopping -> joined     Join
//
// A Coordinator is a handle: copies are of one and the same. A thread that has not ended within the
// grace of Join is left behind with a copy, and with whatever its body holds.
//
// Thread-safety: all methods, from any thread; Start, ClearStop and Join from one at a time, and
// Join not from a thread of the Coordinator's own.

#include <functional>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/status.h"

namespace millrace {

struct ThreadJoinOptions {
  // How long threads may take to end once a stop was asked for.
  absl::Duration stop_grace = absl::Seconds(120);
  // A thread that does not end in time is a warning in the log; else it is the error of Join,
  // unless there was one before.
  bool ignore_live_threads = false;
};

class Coordinator {
 public:
  // `clock` outlives all threads.
  explicit Coordinator(Clock* clock = Clock::Real());

  // After Join an error is only logged: nobody would hear of it.
  void RequestStop(const Status& reason = absl::OkStatus()) const;
  bool ShouldStop() const;
  // Waits until somebody asks for the stop; false when `deadline` comes first.
  bool WaitForStop(absl::Time deadline = absl::InfiniteFuture()) const;
  // The first error that came with a request to stop; OK when there was none.
  Status error() const;
  // Forgets the request and the error. FailedPrecondition while threads run.
  Status ClearStop() const;

  // Runs `body` on a thread of its own. `name` is for people.
  void Start(std::string name, std::function<Status(const Coordinator&)> body) const;
  // Calls `tick` at once and then each `period` until the stop. A tick that took longer than the
  // period is followed by the next one in time: none are made up for.
  void StartLooper(std::string name, absl::Duration period, std::function<Status()> tick) const;

  // Waits until all threads have ended, or a stop was asked for and its grace is over. The first
  // error; DeadlineExceeded "... threads still running: a, b" when they do.
  Status Join(const ThreadJoinOptions& options = {}) const;

 private:
  struct State;
  explicit Coordinator(std::shared_ptr<State> state);
  std::shared_ptr<State> state_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_COORDINATOR_H_
