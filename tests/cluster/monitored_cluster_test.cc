// SPDX-License-Identifier: Apache-2.0
//
// MonitoredTrainingSession on a cluster whose tasks are threads of this process.

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/time.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/replica_device_setter.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "run/run_file.h"
#include "run/training_run.h"
#include "runtime/session.h"
#include "saver/saver.h"
#include "tests/cluster/cluster_in_process.h"
#include "tests/cluster/process.h"
#include "train/gradient_descent.h"
#include "train/hooks/hooks.h"
#include "train/hooks/monitored_training_session.h"
#include "train/optimizer.h"

// covers: training: hooks of tasks that share steps stop, restore and stop early together

namespace millrace {
namespace {

// y = w x, to be 3 x; variables on the parameter server.
struct Model {
  explicit Model(const ClusterConfig& config) {
    const Scope model = root.WithDevice(ReplicaDeviceSetter(config));
    x = Placeholder(model.WithName("x"), DT_FLOAT, {-1});
    y = Placeholder(model.WithName("y"), DT_FLOAT, {-1});
    w = MakeVariable(model.WithName("w"), Const(model, 0.0f));
    loss = ReduceMean(model, Square(model, Sub(model, Mul(model, w.value, x), y)));
    step = GlobalStep(model);
    op = GradientDescentOptimizer({.learning_rate = 0.05})
             .Minimize(model, loss, {.global_step = step});
  }
  std::vector<Feed> Batch() const {
    return {{x, Tensor::Of<float>({1, 2})}, {y, Tensor::Of<float>({3, 6})}};
  }
  Scope root;
  Output x, y, loss;
  Variable w, step;
  Operation op;
};

// Calls a function after each run.
class EachRun : public SessionRunHook {
 public:
  explicit EachRun(std::function<void(int64_t run)> f) : f_(std::move(f)) {}
  std::string name() const override { return "EachRun"; }
  Status AfterRun(RunContext* context, const RunValues&) override {
    f_(context->run_number());
    return absl::OkStatus();
  }

 private:
  const std::function<void(int64_t)> f_;
};

class MonitoredClusterTest : public ClusterInProcessTest {
 protected:
  MonitoredClusterTest() : ClusterInProcessTest("monitored_cluster") {}

  struct Result {
    Status status;
    int64_t runs = 0;
    int recoveries = 0;
  };
  // A task's whole life.
  Result Train(const std::string& job, int64_t last_step, std::function<void(int64_t)> each_run) {
    const Model model(configs_[job]);
    StopAtStepHook stop({.last_step = last_step});
    NanTensorHook nan(model.loss);
    LoggingTensorHook logging({.tensors = {{"loss", model.loss}}, .every = 100});
    EachRun each([&](int64_t run) {
      if (each_run) each_run(run);
    });
    MonitoredTrainingSessionOptions options;
    options.target = servers_[job]->target();
    options.is_chief = configs_[job].is_chief();
    options.checkpoint_dir = run_dir();
    options.save_checkpoint_every = 100;
    options.hooks = {&stop, &nan, &logging, &each};
    options.recovery_wait = absl::Milliseconds(10);
    options.max_wait = absl::Seconds(60);
    Result result;
    auto session = MonitoredTrainingSession(model.root, options);
    result.status = session.status();
    if (!session.ok()) return result;
    const auto step = (*session)->Prepare({model.x, model.y}, {model.loss}, {model.op});
    EXPECT_OK(step.status());
    const std::vector<Tensor> batch = {Tensor::Of<float>({1, 2}), Tensor::Of<float>({3, 6})};
    Tensor loss;
    result.status = (*session)->Loop([&] {
      ++result.runs;
      return step->RunInto(batch, absl::MakeSpan(&loss, 1));
    });
    result.recoveries = (*session)->recoveries();
    return result;
  }
  std::string run_dir() const { return dir_ + "/run"; }
};

TEST_F(MonitoredClusterTest, TasksShareTheStepsAndTheChiefEndsTheRun) {
  constexpr int64_t kSteps = 300;
  Result of_worker;
  std::thread thread([&] { of_worker = Train("worker", kSteps, nullptr); });
  const Result of_chief = Train("master", kSteps, nullptr);
  thread.join();
  EXPECT_OK(of_chief.status);
  // It may come when all is done, and hears so.
  if (RunEndOf(of_worker.status).has_value()) {
    EXPECT_EQ(ExitCode(of_worker.status), kExitOk);
  } else {
    EXPECT_OK(of_worker.status);
  }
  EXPECT_GE(of_chief.runs + of_worker.runs, kSteps);
  // The step that a task is at, and one more that began with a step that was still below the last.
  EXPECT_LE(of_chief.runs + of_worker.runs, kSteps + 4);
  const auto latest = LatestCheckpoint(FileSystem::Posix(), run_dir());
  ASSERT_TRUE(latest.has_value());
  EXPECT_GE(StepOfCheckpoint(*latest), kSteps);
  ASSERT_OK_AND_ASSIGN(const auto end, ReadRunEnd(FileSystem::Posix(), run_dir()));
  ASSERT_TRUE(end.has_value());
  EXPECT_GE(end->global_step, kSteps);
  EXPECT_EQ(end->goal, kSteps);

  // One that comes later has nothing to do.
  const Result late = Train("worker", kSteps, nullptr);
  EXPECT_TRUE(RunEndOf(late.status).has_value()) << late.status;
  EXPECT_EQ(ExitCode(late.status), kExitOk);
  EXPECT_EQ(late.runs, 0);
}

// Another client empties the run's container on the servers: both tasks lose their variables.
TEST_F(MonitoredClusterTest, AfterALossTheChiefRestoresTheOthersWaitAndBothGoOn) {
  constexpr int64_t kSteps = 1500;
  Notification joined, has_reset;
  Result of_worker;
  std::thread thread([&] {
    of_worker = Train("worker", kSteps, [&](int64_t run) {
      if (run == 2) joined.Notify();
      // Slower than the chief until it has met the reset.
      if (run == 3) {
        EXPECT_TRUE(has_reset.WaitFor(absl::Seconds(30)));
      }
    });
  });
  ::testing::internal::CaptureStderr();
  const Result of_chief = Train("master", kSteps, [&](int64_t run) {
    if (run != 250) return;
    EXPECT_TRUE(joined.WaitFor(absl::Seconds(30)));
    const auto run_file = ReadRunFile(FileSystem::Posix(), run_dir());
    EXPECT_OK(run_file.status());
    EXPECT_OK(ResetTarget({.target = servers_["ps"]->target()}, {(*run_file)->id}));
    has_reset.Notify();
  });
  thread.join();
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_OK(of_chief.status) << log;
  EXPECT_OK(of_worker.status) << log;
  EXPECT_GE(of_chief.recoveries, 1) << log;
  EXPECT_TRUE(absl::StrContains(log, "MonitoredSession: restored 2 variables from ")) << log;
  EXPECT_GE(of_chief.runs + of_worker.runs, kSteps);
}

TEST_F(MonitoredClusterTest, TheSignalOfEarlyStoppingReachesTheOtherTasks) {
  Notification worker_trains;
  const auto task = [&](const std::string& job) -> Status {
    const Model model(configs_[job]);
    EarlyStoppingHook early({.is_chief = configs_[job].is_chief(),
                             .should_stop = [&] { return worker_trains.HasBeenNotified(); },
                             .every = 1});
    EachRun each([&](int64_t run) {
      if (job == "worker" && run == 2) worker_trains.Notify();
    });
    MonitoredTrainingSessionOptions options;
    options.target = servers_[job]->target();
    options.is_chief = configs_[job].is_chief();
    options.checkpoint_dir = run_dir();
    options.hooks = {&early, &each};
    options.recovery_wait = absl::Milliseconds(10);
    options.max_wait = absl::Seconds(60);
    MR_ASSIGN_OR_RETURN(const auto session, MonitoredTrainingSession(model.root, options));
    return session->Loop(
        [&] { return session->Run(model.Batch(), {model.loss}, {model.op}).status(); });
  };
  Status of_worker = absl::UnknownError("not yet");
  std::thread thread([&] { of_worker = task("worker"); });
  EXPECT_OK(task("master"));
  thread.join();
  EXPECT_OK(of_worker);
  ASSERT_OK_AND_ASSIGN(const auto end, ReadRunEnd(FileSystem::Posix(), run_dir()));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->reason, "early stopping");
}

}  // namespace
}  // namespace millrace
