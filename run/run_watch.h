// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUN_RUN_WATCH_H_
#define MILLRACE_RUN_RUN_WATCH_H_

// RunWatch: whether a server that leaves when its run is over may leave, by what its worker and the
// run's directory say, and what it waits for.
//
//   waits for an end -> the end is seen -> sessions close, or are ended in the middle of the grace
//                                       -> nobody asks any more -> may leave
//                         '-> another chief has the directory -> waits for that one's end
//
// The directory is read on a thread of its own (storage may hang): a reading that has not come back
// after ten seconds counts as one that failed, and no second one begins before it has. Which end in
// it is believed: run/end_belief.h.
//
// Thread-safety: none, all in one thread; IsDone never blocks on files.
// Lifetime: a reading that hangs is left behind. Failure: none; what cannot be read is in the log,
// once.

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/status.h"
#include "run/end_belief.h"
#include "run/run_file.h"
#include "run/run_registry.h"
#include "run/training_run.h"

namespace millrace {

// What the watch asks of its worker, by the worker's names.
class WatchedRuns {
 public:
  virtual ~WatchedRuns() = default;
  virtual const std::string& task() const = 0;
  virtual std::optional<RunRegistry::Finished> FindFinishedRun() const = 0;
  virtual int64_t num_run_claims() const = 0;
  virtual void NoteRunEnd(const TrainingRun& run, const RunEnd& end) = 0;
  virtual void EndSessionsOfRun(const TrainingRun& run, const RunEnd& end) = 0;
};

class RunWatch {
 public:
  // Runs `work` on another thread; the result says whether it has ended. Tests run it at once.
  using Background = std::function<std::function<bool()>(std::function<void()> work)>;
  struct Options {
    std::string logdir;          // "": none
    absl::Duration grace;        // JoinOptions say what the two are
    absl::Duration stale_grace;  //
    Clock* clock = Clock::Real();
    FileSystem* file_system = FileSystem::Default();  // lives for ever
    Background background = nullptr;                  // null: a thread
  };

  // `runs` outlives it.
  RunWatch(WatchedRuns* runs, Options options);
  ~RunWatch();
  RunWatch(const RunWatch&) = delete;
  RunWatch& operator=(const RunWatch&) = delete;

  // To be asked some times a second.
  bool IsDone();

 private:
  // What the directory says.
  struct Files {
    Status status;
    std::optional<RunFile> run;
    std::optional<RunEndFile> end;
  };
  struct Reading;

  // Whether a reading that was begun at `from` or later has come back, or has failed to.
  bool HasLooked(absl::Time from, absl::Time now);
  // False without a thread for it.
  bool BeginLook(absl::Time now);
  void Take(const Files& files, absl::Time now);
  void Warn(const Status& status);
  void SeeEnd(const RunRegistry::Finished& finished, absl::Time now);
  bool IsTime(const RunRegistry::Finished& finished, absl::Time now);
  bool AnotherOwns(absl::Time now);
  void Say(absl::Time now, absl::Duration period, const std::string& what);

  WatchedRuns* const runs_;
  const Options options_;
  std::unique_ptr<Reading> reading_;                // under way
  absl::Time looked_ = absl::InfinitePast();        // when the last that came back had begun
  absl::Time seen_ = absl::InfiniteFuture();        // when the end was seen first
  absl::Time wants_look_ = absl::InfiniteFuture();  // of this time, before it leaves
  bool ended_sessions_ = false;                     // by force, since then
  std::optional<std::string> owner_at_end_;         // when the end was seen first
  std::string owner_;                               // the directory's, by its token
  bool owner_has_ended_ = false;                    //
  EndBelief belief_;                                // of what the directory says
  bool noted_ = false;                              // that end
  int64_t claims_ = 0;                              // when it was told first
  bool warned_ = false;
  std::string said_;
  absl::Time next_say_ = absl::InfinitePast();
};

}  // namespace millrace

#endif  // MILLRACE_RUN_RUN_WATCH_H_
