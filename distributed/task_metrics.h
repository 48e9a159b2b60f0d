// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_DISTRIBUTED_TASK_METRICS_H_
#define MILLRACE_DISTRIBUTED_TASK_METRICS_H_

// TaskMetrics: a task of a cluster on the page of its process (core/process_metrics.h): its calls,
// its sessions, the bytes that it exchanged with each other task. docs/metrics.md lists them.
//
//   TaskMetrics metrics([this] { return Figures(); });   // on the page for as long as it lives
//
// Several tasks of one process differ by the label "task".
//
// Thread-safety: `read` is called from any thread, one call at a time, and makes or ends no
// TaskMetrics.
// Lifetime: the destructor waits for pages that read; what `read` uses lives longer.
// Failure: none.

#include <functional>
#include <string>
#include <vector>

#include "core/status.h"
#include "distributed/server_counts.h"

namespace millrace {

struct TaskFigures {
  struct Session {
    std::string master;  // the task whose master opened it; "": it did not say
    int running_steps = 0;
  };
  std::string task;  // "/job:ps/replica:0/task:0"
  bool is_serving = true;
  ServerCounts counts;
  std::vector<Session> sessions;  // that are open
};

class TaskMetrics {
 public:
  using Read = std::function<TaskFigures()>;
  explicit TaskMetrics(Read read);
  ~TaskMetrics();
  TaskMetrics(const TaskMetrics&) = delete;
  TaskMetrics& operator=(const TaskMetrics&) = delete;

  TaskFigures figures() const { return read_(); }

 private:
  const Read read_;
};

// Why this process is not healthy: the first of its tasks that is not serving. OK without tasks.
Status HealthOfTasks();

}  // namespace millrace

#endif  // MILLRACE_DISTRIBUTED_TASK_METRICS_H_
