// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_BATCHING_BATCH_QUEUE_H_
#define MILLRACE_SERVING_BATCHING_BATCH_QUEUE_H_

// BatchQueue: the batches of one step that wait for a thread: what joins, when a batch closes, when
// it is ready, what is refused. BatchQueues: which queue is next. Both without threads; the time is
// an argument.
//
//   open --full, or a task did not fit in--> closed (ready) --Take--> gone
//     \--batch_timeout since its first task--> ready --Take--> gone
//
// A task joins the open batch whose tasks its inputs fit to; where there is none, or no room, it
// opens one. So there is one open batch for each kind of inputs; TensorFlow Serving, which has one
// per queue, fails all tasks of a batch whose shapes differ. max_enqueued_batches counts them all.
//
// Invariants: no batch is empty; at most one batch is open for each kind of inputs; a batch has at
// most max_execution_batch_size rows.
//
// Thread-safety: none, but step(), rows(), parameters().
// Failure: InvalidArgument for more rows than max_batch_size, Unavailable when the queue is full,
// with TensorFlow Serving's texts.

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/status.h"
#include "core/tensor.h"
#include "serving/batching/batch_parameters.h"
#include "serving/batching/batch_rows.h"
#include "serving/batching/batch_task.h"
#include "serving/batching/step_batcher.h"

namespace millrace {

class PreparedStep;  // runtime/session.h

class BatchQueue {
 public:
  BatchQueue(const BatchClient& client, PreparedStep* step)
      : step_(step), rows_(client.label), parameters_(client.parameters) {}
  BatchQueue(const BatchQueue&) = delete;
  BatchQueue& operator=(const BatchQueue&) = delete;

  PreparedStep* step() const { return step_; }
  StepRows* rows() { return &rows_; }
  const BatchParameters& parameters() const { return parameters_; }

  // The rows of the parts in which a request with these feeds is to be added, one after the other;
  // without splitting it is one part.
  StatusOr<std::vector<int64_t>> PartsOf(absl::Span<const Tensor> feeds, int64_t rows) const;
  // A part. When it throws, nothing has changed.
  void Add(BatchTask* task, absl::Time now);
  // A task that waits here gives up.
  void Remove(BatchTask* task);

  bool empty() const { return batches_.empty(); }
  // From when on Take gives a batch: the past for one that is closed, the infinite future without
  // batches.
  absl::Time ReadyAt() const;
  // The oldest batch that is ready. Empty: none.
  BatchTasks Take(absl::Time now);

 private:
  struct Batch {
    BatchTasks tasks;
    int64_t rows = 0;
    absl::Time opened;
    bool is_closed = false;
  };
  // The one that tasks with these feeds join; null: none is open for them.
  const Batch* OpenFor(absl::Span<const Tensor> feeds) const;
  absl::Time ReadyAt(const Batch& batch) const;

  PreparedStep* const step_;
  StepRows rows_;
  const BatchParameters parameters_;
  std::list<Batch> batches_;  // in the order of their opening
};

class BatchQueues {
 public:
  struct Next {
    std::shared_ptr<BatchQueue> queue;
    BatchTasks tasks;
  };

  // To be called when the queue may have got its first task, or lost its last one. Only the former
  // may throw: then the queue is not in the ring.
  void Update(const std::shared_ptr<BatchQueue>& queue);
  // A batch of the next queue that has one ready; that queue is then the last one. Without tasks:
  // none is ready.
  Next Take(absl::Time now);
  absl::Time ReadyAt() const;
  bool empty() const { return ring_.empty(); }

 private:
  std::list<std::shared_ptr<BatchQueue>> ring_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_BATCHING_BATCH_QUEUE_H_
