// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_CHECKPOINT_SERVICE_H_
#define MILLRACE_TRAIN_CHECKPOINT_SERVICE_H_

// CheckpointService: the checkpoints of a chief's sessions: at once and by time on a thread of its
// own, when they are asked for, and the last one.
//
//   idle -> serving     Begin, where checkpoints go by time or one is to be tried again; Save that
//                       failed
//   serving -> idle     End
//   any -> ended        Refuse: nothing begins any more
//
// One that fails is tried again with pauses, of `recovery_wait` at first and a minute at most,
// until one is written; the saver (train/guarded_saver.h) keeps the failure until then. What no try
// can mend (train/save_retry.h) ends the service and is told to `on_error`.
//
// Threads that wait for storage that hangs are left behind; they hold what `keep_alive` returns,
// which must keep this object and all that its options use.
//
// Thread-safety: all methods, from any thread; End and SaveLast one at a time.
// Failure: of the saver and of reading the global step; DeadlineExceeded for a last checkpoint that
// did not end in time.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "core/bounded_call.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/status.h"
#include "runtime/session.h"
#include "train/guarded_saver.h"
#include "train/save_retry.h"
#include "train/stop_time.h"

namespace millrace {

struct CheckpointServiceOptions {
  std::string speaker;            // in the log and in errors
  GuardedSaver* saver = nullptr;  // not owned
  // The latter without "-<step>"; "": as the checkpoint before is called, and no last one is
  // written before there is one.
  std::string directory, path;
  absl::Duration period;         // 0: none by time
  absl::Duration recovery_wait;  // before a save is tried again, at first
  int64_t variable_bytes = 0;    // of a checkpoint, for people
  Clock* clock = Clock::Real();
  // -1: there is none.
  std::function<StatusOr<int64_t>(Session*)> read_step;
  std::function<void(const Status&)> on_error;
  std::function<std::shared_ptr<const void>()> keep_alive;
};

class CheckpointService {
 public:
  explicit CheckpointService(CheckpointServiceOptions options)
      : options_(std::move(options)), retry_(options_.recovery_wait) {}

  // Checkpoints are of this session from now on, which began with the global step `first_step`.
  void Begin(std::shared_ptr<Session> session, int64_t first_step);
  // There is no session any more.
  void Forget();
  // No thread begins any more.
  void Refuse();

  // See Supervisor::Save.
  StatusOr<std::string> Save(int64_t step);
  // False when a save did not end in time and its session was closed, or an earlier one still waits
  // for its storage. A few seconds more, at most, when it does not end then either: it is left
  // behind.
  bool End(const StopTime& time);
  // The last checkpoint, until `time` is over. None is written when that of the global step is
  // there. `ended`: what End returned. `with_others`: other tasks count the same step, and may have
  // been asked to end, too: waits a moment until they count no more.
  StatusOr<std::string> SaveLast(bool ended, bool with_others, const StopTime& time);
  // A save holds the saver, perhaps for ever.
  bool left_behind() const;

 private:
  void Start() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SaveLoop(Session* session, int64_t service);
  // What is said of a save of `path` that failed with `saved`.
  Status FailureOf(const std::string& path, const Status& saved) const;
  // Another try may mend it: said, and the next try is due after a pause.
  void TryAgain(const std::string& path, const Status& saved);
  StatusOr<std::string> SaveLastNow(Session* session, int64_t first_step, bool with_others,
                                    absl::Time deadline);
  // `failures`: of saves, before `step` was read.
  StatusOr<std::string> SaveLastStep(Session* session, int64_t first_step, int64_t step,
                                     int64_t failures);
  // Waits until the global step stays, for a part of what is left of the time.
  void AwaitOthers(Session* session, absl::Time deadline);
  std::string Path() const;
  std::string PathOfStep(int64_t step) const;

  const CheckpointServiceOptions options_;
  mutable Mutex mu_;
  CondVar changed_;
  bool refused_ ABSL_GUARDED_BY(mu_) = false;
  int64_t service_ ABSL_GUARDED_BY(mu_) = 0;  // the number of the one that may go on
  std::shared_ptr<BoundedCall> call_ ABSL_GUARDED_BY(mu_);
  bool left_behind_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<Session> session_ ABSL_GUARDED_BY(mu_);
  int64_t first_step_ ABSL_GUARDED_BY(mu_) = -1;
  // Of a save that failed: when it is tried again, and the pauses after that.
  absl::Time retry_at_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  SaveRetry retry_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_CHECKPOINT_SERVICE_H_
