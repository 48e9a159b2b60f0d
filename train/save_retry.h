// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_SAVE_RETRY_H_
#define MILLRACE_TRAIN_SAVE_RETRY_H_

// When a checkpoint that could not be written is tried again, and after which pauses.
//
//   SaveRetry retry(absl::Seconds(1));
//   if (!saved.ok() && MayTryAgain(saved)) wait_until = now + retry.NextPause();
//   if (saved.ok()) retry.Reset();
//
// Thread-safety: thread-compatible.

#include "absl/time/time.h"
#include "core/status.h"

namespace millrace {

// May a save that failed so succeed with the next try? Not where another chief has the run or the
// run has ended, nor what can never work. Whatever else files can fail with (a disk that is full or
// read-only, storage that is away), somebody may see to it while training goes on.
bool MayTryAgain(const Status& status);

// The pauses between the tries of one save: each twice as long as the one before, a minute at most.
class SaveRetry {
 public:
  // `first`: the pause after the first failure; 1 ms at least.
  explicit SaveRetry(absl::Duration first);
  // After a failure: how long to wait for the next try.
  absl::Duration NextPause();
  // After a success.
  void Reset() { pause_ = first_; }

 private:
  absl::Duration first_;
  absl::Duration pause_;  // the next one
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_SAVE_RETRY_H_
