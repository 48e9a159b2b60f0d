// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_STEP_RENDEZVOUS_H_
#define MILLRACE_DISTRIBUTED_WORKER_STEP_RENDEZVOUS_H_

// StepRendezvous: the rendezvous of one step in one task. StepTable: those of all steps.
//
// Tensors wait where they are made until the other task pulls them. All keys of a partition
// are known when it is registered (StepEdges), so one request per pair of tasks asks for all
// of them when the step starts, in the order in which both sort the keys. For each the plan has a
// number, by which the step finds it. The answers leave in as few messages as can be without
// waiting: what becomes ready while the thread that starts the step still works through its first
// ready nodes leaves together; afterwards each tensor leaves at once, or with those that became
// ready while the one before was on its way. Names are for single tensors: what other tasks ask for
// by key.
//
// States of a step: expected -> running -> ended. A pull may come before the step is
// started here: it is expected then. A step that ended well leaves the table when the last
// tensor has been pulled; one that failed stays for a while to tell late comers why. Nobody has to
// be told that a step is over.
//
// Threads: all methods, from any thread; no lock is held when a sink or callback is called. The
// table's lock is taken before a step's.
// Lifetime: the table and the run keep a step, those who wait in it do not: when both have let go
// of it, all waits that are left end with an error.
// Failure: waits end with the error of the step, marked as derived.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/cancellation.h"
#include "core/clock.h"
#include "core/hash_table.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/transport/transport.h"
#include "distributed/worker/session_life.h"
#include "graph/graph.h"
#include "proto/node_def.pb.h"
#include "runtime/done_callback.h"
#include "runtime/rendezvous.h"
#include "runtime/step_loans.h"

namespace millrace {

// What one partition exchanges with other tasks.
struct StepEdges {
  struct Peer {
    std::string task;
    // Sorted; as other tasks know them.
    std::vector<std::string> wire_keys;
    // In the same order; those of the plan's _Send and _Recv nodes.
    std::vector<uint32_t> numbers;
    // Sends only: needs nothing from other tasks, so it is ready soon after the start.
    std::vector<bool> immediate;
    int64_t num_immediate = 0;
    uint64_t fingerprint = 0;      // of wire_keys
    uint64_t src_incarnation = 0;  // of a device of the sending task
  };
  std::vector<Peer> sends, recvs;
  int64_t num_sends = 0;
  // Inside of loops. Keys are those of the root frame, as other tasks know them.
  struct LoopRecv {
    std::string task;
    std::string wire_key;
  };
  HashMap<uint32_t, LoopRecv> loop_recvs;     // by number
  HashMap<std::string, uint32_t> loop_sends;  // numbers, by key
  HashSet<uint32_t> loop_send_numbers;
  std::shared_ptr<const TransferTable> transfers;  // may be null: there are none

  // `graph` is the partition of a plan whose transfers are `plan`; `wire` are its nodes that send
  // and receive as the master sent them: they have the same names, other tasks' devices perhaps
  // not. InvalidArgument for malformed attrs, Internal for a node that the plan does not have.
  static StatusOr<StepEdges> Of(const Graph& graph, absl::Span<const tensorflow::NodeDef> wire,
                                std::shared_ptr<const TransferTable> plan,
                                absl::string_view own_task);
};

class StepTable;

// Asks another task for one tensor of this step by its wire key.
using FetchTensor = std::function<void(const std::string& task, const std::string& wire_key,
                                       Rendezvous::DoneCallback done)>;

class StepRendezvous : public Rendezvous, public std::enable_shared_from_this<StepRendezvous> {
 public:
  StepRendezvous(int64_t step_id, std::weak_ptr<StepTable> table);
  ~StepRendezvous() override;

  int64_t step_id() const { return step_id_; }

  // By the run, once the step is started.
  Status Send(const Transfer& transfer, Tensor value, bool is_dead) override;
  void RecvAsync(const Transfer& transfer, DoneCallback done) override;
  // Also cancels pulls in both directions.
  void StartAbort(const Status& status) override;
  // "tensor 'w' of /job:ps/replica:0/task:0, for 3s" of what another task is to send.
  std::string Describe(uint32_t number) const override;

  // Cancels what this step has asked other tasks for, when it is aborted.
  CancellationManager* cancellation() { return &cancellation_; }

  // Serves a pull now or when the step starts. `cancellation` (may be null) is the call's; when it
  // is started while the pull still waits for the step, the sink gets Cancelled.
  void ServePull(const PullRequest& request, std::shared_ptr<PullSink> sink,
                 CancellationManager* cancellation);
  // Serves one tensor by its wire key, now or when the step starts. `cancellation` as above.
  void ServeTensor(const std::string& wire_key, CancellationManager* cancellation,
                   DoneCallback done);

  // While one lives, small tensors that this thread sends may wait for each other.
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
  friend class StepTable;
  struct ServedPull;
  struct WaitingPull {
    PullRequest request;
    std::shared_ptr<PullSink> sink;
    int64_t number;
  };
  struct WaitingTensor {
    std::string wire_key;
    DoneCallback done;
    int64_t number;
  };

  // AlreadyExists when it was started before.
  Status Start(std::shared_ptr<const StepEdges> edges, std::shared_ptr<const SessionLife> session,
               std::shared_ptr<StepLoans> loans, FetchTensor fetch, absl::Time now);
  std::shared_ptr<const StepEdges> edges() const;
  // All that it sent has left.
  void SettleLoans();
  // Whether the wait with this number may begin; it ends when `cancellation` is started.
  bool MayWait(int64_t number, CancellationManager* cancellation)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveUp(int64_t number);
  // When no one waits for it and it has not been started: aborts it, for callers that have just
  // found it.
  bool EndUnused();
  void BeginPull(const PullRequest& request, std::shared_ptr<PullSink> sink);
  void BeginTensor(const std::string& wire_key, DoneCallback done);
  void Served(const std::shared_ptr<ServedPull>& pull, uint64_t index, const Status& status,
              Tensor value, bool is_dead);
  void Consumed();
  void FlushAll();

  const int64_t step_id_;
  const std::weak_ptr<StepTable> table_;
  // Null until the step is started, then for good: read by those who know that it is started.
  std::shared_ptr<Rendezvous> local_;
  FetchTensor fetch_;
  CancellationManager cancellation_;
  // The sends that have not been pulled yet (in loops: of those that were sent), and one for the
  // run itself; the last one takes the step out of the table. Set by Start; acq_rel.
  std::atomic<int64_t> outstanding_{0};

  mutable Mutex mu_;
  Status aborted_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const StepEdges> edges_ ABSL_GUARDED_BY(mu_);  // null until started
  absl::Time started_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const SessionLife> session_ ABSL_GUARDED_BY(mu_);  // may be null
  std::shared_ptr<StepLoans> loans_ ABSL_GUARDED_BY(mu_);            // may be null
  std::vector<WaitingPull> waiting_pulls_ ABSL_GUARDED_BY(mu_);
  std::vector<WaitingTensor> waiting_tensors_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<ServedPull>> served_ ABSL_GUARDED_BY(mu_);
  int64_t next_number_ ABSL_GUARDED_BY(mu_) = 0;
};

class StepTable : public std::enable_shared_from_this<StepTable> {
 public:
  // How long, until the next Sweep, a step that ended stays when somebody did not fetch what was
  // made for him.
  static constexpr absl::Duration kEndedExpiry = absl::Minutes(10);
  static constexpr size_t kMaxEnded = 10'000;

  explicit StepTable(Clock* clock);
  // Aborts what is left.
  ~StepTable();
  StepTable(const StepTable&) = delete;
  StepTable& operator=(const StepTable&) = delete;

  // An expected step is made when there is none.
  std::shared_ptr<StepRendezvous> FindOrExpect(int64_t step_id);
  // AlreadyExists for a step that was started before; the reason for one that was cleaned up.
  // AwaitPulls waits for what it sends as long as `session` is open (null: not at all).
  // `loans` (may be null) are settled when all of it has been pulled, and given back when it is
  // dropped before. `fetch` (may be null without loops that other tasks are part of) outlives the
  // step's run.
  StatusOr<std::shared_ptr<StepRendezvous>> Start(
      int64_t step_id, std::shared_ptr<const StepEdges> edges,
      std::shared_ptr<const SessionLife> session = nullptr,
      std::shared_ptr<StepLoans> loans = nullptr, FetchTensor fetch = nullptr);
  // The run is over. An error aborts the step.
  void End(StepRendezvous* step, const Status& status);
  // Aborts and forgets a step, whose master says that it is over: what it took stays taken.
  void Cleanup(int64_t step_id, const Status& status);
  // Aborts all steps, now and later.
  void AbortAll(const Status& status);
  // Until all that steps which ended well have sent was pulled, where a session is open to want it.
  // False when something is left at `deadline`.
  bool AwaitPulls(absl::Time deadline);
  // AwaitPulls looks again: a session has ended.
  void LookForPulls();
  // Sessions have ended: what their steps have sent, and nobody has asked for, is dropped with the
  // reason of the session's end.
  void DropOfEndedSessions();
  // Drops what has expired. Called by Start and failed Ends now and then: in a task that gets
  // no steps any more, what has expired stays.
  void Sweep();

  int64_t num_steps() const;

 private:
  friend class StepRendezvous;
  void Erase(int64_t step_id, const StepRendezvous* step);
  // Aborts and forgets a step; its loans, null when there is none.
  std::shared_ptr<StepLoans> Forget(int64_t step_id, const Status& status);
  void EraseUnused(StepRendezvous* step);
  struct Ended {
    int64_t step_id;
    absl::Time at;
    bool well = false;
  };
  bool WaitsForPulls() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Clock* const clock_;
  mutable Mutex mu_;
  // Abseil's maps break when there is no memory to grow, in which steps are refused.
  std::unordered_map<int64_t, std::shared_ptr<StepRendezvous>> steps_ ABSL_GUARDED_BY(mu_);
  std::deque<Ended> ended_ ABSL_GUARDED_BY(mu_);
  absl::Time next_sweep_ ABSL_GUARDED_BY(mu_);
  int awaiting_pulls_ ABSL_GUARDED_BY(mu_) = 0;  // threads in AwaitPulls
  CondVar pulled_;
  Status aborted_ ABSL_GUARDED_BY(mu_);
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_STEP_RENDEZVOUS_H_
