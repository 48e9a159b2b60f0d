// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_BATCHING_BATCH_TASK_H_
#define MILLRACE_SERVING_BATCHING_BATCH_TASK_H_

// BatchTask: the rows of one request, or a part of them, on their way through a queue into a batch.
//
//   waits in a queue --> taken into a batch --> done      who: the thread that runs the batch
//                   \--> given up                         who: the request's own thread
//
// A request's thread makes its tasks, puts them into a queue and waits; they live on its stack
// until each is done or given up. What is given up was not taken: a batch waits for no request.
//
// Lists of tasks are of pointers in nodes that the tasks bring along, and change hands by splicing:
// no queue needs memory while its lock is held.
//
// Thread-safety: what is said to be the queue's is guarded by the lock of the queue; what is the
// batch's belongs to the thread that runs the batch, from the taking until `waiter` hears of it.

#include <cstdint>
#include <list>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "serving/step_bounds.h"

namespace millrace {

struct BatchTask;
using BatchTasks = std::list<BatchTask*>;

// A request's thread that waits. All fields are the queue's.
struct BatchWaiter {
  CondVar changed;
  int num_unfinished = 0;  // tasks that are neither done nor given up
  bool leads = false;      // it is to take a batch and run it itself
  bool is_cancelled = false;
};

struct BatchTask {
  BatchTask() = default;
  BatchTask(const BatchTask&) = delete;
  BatchTask& operator=(const BatchTask&) = delete;

  // Set before others see the task. At least one row.
  absl::Span<const Tensor> feeds;
  absl::Span<Tensor> results;
  StepBounds bounds;
  int64_t rows = 0;
  int64_t request_rows = 0;  // of the whole request; 0: this is not its first part
  absl::Time queued;
  bool is_part = false;  // feeds are rows of larger tensors: their addresses may suit no kernel
  BatchWaiter* waiter = nullptr;

  // The queue's.
  enum class State { kOutside, kWaits, kTaken };  // drawn above; done is outside, too
  State state = State::kOutside;
  BatchTasks seat{this};  // the task's node, here until it is in a list

  // The batch's. Results are empty after an error.
  Status status;
};

}  // namespace millrace

#endif  // MILLRACE_SERVING_BATCHING_BATCH_TASK_H_
