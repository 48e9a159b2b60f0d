// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_TASK_OUTPUT_H_
#define MILLRACE_TOOLS_TASK_OUTPUT_H_

// What tasks of a cluster write, as a terminal would show it: lines that stay, and a status that
// is written over.
//
// Thread-safety: thread-compatible.

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace millrace {

// Splits a task's output into lines as a terminal would show them: what a '\r' overwrites is a
// status, not a line.
class TaskOutput {
 public:
  // Appends complete lines of `data` to `lines`; true when the status has changed.
  bool Add(absl::string_view data, std::vector<std::string>* lines);
  // The line that was not ended, if any.
  void Finish(std::vector<std::string>* lines);
  // The unfinished line that began with '\r'; "" when there is none.
  const std::string& status() const { return status_; }

 private:
  std::string line_;
  bool after_return_ = false;  // line_ began with '\r'
  bool return_seen_ = false;   // the last character was '\r'
  std::string status_;
};

struct TaskStatus {
  std::string task;  // "worker 0"
  std::string text;
};

// One line of at most `width` bytes for all of them:
//
//   [chief 0] step 12/90  loss 3.21  15.2 steps/s | [worker 0] step 11/90  loss 3.4
//
// Where that is too long the first one is whole, the others have their first field (fields are two
// blanks apart), and those that do not fit are counted: " | [worker 0] step 11/90 | +3".
std::string JoinStatuses(absl::Span<const TaskStatus> statuses, size_t width);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_TASK_OUTPUT_H_
