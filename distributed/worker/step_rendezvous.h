// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_STEP_RENDEZVOUS_H_
#define MILLRACE_DISTRIBUTED_WORKER_STEP_RENDEZVOUS_H_

// StepRendezvous: the rendezvous of one step in one task.
//
// All keys of a partition are known when it is registered (StepEdges). Once the step has started,
// its run Pushes: what goes to a task leaves as it becomes ready, in few messages: what is of one
// wave together (send_groups.h). Of tensors without a wave those that become ready while the thread
// that starts the step still works through its first ready nodes leave together, and later ones at
// once. What peers push comes to a PushReceiver; before that it is parked here, within ParkedBytes.
// What was pushed is taken when it is Received: the peer's step has it. Tensors in loops are
// pushed, too, each as it is sent, and wait for their iterations in InLoopEdges.
//
// The step of a foreign master (EdgesBy::kRecvTensor) pushes nothing. Its tensors wait where they
// are made until other tasks ask for them, each by its key (ServeTensor), and it asks for what it
// receives in the same way.
//
// States of a step: expected -> running -> ended. A request for a tensor, or what a peer pushes,
// may come before the step is started here: it is expected then. Which steps there are, and how
// long each stays: step_table.h.
//
// Threads: all methods, from any thread; no lock is held when a sink, a callback or the keeper is
// called.
// Lifetime: the table and the run keep a step, those who wait in it do not: when both have let go
// of it, all waits that are left end with an error.
// Failure: waits end with the error of the step, marked as derived.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/hash_table.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/link/link.h"
#include "distributed/worker/in_loop_edges.h"
#include "distributed/worker/parked_bytes.h"
#include "distributed/worker/push_sink.h"
#include "distributed/worker/pushed_message.h"
#include "distributed/worker/session_life.h"
#include "distributed/worker/step_edges.h"
#include "runtime/done_callback.h"
#include "runtime/rendezvous.h"
#include "runtime/step_loans.h"

namespace millrace {

// Asks another task for one tensor of this step by its wire key: how a foreign master's step gets
// what it receives.
using FetchTensor = std::function<void(const std::string& task, const std::string& wire_key,
                                       Rendezvous::DoneCallback done)>;

// How waits end in a step that is over, or that never began: Aborted, marked as derived.
Status StepIsOver(int64_t step_id);

class StepRendezvous : public Rendezvous, public std::enable_shared_from_this<StepRendezvous> {
 public:
  // The table that keeps the step: it hears when the step may leave. Called from any thread,
  // without the step's lock.
  class Keeper {
   public:
    virtual ~Keeper() = default;
    // The run is over, and all that the step has sent has been taken.
    virtual void AllTaken(StepRendezvous* step) = 0;
    // A wait was given up before the step was started, or was not begun at all. After the last one
    // nobody needs the step any more (EndUnused).
    virtual void WaitGivenUp(StepRendezvous* step) = 0;
    // The step was aborted because a peer cannot have what is pushed to it: a step that had ended
    // well gives back what it has taken.
    virtual void PushesFailed(StepRendezvous* step) = 0;
  };

  // `clock` lives as long as `keeper`. `parked` (may be null: nothing is) is shared by all steps.
  StepRendezvous(int64_t step_id, std::weak_ptr<Keeper> keeper, Clock* clock,
                 std::shared_ptr<ParkedBytes> parked = nullptr);
  ~StepRendezvous() override;

  int64_t step_id() const { return step_id_; }

  // By the run of a traced step, once it is started and before it sends anything: sinks hear when
  // each tensor was ready (PushSink::OnSendTimes); not of those in loops.
  void TraceSends();
  // By the run, once the step is started.
  Status Send(const Transfer& transfer, Tensor value, bool is_dead) override;
  void RecvAsync(const Transfer& transfer, DoneCallback done) override;
  // Also cancels what is asked for and pushed, in both directions: of what was pushed and is not
  // Received the receivers hear, and drop it.
  void StartAbort(const Status& status) override;
  // "tensor 'w' of /job:ps/replica:0/task:0, for 3s" of what another task is to send.
  std::string Describe(uint32_t number) const override;

  // Cancels what this step has asked other tasks for, when it is aborted.
  CancellationManager* cancellation() { return &cancellation_; }

  // Serves one tensor by its wire key, now or when the step starts. `cancellation` (may be null) is
  // the call's; when it is started while the call still waits for the step, `done` gets Cancelled.
  void ServeTensor(const std::string& wire_key, CancellationManager* cancellation,
                   DoneCallback done);

  // By the run, once it is started, once for each peer of the edges' sends: what
  // the step sends to the peer goes to `sink`, which gives it to `link`. `peer` is in the edges.
  // What loops send before that waits here.
  void Push(const StepEdges::Peer& peer, const Link* link, std::shared_ptr<PushSink> sink);
  // So many more tensors that were pushed to `task` by `link` were taken there, it says.
  void Received(absl::string_view task, const Link* link, uint64_t tensors);
  // Whether something was pushed to `task` by `link`, or may be, that is not Received.
  bool AwaitsReceipt(absl::string_view task, const Link* link) const;
  // The links by which something was pushed, or may be, that is not Received.
  std::vector<const Link*> OwingLinks() const;
  // There is no link to `task`, so what the step sends there cannot come: if its run fails, it
  // gives back what it has taken. Nothing happens when it sends nothing there. By callers that then
  // end the step for that, before they do.
  void LoseReceiver(absl::string_view task);
  // The same, and aborts the step; one that has ended well gives back at once.
  void FailPushes(absl::string_view task, const Status& status);
  bool has_lost_receiver() const { return has_lost_receiver_.load(std::memory_order_acquire); }
  // By the run, once it is started and before it runs: `receiver` gets what is parked here, and
  // what comes. Null: nothing is pushed in this step, and what strangers push is dropped.
  void ReceivePushes(std::shared_ptr<PushReceiver> receiver);
  // By the receiver: a tensor in a loop, as InLoopEdges::Came.
  Status CameInLoop(uint32_t number, SentTensor tensor, std::shared_ptr<Link> link,
                    std::shared_ptr<const HeldCredit> held);
  // By the receiver: what a task sends in loops will not come. Aborts the step, unless its run has
  // ended well.
  void FailLoops(const Status& status);
  // Gives a message to the receiver, parks it for it, or drops it when the step is over.
  // Unavailable when it can be neither: the step cannot go on without it.
  Status TakePushed(PushedMessage message);
  // By the table, when the step will not be started: what is parked is dropped, and its senders
  // hear so. Without it they do not, as when the step is only given up: they may give back what
  // their own step has taken for it.
  void DropParked();
  // Whether tensors of `task` are parked here; of any task, since before `then`.
  bool HasParkedOf(absl::string_view task) const;
  bool HasParkedSince(absl::Time then) const;

  // By the table. Arguments as StepTable::Start; AlreadyExists when it was started before.
  Status Start(std::shared_ptr<const StepEdges> edges, std::shared_ptr<const SessionLife> session,
               std::shared_ptr<StepLoans> loans, FetchTensor fetch, absl::Time now);
  // By the table, when the run has ended well: what it has sent waits for nothing any more. True
  // when all of it has been taken: then its loans are settled.
  bool EndRun();
  // By the table. When no one waits for the step and it has not been started: aborts it, for
  // callers that have just found it.
  bool EndUnused();
  // Whether somebody may still take what the step has sent: it was not aborted, and its session is
  // open.
  bool IsWanted() const;
  bool is_started() const;
  // Of the tensors that the step has sent to other tasks and they have not taken yet.
  int64_t untaken_bytes() const { return untaken_bytes_.load(std::memory_order_relaxed); }
  // OK until it is aborted; then what late callers hear.
  Status aborted() const;
  // Null before the start, and when there is none.
  std::shared_ptr<const SessionLife> session() const;
  // With what its session ended: then nobody takes what the step has sent. OK while the session is
  // open, for a step without a session, and for one that was aborted.
  Status EndOfSession() const;
  // Null before the start, and when there are none.
  std::shared_ptr<StepLoans> loans() const;

  // While one lives, small tensors without a wave that this thread sends may wait for each other.
  class Cork {
   public:
    explicit Cork(StepRendezvous* step);
    ~Cork();
    Cork(const Cork&) = delete;
    Cork& operator=(const Cork&) = delete;

   private:
    StepRendezvous* const step_;
    StepRendezvous* const outer_;
  };

 private:
  struct OnePush;
  // Where what the step asks for comes from; in edges_.
  struct Fetched {
    const std::string* task = nullptr;
    const std::string* wire_key = nullptr;  // of the root frame
  };
  struct WaitingTensor {
    std::string wire_key;
    DoneCallback done;
    int64_t number;
  };

  std::shared_ptr<const StepEdges> edges() const;
  // Whether the wait with this number may begin; it ends when `cancellation` is started.
  bool MayWait(int64_t number, CancellationManager* cancellation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveUp(int64_t number);
  void TellGivenUp();
  void Fetch(const Fetched& from, const Transfer& transfer, DoneCallback done);
  // Lists a push with what its loops have sent before, which is returned.
  std::vector<SentTensor> List(const std::shared_ptr<OnePush>& push)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Status PushInLoop(const StepEdges::LoopSend& to, const Transfer& transfer, Tensor value,
                    bool is_dead);
  std::shared_ptr<OnePush> FindPushed(absl::string_view task, const Link* link) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Parked messages, for the caller to deliver, or to drop without the lock.
  std::vector<PushedMessage> TakeParked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BeginTensor(const std::string& wire_key, DoneCallback done);
  // By a push: its tensor was sent.
  void Made(OnePush* push, uint64_t index, const Status& status, Tensor value, bool is_dead);
  void Consumed();
  // Whether it was the last of `outstanding_`: then the loans have been settled.
  bool ReleaseOne();
  // What waits for the end of a cork; at the end of the run also what waits for its group.
  enum class Flushed { kCorked, kAll };
  void FlushAll(Flushed which);

  const int64_t step_id_;
  const std::weak_ptr<Keeper> keeper_;
  Clock* const clock_;
  const std::shared_ptr<ParkedBytes> parked_bytes_;  // may be null
  // Null until the step is started, then for good: read by those who know that it is started.
  std::shared_ptr<Rendezvous> local_;
  const StepEdges* started_edges_ = nullptr;  // *edges_, in the same way
  // Likewise; null without loops that receive from other tasks.
  std::unique_ptr<InLoopEdges> in_loops_;
  // By number, when each tensor was sent; empty unless the step is traced. An entry is written
  // before its tensor is in local_, and read by who got the tensor from there.
  std::vector<int64_t> sent_ns_;
  // Likewise; null, and no entries, unless the step asks for its tensors.
  FetchTensor fetch_;
  HashMap<uint32_t, Fetched> fetched_;  // by number
  CancellationManager cancellation_;
  // The sends that other tasks have not taken yet (in loops: of those that were sent), and one for
  // the run itself; the last one takes the step out of the table. Set by Start; acq_rel.
  std::atomic<int64_t> outstanding_{0};
  std::atomic<int64_t> untaken_bytes_{0};       // relaxed: a sum for a bound, no protocol
  std::atomic<bool> has_lost_receiver_{false};  // release before the abort; its run acquires it

  mutable Mutex mu_;
  Status aborted_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const StepEdges> edges_ ABSL_GUARDED_BY(mu_);  // null until started
  absl::Time started_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const SessionLife> session_ ABSL_GUARDED_BY(mu_);  // may be null
  std::shared_ptr<StepLoans> loans_ ABSL_GUARDED_BY(mu_);            // may be null
  std::vector<WaitingTensor> waiting_tensors_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<OnePush>> pushes_ ABSL_GUARDED_BY(mu_);
  bool has_run_ ABSL_GUARDED_BY(mu_) = false;  // and ended well
  // By peer of the edges' sends: of loops, until Push.
  std::map<size_t, std::vector<SentTensor>> early_in_loops_ ABSL_GUARDED_BY(mu_);
  int64_t next_number_ ABSL_GUARDED_BY(mu_) = 0;
  bool parks_ ABSL_GUARDED_BY(mu_) = true;                            // until ReceivePushes
  std::shared_ptr<PushReceiver> push_receiver_ ABSL_GUARDED_BY(mu_);  // may be null
  std::vector<PushedMessage> parked_ ABSL_GUARDED_BY(mu_);
  int64_t num_parked_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // of parked_, taken of parked_bytes_
  int64_t num_held_share_ ABSL_GUARDED_BY(mu_) = 0;    // as TakeHeld says
  absl::Time parked_since_ ABSL_GUARDED_BY(mu_);       // of the first of parked_
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_STEP_RENDEZVOUS_H_
