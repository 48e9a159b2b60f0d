// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_WORK_QUEUE_H_
#define MILLRACE_OPS_KERNELS_WORK_QUEUE_H_

// WorkQueue: the resource that hands out the shards of training data to the trainers of a run
// (ops/training/work_queue.h): each shard once an epoch, to whoever asks next.
//
//   a shard of an epoch:  to do -> held      by Take
//                         held -> done       by Done of the session that holds it
//                         held -> to do      by SessionEnded, or GiveBack of the step that took it:
//                                            it goes out again before all others
//                         any  -> to do or done, by Restore: as the state says
//
// What always holds:
//   * A shard of an epoch is held by one session at a time, and counts once. Done of a session that
//     does not hold it any more changes nothing and is counted as late.
//   * The shards of an epoch go out in an order that is a function of the list, the seed and the
//     epoch; those of the next one follow at once, also while others of the epoch are held.
//   * Take ends with OutOfRange when the last epoch has nothing to do and nothing is held. While
//     something is held a Take that may wait stands in line, without a thread: the shard may come
//     back. It does not wait for shards that its own session holds, which could not end then: where
//     nothing else is held it ends with OutOfRange, too.
//   * The saved state counts what is held as not done.
//
// A queue is empty until Fill; takes wait for that. The first Fill says what the queue has, later
// ones change nothing. A state that was restored before is taken up by Fill: by the names of the
// shards, so the list may have changed. A shard that is new is one to do of the epoch of the
// state; one that is gone is forgotten.
//
// Thread-safety: all methods, from any thread; `done` is called without a lock.
// Failure: InvalidArgument for a list that cannot be; DataLoss for a state that is none, also one
// that names a shard of an earlier epoch twice: nothing changes then. Cancelled for a take whose
// step or session has ended.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "core/cancellation.h"
#include "core/mutex.h"
#include "core/resource_handle.h"
#include "core/status.h"
#include "runtime/holds_for_sessions.h"

namespace millrace {

// A part of a file, in the units of those who read it (rows, bytes).
struct FileRange {
  std::string file;
  int64_t begin = 0;
  int64_t end = -1;  // -1: to the end of the file, wherever that is then

  auto operator<=>(const FileRange&) const = default;
};

// What a queue's saved state says.
struct WorkQueueState {
  int64_t epoch = 0;            // that is handed out
  std::vector<FileRange> done;  // of that epoch
  // What is not done of earlier epochs.
  std::vector<std::pair<int64_t, FileRange>> open;

  std::string ToText() const;
  // DataLoss, with the line.
  static StatusOr<WorkQueueState> Parse(absl::string_view text);
};

class WorkQueue : public Resource,
                  public HoldsForSessions,
                  public std::enable_shared_from_this<WorkQueue> {
 public:
  static constexpr const char* kTypeName = "WorkQueue";

  struct Content {
    std::vector<FileRange> shards;  // that differ
    int64_t num_epochs = 1;         // -1: without end
    uint64_t shuffle_seed = 0;      // 0: in the order of the list
  };
  struct Taken {
    int64_t id = 0;  // of this handing out, for Done; never twice
    int64_t epoch = 0;
    FileRange shard;
  };
  // What has happened to shards since the queue was made.
  struct Ledger {
    int64_t handed_out = 0;
    int64_t done = 0;
    int64_t given_back = 0;  // by sessions that ended, steps that were given up, or by Restore
    int64_t late = 0;        // Dones of shards that their session did not hold
    int64_t held = 0;        // now
  };
  using DoneFn = absl::AnyInvocable<void(StatusOr<std::optional<Taken>>)>;

  explicit WorkQueue(std::string name) : name_(std::move(name)) {}

  std::string DebugString() const override;

  Status Fill(Content content);
  // The next shard for `session`. None at once, where `may_wait` is off and it would have to wait.
  // `cancellation` is that of the step, may be null; nothing is handed out to one that was
  // cancelled.
  void Take(const std::string& session, CancellationManager* cancellation, bool may_wait,
            DoneFn done);
  // The session takes nothing any more: its takes, those that wait among them, end with Cancelled.
  // What it holds is its own until Done or its end. Nothing happens once `cancellation`, that of
  // the step, which may be null, is cancelled: the session may have ended.
  void Leave(const std::string& session, const CancellationManager* cancellation = nullptr);
  // For a step that was given up: nobody knows the shard that it took. Nothing happens where the
  // session does not hold it any more.
  void GiveBack(absl::string_view session, int64_t id);
  // False: late.
  bool Done(absl::string_view session, int64_t id);
  void SessionEnded(absl::string_view session_handle) override;

  // A text; "" of a queue that knows nothing yet.
  std::string Save() const;
  // What is held is its holders' no more. "": nothing is done.
  Status Restore(absl::string_view state);

  Ledger ledger() const;

 private:
  struct Attempt {
    std::string session;
    bool may_wait = false;
    DoneFn done;
    StatusOr<std::optional<Taken>> result = std::optional<Taken>();
    CancellationManager* cancellation = nullptr;  // set while registered
    CancellationManager::Token token = 0;
  };
  using Line = std::list<std::shared_ptr<Attempt>>;
  // A shard of an epoch.
  struct Work {
    int64_t epoch;
    size_t shard;
  };
  struct Held {
    std::string session;
    Work work;
  };

  void Cancel(const std::shared_ptr<Attempt>& attempt);
  void EndTakesOf(absl::string_view session, Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Calls change(&ended) and serves the line, then calls what has ended, without the lock.
  void Change(absl::FunctionRef<void(Line* ended)> change);
  // True: the attempt has a result.
  bool Serve(Attempt* attempt) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends those in line that wait for shards of their own session only.
  void EndWaitsForThemselves(Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // That holds all that is held; null: none, or more than one.
  const std::string* OnlyHolder() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<Work> NextWork() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool is_last_epoch() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return content_.num_epochs >= 0 && epoch_ + 1 >= content_.num_epochs;
  }
  // Nothing of the epoch is handed out yet but what is_done_ says.
  void BeginEpoch(int64_t epoch, std::vector<bool> is_done) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TakeUp(const WorkQueueState& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string name_;
  mutable Mutex mu_;
  bool is_filled_ ABSL_GUARDED_BY(mu_) = false;
  Content content_ ABSL_GUARDED_BY(mu_);
  std::map<FileRange, size_t> places_ ABSL_GUARDED_BY(mu_);      // in content_.shards
  std::optional<WorkQueueState> restored_ ABSL_GUARDED_BY(mu_);  // until Fill
  int64_t epoch_ ABSL_GUARDED_BY(mu_) = 0;                       // that is handed out
  std::vector<size_t> order_ ABSL_GUARDED_BY(mu_);               // of what it has to do
  size_t next_ ABSL_GUARDED_BY(mu_) = 0;                         // in order_
  std::vector<bool> is_done_ ABSL_GUARDED_BY(mu_);               // in epoch_, by shard
  std::deque<Work> given_back_ ABSL_GUARDED_BY(mu_);             // goes out first
  std::map<int64_t, Held> held_ ABSL_GUARDED_BY(mu_);            // by id
  int64_t last_id_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<std::string, std::less<>> left_ ABSL_GUARDED_BY(mu_);  // sessions, until they end
  Ledger ledger_ ABSL_GUARDED_BY(mu_);
  Line line_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_WORK_QUEUE_H_
