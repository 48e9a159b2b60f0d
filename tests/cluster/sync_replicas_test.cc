// SPDX-License-Identifier: Apache-2.0
//
// Synchronous training on a parameter server and two trainers, on loopback.
#include "train/sync_replicas.h"

#include <cstdint>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/replica_device_setter.h"
#include "distributed/server_counts.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "saver/tensor_bundle.h"
#include "tests/cluster/cluster_in_process.h"
#include "train/adagrad.h"
#include "train/adam.h"
#include "train/gradient_descent.h"
#include "train/hooks/monitored_training_session.h"
#include "train/optimizer.h"
#include "train/session_run_hook.h"
#include "train/train.h"

// covers: training: synchronous training of N workers with batches of b is one process with batches
//   of N b, dense and sparse; the mean of TensorFlow's documented example; data that end on one
//   worker first, and a worker that comes late, hold up nobody

namespace millrace {
namespace {

constexpr int kWorkers = 2;

std::unique_ptr<Optimizer> Descent(double rate) {
  return std::make_unique<GradientDescentOptimizer>(GradientDescentOptions{.learning_rate = rate});
}

// A weight and a table: rows of a batch are (x, id, y), y^ = x . w + table[id].
struct Model {
  Scope root;
  Output x, ids, y, loss;
  Variable w, table, step;
  Operation op;

  using MakeOptimizer = std::function<std::unique_ptr<Optimizer>()>;
  Model(const ClusterConfig* config, const MakeOptimizer& make) {
    const Scope s = config == nullptr ? root : root.WithDevice(ReplicaDeviceSetter(*config));
    x = Placeholder(s.WithName("x"), DT_FLOAT, {-1, 3});
    ids = Placeholder(s.WithName("ids"), DT_INT32, {-1});
    y = Placeholder(s.WithName("y"), DT_FLOAT, {-1});
    w = MakeVariable(s.WithName("w"), Const(s, Tensor::Of<float>({0.5f, -0.25f, 1})));
    table = MakeVariable(s.WithName("table"),
                         Const(s, Tensor::Of<float>({0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f})));
    step = GlobalStep(s);
    const Output rows = ResourceGather(s, table.handle, ids, DT_FLOAT);
    const Output all = Const(s, Tensor::Of<int32_t>({1}));
    const Output guess = Add(s, Sum(s, Mul(s, x, w.value), all), rows);
    loss = ReduceMean(s, Square(s, Sub(s, guess, y)));
    const std::unique_ptr<Optimizer> optimizer = make();
    op = optimizer->Minimize(s, loss, {.global_step = step});
  }

  // Rows [begin, end) of the data of a step.
  Feeds Rows(int at_step, int begin, int end) const {
    const int n = end - begin;
    Tensor xs = *Tensor::Zeros(DT_FLOAT, Shape{n, 3});
    Tensor rows = *Tensor::Zeros(DT_INT32, Shape{n});
    Tensor ys = *Tensor::Zeros(DT_FLOAT, Shape{n});
    for (int i = 0; i < n; ++i) {
      const int row = 16 * at_step + begin + i;
      for (int j = 0; j < 3; ++j) {
        xs.mutable_flat<float>()[static_cast<size_t>(3 * i + j)] =
            static_cast<float>((7 * row + 5 * j) % 11) / 11 - 0.5f;
      }
      rows.mutable_flat<int32_t>()[static_cast<size_t>(i)] = (3 * row) % 6;
      ys.mutable_flat<float>()[static_cast<size_t>(i)] = static_cast<float>(row % 5) / 5;
    }
    return {{x, xs}, {ids, rows}, {y, ys}};
  }
};

// By the number of parameter servers.
class SyncReplicasClusterTest : public ClusterInProcessTest,
                                public ::testing::WithParamInterface<int> {
 protected:
  SyncReplicasClusterTest() : ClusterInProcessTest("sync_replicas", GetParam()) {}

  static Model::MakeOptimizer Synchronous(Model::MakeOptimizer inner,
                                          SyncReplicasOptions options = {
                                              .replicas_to_aggregate = kWorkers}) {
    return [inner = std::move(inner), options]() -> std::unique_ptr<Optimizer> {
      return std::make_unique<SyncReplicasOptimizer>(inner(), options);
    };
  }

  TrainOptions Options(const std::string& job, const Model& model, const std::string& dir) {
    TrainOptions options;
    options.dir = absl::StrCat(dir_, "/", dir);
    options.target = servers_[job]->target();
    options.is_chief = configs_[job].is_chief();
    options.loss = model.loss;
    options.save_every = 0;
    options.progress = false;
    options.supervisor.recovery_wait = absl::Milliseconds(10);
    return options;
  }

  static Tensor Saved(const std::string& checkpoint, const std::string& name) {
    const auto reader = BundleReader::Open(FileSystem::Posix(), checkpoint);
    EXPECT_OK(reader.status());
    const StatusOr<Tensor> value = (*reader)->Read(name);
    EXPECT_OK(value.status());
    return *value;
  }
};

INSTANTIATE_TEST_SUITE_P(ParameterServers, SyncReplicasClusterTest, ::testing::Values(1, 2));

// The example of TensorFlow's documentation and tests: w = 0, gradients 1 and 3, rate 0.1: after
// one global step w = -0.2.
TEST_P(SyncReplicasClusterTest, TheMeanOfTwoGradientsIsAppliedOnce) {
  struct Graph {
    Scope root;
    Variable w, step;
    std::unique_ptr<SyncReplicasOptimizer> optimizer;
    Operation op;
  };
  const auto make = [](const ClusterConfig& config, float gradient) {
    Graph g;
    const Scope s = g.root.WithDevice(ReplicaDeviceSetter(config));
    g.w = MakeVariable(s.WithName("w"), Const(s, 0.0f));
    g.step = GlobalStep(s);
    g.optimizer = std::make_unique<SyncReplicasOptimizer>(
        Descent(0.1), SyncReplicasOptions{.replicas_to_aggregate = 2, .total_num_replicas = 2});
    g.op = g.optimizer->ApplyGradients(s, {{Const(s, gradient), g.w}}, {.global_step = g.step});
    return g;
  };
  Graph graphs[2] = {make(configs_["master"], 1), make(configs_["worker"], 3)};
  float w[2] = {};
  int64_t steps[2] = {};
  std::latch both_have_read(2);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      Graph& g = graphs[i];
      EXPECT_OK(g.root.status());
      MonitoredTrainingSessionOptions options;
      options.target = servers_[i == 0 ? "master" : "worker"]->target();
      options.is_chief = i == 0;
      options.checkpoint_dir = dir_ + "/example";
      const std::unique_ptr<SessionRunHook> hook = g.optimizer->MakeSessionRunHook();
      options.hooks.push_back(hook.get());
      const auto session = MonitoredTrainingSession(g.root, options);
      EXPECT_OK(session.status());
      if (session.ok()) {
        EXPECT_OK((*session)->Run({}, {}, {g.op}).status());
        const StatusOr<std::vector<Tensor>> values =
            (*session)->raw_session()->Run({}, {g.w.value, g.step.value});
        EXPECT_OK(values.status());
        if (values.ok()) {
          w[i] = (*values)[0].scalar<float>();
          steps[i] = (*values)[1].scalar<int64_t>();
        }
      }
      both_have_read.arrive_and_wait();
      if (session.ok()) {
        EXPECT_OK((*session)->Close());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_FLOAT_EQ(w[i], -0.2f);
    EXPECT_EQ(steps[i], 1);
  }
}

// The same data, in halves for two trainers or whole for one process.
TEST_P(SyncReplicasClusterTest, TwoTrainersAreOneProcessWithTwiceTheBatch) {
  constexpr int kSteps = 12, kHalf = 4;
  struct Case {
    const char* name;
    Model::MakeOptimizer make;
    bool read_ahead = false;
  };
  const Case cases[] = {
      {"descent", [] { return Descent(0.2); }},
      {"ahead", [] { return Descent(0.2); }, true},
      {"adam", [] { return std::make_unique<AdamOptimizer>(AdamOptions{.learning_rate = 0.05}); }},
      {"adagrad",
       [] { return std::make_unique<AdagradOptimizer>(AdagradOptions{.learning_rate = 0.2}); }}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const Model one(nullptr, c.make);
    TrainOptions options;
    options.dir = absl::StrCat(dir_, "/one_", c.name);
    options.save_every = 0;
    options.progress = false;
    options.steps = kSteps;
    options.data = [&, i = 0]() mutable { return one.Rows(i++, 0, 2 * kHalf); };
    ASSERT_OK_AND_ASSIGN(const TrainResult want, Train(one.root, one.op, options));

    const Model chief(&configs_["master"], Synchronous(c.make));
    const Model worker(&configs_["worker"], Synchronous(c.make));
    StatusOr<TrainResult> of_worker = absl::UnknownError("not yet");
    const std::string dir = absl::StrCat("two_", c.name);
    std::thread thread([&] {
      TrainOptions o = Options("worker", worker, dir);
      o.steps = kSteps;
      o.read_ahead = c.read_ahead;
      o.data = [&, i = 0]() mutable { return worker.Rows(i++, kHalf, 2 * kHalf); };
      of_worker = Train(worker.root, worker.op, o);
    });
    TrainOptions o = Options("master", chief, dir);
    o.steps = kSteps;
    o.read_ahead = c.read_ahead;
    o.data = [&, i = 0]() mutable { return chief.Rows(i++, 0, kHalf); };
    const StatusOr<TrainResult> got = Train(chief.root, chief.op, o);
    thread.join();
    ASSERT_OK(got.status());
    ASSERT_OK(of_worker.status());
    EXPECT_EQ(got->global_step, kSteps);
    EXPECT_EQ(got->own_steps, kSteps);
    EXPECT_EQ(of_worker->own_steps, kSteps);
    EXPECT_EQ(got->staleness.max, 0);
    for (const char* name : {"w", "table"}) {
      ExpectTensorNear(Saved(got->checkpoint, name), Saved(want.checkpoint, name), 1e-6, 1e-5);
    }
  }
}

// The worker has data for three steps only; the chief goes on alone, and the run ends.
TEST_P(SyncReplicasClusterTest, DataThatEndOnOneTrainerHoldUpNobody) {
  constexpr int kSteps = 10, kOfWorker = 3;
  const auto make = Synchronous([] { return Descent(0.1); });
  const Model chief(&configs_["master"], make), worker(&configs_["worker"], make);
  StatusOr<TrainResult> of_worker = absl::UnknownError("not yet");
  std::thread thread([&] {
    TrainOptions o = Options("worker", worker, "ends");
    o.data = [&, i = 0]() mutable -> std::optional<Feeds> {
      if (i == kOfWorker) return std::nullopt;
      return worker.Rows(i++, 4, 8);
    };
    of_worker = Train(worker.root, worker.op, o);
  });
  TrainOptions o = Options("master", chief, "ends");
  o.steps = kSteps;
  o.data = [&, i = 0]() mutable { return chief.Rows(i++, 0, 4); };
  const StatusOr<TrainResult> got = Train(chief.root, chief.op, o);
  thread.join();
  ASSERT_OK(got.status());
  ASSERT_OK(of_worker.status());
  EXPECT_EQ(of_worker->own_steps, kOfWorker);
  EXPECT_EQ(got->own_steps, kSteps);
  EXPECT_EQ(got->global_step, kSteps) << "each of the chief's steps was a global one";
}

// It keeps its session, and waits for the data of the worker, which makes the other steps alone.
TEST_P(SyncReplicasClusterTest, AChiefThatWaitsForTheDataOfOthersIsNotWaitedFor) {
  constexpr int kTogether = 2, kSteps = 8;
  const auto make = Synchronous([] { return Descent(0.1); });
  const Model models[] = {Model(&configs_["master"], make), Model(&configs_["worker"], make)};
  int64_t reached = 0;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] {
      const bool is_chief = i == 0;
      const Model& model = models[i];
      MonitoredTrainingSessionOptions options;
      options.target = servers_[is_chief ? "master" : "worker"]->target();
      options.is_chief = is_chief;
      options.checkpoint_dir = dir_ + "/awaits";
      const auto session = MonitoredTrainingSession(model.root, options);
      EXPECT_OK(session.status());
      if (!session.ok()) return;
      // Both are there before the first step: that one waits for two trainers.
      for (int step = 0; step < (is_chief ? kTogether : kSteps); ++step) {
        EXPECT_OK((*session)->Run(model.Rows(step, 0, 4), {}, {model.op}).status());
      }
      if (!is_chief) {
        const StatusOr<std::vector<Tensor>> step =
            (*session)->raw_session()->Run({}, {model.step.value});
        EXPECT_OK(step.status());
        if (step.ok()) reached = (*step)[0].scalar<int64_t>();
      }
      EXPECT_OK((*session)->Close(absl::OutOfRangeError("the data has ended")));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(reached, kSteps);
}

// The chief trains alone after the wait at the start; the worker joins later.
TEST_P(SyncReplicasClusterTest, ATrainerThatComesLateTakesPart) {
  constexpr int kAlone = 3, kSteps = 12;
  const auto make = Synchronous([] { return Descent(0.1); },
                                {.replicas_to_aggregate = kWorkers, .start_wait = {}});
  const Model chief(&configs_["master"], make), worker(&configs_["worker"], make);
  std::latch may_join(1), has_joined(1);
  StatusOr<TrainResult> of_worker = absl::UnknownError("not yet");
  std::thread thread([&] {
    may_join.wait();
    TrainOptions o = Options("worker", worker, "late");
    o.steps = kSteps;
    std::once_flag once;
    const auto joined = [&] { std::call_once(once, [&] { has_joined.count_down(); }); };
    o.data = [&, i = 0]() mutable {
      joined();  // data are asked for when the session is ready
      return worker.Rows(i++, 4, 8);
    };
    of_worker = Train(worker.root, worker.op, o);
    joined();  // also after an error
  });
  TrainOptions o = Options("master", chief, "late");
  o.steps = kSteps;
  o.data = [&, i = 0]() mutable {
    if (i == kAlone) {
      may_join.count_down();
      has_joined.wait();
    }
    return chief.Rows(i++, 0, 4);
  };
  const StatusOr<TrainResult> got = Train(chief.root, chief.op, o);
  thread.join();
  ASSERT_OK(got.status());
  ASSERT_OK(of_worker.status());
  EXPECT_EQ(got->global_step, kSteps);
  EXPECT_EQ(of_worker->own_steps, kSteps - kAlone) << "all rounds since it has joined";
}

// Another number than the others' is an error of that trainer.
TEST_P(SyncReplicasClusterTest, AllAskForTheSameNumber) {
  const Model chief(
      &configs_["master"],
      Synchronous([] { return Descent(0.1); }, {.replicas_to_aggregate = 1, .start_wait = {}}));
  const Model worker(
      &configs_["worker"],
      Synchronous([] { return Descent(0.1); }, {.replicas_to_aggregate = 3, .start_wait = {}}));
  StatusOr<TrainResult> of_worker = absl::UnknownError("not yet");
  TrainOptions o = Options("master", chief, "numbers");
  o.steps = 4;
  std::thread thread;
  o.data = [&, i = 0]() mutable {
    if (i == 2) {
      thread = std::thread([&] {
        TrainOptions of = Options("worker", worker, "numbers");
        of.steps = 100;
        of.data = [&, j = 0]() mutable { return worker.Rows(j++, 4, 8); };
        of_worker = Train(worker.root, worker.op, of);
      });
      thread.join();
    }
    return chief.Rows(i++, 0, 4);
  };
  ASSERT_OK(Train(chief.root, chief.op, o));
  EXPECT_STATUS(
      of_worker.status(), absl::StatusCode::kInvalidArgument,
      "replicas_to_aggregate must be the same for all trainers, got 3 where others have 1");
}

// With one server a synchronous step has the messages of an asynchronous one, with read-ahead one
// more: what joins gradients to updates is on the server. (RUN and END have no tensors and are not
// counted.)
class SyncReplicasMessagesTest : public SyncReplicasClusterTest {};
INSTANTIATE_TEST_SUITE_P(OneParameterServer, SyncReplicasMessagesTest, ::testing::Values(1));
TEST_P(SyncReplicasMessagesTest, AStepHasTheMessagesOfAnAsynchronousOne) {
  constexpr int kWarmUp = 30, kSteps = 100;
  constexpr double kLate = 0.05;  // one of the steps before may be counted late
  for (const bool ahead : {false, true}) {
    SCOPED_TRACE(ahead);
    double per_step[2][2] = {};  // asynchronous, synchronous; from the server, to it
    for (const int synchronous : {0, 1}) {
      const Model::MakeOptimizer descent = [] { return Descent(0.1); };
      const Model model(
          &configs_["master"],
          synchronous == 1 ? Synchronous(descent, {.replicas_to_aggregate = 1}) : descent);
      TrainOptions o = Options("master", model, absl::StrCat("messages_", synchronous, ahead));
      o.steps = kWarmUp + kSteps + 1;
      o.summary_every = 0;
      o.read_ahead = ahead;
      const auto sent_by = [&](const char* job) {
        double sum = 0;
        for (const auto& [task, counts] : CountsOf(*servers_[job]).peers) {
          sum += static_cast<double>(counts.messages_sent);
        }
        return sum;
      };
      double at_warm[2] = {}, at_end[2] = {};
      o.data = [&, i = 0]() mutable {
        double* const counts = i == kWarmUp ? at_warm : i == kWarmUp + kSteps ? at_end : nullptr;
        if (counts != nullptr) {
          counts[0] = sent_by("ps");
          counts[1] = sent_by("master");
        }
        return model.Rows(i++, 0, 4);
      };
      ASSERT_OK(Train(model.root, model.op, o).status());
      for (int way = 0; way < 2; ++way) {
        per_step[synchronous][way] = (at_end[way] - at_warm[way]) / kSteps;
      }
    }
    EXPECT_GE(per_step[0][0], 1);
    // What is read ahead leaves when the update has ended, the count when the round has.
    EXPECT_NEAR(per_step[1][0], per_step[0][0] + (ahead ? 1 : 0), kLate);
    EXPECT_NEAR(per_step[1][1], per_step[0][1], kLate);
  }
}

}  // namespace
}  // namespace millrace
