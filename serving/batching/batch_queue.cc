// SPDX-License-Identifier: Apache-2.0
#include "serving/batching/batch_queue.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "core/dcheck.h"

namespace millrace {
namespace {

constexpr char kFull[] = "The batch scheduling queue to which this task was submitted is full; ";

}  // namespace

const BatchQueue::Batch* BatchQueue::OpenFor(absl::Span<const Tensor> feeds) const {
  for (auto batch = batches_.rbegin(); batch != batches_.rend(); ++batch) {
    if (!batch->is_closed &&
        FitTogether(batch->tasks.front()->feeds, feeds, parameters_.pad_variable_length_inputs)) {
      return &*batch;
    }
  }
  return nullptr;
}

StatusOr<std::vector<int64_t>> BatchQueue::PartsOf(absl::Span<const Tensor> feeds,
                                                   int64_t rows) const {
  if (rows > parameters_.max_batch_size) {
    return InvalidArgument("Task size ", rows, " is larger than maximum input batch size ",
                           parameters_.max_batch_size);
  }
  const int64_t max_rows = parameters_.max_execution_batch_size;
  const auto num_batches = static_cast<int64_t>(batches_.size());
  const Batch* const open = OpenFor(feeds);
  const int64_t open_rows = open == nullptr ? 0 : open->rows;
  int64_t room = open == nullptr ? 0 : max_rows - open_rows;  // in the open batch
  if (!parameters_.enable_large_batch_splitting) {
    if (rows > room && num_batches >= parameters_.max_enqueued_batches) {
      return absl::UnavailableError(absl::StrCat(kFull, "currently ", num_batches,
                                                 " batches enqueued and max_enqueued_batches is ",
                                                 parameters_.max_enqueued_batches));
    }
    return std::vector<int64_t>{rows};
  }
  // Compared by division: the product may not fit.
  const int64_t free_batches = parameters_.max_enqueued_batches - num_batches;
  const int64_t needed_batches = rows <= room ? 0 : (rows - room + max_rows - 1) / max_rows;
  if (needed_batches > free_batches) {
    return absl::UnavailableError(absl::StrCat(
        kFull, "task size is ", rows, " but scheduling capacity is only ",
        free_batches * max_rows + room, " (num_enqueued_batches=", num_batches,
        ", max_enqueued_batches=", parameters_.max_enqueued_batches,
        ", open_batch_size=", open_rows, ", max_execution_batch_size=", max_rows, ")"));
  }
  std::vector<int64_t> parts;
  if (open == nullptr) room = max_rows;
  for (int64_t left = rows; left > 0;) {
    const int64_t part = std::min(left, room > 0 ? room : max_rows);
    parts.push_back(part);
    left -= part;
    room = 0;
  }
  return parts;
}

void BatchQueue::Add(BatchTask* task, absl::Time now) {
  // Found as const, changed as its owner.
  auto* open = const_cast<Batch*>(OpenFor(task->feeds));
  if (open != nullptr && task->rows > parameters_.max_execution_batch_size - open->rows) {
    Batch& next = batches_.emplace_back();
    open->is_closed = true;
    open = &next;
    open->opened = now;
  } else if (open == nullptr) {
    open = &batches_.emplace_back();
    open->opened = now;
  }
  open->rows += task->rows;
  open->tasks.splice(open->tasks.end(), task->seat);
}

void BatchQueue::Remove(BatchTask* task) {
  for (auto batch = batches_.begin(); batch != batches_.end(); ++batch) {
    const auto place = std::find(batch->tasks.begin(), batch->tasks.end(), task);
    if (place == batch->tasks.end()) continue;
    task->seat.splice(task->seat.end(), batch->tasks, place);
    batch->rows -= task->rows;
    if (batch->tasks.empty()) batches_.erase(batch);
    return;
  }
  MR_DCHECK(false, "only the request that waits gives up");
}

absl::Time BatchQueue::ReadyAt(const Batch& batch) const {
  if (batch.is_closed || batch.rows >= parameters_.max_execution_batch_size) {
    return absl::InfinitePast();
  }
  return batch.opened + parameters_.batch_timeout;
}

absl::Time BatchQueue::ReadyAt() const {
  absl::Time ready = absl::InfiniteFuture();
  for (const Batch& batch : batches_) {
    ready = std::min(ready, ReadyAt(batch));
    if (ready == absl::InfinitePast()) break;
  }
  return ready;
}

BatchTasks BatchQueue::Take(absl::Time now) {
  BatchTasks tasks;
  const auto ready = std::find_if(batches_.begin(), batches_.end(),
                                  [&](const Batch& batch) { return ReadyAt(batch) <= now; });
  if (ready == batches_.end()) return tasks;
  tasks.splice(tasks.end(), ready->tasks);
  batches_.erase(ready);
  return tasks;
}

void BatchQueues::Update(const std::shared_ptr<BatchQueue>& queue) {
  const auto place = std::find(ring_.begin(), ring_.end(), queue);
  if (queue->empty() && place != ring_.end()) ring_.erase(place);
  if (!queue->empty() && place == ring_.end()) ring_.push_back(queue);
}

BatchQueues::Next BatchQueues::Take(absl::Time now) {
  Next next;
  for (auto queue = ring_.begin(); queue != ring_.end(); ++queue) {
    next.tasks = (*queue)->Take(now);
    if (next.tasks.empty()) continue;
    next.queue = *queue;
    if ((*queue)->empty()) {
      ring_.erase(queue);
    } else {
      ring_.splice(ring_.end(), ring_, queue);
    }
    break;
  }
  return next;
}

absl::Time BatchQueues::ReadyAt() const {
  absl::Time ready = absl::InfiniteFuture();
  for (const std::shared_ptr<BatchQueue>& queue : ring_) {
    ready = std::min(ready, queue->ReadyAt());
  }
  return ready;
}

}  // namespace millrace
