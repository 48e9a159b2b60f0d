// SPDX-License-Identifier: Apache-2.0
//
// The TF_CONFIG of docs/clusters.md, as it stands there, for each task of its table.

#include <optional>
#include <string>

#include "absl/strings/str_replace.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "estimator/run_config.h"
#include "gtest/gtest.h"

// covers: clusters: the TF_CONFIG of the page on clusters is that of each task of its table

namespace millrace {
namespace {

constexpr char kTaskOfThePage[] = R"({"type": "worker", "index": 1})";

TEST(ClustersPageTest, TheTfConfigNamesEachTask) {
  ASSERT_OK_AND_ASSIGN(const std::string shown,
                       ReadFileToString(FileSystem::Posix(), "docs/tf_config.json"));
  const struct {
    const char* task;
    const char* job;
    int index;
    bool is_chief;
    int trainers;
    std::optional<int> number;  // among them; ps behind them
  } kTasks[] = {
      {R"({"type": "chief", "index": 0})", "chief", 0, true, 3, 0},
      {R"({"type": "worker", "index": 0})", "worker", 0, false, 3, 1},
      {kTaskOfThePage, "worker", 1, false, 3, 2},
      {R"({"type": "ps", "index": 0})", "ps", 0, false, 3, 3},
      {R"({"type": "ps", "index": 1})", "ps", 1, false, 3, 4},
      {R"({"type": "evaluator", "index": 0})", "evaluator", 0, false, 0, std::nullopt},
  };
  for (const auto& task : kTasks) {
    const std::string text = absl::StrReplaceAll(shown, {{kTaskOfThePage, task.task}});
    ASSERT_OK_AND_ASSIGN(const ClusterConfig cluster, ClusterConfig::Parse(text));
    EXPECT_EQ(cluster.job(), task.job);
    EXPECT_EQ(cluster.task(), task.index) << task.task;
    EXPECT_EQ(cluster.is_chief(), task.is_chief) << task.task;
    ASSERT_OK_AND_ASSIGN(const RunConfig config, RunConfig::Make({}, text));
    EXPECT_EQ(config.num_worker_replicas(), task.trainers) << task.task;
    EXPECT_EQ(config.global_id_in_cluster(), task.number) << task.task;
  }
}

}  // namespace
}  // namespace millrace
