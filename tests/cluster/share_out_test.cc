// SPDX-License-Identifier: Apache-2.0
//
// Trainers of one run share their data out: a chief and a worker with a parameter server, servers
// of this process, train a model that counts how often it saw each example.
#include "data/share_out.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/notification.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "estimator/estimator.h"
#include "estimator/input_fn.h"
#include "estimator/model_fn.h"
#include "estimator/run_config.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"
#include "tests/cluster/process.h"
#include "train/session_run_hook.h"

// covers: training: trainers of a cluster share the data out, each example once an epoch; what a
//   trainer that ended held is trained by others

namespace millrace {
namespace {

constexpr int64_t kExamples = 24, kPerShard = 4, kBatch = 2;

EstimatorSpec Count(const Scope& scope, const Features& features, const Labels&, Mode mode) {
  const Output examples = features.single();
  const Variable times = MakeVariable(scope.WithName("times"), Shape{kExamples}, DT_INT64,
                                      ZerosInitializer(), {.trainable = false});
  EstimatorSpec spec{.mode = mode, .predictions = times.value};
  spec.loss = ReduceMean(scope, Cast(scope, examples, DT_FLOAT));
  const Operation add =
      ResourceScatterAdd(scope, times.handle, examples, OnesLike(scope, examples));
  spec.train_op = AssignAddVariableOp(scope.WithControlDependencies({add}),
                                      GlobalStep(scope).handle, Const(scope, int64_t{1}));
  return spec;
}

Input Shared(int64_t num_epochs) {
  SharedFiles shared;
  for (int64_t begin = 0; begin < kExamples; begin += kPerShard) {
    shared.shards.push_back({"numbers", begin, begin + kPerShard});
  }
  shared.read = [](const data::Shard& shard) -> StatusOr<data::Dataset> {
    return data::Dataset::Range(shard.begin, shard.end).Batch(kBatch);
  };
  shared.num_epochs = num_epochs;
  return Input(std::move(shared));
}

// Waits before its first run.
class WaitHook : public SessionRunHook {
 public:
  explicit WaitHook(Notification* until) : until_(until) {}
  std::string name() const override { return "WaitHook"; }
  StatusOr<GroupMask> BeforeRun(RunContext*) override {
    until_->Wait();
    return kNoGroups;
  }

 private:
  Notification* const until_;
};

// Ends its trainer with an error after its first run.
class FailHook : public SessionRunHook {
 public:
  std::string name() const override { return "FailHook"; }
  Status AfterRun(RunContext*, const RunValues&) override {
    return absl::DataLossError("the trainer ends here");
  }
};

class ShareOutClusterTest : public ::testing::Test {
 protected:
  ShareOutClusterTest()
      : dir_(JoinPath(::testing::TempDir(), absl::StrCat("share_out_", RandomHexName()))) {
    ports_ = FreeClusterPorts(2, 0, 1);
    ports_.host = "127.0.0.1";
    ports_.chief = {ports_.ps.back()};
    ports_.ps.pop_back();
    for (const char* job : {"ps", "chief", "worker"}) {
      const auto config = ClusterConfig::Parse(TfConfig(ports_, job, 0));
      EXPECT_OK(config);
      auto server = Server::Start(*config);
      EXPECT_OK(server);
      servers_.push_back(*std::move(server));
    }
  }
  ~ShareOutClusterTest() override { FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError(); }

  Status Train(const std::string& job, int64_t num_epochs, const TrainCall& call = {}) {
    MR_ASSIGN_OR_RETURN(const RunConfig config,
                        RunConfig::Make({.model_dir = dir_,
                                         .experimental_max_worker_delay_secs = 0.0,
                                         .session_creation_timeout_secs = 60.0},
                                        TfConfig(ports_, job, 0)));
    MR_ASSIGN_OR_RETURN(auto estimator, Estimator::Make(Count, {.config = config}));
    return estimator.Train([num_epochs] { return Shared(num_epochs); }, call).status();
  }
  // By the last checkpoint.
  std::vector<int64_t> Times() {
    const std::optional<std::string> latest = LatestCheckpoint(FileSystem::Posix(), dir_);
    EXPECT_TRUE(latest.has_value());
    if (!latest) return {};
    const auto reader = BundleReader::Open(FileSystem::Posix(), *latest);
    EXPECT_OK(reader);
    const auto times = (*reader)->Read("times");
    EXPECT_OK(times);
    if (!times.ok()) return {};
    const absl::Span<const int64_t> values = times->raw<int64_t>();
    return std::vector<int64_t>(values.begin(), values.end());
  }

  const std::string dir_;
  ClusterPorts ports_;
  std::vector<std::unique_ptr<Server>> servers_;
};

TEST_F(ShareOutClusterTest, TwoTrainersTrainEachExampleOnceAnEpoch) {
  constexpr int64_t kEpochs = 3;
  Status worker;
  std::thread trains([&] { worker = Train("worker", kEpochs); });
  EXPECT_OK(Train("chief", kEpochs));
  trains.join();
  EXPECT_OK(worker);
  EXPECT_EQ(Times(), std::vector<int64_t>(kExamples, kEpochs));
}

// The worker has the first two shards in hand, one of them begun, when it ends after one step; the
// chief, which has waited for that, trains all shards. So two examples are trained twice.
TEST_F(ShareOutClusterTest, WhatATrainerHeldIsTrainedByOthers) {
  Notification worker_ended;
  Status chief;
  std::thread trains(
      [&] { chief = Train("chief", 1, {.hooks = {std::make_shared<WaitHook>(&worker_ended)}}); });
  EXPECT_STATUS(Train("worker", 1, {.hooks = {std::make_shared<FailHook>()}}),
                absl::StatusCode::kDataLoss, "the trainer ends here");
  worker_ended.Notify();
  trains.join();
  EXPECT_OK(chief);
  std::vector<int64_t> want(kExamples, 1);
  for (int64_t i = 0; i < kBatch; ++i) want[static_cast<size_t>(i)] = 2;
  EXPECT_EQ(Times(), want);
}

}  // namespace
}  // namespace millrace
