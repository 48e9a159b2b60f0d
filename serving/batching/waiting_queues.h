// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_BATCHING_WAITING_QUEUES_H_
#define MILLRACE_SERVING_BATCHING_WAITING_QUEUES_H_

// WaitingQueues: the tasks that wait for a place to run, and which of them go next, without
// threads.
//
// The queues that have tasks stand in a ring. The next leader is the first task of the first queue,
// which then goes to the end of the ring: a busy step takes no turn of another one. When the leader
// begins, it takes along what waits in its queue and fits.
//
// Invariant: a queue is in the ring exactly while it has tasks.
//
// Thread-safety: none. Failure: none; nothing allocates.

#include <cstdint>
#include <list>

#include "serving/batching/batch_task.h"

namespace millrace {

// Tasks of one step, in the order in which they came.
struct WaitingQueue {
  WaitingQueue() = default;
  WaitingQueue(const WaitingQueue&) = delete;
  WaitingQueue& operator=(const WaitingQueue&) = delete;

  BatchTasks tasks;
  std::list<WaitingQueue*> seat{this};  // the queue's node, here while it is not in the ring
};

class WaitingQueues {
 public:
  // Behind the others. The queue lives until its last task has left.
  void Add(WaitingQueue* queue, BatchTask* task);
  // A task that waits in the queue gives up.
  void Remove(WaitingQueue* queue, BatchTask* task);
  // Takes it out of its queue. Null: none waits.
  BatchTask* NextLeader();
  // The leader, then all that wait in its queue and fit to it, until the next one makes more rows
  // than `max_rows`.
  BatchTasks TakeBatch(WaitingQueue* queue, BatchTask* leader, int64_t max_rows);

  bool empty() const { return ring_.empty(); }

 private:
  // Takes the queue from the ring when its last task has left.
  void LeaveIfEmpty(WaitingQueue* queue);

  std::list<WaitingQueue*> ring_;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_BATCHING_WAITING_QUEUES_H_
