// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_GUARDED_SAVER_H_
#define MILLRACE_TRAIN_GUARDED_SAVER_H_

// GuardedSaver: the Saver of a chief, which saves only while its directory is the chief's own, one
// save at a time.
//
//   GuardedSaver saver("Supervisor", std::move(made), [&] { return directory->Check(); });
//
// It forwards everything to another Saver. Before a save it asks `may_save`, whose error is that of
// the save; after one that failed again: a newer chief deletes what is left of the saves of the
// older ones, and why such a save failed is that it came, and not which file is gone.
//
// A wait for a save that its storage holds up is logged every 10 s, by the real clock.
//
// It keeps what it wrote last and, for those who save without anybody to tell, how their last save
// failed: in the order in which saves end, so that a failure never hides a later success, nor a
// success a later failure.
//
// Thread-safety: all methods, from any thread. What reads or changes the Saver underneath waits for
// the save that runs; last_saved, last_took and failure do not.
// Lifetime: a Saver that is not owned, as long as the last call.
// Failure: that of the Saver, and of may_save.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/status.h"
#include "runtime/session.h"
#include "saver/saver.h"

namespace millrace {

// Who hears of the saves that count for those who look for the latest checkpoint: on the thread
// that saves, one at a time. Either may be empty; neither should take long.
struct SaveObserver {
  // Right before it begins. `kept`: the checkpoints that the Saver may delete after it.
  std::function<void(const std::string& path, const std::vector<std::string>& kept)> begins = {};
  // When what began has ended. `step` -1: the save had none.
  std::function<void(const std::string& path, int64_t step, const Status& status)> ended = {};
};

class GuardedSaver : public Saver {
 public:
  // `speaker`: who speaks in the log ("Supervisor"). `clock`: for how long saves take.
  GuardedSaver(std::string speaker, std::unique_ptr<Saver> saver, std::function<Status()> may_save,
               Clock* clock = Clock::Real());
  // Not owned.
  GuardedSaver(std::string speaker, Saver* saver, std::function<Status()> may_save,
               Clock* clock = Clock::Real());

  // Before the first save.
  void Observe(SaveObserver observer) { observer_ = std::move(observer); }

  StatusOr<std::string> Save(Session* session, const std::string& prefix,
                             std::optional<int64_t> global_step) override;
  StatusOr<std::string> SaveAs(Session* session, const std::string& prefix,
                               std::optional<int64_t> global_step,
                               const SaveOptions& options) override;
  Status Build() override;
  Status Restore(Session* session, const std::string& checkpoint) override;
  StatusOr<CheckpointDifference> Compare(const std::string& checkpoint) override;
  void SetRunId(const std::string& id) override;
  Status RecoverLastCheckpoints(const std::vector<std::string>& paths) override;
  std::vector<std::string> last_checkpoints() const override;
  std::vector<TimedCheckpoint> last_checkpoints_with_time() const override;
  Status SetLastCheckpointsWithTime(std::vector<TimedCheckpoint> checkpoints) override;
  const tensorflow::SaverDef& def() const override;

  // Save, of the step that `step` reads when it is this save's turn. Its failure, or that of the
  // step, is kept as `as_kept` says it; OK there: it is not kept.
  StatusOr<std::string> SaveAndKeepFailure(
      Session* session, const std::string& prefix,
      absl::FunctionRef<StatusOr<std::optional<int64_t>>()> step,
      absl::FunctionRef<Status(const Status&)> as_kept);
  // The failure that was kept last, unless a save succeeded since; else OK.
  Status failure() const;
  // How many failures have been kept so far.
  int64_t failures() const;
  // Nothing is lost any more by the first `failures` of them.
  void ForgetFailures(int64_t failures);

  // What this object wrote last for those who look for the latest checkpoint (not by a SaveAs with
  // a state file of its own, or none); "" when nothing.
  std::string last_saved() const;
  // How long that took; 0 when nothing was written.
  absl::Duration last_took() const;

 private:
  struct Asked;
  StatusOr<std::string> Guarded(const Asked& asked);
  StatusOr<std::string> Aloud(const Asked& asked, std::optional<int64_t> step) const;

  const std::string speaker_;
  const std::unique_ptr<Saver> owned_;
  Saver* const saver_;
  const std::function<Status()> may_save_;
  Clock* const clock_;
  SaveObserver observer_;  // does not change once there are saves
  mutable Mutex save_mu_;  // for as long as a save takes; before mu_
  mutable Mutex mu_;
  std::string last_saved_ ABSL_GUARDED_BY(mu_);
  absl::Duration last_took_ ABSL_GUARDED_BY(mu_) = absl::ZeroDuration();
  Status failure_ ABSL_GUARDED_BY(mu_);
  int64_t failures_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace millrace

#endif  // MILLRACE_TRAIN_GUARDED_SAVER_H_
