// SPDX-License-Identifier: Apache-2.0
#include "tools/batch_task.h"

#include "absl/strings/str_cat.h"

namespace millrace {

StatusOr<BatchTaskRole> BatchTaskRoleOf(std::optional<int> index, std::optional<int> num_tasks,
                                        const ClusterConfig& cluster) {
  if (index.has_value() != num_tasks.has_value()) {
    return InvalidArgument("--task_index and --num_tasks must be given together, got only ",
                           index ? "--task_index" : "--num_tasks");
  }
  if (index) {
    if (*num_tasks < 1 || *index < 0 || *index >= *num_tasks) {
      return InvalidArgument("--task_index must be in [0, --num_tasks = ", *num_tasks, "), got ",
                             *index);
    }
    return BatchTaskRole{.task = BatchPredictTask{.index = *index,
                                                  .num_tasks = *num_tasks,
                                                  .name = absl::StrCat("task ", *index)}};
  }
  if (cluster.is_local()) return BatchTaskRole();
  const std::string name = absl::StrCat(cluster.job(), " ", cluster.task());
  BatchPredictTask task = {.index = -1, .num_tasks = 0, .name = name};
  for (const char* job : {"chief", "master", "worker"}) {
    for (const int i : cluster.cluster().tasks(job)) {
      if (job == cluster.job() && i == cluster.task()) task.index = task.num_tasks;
      ++task.num_tasks;
    }
  }
  if (task.index < 0) return BatchTaskRole{.idle = name};
  return BatchTaskRole{.task = task};
}

}  // namespace millrace
