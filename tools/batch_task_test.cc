// SPDX-License-Identifier: Apache-2.0
//
// Who a process of a batch prediction is.
#include "tools/batch_task.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

StatusOr<BatchTaskRole> RoleIn(const std::string& cluster, const std::string& job, int task) {
  MR_ASSIGN_OR_RETURN(
      const ClusterConfig config,
      ClusterConfig::Parse(absl::StrCat("{\"cluster\": {", cluster, "}, \"task\": {\"type\": \"",
                                        job, "\", \"index\": ", task, "}}")));
  return BatchTaskRoleOf(std::nullopt, std::nullopt, config);
}

TEST(BatchTaskTest, TfConfigSaysWhichTask) {
  const std::string cluster = R"("ps": ["a:1"], "chief": ["b:1"], "worker": ["c:1", "d:1", "e:1"])";
  ASSERT_OK_AND_ASSIGN(const BatchTaskRole chief, RoleIn(cluster, "chief", 0));
  ASSERT_TRUE(chief.task.has_value());
  EXPECT_EQ(chief.task->name, "chief 0");
  EXPECT_EQ(chief.task->index, 0);
  EXPECT_EQ(chief.task->num_tasks, 4);
  ASSERT_OK_AND_ASSIGN(const BatchTaskRole worker, RoleIn(cluster, "worker", 2));
  ASSERT_TRUE(worker.task.has_value());
  EXPECT_EQ(worker.task->name, "worker 2");
  EXPECT_EQ(worker.task->index, 3);
  // Numbers of workers may have gaps.
  ASSERT_OK_AND_ASSIGN(const BatchTaskRole sparse,
                       RoleIn(R"("worker": {"1": "a:1", "5": "b:1"})", "worker", 5));
  ASSERT_TRUE(sparse.task.has_value());
  EXPECT_EQ(sparse.task->index, 1);
  EXPECT_EQ(sparse.task->num_tasks, 2);
}

TEST(BatchTaskTest, OthersAreIdle) {
  const std::string cluster = R"("ps": ["a:1"], "master": ["b:1"])";
  for (const char* job : {"ps", "evaluator"}) {
    ASSERT_OK_AND_ASSIGN(const BatchTaskRole role, RoleIn(cluster, job, 0));
    EXPECT_FALSE(role.task.has_value()) << job;
    EXPECT_EQ(role.idle, absl::StrCat(job, " 0"));
  }
  ASSERT_OK_AND_ASSIGN(const BatchTaskRole alone,
                       BatchTaskRoleOf(std::nullopt, std::nullopt, ClusterConfig()));
  EXPECT_FALSE(alone.task.has_value());
  EXPECT_EQ(alone.idle, "");
}

TEST(BatchTaskTest, FlagsSayWhichTask) {
  ASSERT_OK_AND_ASSIGN(const BatchTaskRole role, BatchTaskRoleOf(1, 3, ClusterConfig()));
  ASSERT_TRUE(role.task.has_value());
  EXPECT_EQ(role.task->name, "task 1");
  EXPECT_EQ(role.task->index, 1);
  EXPECT_EQ(role.task->num_tasks, 3);
  EXPECT_STATUS(BatchTaskRoleOf(3, 3, ClusterConfig()), absl::StatusCode::kInvalidArgument,
                "--task_index must be in [0, --num_tasks = 3), got 3");
  EXPECT_STATUS(BatchTaskRoleOf(3, std::nullopt, ClusterConfig()),
                absl::StatusCode::kInvalidArgument,
                "must be given together, got only --task_index");
}

}  // namespace
}  // namespace millrace
