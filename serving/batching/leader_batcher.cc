// SPDX-License-Identifier: Apache-2.0
#include "serving/batching/leader_batcher.h"

#include <cstdint>
#include <utility>

#include "absl/time/time.h"
#include "core/dcheck.h"
#include "runtime/session.h"
#include "serving/batching/batch_parameters.h"
#include "serving/batching/batch_rows.h"
#include "serving/batching/cancelled_wait.h"
#include "serving/batching/run_batch.h"
#include "serving/run_step.h"

namespace millrace {

struct LeaderBatcher::StepQueue {
  StepQueue(const BatchClient& client, PreparedStep* of)
      : step(of), rows(client.label), parameters(client.parameters) {}

  PreparedStep* const step;
  StepRows rows;
  const BatchParameters parameters;
  WaitingQueue waiting;  // guarded by the batcher's lock
};

// A place that is taken, passed on at the end.
class LeaderBatcher::Place {
 public:
  explicit Place(LeaderBatcher* batcher) : batcher_(batcher) {}
  ~Place() { batcher_->PassOn(); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

 private:
  LeaderBatcher* const batcher_;
};

Status LeaderBatcher::Run(const BatchClient& client, PreparedStep* step, const StepBounds& bounds,
                          absl::Span<const Tensor> feeds, absl::Span<Tensor> results) {
  // Inputs without rows are nobody's business but the model's.
  const int64_t rows = BatchRowsOf(feeds).value_or(0);
  const bool may_join = rows > 0 && rows <= client.parameters.max_batch_size && CanBeJoined(feeds);
  if (!may_join) return RunStep(step, bounds, feeds, results);
  std::shared_ptr<StepQueue> queue;
  bool has_place = false;
  {
    MutexLock lock(&mu_);
    queue = QueueOf(client, step);
    if (!queue->rows.is_alone() && num_running_ < max_running_) {
      ++num_running_;
      has_place = true;
    }
  }
  if (queue->rows.is_alone() && !has_place) return RunStep(step, bounds, feeds, results);
  if (has_place) {
    const Place place(this);
    if (observer_ != nullptr) {
      observer_->LeftQueue(rows, absl::ZeroDuration());
      observer_->RanBatch(rows, 0);
    }
    MR_RETURN_IF_ERROR(RunStep(step, bounds, feeds, results));
    queue->rows.Note(rows, results);
    return absl::OkStatus();
  }
  BatchTask task;
  task.feeds = feeds;
  task.results = results;
  task.bounds = bounds;
  task.rows = task.request_rows = rows;
  task.queued = clock_->Now();
  return WaitAndRun(queue.get(), &task);
}

Status LeaderBatcher::WaitAndRun(StepQueue* queue, BatchTask* task) {
  BatchWaiter waiter;
  task->waiter = &waiter;
  const CancelledWait cancelled(task->bounds.cancellation, &mu_, &waiter);
  BatchTasks batch;
  bool gave_up = false, was_cancelled = false;
  {
    MutexLock lock(&mu_);
    waiter.num_unfinished = 1;
    if (num_running_ < max_running_) {
      MR_DCHECK(waiting_.empty(), "while a request waits, no place is free");
      ++num_running_;
      waiter.leads = true;
    } else {
      waiting_.Add(&queue->waiting, task);
      task->state = BatchTask::State::kWaits;
    }
    while (!waiter.leads && waiter.num_unfinished > 0) {
      const bool waits = task->state == BatchTask::State::kWaits;
      if (waits && (waiter.is_cancelled || task->bounds.deadline <= clock_->Now())) {
        waiting_.Remove(&queue->waiting, task);
        task->state = BatchTask::State::kOutside;
        gave_up = true;
        was_cancelled = waiter.is_cancelled;
        break;
      }
      // What was taken into a batch ends with it.
      clock_->WaitUntil(&waiter.changed, &mu_,
                        waits ? task->bounds.deadline : absl::InfiniteFuture());
    }
    if (waiter.leads) {
      batch = waiting_.TakeBatch(&queue->waiting, task, queue->parameters.max_batch_size);
      for (BatchTask* taken : batch) taken->state = BatchTask::State::kTaken;
    }
  }
  if (gave_up) return GivenUp(was_cancelled);
  if (batch.empty()) return task->status;
  const Place place(this);
  RunBatch({queue->step, &queue->rows, &queue->parameters, clock_, observer_.get()},
           std::move(batch), [this](BatchTask* done) {
             MutexLock lock(&mu_);
             done->state = BatchTask::State::kOutside;
             --done->waiter->num_unfinished;
             done->waiter->changed.Signal();
           });
  return task->status;
}

void LeaderBatcher::PassOn() {
  MutexLock lock(&mu_);
  BatchTask* const leader = waiting_.NextLeader();
  if (leader == nullptr) {
    --num_running_;
    return;
  }
  leader->state = BatchTask::State::kTaken;
  leader->waiter->leads = true;
  leader->waiter->changed.Signal();
}

std::shared_ptr<LeaderBatcher::StepQueue> LeaderBatcher::QueueOf(const BatchClient& client,
                                                                 PreparedStep* step) {
  const auto found = queues_.find(step);
  if (found != queues_.end()) return found->second;
  auto queue = std::make_shared<StepQueue>(client, step);
  queues_.emplace(step, queue);
  return queue;
}

void LeaderBatcher::Forget(PreparedStep* step) {
  std::shared_ptr<StepQueue> forgotten;  // goes without the lock
  MutexLock lock(&mu_);
  const auto found = queues_.find(step);
  if (found == queues_.end()) return;
  forgotten = std::move(found->second);
  queues_.erase(found);
}

int LeaderBatcher::num_queues() const {
  MutexLock lock(&mu_);
  return static_cast<int>(queues_.size());
}

}  // namespace millrace
