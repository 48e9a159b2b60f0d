// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_TASK_RECORD_H_
#define MILLRACE_TOOLS_TASK_RECORD_H_

// What is known of one task of a job, for programs: the rows of the table at a job's end, and the
// tasks in a job's state file.
//
// As JSON, one object a task:
//
//   {"task": "worker 1", "job": "worker", "index": 1, "address": "127.0.0.1:20017",
//    "state": "ended", "pid": null, "starts": 1, "seconds": 3.9, "exit_code": 137, "signal": 9,
//    "why": "Killed, not by launch; last line: Step: 200, loss: 0.31"}
//
//   state      waiting (never started) | running | ended
//   exit_code  128 + n for signal n; null unless ended
//   signal     null unless a signal ended it
//   address    null for an evaluator, which listens nowhere
//
// A value; thread-compatible. Failure: InvalidArgument for JSON that is no such object.

#include <optional>
#include <string>
#include <vector>

#include "core/status.h"
#include "nlohmann/json.hpp"

namespace millrace {

struct TaskRecord {
  enum class State { kWaiting, kRunning, kEnded };

  std::string job;
  int index = 0;
  std::string address = {};
  State state = State::kWaiting;
  std::optional<int> pid = {};
  int starts = 0;
  double seconds = 0;
  std::optional<int> exit_code = {};
  std::optional<int> signal = {};
  std::string why = {};
};

// Texts as they are: a task's last line may be no UTF-8 (error_handler_t::replace).
nlohmann::ordered_json ToJson(const std::vector<TaskRecord>& tasks);
// `where` names the source in messages.
StatusOr<std::vector<TaskRecord>> TaskRecordsFromJson(const nlohmann::json& json,
                                                      const std::string& where);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_TASK_RECORD_H_
