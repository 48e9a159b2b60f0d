// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_BATCHING_TIMED_BATCHER_H_
#define MILLRACE_SERVING_BATCHING_TIMED_BATCHER_H_

// TimedBatcher: batches by a file of parameters, as TensorFlow Serving's shared scheduler runs
// them.
//
//   request --parts--> BatchQueue of its step --batch is ready--> a thread of the pool --> done
//                        \--deadline, cancellation--> gives up
//
// All queues of the server share num_threads threads, which take turns among the queues
// (serving/batching/batch_queue.h). The request's own thread waits; a request that is run in
// several parts puts their outputs together.
//
// Invariant: as long as a batch waits and a thread is idle, some thread wakes when the batch is
// ready: each one that takes a batch wakes another one if more wait.
//
// Thread-safety, failure: as StepBatcher.
// Lifetime: destroy it after the last Run.

#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "core/clock.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "runtime/session.h"
#include "serving/batching/batch_queue.h"
#include "serving/batching/batch_task.h"
#include "serving/batching/batching_observer.h"
#include "serving/batching/step_batcher.h"
#include "serving/step_bounds.h"

namespace millrace {

class PreparedStep;  // runtime/session.h

class TimedBatcher : public StepBatcher {
 public:
  // ResourceExhausted where the system has no more threads. The clock outlives the batcher.
  static StatusOr<std::unique_ptr<TimedBatcher>> Create(
      int num_threads, Clock* clock = Clock::Real(),
      std::shared_ptr<BatchingObserver> observer = nullptr);
  ~TimedBatcher() override;

  Status Run(const BatchClient& client, PreparedStep* step, const StepBounds& bounds,
             absl::Span<const Tensor> feeds, absl::Span<Tensor> results) override;
  void Forget(PreparedStep* step) override;
  int num_queues() const override;

 private:
  // A request that waits, with its parts.
  struct Request;

  TimedBatcher(Clock* clock, std::shared_ptr<BatchingObserver> observer)
      : clock_(clock), observer_(std::move(observer)) {}
  void RunBatches();
  std::shared_ptr<BatchQueue> QueueOf(const BatchClient& client, PreparedStep* step);
  // All parts or none.
  Status Enter(const std::shared_ptr<BatchQueue>& queue, Request* request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the parts out that wait; whether there were any.
  bool GiveUp(const std::shared_ptr<BatchQueue>& queue, Request* request)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Clock* const clock_;
  const std::shared_ptr<BatchingObserver> observer_;  // may be null
  mutable Mutex mu_;
  CondVar work_;  // a batch has come, or the end
  // Shared with requests and threads: a queue that was forgotten ends with its last batch.
  std::map<PreparedStep*, std::shared_ptr<BatchQueue>> queues_ ABSL_GUARDED_BY(mu_);
  BatchQueues waiting_ ABSL_GUARDED_BY(mu_);
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_BATCHING_TIMED_BATCHER_H_
