// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_SERVING_BATCHING_RUN_BATCH_H_
#define MILLRACE_SERVING_BATCHING_RUN_BATCH_H_

// RunBatch: the tasks of a batch in one step, and what each of them gets.
//
//   1. tasks whose time is over, or that were cancelled, end
//   2. one task that needs no padding: a step of its own
//   3. others: their rows joined, one step within the latest deadline, each its rows
//   4. where joining or the step fails: each half in the same way, so that one bad task of n costs
//      2 log2(n) more steps
//   5. where outputs are not per row: each task in a step of its own
//
// Only the guilty fail: what ends a step of several tasks ends those whose own step it ends, too.
// Before rows of a step are split for the first time, it is proven that its outputs are per row
// (StepRows); where earlier runs had one number of rows only, this takes one more step.
//
// Thread-safety: any thread.
// Failure: of each task, in its status: ResourceExhausted for a deadline that passed before the
// batch began, with TensorFlow Serving's text; Cancelled; else what its step says. An exception is
// an error of the step.

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/status.h"
#include "serving/batching/batch_parameters.h"
#include "serving/batching/batch_rows.h"
#include "serving/batching/batch_task.h"
#include "serving/batching/batching_observer.h"
#include "serving/step_bounds.h"

namespace millrace {

class PreparedStep;  // runtime/session.h

// All live until RunBatch has returned, the step until the last task is done.
struct BatchOfStep {
  PreparedStep* step;
  StepRows* rows;
  const BatchParameters* parameters;
  Clock* clock;
  BatchingObserver* observer = nullptr;  // null: no one is told
};

// Calls `done` for each task once, as soon as its status and results are there; the task is gone
// then.
void RunBatch(const BatchOfStep& batch, BatchTasks tasks,
              absl::FunctionRef<void(BatchTask* task)> done);

// What a task ends with that is not run: it was cancelled, or its deadline passed.
Status GivenUp(bool is_cancelled);
// The same if its bounds say so at `now`.
Status EndedInQueue(const StepBounds& bounds, absl::Time now);

}  // namespace millrace

#endif  // MILLRACE_SERVING_BATCHING_RUN_BATCH_H_
