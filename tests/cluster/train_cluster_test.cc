// SPDX-License-Identifier: Apache-2.0
//
// Train and LoadModel on a cluster whose tasks are threads of this process.
#include <signal.h>
#include <unistd.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/replica_device_setter.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "run/run_file.h"
#include "runtime/session.h"
#include "saver/loaded_model.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"
#include "tests/cluster/cluster_in_process.h"
#include "tests/cluster/process.h"
#include "train/gradient_descent.h"
#include "train/optimizer.h"
#include "train/train.h"

// covers: training: a job without a logdir reports what it lacks; a named one ends for all tasks
// covers: training: variables that another client resets are restored from the last checkpoint and
//   every task trains on
// covers: training: tasks that call `Train` share the steps; a signal ends every task and the chief
//   saves

namespace millrace {
namespace {

// y = w x, to be 3 x. Variables are on the parameter server; the scope that is given away has no
// device function.
struct Model {
  explicit Model(const ClusterConfig& config) {
    const Scope model = root.WithDevice(ReplicaDeviceSetter(config));
    x = Placeholder(model.WithName("x"), DT_FLOAT, {-1});
    y = Placeholder(model.WithName("y"), DT_FLOAT, {-1});
    w = MakeVariable(model.WithName("w"), Const(model, 0.0f));
    predicted = Mul(model.WithName("predicted"), w.value, x);
    loss = ReduceMean(model, Square(model, Sub(model, predicted, y)));
    op = GradientDescentOptimizer({.learning_rate = 0.05}).Minimize(model, loss);
  }
  Feeds Batch() const { return {{x, Tensor::Of<float>({1, 2})}, {y, Tensor::Of<float>({3, 6})}}; }
  Scope root;
  Output x, y, predicted, loss;
  Variable w;
  Operation op;
};

class TrainClusterTest : public ClusterInProcessTest {
 protected:
  TrainClusterTest() : ClusterInProcessTest("train_cluster") {}

  TrainOptions Options(const std::string& job, const Model& model, int64_t steps) {
    TrainOptions options;
    options.data = [&model] { return model.Batch(); };
    options.steps = steps;
    options.dir = dir_ + "/run";
    options.target = servers_[job]->target();
    options.is_chief = configs_[job].is_chief();
    options.loss = model.loss;
    options.save_every = 0;
    options.progress = false;
    options.supervisor.recovery_wait = absl::Milliseconds(10);
    options.supervisor.max_wait = absl::Seconds(60);
    return options;
  }
};

TEST_F(TrainClusterTest, TasksShareTheStepsAndTheModelIsExportedWithoutTheirDevices) {
  const Model chief(configs_["master"]), worker(configs_["worker"]);
  constexpr int64_t kSteps = 300;
  StatusOr<TrainResult> of_worker = absl::UnknownError("not yet");
  std::thread thread(
      [&] { of_worker = Train(worker.root, worker.op, Options("worker", worker, kSteps)); });
  TrainOptions options = Options("master", chief, kSteps);
  options.export_to = dir_ + "/model";
  options.signature = {.inputs = {{"x", chief.x}}, .outputs = {{"y", chief.predicted}}};
  const StatusOr<TrainResult> of_chief = Train(chief.root, chief.op, options);
  thread.join();
  ASSERT_OK(of_chief.status());
  ASSERT_OK(of_worker.status());
  // One counter, which each task may have passed by one step.
  EXPECT_GE(of_chief->global_step, kSteps);
  EXPECT_GE(of_worker->global_step, kSteps);
  const int64_t steps = of_chief->own_steps + of_worker->own_steps;
  EXPECT_GE(steps, kSteps);
  EXPECT_LE(steps, kSteps + 1);
  ASSERT_OK_AND_ASSIGN(const auto reader,
                       BundleReader::Open(FileSystem::Posix(), of_chief->checkpoint));
  ASSERT_OK_AND_ASSIGN(const Tensor saved, reader->Read("global_step"));
  EXPECT_GE(saved.scalar<int64_t>(), kSteps);

  const NamedTensors four = {{"x", Tensor::Of<float>({4})}};
  ASSERT_OK_AND_ASSIGN(const LoadedModel here, LoadModel(dir_ + "/model"));
  ASSERT_OK_AND_ASSIGN(const NamedTensors out, here.Predict(four));
  ExpectTensorNear(out.at("y"), TensorOf<float>({1}, {12}), 0, 0.01);

  // On a server the model has variables of its own, whatever others call theirs.
  const std::string target = servers_["master"]->target();
  ASSERT_OK_AND_ASSIGN(const auto session, NewSession({.target = target}));
  ASSERT_OK(session->Extend(chief.root));
  const Output initial(chief.w.initializer.node()->input(1).node, 0);
  ASSERT_OK(
      session->Run({{initial, Tensor::Scalar<float>(100)}}, {}, {chief.w.initializer}).status());
  ASSERT_OK_AND_ASSIGN(const LoadedModel there, LoadModel(dir_ + "/model", {.target = target}));
  ASSERT_OK_AND_ASSIGN(const NamedTensors same, there.Predict(four));
  EXPECT_EQ(same.at("y"), out.at("y"));
  ASSERT_OK_AND_ASSIGN(const auto w, session->Run({}, {chief.w.value}));
  EXPECT_EQ(w[0].scalar<float>(), 100);
}

// Nothing is saved; who comes late hears of the end from the parameter server.
TEST_F(TrainClusterTest, AJobWithoutADirectoryThatHasANameEndsForAllTasks) {
  const Model chief(configs_["master"]), worker(configs_["worker"]);
  const auto options = [&](const std::string& job, const Model& model) {
    TrainOptions named = Options(job, model, 20);
    named.dir = "";
    named.supervisor.session.run = {.name = "job7"};
    return named;
  };
  ASSERT_OK_AND_ASSIGN(const TrainResult of_chief,
                       Train(chief.root, chief.op, options("master", chief)));
  EXPECT_EQ(of_chief.own_steps, 20);
  EXPECT_EQ(of_chief.checkpoint, "");
  ASSERT_OK_AND_ASSIGN(const TrainResult of_worker,
                       Train(worker.root, worker.op, options("worker", worker)));
  EXPECT_EQ(of_worker.own_steps, 0);
}

TEST_F(TrainClusterTest, ASignalEndsEveryTaskAndTheChiefSaves) {
  const Model chief(configs_["master"]), worker(configs_["worker"]);
  StatusOr<TrainResult> of_worker = absl::UnknownError("not yet");
  std::thread thread([&] {
    TrainOptions options = Options("worker", worker, 1'000'000);
    int batches = 0;
    options.data = [&] {
      if (++batches == 200) ::kill(::getpid(), SIGTERM);
      return worker.Batch();
    };
    of_worker = Train(worker.root, worker.op, options);
  });
  const StatusOr<TrainResult> of_chief =
      Train(chief.root, chief.op, Options("master", chief, 1'000'000));
  thread.join();
  EXPECT_STATUS(of_chief.status(), absl::StatusCode::kCancelled,
                absl::StrCat("; saved ", dir_, "/run/model.ckpt-"));
  EXPECT_STATUS(of_worker.status(), absl::StatusCode::kCancelled,
                "; the chief keeps the checkpoints");
  EXPECT_EQ(ExitCode(of_chief.status()), 143);
  EXPECT_EQ(ExitCode(of_worker.status()), 143);
  EXPECT_TRUE(LatestCheckpoint(FileSystem::Posix(), dir_ + "/run").has_value());
}

// Another client empties the run's containers on every server, through the master of one of them,
// which closes that one's sessions, too.
TEST_F(TrainClusterTest, AResetByAnotherClientCostsTheStepsSinceTheLastCheckpointAndNoTask) {
  for (const char* through : {"ps", "worker", "master"}) {
    SCOPED_TRACE(absl::StrCat("through the master of ", through));
    const std::string dir = absl::StrCat(dir_, "/run_", through);  // a run of its own
    const Model chief(configs_["master"]), worker(configs_["worker"]);
    constexpr int64_t kSteps = 1500;
    Notification joined, has_reset, trains_on;
    StatusOr<TrainResult> of_worker = absl::UnknownError("not yet");
    std::thread thread([&] {
      TrainOptions options = Options("worker", worker, kSteps);
      options.dir = dir;
      // A step that is lost keeps its batch, so the next one is asked for by one that was not.
      int batches = 0, batches_at_reset = 0;
      options.data = [&] {
        if (++batches == 2) joined.Notify();
        // Else it makes all steps before the reset, where others are slow.
        if (batches == 500) {
          EXPECT_TRUE(has_reset.WaitFor(absl::Seconds(15)));
        }
        if (has_reset.HasBeenNotified()) {
          if (batches_at_reset == 0) batches_at_reset = batches;
          if (batches == batches_at_reset + 1) trains_on.Notify();
        }
        return worker.Batch();
      };
      of_worker = Train(worker.root, worker.op, options);
    });
    TrainOptions options = Options("master", chief, kSteps);
    options.dir = dir;
    options.save_every = 100;
    int batches_since = 0;  // the reset
    options.data = [&] {
      if (!has_reset.HasBeenNotified()) {
        // The reset comes when there is something to restore and both train.
        if (!LatestCheckpoint(FileSystem::Posix(), dir).has_value()) return chief.Batch();
        EXPECT_TRUE(joined.WaitFor(absl::Seconds(15)));
        const auto run = ReadRunFile(FileSystem::Posix(), dir);
        EXPECT_OK(run.status());
        EXPECT_OK(ResetTarget({.target = servers_[through]->target()}, {(*run)->id}));
        has_reset.Notify();
      } else if (++batches_since == 2) {
        EXPECT_TRUE(trains_on.WaitFor(absl::Seconds(15)));
      }
      return chief.Batch();
    };
    ::testing::internal::CaptureStderr();
    const StatusOr<TrainResult> of_chief = Train(chief.root, chief.op, options);
    thread.join();
    const std::string log = ::testing::internal::GetCapturedStderr();
    ASSERT_OK(of_chief.status());
    ASSERT_OK(of_worker.status());
    EXPECT_GE(of_chief->global_step, kSteps);
    EXPECT_TRUE(absl::StrContains(log, "Supervisor: restored 2 variables from ")) << log;
    EXPECT_GE(of_chief->own_steps + of_worker->own_steps, kSteps);
  }
}

}  // namespace
}  // namespace millrace
