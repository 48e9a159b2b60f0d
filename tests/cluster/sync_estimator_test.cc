// SPDX-License-Identifier: Apache-2.0
//
// RunConfig's sync: a chief and a worker train one model as a chief with all of the data does.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "estimator/canned/dnn_linear_combined.h"
#include "estimator/columns/feature_column.h"
#include "estimator/estimator.h"
#include "estimator/input_fn.h"
#include "estimator/model_fn.h"
#include "estimator/run_config.h"
#include "estimator/synced_optimizer.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/losses.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"
#include "tests/cluster/process.h"
#include "train/adagrad.h"
#include "train/adam.h"
#include "train/ftrl.h"
#include "train/optimizer.h"

// covers: training: Estimators whose RunConfig asks for sync train one model together, a model
//   function's and a wide and deep one with its two optimizers: as one trainer does with all of the
//   data; a model function that does not wrap its optimizer is refused

namespace millrace {
namespace {

constexpr int64_t kSteps = 12;
constexpr size_t kRows = 8, kTrainers = 2;

struct Job {
  ClusterPorts ports;
  std::string dir = JoinPath(::testing::TempDir(), "sync_" + RandomHexName());
  std::unique_ptr<Server> ps;
};

StatusOr<std::unique_ptr<Server>> Start(const std::string& tf_config) {
  MR_ASSIGN_OR_RETURN(const ClusterConfig config, ClusterConfig::Parse(tf_config));
  return Server::Start(config);
}

StatusOr<Job> StartJob(int workers) {
  Job job;
  job.ports = FreeClusterPorts(2, 0, workers);
  job.ports.host = "127.0.0.1";
  job.ports.chief = {job.ports.ps.back()};
  job.ports.ps.pop_back();
  MR_ASSIGN_OR_RETURN(job.ps, Start(TfConfig(job.ports, "ps", 0)));
  return job;
}

// Rows [begin, end) of the data, each step.
InputFn Rows(size_t begin, size_t end) {
  return [begin, end](const Scope& scope) {
    std::vector<float> x, y;
    for (size_t i = begin; i < end; ++i) {
      x.push_back(0.25f * static_cast<float>(i) - 1);
      y.push_back(0.8f * x.back() + (i % 2 == 0 ? 0.3f : -0.1f));
    }
    const Output column = Const(scope, Tensor::Of<int32_t>({-1, 1}));
    return Input({{"x", Reshape(scope, Const(scope, Tensor::Vector<float>(x)), column)}},
                 Reshape(scope, Const(scope, Tensor::Vector<float>(y)), column));
  };
}

using MakeEstimator = Estimator (*)(const RunConfig& config);

StatusOr<TrainOutcome> TrainTask(MakeEstimator make, const std::string& dir,
                                 const std::string& tf_config, const InputFn& input) {
  MR_ASSIGN_OR_RETURN(const auto server, Start(tf_config));
  MR_ASSIGN_OR_RETURN(const RunConfig config,
                      RunConfig::Make({.model_dir = dir,
                                       .tf_random_seed = 7,
                                       .session_creation_timeout_secs = 120.0,
                                       .sync = SyncTraining{.start_wait = absl::Hours(1)}},
                                      tf_config));
  return make(config).Train(input, {.max_steps = kSteps});
}

StatusOr<Tensor> Saved(const std::string& dir, const std::string& name) {
  const std::optional<std::string> latest = LatestCheckpoint(FileSystem::Posix(), dir);
  if (!latest) return absl::NotFoundError(absl::StrCat("no checkpoint in ", dir));
  MR_ASSIGN_OR_RETURN(const auto reader, BundleReader::Open(FileSystem::Posix(), *latest));
  return reader->Read(name);
}

// Two trainers with half of the rows each, and one with all of them.
void ExpectAreOne(MakeEstimator make, const std::vector<std::string>& variables) {
  ASSERT_OK_AND_ASSIGN(const Job job, StartJob(1));
  StatusOr<TrainOutcome> of_worker = absl::UnknownError("not yet");
  std::thread worker([&] {
    of_worker =
        TrainTask(make, job.dir, TfConfig(job.ports, "worker", 0), Rows(kRows / kTrainers, kRows));
  });
  const StatusOr<TrainOutcome> of_chief =
      TrainTask(make, job.dir, TfConfig(job.ports, "chief", 0), Rows(0, kRows / kTrainers));
  worker.join();
  ASSERT_OK(of_chief.status());
  ASSERT_OK(of_worker.status());
  // Each step is one of both: the wait at the start is for both of them.
  EXPECT_EQ(of_chief->own_steps, kSteps);
  EXPECT_EQ(of_worker->own_steps, kSteps);

  ASSERT_OK_AND_ASSIGN(const Job alone, StartJob(0));
  ::testing::internal::CaptureStderr();
  const StatusOr<TrainOutcome> of_one =
      TrainTask(make, alone.dir, TfConfig(alone.ports, "chief", 0), Rows(0, kRows));
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_OK(of_one.status());
  EXPECT_TRUE(absl::StrContains(log, "RunConfig's sync does nothing here: there is one trainer"))
      << log;
  ASSERT_OK_AND_ASSIGN(const Tensor step, Saved(job.dir, "global_step"));
  EXPECT_EQ(step.scalar<int64_t>(), kSteps) << "counted once";
  for (const std::string& name : variables) {
    SCOPED_TRACE(name);
    ASSERT_OK_AND_ASSIGN(const Tensor want, Saved(alone.dir, name));
    ASSERT_OK_AND_ASSIGN(const Tensor got, Saved(job.dir, name));
    ExpectTensorNear(got, want, 1e-5, 1e-4);
  }
}

template <bool kWraps>
EstimatorSpec Line(const Scope& scope, const Features& features, const Labels& labels, Mode mode,
                   const Params&, const RunConfig& config) {
  const Variable w = MakeVariable(scope.WithName("w"), Const(scope, 0.1f));
  const Output y = Mul(scope, w.value, features["x"]);
  EstimatorSpec spec{.mode = mode, .predictions = y};
  if (mode == Mode::kPredict) return spec;
  const Output label = labels;
  spec.loss = ReduceMean(scope, Square(scope, Sub(scope, y, label)));
  if (mode == Mode::kEval) return spec;
  const auto plain = std::make_shared<AdamOptimizer>(AdamOptions{.learning_rate = 0.1});
  const std::shared_ptr<Optimizer> optimizer =
      kWraps ? SyncedOptimizer(plain, config) : std::shared_ptr<Optimizer>(plain);
  spec.train_op = optimizer->Minimize(scope, spec.loss, {.global_step = GlobalStep(scope)});
  return spec;
}

TEST(SyncEstimatorTest, TwoTrainersOfAModelFunctionAreOne) {
  ExpectAreOne(
      [](const RunConfig& config) { return *Estimator::Make(Line<true>, {.config = config}); },
      {"w", "w/Adam"});
}

TEST(SyncEstimatorTest, TwoOptimizersOfAModelAreOneRound) {
  ExpectAreOne(
      [](const RunConfig& config) {
        const NumericColumn x("x");
        return DNNLinearCombinedRegressor({.linear_feature_columns = {x},
                                           .linear_optimizer = FtrlOptions{.learning_rate = 0.1},
                                           .dnn_feature_columns = {x},
                                           .dnn_optimizer = AdagradOptions{.learning_rate = 0.05},
                                           .dnn_hidden_units = {4},
                                           .loss_reduction = LossReduction::kSumOverBatchSize},
                                          {.config = config});
      },
      {"linear/linear_model/x/weights", "dnn/hiddenlayer_0/kernel", "dnn/logits/bias"});
}

TEST(SyncEstimatorTest, AModelFunctionThatDoesNotWrapItsOptimizerIsRefused) {
  ASSERT_OK_AND_ASSIGN(const Job job, StartJob(1));
  EXPECT_STATUS(
      TrainTask(
          [](const RunConfig& config) { return *Estimator::Make(Line<false>, {.config = config}); },
          job.dir, TfConfig(job.ports, "chief", 0), Rows(0, kRows)),
      absl::StatusCode::kInvalidArgument, "train_op must be synchronous");
}

}  // namespace
}  // namespace millrace
