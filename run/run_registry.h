// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_RUN_RUN_REGISTRY_H_
#define MILLRACE_RUN_RUN_REGISTRY_H_

// RunRegistry: the training runs that a task knows, and the resources that belong to each.
//
//   known -> claimed        known: a trainer has come, no chief yet
//   claimed -> claimed      a newer chief of the same id: the older one's sessions are refused
//   claimed -> ended        its chief says so; sessions that are open go on, new ones are refused
//   ended -> claimed        a chief of the same id trains further
//   any -> superseded       a chief claims the same name with another id; for good
//
// A claimed run cannot be superseded while a session of its chief is open, but by that chief
// itself: two jobs were given the same logdir, or it was emptied under a chief that trains. Who
// comes second is told to wait (TellsOfBusyRun).
//
// A run has a container of its own, whose resources no other run and no session without a run can
// see. What a container is, its task says (RunResources); it is freed
//   * when the run has ended or was superseded, and its last session has closed;
//   * when another run is claimed, or finds no place, and this one has had no session for `linger`.
// A task that comes again to a run whose container was freed gets an empty one. What is freed is in
// the log, with the run, its bytes and the reason. Of runs without a container only so much is kept
// as tells callers that they have ended; the oldest of them are forgotten.
//
// There are at most 1000 runs. Names that a run has only seen (older chiefs, tasks that trained)
// are remembered within `max_note_bytes` for all runs together; beyond it each has kOwnNoteBytes
// for itself, so that strangers who open runs of their own leave the notes of an honest one alone.
//
// The newest chief is the one with the largest epoch; among equal ones (nobody counts) who came
// last, and one that was refused once is refused for ever.
//
// Thread-safety: none; its worker's lock. The caller of TakeFreed frees containers, without it.
// Failure: FencedError and RunEndedError (run/training_run.h); Aborted for a session of a run
// that was superseded, whose trainer may come again and find the other; ResourceExhausted when too
// many runs are under way.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/status.h"
#include "run/found_run.h"
#include "run/training_run.h"

namespace millrace {

// A container: what a task keeps for one run.
class RunResources {
 public:
  virtual ~RunResources() = default;
};

class RunRegistry {
 public:
  using MakeResources = std::function<std::shared_ptr<RunResources>()>;
  static constexpr int64_t kOwnNoteBytes = 8 << 10;
  static constexpr int64_t kDefaultNoteBytes = 8 << 20;
  // `task`: for messages. `make_resources` makes an empty container.
  RunRegistry(std::string task, Clock* clock, absl::Duration linger, MakeResources make_resources,
              int64_t max_note_bytes = kDefaultNoteBytes);

  // Counts a session of the run, which has an id, and gives its container. A chief claims the run.
  StatusOr<std::shared_ptr<RunResources>> Open(const TrainingRun& run);
  // Which task's trainer has a session of the run; when there is no room for its name, nobody's.
  void NoteTrainer(const TrainingRun& run, const std::string& task);
  std::set<std::string> TrainersOf(absl::string_view id) const;
  // A session that Open counted is over.
  void Close(const TrainingRun& run);
  // Whether a session that was opened for `run` may go on.
  Status Check(const TrainingRun& run) const;
  // By a session of `run`. FailedPrecondition unless it is the newest chief's.
  Status End(const TrainingRun& run, const RunEnd& end);
  // From the logdir: the run has ended, whichever chief claimed it.
  void NoteEnd(const TrainingRun& run, const RunEnd& end);
  // By id, or by name when there is none: the newest that a chief has claimed.
  FoundRun Find(absl::string_view name, absl::string_view id) const;

  // The run that was claimed last, when it has ended and no session of any other is open.
  struct Finished {
    TrainingRun run;
    RunEnd end;
    absl::Time ended;
    int sessions = 0;
  };
  std::optional<Finished> FindFinished() const;
  // How often runs were claimed here so far.
  int64_t num_claims() const { return claims_; }
  // The container of a run; null when it has none.
  std::shared_ptr<RunResources> ContainerOf(absl::string_view id) const;

  // A container that no one may use any more; clearing it and the log are the caller's.
  struct Freed {
    TrainingRun run;
    std::shared_ptr<RunResources> resources;
    std::string reason;
  };
  std::vector<Freed> TakeFreed();

  // For tests: of the names that runs have only seen.
  int64_t note_bytes() const { return note_bytes_; }

 private:
  struct Entry {
    TrainingRun run;
    int64_t claim = 0;  // the number of its newest claim; 0: none yet
    std::set<std::string> fenced;
    std::string superseded_by;  // the id
    std::optional<RunEnd> end;
    absl::Time ended = absl::InfinitePast();
    int sessions = 0;
    std::map<std::string, int> of_chiefs;            // of those, by chief; none with 0
    absl::Time last_session = absl::InfinitePast();  // when the last one closed
    std::set<std::string> trainers;                  // that ever were, by task; not its chiefs
    int64_t note_bytes = 0;                          // of fenced and trainers
    std::shared_ptr<RunResources> resources;         // null: no container
  };
  Status Claim(const TrainingRun& run, Entry* entry);
  Status CheckNameIsFree(const TrainingRun& run) const;
  Status CheckChief(const TrainingRun& run, const Entry& entry) const;
  Status Superseded(const TrainingRun& run, const Entry& entry) const;
  StatusOr<Entry*> FindOrMake(const TrainingRun& run);
  // Adds `name` to `notes`, which are of `entry`, as long as there is room for it.
  void Note(const std::string& name, Entry* entry, std::set<std::string>* notes);
  void FreeIfOver(Entry* entry);
  // `why`: what the run `other_id` did.
  void FreeIdle(const std::string& other_id, absl::string_view why);
  void Free(Entry* entry, std::string reason);

  const std::string task_;
  Clock* const clock_;
  const absl::Duration linger_;
  const MakeResources make_resources_;
  const int64_t max_note_bytes_;
  int64_t note_bytes_ = 0;                          // of all runs
  std::map<std::string, Entry, std::less<>> runs_;  // by id
  int64_t claims_ = 0;
  std::vector<Freed> freed_;
};

}  // namespace millrace

#endif  // MILLRACE_RUN_RUN_REGISTRY_H_
