// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_WORKER_PUSHED_EDGES_H_
#define MILLRACE_DISTRIBUTED_WORKER_PUSHED_EDGES_H_

// The edges of one step between this task and others, over links: LinkSink is the sending
// end of what goes to one task, ArrivingEdges the receiving end of all that comes.
//
// Both tasks know the tensors by their places in the sorted keys (step_edges.h); the fingerprint of
// the keys travels with each message. What a LinkSink is given until Flush leaves as one message.
//
// A tensor that has not changed since the receiver was told to keep it travels without its bytes
// (sent_reads.h): never in loops, in traced steps, or within a process.
//
// Tensors in loops have indices and a fingerprint of their own, frame and iteration. Each leaves at
// once; what has come waits for its iteration (in_loop_edges.h). How many come is not known: until
// its run is over a step needs the links to all tasks whose tensors its loops receive.
//
// Threads: all methods, from any. Lifetime: both know the step weakly, and keep its edges.
// Failure: the step is aborted: by what a peer sends that does not fit (Internal), with the error
// of a link that is lost before all has come, or that does not take what is sent (peer_error.h).
// A task that has no part in the step changes nothing.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/link/link.h"
#include "distributed/transport/peer_counts.h"
#include "distributed/worker/push_sink.h"
#include "distributed/worker/pushed_message.h"
#include "distributed/worker/sent_reads.h"
#include "distributed/worker/step_edges.h"
#include "distributed/worker/step_rendezvous.h"
#include "runtime/step_stats.h"

namespace millrace {

class LinkSink : public PushSink {
 public:
  // `peer` is in `edges`. `counter` (may be null) counts what is sent. `reads` (may be null): of
  // this graph and peer; what has not changed does not travel again. `is_traced`: tensors travel
  // with their times, and all of them.
  LinkSink(std::shared_ptr<Link> link, const std::shared_ptr<StepRendezvous>& step,
           std::shared_ptr<const StepEdges> edges, const StepEdges::Peer* peer,
           std::shared_ptr<PeerCounter> counter, std::shared_ptr<SentReads> reads = nullptr,
           bool is_traced = false);
  ~LinkSink() override;

  void OnSendTimes(uint64_t index, const SendTimes& times) override;
  int64_t OnTensor(uint64_t index, Tensor value, bool is_dead) override;
  void OnTensorInLoop(uint64_t index, uint64_t frame_id, int64_t iteration, Tensor value,
                      bool is_dead) override;
  void Flush() override;
  void OnAllReceived() override;
  // An error is told to the peer, behind all that is sent: what leaves behind CANCEL would be
  // parked there for a step that may never begin. So a thread that sends meanwhile tells it again.
  void OnDone(const Status& status) override;

 private:
  // Sets how the tensor travels.
  void ChooseWay(SentTensor* tensor);
  // What has been given so far, with its header, and when the first of it was.
  SentTensors Take(int64_t* since_ns);
  // After each Send.
  void TellAgainIfOver();
  // The step cannot send what it has.
  void Abort(const Status& status);

  const std::shared_ptr<Link> link_;
  const int64_t step_id_;
  const std::weak_ptr<StepRendezvous> step_;
  const std::shared_ptr<const StepEdges> edges_;
  const StepEdges::Peer* const peer_;
  const std::shared_ptr<PeerCounter> counter_;  // may be null
  const std::shared_ptr<SentReads> reads_;      // null: all travels whole
  const bool is_traced_;
  // By index, each used by the thread that brings its tensor; empty unless traced.
  std::vector<int64_t> ready_ns_;
  // OnDone had an error, which is written before. release: before CANCEL is sent; acquire.
  std::atomic<bool> is_over_{false};
  Status over_;
  Mutex mu_;
  std::vector<SentTensor> gathered_ ABSL_GUARDED_BY(mu_);
  int64_t since_ns_ ABSL_GUARDED_BY(mu_) = 0;  // when the first of them came; if it is counted
  // What the messages name, which the peer must not forget before it has them. Those that they
  // bring are not there until then.
  std::vector<SentReads::Choice> named_ ABSL_GUARDED_BY(mu_);
  std::atomic<bool> names_any_{false};  // release when the first is listed; acquire
};

class ArrivingEdges : public PushReceiver {
 public:
  // `stats`: null unless the step is traced.
  ArrivingEdges(const std::shared_ptr<StepRendezvous>& step, std::shared_ptr<const StepEdges> edges,
                std::shared_ptr<StepStatsCollector> stats = nullptr);

  // The tensors of `task` will come by this link, until some come by another one: the loss of
  // other links does not matter.
  void Expect(absl::string_view task, std::shared_ptr<Link> link);
  void OnPushed(PushedMessage message) override;
  // The run is over: acknowledgements leave now to peers that this step sends nothing, as nothing
  // may come for them to ride on, and to those that have sent something large. To others they ride
  // on the next step's messages.
  void Flush();

 private:
  struct Peer {
    std::shared_ptr<Link> link;  // that of Expect; null before
    const Link* way = nullptr;   // by which tensors come; only compared
    std::vector<bool> has_come;  // by index
    size_t num_left = 0;
    bool flushes = false;
  };

  // Index in edges_->recvs; its size when the task has no part in it.
  size_t Find(absl::string_view task) const;
  void TakeTensors(size_t peer, PushedMessage* message, StepRendezvous* step);
  void Trace(size_t peer, const SentTensor& tensor);
  // Marks a tensor. An error when there is no such one, or when one in no loop was there.
  Status Mark(size_t peer, const SentTensor& tensor, const Link* way);

  const std::weak_ptr<StepRendezvous> step_;
  const std::shared_ptr<const StepEdges> edges_;
  const std::shared_ptr<StepStatsCollector> stats_;  // may be null
  const int64_t begun_ns_;                           // 0 without it
  Mutex mu_;
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mu_);  // as edges_->recvs
};

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_WORKER_PUSHED_EDGES_H_
