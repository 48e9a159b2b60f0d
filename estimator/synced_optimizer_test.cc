// SPDX-License-Identifier: Apache-2.0
#include "estimator/synced_optimizer.h"

#include <cstdint>
#include <memory>
#include <string>

#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "estimator/run_config.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "train/adam.h"
#include "train/optimizer.h"
#include "train/sync_replicas.h"

// covers: training: RunConfig's sync wraps an optimizer where a job has several trainers, and there
//   alone; a model function that does not is an error

namespace millrace {
namespace {

constexpr char kCluster[] =
    R"({"cluster": {"chief": ["c:1"], "ps": ["p:1"], "worker": ["w:1", "w:2"]},
        "task": {"type": "worker", "index": 0}})";
constexpr char kNoWorkers[] =
    R"({"cluster": {"chief": ["c:1"], "ps": ["p:1"]}, "task": {"type": "chief", "index": 0}})";

RunConfig Config(const std::string& tf_config, MaybeNone<SyncTraining> sync) {
  const StatusOr<RunConfig> config = RunConfig::Make({.sync = sync}, tf_config);
  EXPECT_OK(config.status());
  return config.ok() ? *config : RunConfig();
}

bool IsWrapped(const std::shared_ptr<Optimizer>& optimizer) {
  return std::dynamic_pointer_cast<SyncReplicasOptimizer>(optimizer) != nullptr;
}

TEST(SyncedOptimizerTest, IsWrappedWhereTheJobHasSeveralTrainers) {
  const auto plain = std::make_shared<AdamOptimizer>();
  EXPECT_TRUE(IsWrapped(SyncedOptimizer(plain, Config(kCluster, SyncTraining{}))));
  for (const RunConfig& config : {Config(kCluster, kNoValue), Config("", SyncTraining{}),
                                  Config(kNoWorkers, SyncTraining{})}) {
    EXPECT_FALSE(SyncsTrainers(config));
    EXPECT_EQ(SyncedOptimizer(plain, config), plain);
  }
}

TEST(SyncedOptimizerTest, OneThatIsSynchronousStaysAsItIs) {
  const auto own = std::make_shared<SyncReplicasOptimizer>(
      std::make_shared<AdamOptimizer>(), SyncReplicasOptions{.replicas_to_aggregate = 2});
  EXPECT_EQ(SyncedOptimizer(own, Config(kCluster, SyncTraining{})), own);
}

struct Model {
  Scope root;
  Variable w = MakeVariable(root.WithName("w"), Const(root, 1.0f));
  Variable step = GlobalStep(root);
  Operation Minimize(const std::shared_ptr<Optimizer>& optimizer) {
    return optimizer->Minimize(root, Square(root, w.value), {.global_step = step});
  }
};

TEST(SyncedOptimizerTest, ATrainOpWithoutARoundIsAnError) {
  const RunConfig config = Config(kCluster, SyncTraining{});
  Model plain, synced;
  const Operation without = plain.Minimize(std::make_shared<AdamOptimizer>());
  const Operation with =
      synced.Minimize(SyncedOptimizer(std::make_shared<AdamOptimizer>(), config));
  ASSERT_OK(plain.root.status());
  ASSERT_OK(synced.root.status());
  EXPECT_STATUS(CheckIsSynced(without, config), absl::StatusCode::kInvalidArgument,
                "EstimatorSpec: train_op must be synchronous, since RunConfig's sync is given, got "
                "'Adam', which is not; make it with SyncedOptimizer(optimizer, config)");
  EXPECT_OK(CheckIsSynced(with, config));
  // What only runs with it counts too, as a group of it and of updates.
  EXPECT_OK(CheckIsSynced(Group(synced.root, {with}), config));
  EXPECT_OK(CheckIsSynced(without, Config("", SyncTraining{}))) << "one process";
  EXPECT_OK(CheckIsSynced(without, Config(kCluster, kNoValue)));
}

// 0 is all trainers but the backups: 3 - 1.
TEST(SyncedOptimizerTest, TheNumberIsThatOfTheTrainersByDefault) {
  Model model;
  const Operation train = model.Minimize(SyncedOptimizer(
      std::make_shared<AdamOptimizer>(), Config(kCluster, SyncTraining{.backup_workers = 1})));
  ASSERT_OK(model.root.status());
  EXPECT_EQ(train.name(), "sync_replicas");
  int64_t asked = 0;
  const Node* const rounds = model.root.graph()->FindNode("sync_replicas/rounds");
  ASSERT_NE(rounds, nullptr);
  ASSERT_OK_AND_ASSIGN(asked, GetAttr<int64_t>(*rounds, "replicas_to_aggregate"));
  EXPECT_EQ(asked, 2);
}

}  // namespace
}  // namespace millrace
