// SPDX-License-Identifier: Apache-2.0
#include "serving/batching/timed_batcher.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/exceptions.h"
#include "runtime/session.h"
#include "serving/batching/batch_rows.h"
#include "serving/batching/cancelled_wait.h"
#include "serving/batching/run_batch.h"
#include "serving/run_step.h"

namespace millrace {
namespace {

// A task with the tensors of its own that it needs when it is a part.
struct BatchPart {
  BatchTask task;
  std::vector<Tensor> feeds, results;
};

}  // namespace

struct TimedBatcher::Request {
  const StepBounds& bounds;
  absl::Span<const Tensor> feeds;
  absl::Span<Tensor> results;
  int64_t rows;
  BatchWaiter waiter = {};
  std::list<BatchPart> parts = {};

  // Made while no one else sees it.
  BatchTask* AddPart(int64_t begin, int64_t end) {
    BatchPart& part = parts.emplace_back();
    BatchTask& task = part.task;
    task.is_part = end - begin < rows;
    task.feeds = feeds;
    task.results = results;
    if (task.is_part) {
      for (const Tensor& feed : feeds) part.feeds.push_back(feed.Rows(begin, end));
      part.results.resize(results.size());
      task.feeds = part.feeds;
      task.results = absl::MakeSpan(part.results);
    }
    task.bounds = bounds;
    task.rows = end - begin;
    task.request_rows = begin == 0 ? rows : 0;
    task.waiter = &waiter;
    return &task;
  }
  bool waits() const {
    for (const BatchPart& part : parts) {
      if (part.task.state == BatchTask::State::kWaits) return true;
    }
    return false;
  }
  // The first error of a part, in their order; else their outputs, one after the other.
  Status PutTogether() {
    for (const BatchPart& part : parts) MR_RETURN_IF_ERROR(part.task.status);
    if (parts.size() == 1) return absl::OkStatus();
    for (size_t i = 0; i < results.size(); ++i) {
      std::vector<const Tensor*> outputs;
      int64_t num_rows = 0;
      for (const BatchPart& part : parts) {
        if (part.results[i].rank() == 0) return InvalidArgument("Batch: outputs must have rows");
        outputs.push_back(&part.results[i]);
        num_rows += part.results[i].dim(0);
      }
      MR_ASSIGN_OR_RETURN(results[i], JoinRows(outputs, num_rows, /*ragged=*/false));
    }
    return absl::OkStatus();
  }
};

StatusOr<std::unique_ptr<TimedBatcher>> TimedBatcher::Create(
    int num_threads, Clock* clock, std::shared_ptr<BatchingObserver> observer) {
  std::unique_ptr<TimedBatcher> batcher(new TimedBatcher(clock, std::move(observer)));
  try {
    for (int i = 0; i < num_threads; ++i) {
      batcher->threads_.emplace_back([raw = batcher.get()] { raw->RunBatches(); });
    }
  } catch (const std::system_error& e) {
    return absl::ResourceExhaustedError(absl::StrCat("Batching: the system must have ", num_threads,
                                                     " threads, got ", batcher->threads_.size(),
                                                     " (", e.what(), ")"));
  }
  return batcher;
}

TimedBatcher::~TimedBatcher() {
  {
    MutexLock lock(&mu_);
    ends_ = true;
    work_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

void TimedBatcher::RunBatches() {
  while (true) {
    BatchQueues::Next next;
    {
      MutexLock lock(&mu_);
      while (true) {
        next = waiting_.Take(clock_->Now());
        if (!next.tasks.empty() || ends_) break;
        clock_->WaitUntil(&work_, &mu_, waiting_.ReadyAt());
      }
      if (next.tasks.empty()) return;
      for (BatchTask* task : next.tasks) task->state = BatchTask::State::kTaken;
      if (!waiting_.empty()) work_.Signal();
    }
    BatchQueue* const queue = next.queue.get();
    RunBatch({queue->step(), queue->rows(), &queue->parameters(), clock_, observer_.get()},
             std::move(next.tasks), [this](BatchTask* done) {
               MutexLock lock(&mu_);
               done->state = BatchTask::State::kOutside;
               if (--done->waiter->num_unfinished == 0) done->waiter->changed.Signal();
             });
  }
}

Status TimedBatcher::Run(const BatchClient& client, PreparedStep* step, const StepBounds& bounds,
                         absl::Span<const Tensor> feeds, absl::Span<Tensor> results) {
  MR_ASSIGN_OR_RETURN(const int64_t rows, BatchRowsOf(feeds));
  const std::shared_ptr<BatchQueue> queue = QueueOf(client, step);
  const bool may_join = rows > 0 && CanBeJoined(feeds) && !queue->rows()->is_alone();
  if (!may_join && rows <= client.parameters.max_batch_size) {
    return RunStep(step, bounds, feeds, results);
  }
  Request request{.bounds = bounds, .feeds = feeds, .results = results, .rows = rows};
  bool gave_up = false, was_cancelled = false;
  {
    const CancelledWait cancelled(bounds.cancellation, &mu_, &request.waiter);
    MutexLock lock(&mu_);
    MR_RETURN_IF_ERROR(Enter(queue, &request));
    work_.Signal();
    while (request.waiter.num_unfinished > 0) {
      const bool waits = request.waits();
      if (waits && (request.waiter.is_cancelled || bounds.deadline <= clock_->Now())) {
        gave_up = GiveUp(queue, &request);
        was_cancelled = request.waiter.is_cancelled;
        continue;
      }
      // What was taken into a batch ends with it.
      clock_->WaitUntil(&request.waiter.changed, &mu_,
                        waits ? bounds.deadline : absl::InfiniteFuture());
    }
  }
  if (gave_up) return GivenUp(was_cancelled);
  const Status status = request.PutTogether();
  // Parts of which the outputs do not join, or are not proven to be per row, say nothing of the
  // request's outputs. The whole is a proof.
  const bool parts_say_nothing =
      request.parts.size() > 1 && (!queue->rows()->is_per_row() || absl::IsInvalidArgument(status));
  if (parts_say_nothing) {
    MR_RETURN_IF_ERROR(RunStep(step, bounds, feeds, results));
    queue->rows()->Note(rows, results);
    return absl::OkStatus();
  }
  if (!status.ok()) std::fill(results.begin(), results.end(), Tensor());
  return status;
}

Status TimedBatcher::Enter(const std::shared_ptr<BatchQueue>& queue, Request* request) {
  const Status entered = NoExceptions("Batch", [&]() -> Status {
    MR_ASSIGN_OR_RETURN(const std::vector<int64_t> sizes,
                        queue->PartsOf(request->feeds, request->rows));
    int64_t begin = 0;
    for (const int64_t size : sizes) {
      BatchTask* const task = request->AddPart(begin, begin + size);
      task->queued = clock_->Now();
      queue->Add(task, task->queued);
      task->state = BatchTask::State::kWaits;
      ++request->waiter.num_unfinished;
      begin += size;
    }
    waiting_.Update(queue);
    return absl::OkStatus();
  });
  // No thread has seen the parts: the lock was held.
  if (!entered.ok()) GiveUp(queue, request);
  return entered;
}

bool TimedBatcher::GiveUp(const std::shared_ptr<BatchQueue>& queue, Request* request) {
  bool any = false;
  for (BatchPart& part : request->parts) {
    if (part.task.state != BatchTask::State::kWaits) continue;
    queue->Remove(&part.task);
    part.task.state = BatchTask::State::kOutside;
    --request->waiter.num_unfinished;
    any = true;
  }
  // Nothing to be done where the queue still has others: they are in the ring already.
  if (any && queue->empty()) waiting_.Update(queue);
  return any;
}

std::shared_ptr<BatchQueue> TimedBatcher::QueueOf(const BatchClient& client, PreparedStep* step) {
  MutexLock lock(&mu_);
  const auto found = queues_.find(step);
  if (found != queues_.end()) return found->second;
  auto queue = std::make_shared<BatchQueue>(client, step);
  queues_.emplace(step, queue);
  return queue;
}

void TimedBatcher::Forget(PreparedStep* step) {
  std::shared_ptr<BatchQueue> forgotten;  // goes without the lock
  MutexLock lock(&mu_);
  const auto found = queues_.find(step);
  if (found == queues_.end()) return;
  forgotten = std::move(found->second);
  queues_.erase(found);
}

int TimedBatcher::num_queues() const {
  MutexLock lock(&mu_);
  return static_cast<int>(queues_.size());
}

}  // namespace millrace
