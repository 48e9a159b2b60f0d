// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_JOB_RECOVERY_H_
#define MILLRACE_TRAIN_JOB_RECOVERY_H_

// JobRecovery: how often a training job makes a new session after a lost one, and after which
// pauses. The same for all faces of the job.
//
//   while (true) {
//     ... make a session ...
//     recovery.SessionBegan(global_step, own_steps);
//     const Status status = ... run steps ...
//     if (!IsSessionLost(status)) return status;
//     MR_RETURN_IF_ERROR(recovery.NoteLoss(status));
//     ... wait for recovery.pause(), or until the job is to stop ...
//   }
//
// Losses are counted in a row. The count begins anew with a session that begins at a later global
// step than all before, when this task has run a step since. Either alone is no progress: a step
// may be lost with its session again and again, and other tasks may train on while this one cannot.
// The first loss in a row is followed by a session at once, the others after pauses that double.
//
// Thread-safety: thread-compatible.
// Failure: NoteLoss returns the loss itself when it was one too many.

#include <cstdint>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "core/status.h"

namespace millrace {

struct JobRecoveryOptions {
  std::string speaker;  // in the log
  int max_losses = 0;   // in a row, that another session follows
  absl::Duration longest_pause = absl::Seconds(1);
};

class JobRecovery {
 public:
  explicit JobRecovery(JobRecoveryOptions options) : options_(std::move(options)) {}

  // `global_step`: the session's first; -1 when there is none. `own_steps`: how many this task has
  // run so far; a caller that does not know gives the global step.
  void SessionBegan(int64_t global_step, int64_t own_steps);
  // OK, and a warning in the log: another session is to be made after pause().
  Status NoteLoss(const Status& why);
  absl::Duration pause() const { return pause_; }

 private:
  const JobRecoveryOptions options_;
  int64_t furthest_ = -1;   // global step that a session began with
  int64_t own_steps_ = -1;  // when that session began
  int losses_ = 0;          // since then
  absl::Duration pause_ = absl::ZeroDuration();
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_JOB_RECOVERY_H_
