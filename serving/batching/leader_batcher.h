// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_BATCHING_LEADER_BATCHER_H_
#define MILLRACE_SERVING_BATCHING_LEADER_BATCHER_H_

// LeaderBatcher: a batch is what waits when a thread becomes free. No timer, no threads of its own.
//
//   a place is free:   runs ----------------------------------------> done, passes its place on
//   all are taken:     waits --place passed on--> leads a batch ----> done, passes its place on
//                        |  \--taken into a batch ------------------> done
//                        +--deadline, cancellation --> gives up
//
// There are `max_running` places. A request that finds one free runs its step at once, in its own
// thread: a client that is alone waits for nothing. Else it waits; whoever ends passes its place to
// the first request of the next queue (WaitingQueues), and returns. That one, the leader, takes
// along what waits in its queue by then, runs the batch and wakes the others.
//
// Invariants: while a request waits, no place is free. A place is held by one thread, which runs a
// step or is about to.
//
// Of a client's parameters max_batch_size counts, for batches; a request with more rows runs alone,
// without a place.
//
// Thread-safety, lifetime, failure: as StepBatcher.

#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "serving/batching/batch_task.h"
#include "serving/batching/batching_observer.h"
#include "serving/batching/step_batcher.h"
#include "serving/batching/waiting_queues.h"
#include "serving/step_bounds.h"

namespace millrace {

class PreparedStep;  // runtime/session.h

class LeaderBatcher : public StepBatcher {
 public:
  // `max_running` >= 1. The clock outlives the batcher.
  explicit LeaderBatcher(int max_running, Clock* clock = Clock::Real(),
                         std::shared_ptr<BatchingObserver> observer = nullptr)
      : max_running_(max_running), clock_(clock), observer_(std::move(observer)) {}

  Status Run(const BatchClient& client, PreparedStep* step, const StepBounds& bounds,
             absl::Span<const Tensor> feeds, absl::Span<Tensor> results) override;
  void Forget(PreparedStep* step) override;
  int num_queues() const override;

 private:
  struct StepQueue;
  class Place;

  // With mu_ held.
  std::shared_ptr<StepQueue> QueueOf(const BatchClient& client, PreparedStep* step)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Without a place.
  Status WaitAndRun(StepQueue* queue, BatchTask* task);
  void PassOn();

  const int max_running_;
  Clock* const clock_;
  const std::shared_ptr<BatchingObserver> observer_;  // may be null
  mutable Mutex mu_;
  // Shared with the requests: a queue that was forgotten ends with its last one.
  std::map<PreparedStep*, std::shared_ptr<StepQueue>> queues_ ABSL_GUARDED_BY(mu_);
  WaitingQueues waiting_ ABSL_GUARDED_BY(mu_);
  int num_running_ ABSL_GUARDED_BY(mu_) = 0;  // places that are taken
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_BATCHING_LEADER_BATCHER_H_
