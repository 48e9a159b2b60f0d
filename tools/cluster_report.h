// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_CLUSTER_REPORT_H_
#define MILLRACE_TOOLS_CLUSTER_REPORT_H_

// Cluster report: what the tasks of a cluster say of themselves, as tables or as JSON.
//
//   task                address  state    incarnation       devices  sessions  running_steps
//   /job:ps/task:0      a:2222   answers  00000000000000ab        1         1              0
//   /job:worker/task:0  b:2222   absent   -                       -         -              -
//
// Below it: why tasks do not answer; who opened the sessions; what each task has exchanged with
// each other. "-": the task does not say. What comes from tasks is shown in printable ASCII.
//
// Thread-safety: pure functions. Failure: none.

#include <string>

#include "absl/types/span.h"
#include "distributed/task_status.h"

namespace millrace {

// Each line ends with "\n"; the last one says how many answer.
std::string ClusterReport(absl::Span<const TaskAnswer> tasks);

// One object on one line, without "\n":
//
//   {"asked": 2, "answering": 1, "tasks": [{
//     "address": "a:2222",         as it was asked
//     "asked_task": "/job:ps/task:0",    null with --target
//     "state": "answers",          or "other", "refuses", "absent" (distributed/task_status.h)
//     "reason": null,              a text for a task that does not answer
//     "task": "/job:ps/task:0", "job": "ps", "index": 0,    as it says; null without an answer
//     "incarnation": "00000000000000ab",    16 hex digits, another one after each start
//     "devices": [{"name", "type", "incarnation", "memory_limit_bytes"}],
//     "sessions": [{"master": "/job:worker/task:0", "open": 1, "running_steps": 0}],
//     "peers": [{"task", "messages_sent", "bytes_sent", "tensors_sent", "queued_ns",
//                "messages_received", "bytes_received", "tensors_received"}]}]}
//
// "sessions" and "peers" are null where the task does not say.
std::string ClusterReportJson(absl::Span<const TaskAnswer> tasks);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_CLUSTER_REPORT_H_
