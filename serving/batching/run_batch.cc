// SPDX-License-Identifier: Apache-2.0
#include "serving/batching/run_batch.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/exceptions.h"
#include "core/status.h"
#include "core/tensor.h"
#include "serving/run_step.h"
#include "serving/step_bounds.h"

namespace millrace {
namespace {

constexpr char kWhere[] = "Batch";

using Tensors = absl::InlinedVector<Tensor, 4>;

// No request sees it.
Status NotPerRow() { return FailedPrecondition("Batch: outputs are not known to be per row"); }

// The feeds of all tasks as those of one step with `padded_rows` rows.
StatusOr<Tensors> JoinFeeds(const BatchTasks& tasks, int64_t padded_rows, bool ragged) {
  Tensors joined;
  std::vector<const Tensor*> parts;
  for (size_t i = 0; i < tasks.front()->feeds.size(); ++i) {
    parts.clear();
    for (const BatchTask* task : tasks) parts.push_back(&task->feeds[i]);
    MR_ASSIGN_OR_RETURN(Tensor feed, JoinRows(parts, padded_rows, ragged));
    joined.push_back(std::move(feed));
  }
  return joined;
}

void TellStep(const BatchOfStep& batch, int64_t rows, int64_t padding) {
  if (batch.observer != nullptr) batch.observer->RanBatch(rows, padding);
}

// Not padded. The status is the task's.
void RunAlone(const BatchOfStep& batch, BatchTask* task) {
  TellStep(batch, task->rows, 0);
  task->status = NoExceptions(kWhere, [&]() -> Status {
    if (!task->is_part) {
      MR_RETURN_IF_ERROR(RunStep(batch.step, task->bounds, task->feeds, task->results));
    } else {
      MR_ASSIGN_OR_RETURN(const Tensors feeds, JoinFeeds({task}, task->rows, /*ragged=*/false));
      MR_RETURN_IF_ERROR(RunStep(batch.step, task->bounds, feeds, task->results));
    }
    batch.rows->Note(task->rows, task->results);
    return absl::OkStatus();
  });
}

// All tasks in one step, each with its rows. After an error they are to run otherwise, but the
// first one where it `ran_alone`.
Status RunTogether(const BatchOfStep& batch, const BatchTasks& tasks, bool* ran_alone) {
  return NoExceptions(kWhere, [&]() -> Status {
    int64_t rows = 0;
    StepBounds bounds = {.deadline = absl::InfinitePast()};
    for (const BatchTask* task : tasks) {
      rows += task->rows;
      bounds.deadline = std::max(bounds.deadline, task->bounds.deadline);
    }
    if (tasks.size() == 1) bounds.cancellation = tasks.front()->bounds.cancellation;
    const int64_t padded = PaddedBatchSize(batch.parameters->allowed_batch_sizes, rows);
    MR_ASSIGN_OR_RETURN(const Tensors feeds,
                        JoinFeeds(tasks, padded, batch.parameters->pad_variable_length_inputs));
    Tensors outputs(tasks.front()->results.size());
    TellStep(batch, padded, padded - rows);
    MR_RETURN_IF_ERROR(RunStep(batch.step, bounds, feeds, absl::MakeSpan(outputs)));
    if (!batch.rows->Note(padded, outputs)) return NotPerRow();
    if (!batch.rows->is_per_row() && padded > tasks.front()->rows) {
      // Another number of rows is the proof. Its outputs are as good as those of the batch.
      *ran_alone = true;
      RunAlone(batch, tasks.front());
      if (!batch.rows->is_per_row()) return NotPerRow();
    }
    int64_t begin = 0;
    for (BatchTask* task : tasks) {
      const bool has_results = task == tasks.front() && *ran_alone;
      for (size_t i = 0; i < outputs.size() && !has_results; ++i) {
        task->results[i] = outputs[i].Rows(begin, begin + task->rows);
      }
      begin += task->rows;
    }
    return absl::OkStatus();
  });
}

bool IsReadyToRun(const BatchOfStep& batch, const BatchTask& task) {
  return !task.is_part &&
         PaddedBatchSize(batch.parameters->allowed_batch_sizes, task.rows) == task.rows;
}

// Steps 2 to 5. As deep as the halves are many: log2 of the tasks.
void RunTasks(const BatchOfStep& batch, BatchTasks tasks,
              absl::FunctionRef<void(BatchTask* task)> end) {
  const bool is_one = tasks.size() == 1;
  bool ran_alone = false;  // the first one
  if (!(is_one && IsReadyToRun(batch, *tasks.front())) && !batch.rows->is_alone()) {
    const Status status = RunTogether(batch, tasks, &ran_alone);
    // Alone it would run the same rows again, unless its padding or splitting is at fault.
    const bool is_final = status.ok() || (is_one && !ran_alone && !batch.rows->is_alone());
    if (is_final && is_one && !ran_alone) tasks.front()->status = status;
    if (is_final) {
      for (BatchTask* task : tasks) end(task);
      return;
    }
    if (!is_one && !ran_alone && !batch.rows->is_alone()) {
      BatchTasks half;
      half.splice(half.begin(), tasks, tasks.begin(),
                  std::next(tasks.begin(), static_cast<std::ptrdiff_t>(tasks.size() / 2)));
      RunTasks(batch, std::move(half), end);
      RunTasks(batch, std::move(tasks), end);
      return;
    }
  }
  for (BatchTask* task : tasks) {
    if (!ran_alone) RunAlone(batch, task);
    ran_alone = false;
    end(task);
  }
}

}  // namespace

Status GivenUp(bool is_cancelled) {
  return is_cancelled ? absl::CancelledError("Request was cancelled before its step began")
                      : absl::ResourceExhaustedError(
                            "Run() timeout exceeded while waiting in batching queue");
}

Status EndedInQueue(const StepBounds& bounds, absl::Time now) {
  const bool is_cancelled = bounds.cancellation != nullptr && bounds.cancellation->IsCancelled();
  if (!is_cancelled && bounds.deadline > now) return absl::OkStatus();
  return GivenUp(is_cancelled);
}

void RunBatch(const BatchOfStep& batch, BatchTasks tasks,
              absl::FunctionRef<void(BatchTask* task)> done) {
  const auto end = [&](BatchTask* task) {
    if (!task->status.ok()) std::fill(task->results.begin(), task->results.end(), Tensor());
    done(task);
  };
  const absl::Time now = batch.clock->Now();
  for (auto i = tasks.begin(); i != tasks.end();) {
    BatchTask* const task = *i;
    if (batch.observer != nullptr && task->request_rows > 0) {
      batch.observer->LeftQueue(task->request_rows, now - task->queued);
    }
    task->status = NoExceptions(kWhere, [&] { return EndedInQueue(task->bounds, now); });
    if (task->status.ok()) {
      ++i;
      continue;
    }
    i = tasks.erase(i);
    end(task);
  }
  if (tasks.empty()) return;
  RunTasks(batch, std::move(tasks), end);
}

}  // namespace millrace
