// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_JOB_SIGNALS_H_
#define MILLRACE_TRAIN_JOB_SIGNALS_H_

// JobSignals: what SIGTERM and Ctrl-C do to a training job, in one place for all its faces.
//
//   quiet -> noted       a signal came: the job is asked to leave, once, with Cancelled and the
//                        exit code 143 or 130
//   noted -> overdue     the job's end has not begun in time: the step that runs hangs, or what
//                        feeds it does, and is ended from outside
//   any   -> ending      EndBegins: what comes later is the job's own end's to bear
//
// Where checkpoints are kept a step has half of the grace to end, and the rest is for the last
// checkpoint; elsewhere it has a second. The sender of a signal kills what goes on for longer.
//
// Thread-safety: all methods, from any thread; Unwatch not with a lock that a call of the options
// takes.
// Lifetime: Unwatch before what the options' functions use is gone.
// Failure: without a thread or a descriptor for the watch signals do what they did before, and the
// log says so.

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/status.h"
#include "train/signal_watch.h"

namespace millrace {

struct JobSignalsOptions {
  std::string speaker;  // in the log and in errors
  // Of the step that runs and the last checkpoint together.
  absl::Duration grace;
  Clock* clock = Clock::Real();
  std::function<bool()> keeps_checkpoints;
  // The job is to leave with this. Called with a lock held: it calls no method of this object.
  std::function<void(const Status& ended_by)> request_leave;
  // The step did not end within `time`. On the thread of the watch, without a lock.
  std::function<void(absl::Duration time)> end_step;
};

class JobSignals {
 public:
  explicit JobSignals(JobSignalsOptions options) : options_(std::move(options)) {}
  JobSignals(const JobSignals&) = delete;
  JobSignals& operator=(const JobSignals&) = delete;

  // Signals are the job's from now on; once, and not after EndBegins.
  void Watch();
  // Takes note of a signal that has come, whether or not the watch's thread has: no step begins
  // after a signal. SIGTERM or SIGINT; 0: none was noted.
  int Note();
  // The job ends by itself: nothing is ended from outside any more.
  void EndBegins();
  // Signals do what they did before. Waits for an end_step that runs.
  void Unwatch();

  struct Noted {
    int signal = 0;
    absl::Time at;
  };
  std::optional<Noted> noted() const;

 private:
  void NoteLocked(int signal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // On the thread of the watch.
  void OnSignal(int signal);

  const JobSignalsOptions options_;
  mutable Mutex mu_;  // before the locks of request_leave
  CondVar changed_;
  std::optional<Noted> noted_ ABSL_GUARDED_BY(mu_);
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  // Last: its thread uses the rest.
  std::unique_ptr<SignalWatch> watch_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_JOB_SIGNALS_H_
