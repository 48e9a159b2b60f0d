// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_OPS_KERNELS_SYNC_ROUNDS_H_
#define MILLRACE_OPS_KERNELS_SYNC_ROUNDS_H_

// SyncRounds: the resource behind the ops of synchronous training (ops/training/sync_replicas.h):
// who trains, which round runs, who does its update.
//
// A trainer is a session that has joined, until it ends. It holds the number of the round that its
// next gradient is for (TensorFlow's token). A round:
//
//   open -> updating -> over, the next one is open     its leader has said Done
//     |         '-----> given up, the next one is open     the leader's session ended before, or
//     |                                                    its step was cancelled, or it begins
//     |                                                    another one
//     '-> updating: once min(replicas, trainers) have given; one of those that wait leads
//
// Before the first round there is a wait for `replicas` trainers, of start_wait at most from the
// first on; the same after a time without trainers.
//
// A gradient for another round than the open one came too late: it is counted, and its trainer goes
// on with the round that is open next. So does one that joins while a round is being updated: it
// would read variables of both rounds. A trainer that comes back in the same round (its session was
// lost, its step was cancelled) gives again what counts once: trainers are told apart by their
// names, where they have any.
//
// Numbers of rounds begin with the time in microseconds: a resource that is made anew (a server
// that was started again) goes on above what accumulators of other servers have seen.
//
// Threads: one, from the first Join on, for as long as the resource lives. While there are trainers
// it looks once a second: at the start whether the wait is over, later what to say in the log,
// every 10 s, of a round that waits. Gives and joins wait without a thread.
// Thread-safety: all methods, from any thread; `done` is called without a lock.
// Failure: Cancelled, of a step that waits; FailedPrecondition for a session that has not joined.

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/resource_handle.h"
#include "core/status.h"
#include "runtime/holds_for_sessions.h"
#include "runtime/resource_manager.h"

namespace millrace {

struct SyncRoundsSpec {
  int64_t replicas = 1;  // gradients that a round waits for, where there are as many trainers
  absl::Duration start_wait = absl::Seconds(30);
  std::string container = "", name = "";

  Status Check() const;
};

class SyncRounds : public Resource,
                   public HoldsForSessions,
                   public std::enable_shared_from_this<SyncRounds> {
 public:
  static constexpr const char* kTypeName = "SyncRounds";

  struct Given {
    // The caller's step does the update of the round, then calls Done. The others wait.
    bool leads = false;
    int64_t next_round = 0;
    int64_t gradients = 0;  // of the round, when it leads: each accumulator has at least as many
  };
  struct Counts {
    int64_t rounds = 0;    // that are over
    int64_t given_up = 0;  // without (all of) an update
    int64_t late = 0;      // gradients
    int64_t trainers = 0;  // now
  };
  using JoinedFn = absl::AnyInvocable<void(StatusOr<int64_t> round)>;
  using GivenFn = absl::AnyInvocable<void(StatusOr<Given>)>;

  explicit SyncRounds(SyncRoundsSpec spec, Clock* clock = Clock::Real());
  ~SyncRounds() override;
  SyncRounds(const SyncRounds&) = delete;
  SyncRounds& operator=(const SyncRounds&) = delete;

  // What another node asks for must be the same. Without trainers it is taken.
  Status Agree(const SyncRoundsSpec& want);
  std::string DebugString() const override;

  // The session becomes a trainer, called `name` ("": it has none): the round that its next
  // gradient is for. What it gives must be of variables that are read afterwards. Of one that has
  // joined: the same for its next gradient.
  void Join(const std::string& session, absl::string_view name, CancellationManager* cancellation,
            JoinedFn done);
  // The round that the session holds. A session that has not joined does; what it has read by now
  // may be of any round: kNoRound, for which nothing is taken.
  static constexpr int64_t kNoRound = -1;
  StatusOr<int64_t> RoundOf(const std::string& session, absl::string_view name,
                            CancellationManager* cancellation);
  // The session has given its gradient for `round`.
  void Give(const std::string& session, int64_t round, CancellationManager* cancellation,
            GivenFn done);
  // The leader's update of `round` is done: the next round.
  int64_t Done(const std::string& session, int64_t round);

  void SessionEnded(absl::string_view session_handle) override;

  Counts counts() const;
  // What the open round waits for, for people: "" for nothing.
  std::string WaitsFor() const;

 private:
  // A step that waits.
  struct Attempt {
    std::string session;
    JoinedFn joined;      // of a Join
    GivenFn given;        // of a Give
    bool counts = false;  // a gradient for the open round: it may lead
    StatusOr<Given> result = Given{};
    CancellationManager* cancellation = nullptr;  // set while registered
    CancellationManager::Token token = 0;
  };
  using Line = std::list<std::shared_ptr<Attempt>>;
  struct Trainer {
    std::string name;          // for the log
    std::string giver;         // the session where it has no name
    int64_t round = kNoRound;  // of its next gradient
    bool has_given = false;    // in the open round
  };

  // Of the thread, which outlives the resource where that ends on it.
  struct Watch {
    Mutex mu;
    CondVar changed;
    bool stopped ABSL_GUARDED_BY(mu) = false;
    bool has_trainers ABSL_GUARDED_BY(mu) = false;
  };

  // Calls change(&ended), looks whether the round is complete, and calls what has ended, without
  // the lock.
  void Change(absl::FunctionRef<void(Line* ended)> change);
  // Into the line; ended at once where the step is cancelled already.
  void Wait(std::shared_ptr<Attempt> attempt, CancellationManager* cancellation, Line* ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Cancel(const std::shared_ptr<Attempt>& attempt);
  // Null where the step is cancelled: its session may have ended.
  Trainer* Add(const std::string& session, absl::string_view name,
               CancellationManager* cancellation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The update of this round was cancelled, if it has not ended.
  void UpdateCancelled(const std::string& session, int64_t round);
  void LeadIfComplete(Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The open round ends. Trainers that wait go on with the next one.
  void NextRound(Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveUp(absl::string_view why, Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A session that begins something new has left the update that it led.
  void GiveUpIfLedBy(const std::string& session, Line* ended) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t Needed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::string WaitsForLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TellWatch(bool has_trainers);
  // Once a second.
  void Look();

  Clock* const clock_;
  const std::shared_ptr<Watch> watch_ = std::make_shared<Watch>();
  std::thread thread_ ABSL_GUARDED_BY(watch_->mu);

  mutable Mutex mu_;  // before watch_->mu
  SyncRoundsSpec spec_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, Trainer, std::less<>> trainers_ ABSL_GUARDED_BY(mu_);  // by session
  int64_t round_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> givers_ ABSL_GUARDED_BY(mu_);  // of gradients for the open round
  std::string leader_ ABSL_GUARDED_BY(mu_);            // the session that does its update; "": none
  bool started_ ABSL_GUARDED_BY(mu_) = false;
  absl::Time first_join_ ABSL_GUARDED_BY(mu_) = absl::InfiniteFuture();
  absl::Time said_at_ ABSL_GUARDED_BY(mu_);  // what the open round waits for, or when it opened
  Line waiting_ ABSL_GUARDED_BY(mu_);
  Counts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_OPS_KERNELS_SYNC_ROUNDS_H_
