// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TRAIN_PS_LOAD_H_
#define MILLRACE_TRAIN_PS_LOAD_H_

// PsLoad: how many bytes of variables, slots among them, a graph puts on each parameter server.
//
//   LogPsLoad("Train", PsLoad::Of(*scope.graph()));
//   // Train: variables on the parameter servers: /job:ps/task:0 4000 bytes, /job:ps/task:1 480
//   bytes;
//   // /job:ps/task:0 has 1.8 times the mean: cut 'emb', 4000 bytes, into parts with a partitioner
//
// It reads the devices that nodes ask for, whoever has chosen them. The slowest parameter server
// makes the step, so more than 1.5 times the mean is said with what helps: where one variable is
// more than half of the mean, only parts of it do; else another placing, since a greedy one never
// passes the mean by more than its last variable.
//
// Plain values. Nothing fails: devices that cannot be read are the placer's to refuse.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "graph/graph.h"

namespace millrace {

struct PsLoad {
  struct Task {
    int task = 0;
    int64_t bytes = 0;
    std::string largest = "";  // the name of its largest variable
    int64_t largest_bytes = 0;
  };
  std::vector<Task> tasks;  // by number
  int64_t num_unknown = 0;  // variables there whose size is not known; they count a byte each

  // Of variables whose node asks for a task of job "ps". `ps_tasks` are there even without one.
  static PsLoad Of(const Graph& graph, absl::Span<const int> ps_tasks = {});

  // The task with the most bytes; the lowest of several. Null when there is none.
  const Task* Fullest() const;
  // Of the fullest task, in means of all; 0 when there are no bytes.
  double FullestInMeans() const;
  // One line.
  std::string ToString() const;
};

// One line of the log, unless there are less than two parameter servers.
void LogPsLoad(absl::string_view speaker, const PsLoad& load);

}  // namespace millrace

#endif  // MILLRACE_TRAIN_PS_LOAD_H_
