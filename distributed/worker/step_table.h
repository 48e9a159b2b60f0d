// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_STEP_TABLE_H_
#define MILLRACE_DISTRIBUTED_WORKER_STEP_TABLE_H_

// StepTable: the rendezvous of all steps of one task, by step id.
//
//   expected -> running           a request, or a push, may come before the step is started
//   running -> gone               ended well, and the last tensor has been taken
//   running -> untaken -> gone    ended well, and something waits to be taken
//   any -> failed -> gone         only the reason stays, for a while, to tell late comers
//   any -> gone                   its master says that the step is over (Cleanup)
//   expected -> gone              its last wait was given up; or only what other tasks have pushed
//                                 for it is there, and its time is over
//
// Nobody has to be told that a step is over.
//
// What callers can make it keep is bounded. Expected steps have calls that wait in them (net counts
// these); running ones a RUN or RunGraph. Of a failed step there is a text, all of them together
// within ServerLimits::max_failed_step_bytes: the oldest go. An honest job can do without: the
// master of a step that fails ends its other parts itself, and its tasks only wait a little longer
// for that. Steps with something to take, which honest jobs need, never go for those that failed,
// or for those of another session: what other tasks push for steps that have not begun, or will
// never, has ServerLimits::max_parked_bytes. Each session has ServerLimits::max_untaken_steps and
// max_untaken_bytes of its own, and of the bytes always its last step's.
//
// Threads: all methods, from any thread. The table's lock is taken before a step's.
// Lifetime: made by std::make_shared; steps know it weakly and may outlive it.
// Failure: AlreadyExists, and the reasons for which steps were aborted.

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <unordered_map>

#include "absl/functional/any_invocable.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/status.h"
#include "distributed/cluster/aged_map.h"
#include "distributed/cluster/server_limits.h"
#include "distributed/link/link.h"
#include "distributed/worker/parked_bytes.h"
#include "distributed/worker/pushed_message.h"
#include "distributed/worker/session_life.h"
#include "distributed/worker/step_edges.h"
#include "distributed/worker/step_rendezvous.h"
#include "runtime/step_loans.h"

namespace millrace {

class StepTable : public StepRendezvous::Keeper, public std::enable_shared_from_this<StepTable> {
 public:
  // How long, until the next Sweep, a step that ended stays when somebody did not fetch what was
  // made for him.
  static constexpr absl::Duration kEndedExpiry = absl::Minutes(10);

  explicit StepTable(Clock* clock, const ServerLimits& limits = {});
  // Aborts what is left.
  ~StepTable() override;
  StepTable(const StepTable&) = delete;
  StepTable& operator=(const StepTable&) = delete;

  // An expected step is made when there is none. One that has failed is not kept: what is returned
  // tells why.
  std::shared_ptr<StepRendezvous> FindOrExpect(int64_t step_id);
  // The step cannot be started here: those that wait for it, now and later, hear why (not OK). What
  // was pushed for it is gone, its senders hear: as for a step that fails.
  // Nothing happens to a step that was started: its own master knows its session.
  void Refuse(int64_t step_id, const Status& why);
  // AlreadyExists for a step that was started before; the reason for one that was cleaned up.
  // AwaitTaken waits for what it sends as long as `session` is open (null: not at all).
  // `loans` (may be null) are settled when all of it has been taken, and given back when it is
  // dropped before. `fetch` outlives the step's run; null: the step is by links; else it asks by
  // this for all that it receives.
  StatusOr<std::shared_ptr<StepRendezvous>> Start(
      int64_t step_id, std::shared_ptr<const StepEdges> edges,
      std::shared_ptr<const SessionLife> session = nullptr,
      std::shared_ptr<StepLoans> loans = nullptr, FetchTensor fetch = nullptr);
  // What another task has pushed for a step, which is expected when it is not there. What is beyond
  // max_parked_bytes holds back its link's credit; a step that cannot go on without what is beyond
  // the room for that fails with Unavailable.
  void TakePushed(int64_t step_id, PushedMessage message);
  // A task's part of the step has failed, says the task: its tensors will not come. Nothing is
  // expected for that.
  void PushFailed(int64_t step_id, PushedMessage message);
  // So many more tensors that the step has pushed to `task` by `link` were taken by its step there.
  void Received(int64_t step_id, absl::string_view task, const Link* link, uint64_t tensors);
  // As Link::Ask; nothing when the link is gone.
  using AskReceipts = std::function<void(absl::AnyInvocable<void()> answered)>;
  // A link to a task is open: until it is lost, which fails the steps that wait for something of
  // the task by this link, and drops what it did not say to have received. `ask` (may be null: no
  // one can) asks it what that is.
  void LinkOpened(const Link* link, AskReceipts ask = nullptr);
  void LinkLost(absl::string_view task, const Link* link, const Status& status);
  bool IsOpen(const Link* link) const;
  // The run is over. An error aborts the step.
  void End(StepRendezvous* step, const Status& status);
  // Aborts and forgets a step, whose master says that it is over: what it took stays taken.
  void Cleanup(int64_t step_id, const Status& status);
  // Aborts all steps, now and later.
  void AbortAll(const Status& status);
  // Until all that steps which ended well have sent was taken, where a session is open to want it.
  // False when something is left at `deadline`. Asks tasks what they have received.
  bool AwaitTaken(absl::Time deadline);
  // AwaitTaken looks again: a session has ended.
  void LookForTaken();
  // Sessions have ended: what their steps have sent, and nobody has taken, is dropped with the
  // reason of the session's end. What was pushed may have been taken, and the receipt be on its
  // way: those tasks are asked first.
  void DropOfEndedSessions();
  // Drops what has expired. Called by Start and failed Ends now and then: in a task that gets
  // no steps any more, what has expired stays.
  void Sweep();

  // For tests: those that are not forgotten yet, also the failed; and what these hold.
  int64_t num_steps() const;
  int64_t failed_bytes() const;
  int64_t parked_bytes() const { return parked_->bytes(); }

 private:
  void AllTaken(StepRendezvous* step) override;
  void WaitGivenUp(StepRendezvous* step) override;
  void PushesFailed(StepRendezvous* step) override { GiveUpUnwanted(step); }
  // Has ended well, and something of it was not taken yet.
  struct Untaken {
    int64_t step_id;
    absl::Time at;
    std::shared_ptr<const SessionLife> session;  // may be null
    int64_t num_bytes = 0;                       // when the step had ended
    bool is_ending = false;                      // DropOfEndedSessions has found it
  };
  struct UntakenSum {
    int64_t steps = 0;
    int64_t num_bytes = 0;
  };
  struct Kept {
    std::shared_ptr<StepRendezvous> step;
    std::list<Untaken>::iterator untaken;  // untaken_.end(): it is expected, or runs
  };
  // Abseil's maps break when there is no memory to grow, in which steps are refused.
  using Steps = std::unordered_map<int64_t, Kept>;
  // Takes a step out of the table; for the caller to drop, without the lock.
  std::shared_ptr<StepRendezvous> Take(Steps::iterator it) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // One that was not started, for the caller to abort: null when there is none. Late comers hear
  // `why`, unless it was started.
  std::shared_ptr<StepRendezvous> TakeExpected(int64_t step_id, const Status& why);
  // The first reason of a step counts.
  void RememberFailure(int64_t step_id, const Status& why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndFailed(StepRendezvous* step);
  // Some tensors of `step`, which ended well, are left; what is too much of its session goes.
  void EndUntaken(StepRendezvous* step);
  // Drops what a step of an ended session has sent; nothing if all was taken meanwhile.
  void DropEnded(const std::shared_ptr<StepRendezvous>& step, const Status& why);
  // The ways to ask tasks for what the step has pushed, and is not received.
  std::map<const Link*, AskReceipts> AsksOf(const StepRendezvous& step) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A step may be aborted between its success and EndUntaken, or just after it: whoever comes
  // second, the one that aborted it or EndUntaken, finds both and gives it up.
  void GiveUpUnwanted(StepRendezvous* step);
  // Aborts and forgets a step; its loans, null when there is none.
  std::shared_ptr<StepLoans> Forget(int64_t step_id, const Status& status);
  // The same for one that nobody has taken: what it took is given back.
  void GiveUp(int64_t step_id);
  std::shared_ptr<StepRendezvous> Find(int64_t step_id) const;
  bool WaitsForTaken() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Clock* const clock_;
  const int64_t max_untaken_, max_untaken_bytes_;  // of one session
  const std::shared_ptr<ParkedBytes> parked_;
  mutable Mutex mu_;
  std::list<Untaken> untaken_ ABSL_GUARDED_BY(mu_);  // of steps_; oldest first
  // How many of these; none without one. An entry of untaken_ keeps the session.
  std::map<const SessionLife*, UntakenSum> untaken_of_ ABSL_GUARDED_BY(mu_);
  Steps steps_ ABSL_GUARDED_BY(mu_);
  AgedMap<int64_t, Status> failed_ ABSL_GUARDED_BY(mu_);  // none of steps_
  absl::Time next_sweep_ ABSL_GUARDED_BY(mu_);
  int awaiting_taken_ ABSL_GUARDED_BY(mu_) = 0;  // threads in AwaitTaken
  std::map<const Link*, AskReceipts> open_links_ ABSL_GUARDED_BY(mu_);
  CondVar taken_;
  Status aborted_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_STEP_TABLE_H_
