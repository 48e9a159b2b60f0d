// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_HOOKS_CHECKPOINT_SAVER_H_
#define MILLRACE_TRAIN_HOOKS_CHECKPOINT_SAVER_H_

// CheckpointSaverHook: the checkpoints of a training loop. For the chief alone.
//
// One when a session begins, unless its variables are those of a checkpoint of this directory; one
// each `every`; one at the end, unless there is one of that step. A step is written once, whatever
// asks for it. `graph.pbtxt` next to them is the graph, for people.
//
// Those by steps are written between two steps. Those by time are written on a thread while
// training goes on, one at a time: each row of a variable is from one moment, not all of them from
// the same (DESIGN.md, decision 4).
//
// A save that fails (storage that is full, away, slow) is in the log and tried again, after 1 s at
// first, ever more rarely, once a minute at last (train/save_retry.h); training goes on. The last
// one, of End, is tried once: its error is that of the loop. A save that meets a lost session is
// not the storage's fault: the session is made anew. What no try can mend ends the training, as
// does another chief that has the directory. Storage that hangs holds up the end for stop_grace;
// then a thread is left behind that waits for it, and uses the clock, the Saver of the options and
// its file system, if ever it goes on.
//
// Listeners hear of each save: BeforeSave, the save, AfterSave, in their order; of a save that
// failed, no AfterSave. An error of theirs is that of the hook.
//
// Failure: AlreadyExists for two savers of one directory and name; FailedPrecondition without a
// global step or a Saver.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "train/every.h"
#include "train/hooks/step_timer.h"
#include "train/save_retry.h"
#include "train/session_run_hook.h"
#include "train/summary_writer.h"

namespace millrace {

// What is to be done with checkpoints besides writing them.
class CheckpointSaverListener {
 public:
  virtual ~CheckpointSaverListener() = default;
  // In the hook's Begin: the graph may change.
  virtual Status Begin(HookSetup* setup);
  virtual Status BeforeSave(Session* session, int64_t global_step);
  // True: training is to end.
  virtual StatusOr<bool> AfterSave(Session* session, int64_t global_step,
                                   const std::string& checkpoint);
  virtual Status End(Session* session, int64_t global_step);
};

struct CheckpointSaverOptions {
  std::string checkpoint_dir;
  Every every = absl::Minutes(10);
  Saver* saver = nullptr;  // not owned; that of the session's creator otherwise
  std::string checkpoint_basename = "model.ckpt";
  std::vector<CheckpointSaverListener*> listeners = {};  // not owned
  // Told of each checkpoint and of how long it took, and flushed with it; not owned.
  SummaryWriter* writer = nullptr;
  absl::Duration stop_grace = absl::Seconds(120);  // for what is written at the end, each
  Clock* clock = Clock::Real();                    // for how long a save takes
  FileSystem* file_system = FileSystem::Default();
};

// What saving has cost so far.
struct CheckpointStats {
  int64_t saves = 0;
  int64_t failures = 0;
  absl::Duration last, longest, total;  // of those that succeeded
  std::string last_checkpoint;          // that this hook has written
};

class CheckpointSaverHook : public SessionRunHook {
 public:
  explicit CheckpointSaverHook(CheckpointSaverOptions options);
  ~CheckpointSaverHook() override;
  std::string name() const override { return "CheckpointSaverHook"; }
  Status Begin(HookSetup* setup) override;
  Status AfterCreateSession(RunContext* context, const CreatedSession& created) override;
  StatusOr<GroupMask> BeforeRun(RunContext* context) override;
  Status AfterRun(RunContext* context, const RunValues& values) override;
  Status WhileOthersTrain(RunContext* context) override;
  Status End(const LoopEnd& end) override;
  bool keeps_checkpoints() const override { return true; }

  const CheckpointStats& stats() const { return stats_; }

 private:
  // What a save came to that did not end the training.
  enum class Outcome { kSaved, kFailed, kStop };
  struct Writing;  // a save, on a thread of its own

  StatusOr<std::unique_ptr<Writing>> Start(Session* session, int64_t step);
  // Of a save that has ended.
  StatusOr<Outcome> Finish(Session* session, const Writing& writing);
  // The same in the middle of training: a failure of the storage is put off.
  Status FinishOrPutOff(RunContext* context, std::unique_ptr<Writing> writing);
  // When one is due at the step that training may have got to by now.
  Status SaveIfDue(RunContext* context, int64_t at_most);
  // At the end: waits for stop_grace.
  Status FinishInTime(Session* session, std::unique_ptr<Writing> writing);
  StatusOr<int64_t> ReadStep(Session* session) const;
  std::string save_path() const;

  const CheckpointSaverOptions options_;
  std::shared_ptr<Saver> saver_;
  std::weak_ptr<Session> session_;    // of the loop
  std::unique_ptr<Writing> writing_;  // while training goes on
  Scope scope_;
  Variable global_step_;
  int group_ = 0;
  StepTimer timer_;
  int64_t saved_step_ = -1;  // of the last checkpoint here; -1: none
  Status failure_;           // of the last save, when it is to be tried again
  absl::Time retry_at_;
  SaveRetry retry_;
  CheckpointStats stats_;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_HOOKS_CHECKPOINT_SAVER_H_
