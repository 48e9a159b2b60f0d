// SPDX-License-Identifier: Apache-2.0
#include "serving/batching/waiting_queues.h"

#include <algorithm>
#include <iterator>

#include "core/dcheck.h"
#include "serving/batching/batch_rows.h"

namespace millrace {

void WaitingQueues::Add(WaitingQueue* queue, BatchTask* task) {
  if (queue->tasks.empty()) ring_.splice(ring_.end(), queue->seat);
  queue->tasks.splice(queue->tasks.end(), task->seat);
}

void WaitingQueues::Remove(WaitingQueue* queue, BatchTask* task) {
  const auto place = std::find(queue->tasks.begin(), queue->tasks.end(), task);
  MR_DCHECK(place != queue->tasks.end(), "only the request that waits gives up");
  task->seat.splice(task->seat.end(), queue->tasks, place);
  LeaveIfEmpty(queue);
}

BatchTask* WaitingQueues::NextLeader() {
  if (ring_.empty()) return nullptr;
  WaitingQueue* const queue = ring_.front();
  BatchTask* const leader = queue->tasks.front();
  leader->seat.splice(leader->seat.end(), queue->tasks, queue->tasks.begin());
  ring_.splice(ring_.end(), ring_, ring_.begin());
  LeaveIfEmpty(queue);
  return leader;
}

BatchTasks WaitingQueues::TakeBatch(WaitingQueue* queue, BatchTask* leader, int64_t max_rows) {
  BatchTasks batch;
  batch.splice(batch.end(), leader->seat);
  if (queue->tasks.empty()) return batch;
  int64_t rows = leader->rows;
  for (auto i = queue->tasks.begin(); i != queue->tasks.end();) {
    const auto next = std::next(i);
    if (FitTogether(leader->feeds, (*i)->feeds, /*ragged=*/false)) {
      if ((*i)->rows > max_rows - rows) break;
      rows += (*i)->rows;
      batch.splice(batch.end(), queue->tasks, i);
    }
    i = next;
  }
  LeaveIfEmpty(queue);
  return batch;
}

void WaitingQueues::LeaveIfEmpty(WaitingQueue* queue) {
  if (!queue->tasks.empty()) return;
  const auto place = std::find(ring_.begin(), ring_.end(), queue);
  MR_DCHECK(place != ring_.end(), "a queue with tasks is in the ring");
  queue->seat.splice(queue->seat.end(), ring_, place);
}

}  // namespace millrace
