// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_CLUSTER_TASK_H_
#define MILLRACE_TOOLS_CLUSTER_TASK_H_

// One task of a cluster on this machine: its process, what it wrote and why it ended.
//
// Thread-safety: thread-compatible.

#include <sys/types.h>

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/owned_fd.h"
#include "core/status.h"
#include "tools/task_output.h"
#include "tools/task_record.h"

namespace millrace {

enum class TaskRole { kPs, kChief, kWorker, kEvaluator };

struct ClusterTask {
  // Lines that come after one that says that a port is in use, until that is not why a task ended.
  static constexpr int kPortLines = 50;

  std::string launcher = "launch";  // who starts and kills it, in reasons
  TaskRole role = TaskRole::kWorker;
  std::string job;
  int index = 0;
  std::string address;  // "" for an evaluator
  bool shown = true;    // its lines are

  pid_t pid = -1;  // -1: not running
  OwnedFd pipe;    // its stdout and stderr
  TaskOutput output;
  std::unique_ptr<WritableFile> log;
  std::deque<std::string> hidden;  // the last lines that were not shown
  std::string last_line;           // what it said last, see Note
  absl::Time started;
  absl::Duration ran;
  int starts = 0;
  int lines_since_port = kPortLines;  // since its output said that its port is in use
  bool started_alone = false;         // not with all others: it had its port once
  std::string asked;                  // to end: why; "" = not
  // Asked to end by itself, while the job goes on: when it is killed.
  absl::Time own_deadline = absl::InfiniteFuture();
  bool waits_for_start = false;  // a worker that nobody has asked for yet, or any more
  bool killed_by_grace = false;  // it was asked to end and did not
  int wait_status = 0;           // of the last run

  // A line of its output: what it said last, unless the line is blank. Without the time and place
  // of a log line; a line that begins with a blank or a tab goes on with the message before it
  // ("\t [[{{node dense/MatMul}}]]"), whose text says more.
  void Note(absl::string_view line);

  std::string name() const;
  bool running() const { return pid > 0; }
  bool port_in_use() const { return lines_since_port < kPortLines; }
  bool trainer() const { return role == TaskRole::kChief || role == TaskRole::kWorker; }
  // 128 + n for signal n.
  int code() const;
  bool succeeded() const { return starts > 0 && !running() && code() == 0; }
  // By a signal, or by its own handler of one.
  bool was_killed() const;
  // "ended with code 3", "was killed by signal 9 (Killed)".
  std::string ending() const;
  // Why it ended so, for a person: "done", "asked to end: all trainers had ended", "not asked;
  // last line: ...".
  std::string reason() const;
  // All of it, at this time.
  TaskRecord record(absl::Time now) const;
};

// The line of a task in the table at the end, and the one above it.
std::string TaskTableHead();
std::string TaskTableRow(const ClusterTask& task);

// Which tasks' lines are shown: a list like "chief,worker-1"; an empty one stands for all.
class TaskFilter {
 public:
  // InvalidArgument, naming the part, for one that is not ROLE or ROLE-INDEX.
  // `flag` names it in messages.
  static StatusOr<TaskFilter> Parse(absl::string_view text, absl::string_view flag = "--show");
  bool Matches(absl::string_view job, int index) const;
  bool is_empty() const { return parts_.empty(); }
  // The first part that matches none of the tasks; "" when there is none.
  std::string Unused(const std::vector<std::pair<std::string, int>>& tasks) const;

 private:
  struct Part {
    std::string job;
    int index = -1;  // -1: every one
    bool Matches(absl::string_view other, int i) const {
      return job == other && (index < 0 || index == i);
    }
  };
  std::vector<Part> parts_;
};

}  // namespace millrace

#endif  // MILLRACE_TOOLS_CLUSTER_TASK_H_
