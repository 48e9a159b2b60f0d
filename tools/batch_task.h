// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_TOOLS_BATCH_TASK_H_
#define MILLRACE_TOOLS_BATCH_TASK_H_

// Which task of a batch prediction a process is: as its flags say, else as TF_CONFIG says.
//
//   --task_index 1 --num_tasks 3     task 1
//   chief, master, worker i          that one; the chief or master is the first
//   ps, evaluator                    none: each task has the model itself
//   no cluster                       the only process
//
// Thread-safety: pure. Failure: InvalidArgument.

#include <optional>
#include <string>

#include "core/status.h"
#include "distributed/cluster/cluster.h"
#include "tools/batch_predict_job.h"

namespace millrace {

struct BatchTaskRole {
  std::optional<BatchPredictTask> task = {};  // none: alone, or idle
  std::string idle = "";                      // "ps 0": nothing is to be done
};

// `index` and `num_tasks`: the flags, both or none.
StatusOr<BatchTaskRole> BatchTaskRoleOf(std::optional<int> index, std::optional<int> num_tasks,
                                        const ClusterConfig& cluster);

}  // namespace millrace

#endif  // MILLRACE_TOOLS_BATCH_TASK_H_
