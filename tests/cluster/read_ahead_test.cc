// SPDX-License-Identifier: Apache-2.0
//
// Training with and without read-ahead on a parameter server and tasks that are servers of this
// process: values, staleness, recovery, messages.
#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/file_system.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/cluster.h"
#include "distributed/replica_device_setter.h"
#include "distributed/server.h"
#include "distributed/server_counts.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "layers/variable_update.h"
#include "ops/ops.h"
#include "run/run_file.h"
#include "runtime/session.h"
#include "saver/tensor_bundle.h"
#include "tests/cluster/cluster_in_process.h"
#include "train/adam.h"
#include "train/gradient_descent.h"
#include "train/hooks/monitored_training_session.h"
#include "train/hooks/read_ahead_hook.h"
#include "train/hooks/stop_at_step.h"
#include "train/learning_rates.h"
#include "train/momentum.h"
#include "train/optimizer.h"
#include "train/session_run_hook.h"
#include "train/staleness_aware.h"
#include "train/train.h"

// covers: training: with read-ahead one trainer has the values that it has without, bit by bit, and
//   the same checkpoint
// covers: training: staleness counts from the read, also where that was made a step ahead
// covers: training: after a lost session what is read ahead is what the new session's variables are
// covers: clusters: a training step with read-ahead is one message with tensors each way, and what
//   looks at staleness adds none

namespace millrace {
namespace {

// Values with some variety.
Tensor Spread(std::initializer_list<int64_t> dims) {
  Tensor t = *Tensor::Zeros(DT_FLOAT, ShapeOf(dims));
  size_t i = 0;
  for (float& v : t.mutable_flat<float>()) v = static_cast<float>(i++ * 37 % 101) / 101 - 0.5f;
  return t;
}

// A model on the parameter server, as task `config` trains it.
struct Model {
  Scope root;
  std::vector<Feeds> batches;
  Output loss;
  Operation op;
};

// y = w x, to be 3 x: w - 3 becomes 0.75 (w - 3) with each step whose gradient is of this w.
Model Line(const ClusterConfig& config, Optimizer&& optimizer) {
  Model m;
  const Scope s = m.root.WithDevice(ReplicaDeviceSetter(config));
  const Output x = Placeholder(s.WithName("x"), DT_FLOAT, {-1});
  const Output y = Placeholder(s.WithName("y"), DT_FLOAT, {-1});
  const Variable w = MakeVariable(s.WithName("w"), Const(s, 0.0f));
  m.loss = ReduceMean(s, Square(s, Sub(s, Mul(s, w.value, x), y)));
  m.op = optimizer.Minimize(s, m.loss, {.global_step = GlobalStep(s)});
  m.batches = {{{x, Tensor::Of<float>({1, 2})}, {y, Tensor::Of<float>({3, 6})}}};
  return m;
}
Model Line(const ClusterConfig& config) {
  return Line(config, GradientDescentOptimizer({.learning_rate = 0.05}));
}

using MakeOptimizer =
    std::function<std::unique_ptr<Optimizer>(const Scope& s, const Variable& step)>;

// Two layers; the first one has a penalty next to its weight.
Model Net(const ClusterConfig& config, const MakeOptimizer& make) {
  constexpr int64_t kInputs = 6, kHidden = 5, kLabels = 3, kBatch = 4;
  Model m;
  const Scope s = m.root.WithDevice(ReplicaDeviceSetter(config));
  const Output x = Placeholder(s.WithName("x"), DT_FLOAT, {-1, kInputs});
  const Output t = Placeholder(s.WithName("t"), DT_FLOAT, {-1, kLabels});
  const Variable w1 = MakeVariable(s.WithName("w1"), Const(s, Spread({kInputs, kHidden})));
  const Variable b1 = MakeVariable(s.WithName("b1"), Const(s, Spread({kHidden})));
  const Variable w2 = MakeVariable(s.WithName("w2"), Const(s, Spread({kHidden, kLabels})));
  const Variable b2 = MakeVariable(s.WithName("b2"), Const(s, Spread({kLabels})));
  const Output hidden = Tanh(s, BiasAdd(s, MatMul(s, x, w1.value), b1.value));
  const Output logits = BiasAdd(s, MatMul(s, hidden, w2.value), b2.value);
  const Output penalty = L2Loss(s.ColocatedWith(w1.handle.op()).WithName("penalty"), w1.value);
  m.loss = Add(s, ReduceMean(s, SoftmaxCrossEntropyWithLogits(s, logits, t).loss),
               Mul(s, penalty, Const(s, 0.01f)));
  const Variable step = GlobalStep(s);
  m.op = make(s, step)->Minimize(s, m.loss, {.global_step = step});
  for (int64_t i = 0; i < 3; ++i) {
    Tensor labels = *Tensor::Zeros(DT_FLOAT, ShapeOf({kBatch, kLabels}));
    for (int64_t row = 0; row < kBatch; ++row) {
      labels.mutable_flat<float>()[static_cast<size_t>(row * kLabels + (row + i) % kLabels)] = 1;
    }
    Tensor images = Spread({kBatch, kInputs});
    for (float& v : images.mutable_flat<float>()) v += 0.1f * static_cast<float>(i);
    m.batches.push_back({{x, images}, {t, labels}});
  }
  return m;
}

class ReadAheadTest : public ClusterInProcessTest {
 protected:
  ReadAheadTest() : ClusterInProcessTest("read_ahead") {}

  TrainOptions Options(const std::string& job, const Model& model, const std::string& dir,
                       bool read_ahead) {
    TrainOptions options;
    options.data = [&model, i = size_t{0}]() mutable {
      return model.batches[i++ % model.batches.size()];
    };
    options.dir = absl::StrCat(dir_, "/", dir);
    options.target = servers_[job]->target();
    options.is_chief = configs_[job].is_chief();
    options.read_ahead = read_ahead;
    options.loss = model.loss;
    options.save_every = 0;
    options.progress = false;
    options.supervisor.recovery_wait = absl::Milliseconds(10);
    options.supervisor.max_wait = absl::Seconds(60);
    return options;
  }

  static StatusOr<float> SavedFloat(const std::string& checkpoint, const std::string& name) {
    MR_ASSIGN_OR_RETURN(const auto reader, BundleReader::Open(FileSystem::Posix(), checkpoint));
    MR_ASSIGN_OR_RETURN(const Tensor value, reader->Read(name));
    return value.scalar<float>();
  }
};

// --- Values --------------------------------------------------------------------------------------

using MakeModel = std::function<Model(const ClusterConfig&)>;

TEST_F(ReadAheadTest, OneTrainerHasTheSameValuesAndTheSameCheckpoint) {
  const std::pair<const char*, MakeModel> models[] = {
      {"line_sgd", [](const ClusterConfig& c) { return Line(c); }},
      {"line_adam",
       [](const ClusterConfig& c) { return Line(c, AdamOptimizer({.learning_rate = 0.1})); }},
      // The task that trains computes the rate from the global step.
      {"net_sgd",
       [](const ClusterConfig& c) {
         return Net(c, [](const Scope& s, const Variable& step) {
           const Output rate =
               ExponentialDecay(s, 0.1, step.value, {.decay_steps = 4, .decay_rate = 0.9});
           return std::make_unique<GradientDescentOptimizer>(
               GradientDescentOptions{.learning_rate = rate});
         });
       }},
      {"net_momentum",
       [](const ClusterConfig& c) {
         return Net(c, [](const Scope&, const Variable&) {
           return std::make_unique<MomentumOptimizer>(
               MomentumOptions{.learning_rate = 0.05, .momentum = 0.9});
         });
       }},
      {"net_adam",
       [](const ClusterConfig& c) {
         return Net(c, [](const Scope&, const Variable&) {
           return std::make_unique<AdamOptimizer>(AdamOptions{.learning_rate = 0.01});
         });
       }},
  };
  for (const auto& [name, make] : models) {
    SCOPED_TRACE(name);
    TrainResult results[2];
    for (const bool ahead : {false, true}) {
      const Model model = make(configs_["master"]);
      TrainOptions options =
          Options("master", model, absl::StrCat(name, ahead ? "_ahead" : ""), ahead);
      options.steps = 30;
      options.save_every = 12;  // the step after a save reads anew
      ASSERT_OK_AND_ASSIGN(results[ahead ? 1 : 0], Train(model.root, model.op, options));
    }
    EXPECT_EQ(results[0].own_steps, 30);
    EXPECT_EQ(results[1].own_steps, 30);
    EXPECT_EQ(results[0].loss, results[1].loss);
    EXPECT_EQ(results[1].staleness.max, 0);
    ASSERT_OK_AND_ASSIGN(const auto without,
                         BundleReader::Open(FileSystem::Posix(), results[0].checkpoint));
    ASSERT_OK_AND_ASSIGN(const auto with,
                         BundleReader::Open(FileSystem::Posix(), results[1].checkpoint));
    ASSERT_EQ(without->entries().size(), with->entries().size());
    for (size_t i = 0; i < without->entries().size(); ++i) {
      const std::string& variable = without->entries()[i].name;
      EXPECT_EQ(variable, with->entries()[i].name);
      ASSERT_OK_AND_ASSIGN(const Tensor expected, without->Read(variable));
      ASSERT_OK_AND_ASSIGN(const Tensor value, with->Read(variable));
      EXPECT_EQ(expected, value) << variable;
    }
  }
}

TEST_F(ReadAheadTest, AMonitoredSessionWithTheHookHasTheSameValues) {
  float values[2] = {0, 0};
  for (const bool ahead : {false, true}) {
    const Model model = Line(configs_["master"]);
    StopAtStepHook stop({.last_step = 10});
    ReadAheadHook reads({.train_op = model.op, .fetches = {model.loss}});
    MonitoredTrainingSessionOptions options;
    options.target = servers_["master"]->target();
    options.checkpoint_dir = absl::StrCat(dir_, ahead ? "/hook_ahead" : "/hook");
    options.hooks = {&stop};
    if (ahead) options.hooks.push_back(&reads);
    options.handle_signals = false;
    ASSERT_OK_AND_ASSIGN(const auto session, MonitoredTrainingSession(model.root, options));
    int runs = 0;
    ASSERT_OK(session->Loop([&]() -> Status {
      ++runs;
      return session->Run(model.batches[0], {model.loss}, {model.op}).status();
    }));
    EXPECT_EQ(runs, 10);
    ASSERT_OK_AND_ASSIGN(values[ahead ? 1 : 0],
                         SavedFloat(absl::StrCat(options.checkpoint_dir, "/model.ckpt-10"), "w"));
  }
  EXPECT_EQ(values[0], values[1]);
  EXPECT_GT(values[0], 2);
}

// The system's, and as much later as it is told.
class LateClock : public Clock {
 public:
  absl::Time Now() override { return Clock::Real()->Now() + absl::Seconds(late_s_.load()); }
  bool WaitUntil(CondVar* cv, Mutex* mu, absl::Time deadline) override {
    return Clock::Real()->WaitUntil(cv, mu, deadline - absl::Seconds(late_s_.load()));
  }
  void SleepFor(absl::Duration duration) override { Clock::Real()->SleepFor(duration); }
  void PassHour() { late_s_ += 3600; }

 private:
  std::atomic<int64_t> late_s_{0};
};

// Before the run of that number it changes a variable by a run of its own, and then does `more`.
class ChangingHook : public SessionRunHook {
 public:
  ChangingHook(int64_t run, Operation change, std::function<void()> more)
      : run_(run), change_(std::move(change)), more_(std::move(more)) {}
  std::string name() const override { return "ChangingHook"; }
  StatusOr<GroupMask> BeforeRun(RunContext* context) override {
    if (context->run_number() != run_) return kNoGroups;
    MR_RETURN_IF_ERROR(context->session()->Run({}, {}, {change_}).status());
    more_();
    return kNoGroups;
  }

 private:
  const int64_t run_;
  const Operation change_;
  const std::function<void()> more_;
};

// covers: training: with read-ahead a session's step sees what another run of the program has
//   changed when it was told so, and after a pause
TEST_F(ReadAheadTest, WhatAnotherRunHasChangedIsSeenWhenTheHookIsToldAndAfterAPause) {
  enum class How { kWithout, kNotTold, kTold, kPause };
  float values[4] = {};
  for (const How how : {How::kWithout, How::kNotTold, How::kTold, How::kPause}) {
    const int i = static_cast<int>(how);
    const Model model = Line(configs_["master"]);
    const std::vector<Variable> trained = VariablesOf(model.root, "trainable_variables");
    ASSERT_EQ(trained.size(), 1u);
    const Operation change =
        AssignVariable(model.root.ColocatedWith(trained[0].handle.op()).WithName("change"),
                       trained[0], Const(model.root, 100.0f));
    LateClock clock;
    StopAtStepHook stop({.last_step = 6});
    ReadAheadHook reads({.train_op = model.op, .fetches = {model.loss}});
    ChangingHook changing(5, change, [&] {
      if (how == How::kTold) reads.ReadAnew();
    });
    MonitoredTrainingSessionOptions options;
    options.target = servers_["master"]->target();
    options.checkpoint_dir = absl::StrCat(dir_, "/changed_", i);
    options.hooks = {&stop, &changing};
    if (how != How::kWithout) options.hooks.push_back(&reads);
    options.handle_signals = false;
    options.clock = &clock;
    ASSERT_OK_AND_ASSIGN(const auto session, MonitoredTrainingSession(model.root, options));
    int runs = 0;
    ASSERT_OK(session->Loop([&]() -> Status {
      if (runs++ == 5 && how == How::kPause) clock.PassHour();
      return session->Run(model.batches[0], {model.loss}, {model.op}).status();
    }));
    ASSERT_OK_AND_ASSIGN(values[i],
                         SavedFloat(absl::StrCat(options.checkpoint_dir, "/model.ckpt-6"), "w"));
  }
  const float without = values[0], not_told = values[1], told = values[2], pause = values[3];
  EXPECT_FLOAT_EQ(without, 3 + 0.75f * 97);
  EXPECT_EQ(told, without);
  EXPECT_EQ(pause, without);
  // The step had the gradient of the weight before.
  EXPECT_GT(not_told, 99);
}

// --- Staleness -----------------------------------------------------------------------------------

// Two trainers take turns: a step of one, then a step of the other; 0 begins, whoever comes first.
// Each asks for its next batch after its step, and hands the turn on then.
class Turns {
 public:
  // The caller, 0 or 1, has done `steps` steps: returns when it may do the next one.
  void Next(int who, int steps) {
    MutexLock lock(&mu_);
    if (steps > 0) turn_ = 1 - who;
    changed_.SignalAll();
    while (!over_ && turn_ != who) changed_.Wait(&mu_);
  }
  // The caller does no more steps.
  void End() {
    MutexLock lock(&mu_);
    over_ = true;
    changed_.SignalAll();
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int turn_ ABSL_GUARDED_BY(mu_) = 0;
  bool over_ ABSL_GUARDED_BY(mu_) = false;
};

// A chief and a worker train in turns: the worker does `steps` steps, each between two of the
// chief's, which does one more.
struct InTurns {
  TrainResult chief, worker;
};
StatusOr<InTurns> TrainInTurns(
    int steps, const Model& chief, const Model& worker,
    const std::function<TrainOptions(const std::string& job, const Model& model)>& options_of) {
  Turns turns;
  const auto data = [&turns](const Model& model, int who, int number) {
    return [&turns, &model, who, number, asked = 0]() mutable -> std::optional<Feeds> {
      if (asked == number) {
        turns.End();
        return std::nullopt;
      }
      turns.Next(who, asked++);
      return model.batches[0];
    };
  };
  StatusOr<TrainResult> of_worker = absl::UnknownError("not yet");
  std::thread thread([&] {
    TrainOptions options = options_of("worker", worker);
    options.data = data(worker, 1, steps);
    of_worker = Train(worker.root, worker.op, options);
    turns.End();
  });
  TrainOptions options = options_of("master", chief);
  options.data = data(chief, 0, steps + 1);
  StatusOr<TrainResult> of_chief = Train(chief.root, chief.op, options);
  turns.End();
  thread.join();
  MR_RETURN_IF_ERROR(of_chief.status());
  MR_RETURN_IF_ERROR(of_worker.status());
  return InTurns{*std::move(of_chief), *std::move(of_worker)};
}

// With read-ahead each reads after its own step, so its next one misses the other's: all but the
// first are stale by 1. Without, each reads when its turn comes, and misses nothing.
TEST_F(ReadAheadTest, StalenessCountsFromTheRead) {
  constexpr int kSteps = 8;
  for (const bool ahead : {false, true}) {
    SCOPED_TRACE(ahead);
    const Model chief = Line(configs_["master"]), worker = Line(configs_["worker"]);
    ASSERT_OK_AND_ASSIGN(
        const InTurns result,
        TrainInTurns(kSteps, chief, worker, [&](const std::string& job, const Model& model) {
          return Options(job, model, ahead ? "turns_ahead" : "turns", ahead);
        }));
    EXPECT_EQ(result.chief.own_steps, kSteps + 1);
    EXPECT_EQ(result.worker.own_steps, kSteps);
    EXPECT_EQ(result.chief.staleness.max, ahead ? 1 : 0);
    EXPECT_EQ(result.worker.staleness.max, ahead ? 1 : 0);
    EXPECT_NEAR(result.chief.staleness.mean, ahead ? kSteps / (kSteps + 1.0) : 0, 1e-9);
    EXPECT_NEAR(result.worker.staleness.mean, ahead ? (kSteps - 1.0) / kSteps : 0, 1e-9);

    // And the gradients are those of what was read then.
    double w = 0, read[2] = {0, 0};
    for (int i = 0; i < 2 * kSteps + 1; ++i) {
      const int who = i % 2;
      const bool reads_now = !ahead || i < 2;
      w -= 0.25 * ((reads_now ? w : read[who]) - 3);
      read[who] = w;
    }
    ASSERT_OK_AND_ASSIGN(const float saved, SavedFloat(result.chief.checkpoint, "w"));
    EXPECT_NEAR(saved, w, 1e-4);
  }
}

// covers: training: a stale gradient is scaled or dropped by the step that its variables were read
//   at, also a step ahead, and a dropped one counts for nobody
//
// Without read-ahead no gradient of trainers that take turns is stale. With it a step is stale
// where the other one has updated since the own step before.
TEST_F(ReadAheadTest, StaleGradientsAreScaledOrDroppedByWhatWasRead) {
  constexpr int kSteps = 8;
  for (const bool drops : {false, true}) {
    for (const bool ahead : {false, true}) {
      SCOPED_TRACE(absl::StrCat(drops ? "drops" : "scales", ahead ? ", ahead" : ""));
      const auto line = [&](const char* job) {
        StalenessAwareOptions options;
        if (drops) options.drop_above = 0;
        if (!drops) options.scale_by_staleness = 1;
        return Line(configs_[job],
                    StalenessAwareOptimizer(std::make_unique<GradientDescentOptimizer>(
                                                GradientDescentOptions{.learning_rate = 0.05}),
                                            options));
      };
      const Model chief = line("master"), worker = line("worker");
      ::testing::internal::CaptureStderr();
      const StatusOr<InTurns> result =
          TrainInTurns(kSteps, chief, worker, [&](const std::string& job, const Model& model) {
            return Options(job, model, absl::StrCat("aware_", drops, ahead), ahead);
          });
      const std::string log = ::testing::internal::GetCapturedStderr();
      ASSERT_OK(result.status());
      double w = 0, read[2] = {0, 0};
      int64_t counted = 0, read_at[2] = {0, 0}, scaled = 0, dropped = 0;  // the last two: chief's
      for (int i = 0; i < 2 * kSteps + 1; ++i) {
        const int who = i % 2;
        if (!ahead || i < 2) {
          read[who] = w;
          read_at[who] = counted;
        }
        const int64_t staleness = counted - read_at[who];
        if (drops && staleness > 0) {
          dropped += who == 0 ? 1 : 0;
        } else {
          w -= 0.25 * (read[who] - 3) / (1 + static_cast<double>(staleness));
          ++counted;
          scaled += who == 0 && staleness > 0 ? 1 : 0;
        }
        read[who] = w;
        read_at[who] = counted;
      }
      EXPECT_EQ(scaled, ahead && !drops ? kSteps : 0);
      EXPECT_EQ(dropped, ahead && drops ? kSteps : 0);
      EXPECT_EQ(result->chief.global_step, counted);
      ASSERT_OK_AND_ASSIGN(const float saved, SavedFloat(result->chief.checkpoint, "w"));
      EXPECT_NEAR(saved, w, 1e-4);
      EXPECT_TRUE(absl::StrContains(
          log, absl::StrCat("Train: gradients of this task in its last session: ", scaled,
                            " scaled because they were stale, ", dropped, " dropped")))
          << log;
    }
  }
}

// --- Recovery ------------------------------------------------------------------------------------

// Another client empties the run's containers after a checkpoint at step 5 and two more steps. The
// steps from 6 on run again from what the checkpoint has: w - 3 is -3 * 0.75^20 at the end. With
// one gradient of what was read ahead before the loss it would be 1e-3 off, with zeros more.
TEST_F(ReadAheadTest, AfterALossTheNewSessionsVariablesAreRead) {
  constexpr int kSteps = 20, kSavedAt = 5, kLostAfter = 7;
  const Model model = Line(configs_["master"]);
  TrainOptions options = Options("master", model, "lost", true);
  options.steps = kSteps;
  options.save_every = kSavedAt;
  int batches = 0;
  options.data = [&] {
    if (++batches == kLostAfter + 1) {
      const auto run = ReadRunFile(FileSystem::Posix(), options.dir);
      EXPECT_OK(run.status());
      EXPECT_OK(ResetTarget({.target = servers_["ps"]->target()}, {(*run)->id}));
    }
    return model.batches[0];
  };
  ::testing::internal::CaptureStderr();
  const StatusOr<TrainResult> result = Train(model.root, model.op, options);
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_OK(result.status());
  EXPECT_TRUE(absl::StrContains(log, "Supervisor: restored 2 variables from ")) << log;
  EXPECT_EQ(result->global_step, kSteps);
  EXPECT_EQ(result->own_steps, kSteps + kLostAfter - kSavedAt);
  double w = 0;
  for (int i = 0; i < kSteps; ++i) w -= 0.25 * (w - 3);
  ASSERT_OK_AND_ASSIGN(const float saved, SavedFloat(result->checkpoint, "w"));
  EXPECT_NEAR(saved, w, 1e-4);
}

// --- Messages ------------------------------------------------------------------------------------

// What leaves in one wave to one task leaves together (graph/place/waves.h). Without read-ahead the
// ps sends w in wave 0 and the step's count in wave 1: two messages with tensors. With it both are
// behind the update, in wave 1: one. The trainer sends its gradient in one either way. (RUN and END
// have no tensors and are not counted; END leaves with the last tensors.)
TEST_F(ReadAheadTest, AStepIsOneMessageWithTensorsEachWay) {
  constexpr int kWarmUp = 30, kSteps = 200;
  // One of the steps before may be counted late.
  constexpr double kLate = 0.05;
  for (const auto& [ahead, aware] :
       {std::pair(false, false), {true, false}, {false, true}, {true, true}}) {
    SCOPED_TRACE(absl::StrCat(ahead, ", ", aware));
    StalenessAwareOptions of_staleness;
    if (aware) of_staleness = {.scale_by_staleness = 1, .drop_above = 8};
    const Model model =
        Line(configs_["master"],
             StalenessAwareOptimizer(std::make_unique<GradientDescentOptimizer>(
                                         GradientDescentOptions{.learning_rate = 0.05}),
                                     of_staleness));
    TrainOptions options = Options("master", model, absl::StrCat("messages_", ahead, aware), ahead);
    options.steps = kWarmUp + kSteps + 1;
    options.summary_every = 0;
    struct Sent {
      double messages = 0, tensors = 0;
    };
    const auto sent_by = [&](const char* job) {
      Sent sum;
      for (const auto& [task, counts] : CountsOf(*servers_[job]).peers) {
        sum.messages += static_cast<double>(counts.messages_sent);
        sum.tensors += static_cast<double>(counts.tensors_sent);
      }
      return sum;
    };
    Sent from_ps[2], to_ps[2];
    int batches = 0;
    options.data = [&] {
      ++batches;
      if (batches == kWarmUp + 1 || batches == kWarmUp + kSteps + 1) {
        const int i = batches == kWarmUp + 1 ? 0 : 1;
        from_ps[i] = sent_by("ps");
        to_ps[i] = sent_by("master");
      }
      return model.batches[0];
    };
    ASSERT_OK(Train(model.root, model.op, options).status());
    const auto per_step = [&](const Sent(&sent)[2], double Sent::*figure) {
      return (sent[1].*figure - sent[0].*figure) / kSteps;
    };
    EXPECT_NEAR(per_step(from_ps, &Sent::messages), ahead ? 1 : 2, kLate);
    EXPECT_NEAR(per_step(to_ps, &Sent::messages), 1, kLate);
    // w and the count; the gradient. And the step that was read, there and back.
    EXPECT_NEAR(per_step(from_ps, &Sent::tensors), aware ? 3 : 2, kLate);
    EXPECT_NEAR(per_step(to_ps, &Sent::tensors), aware ? 2 : 1, kLate);
  }
}

// --- Without a parameter server ------------------------------------------------------------------

TEST_F(ReadAheadTest, InOneProcessItDoesNothingAndSaysSoOnce) {
  const Model model = Line(ClusterConfig());
  TrainOptions options = Options("master", model, "alone", true);
  options.target = "";
  options.is_chief = true;
  options.steps = 5;
  ::testing::internal::CaptureStderr();
  const StatusOr<TrainResult> result = Train(model.root, model.op, options);
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_OK(result.status());
  EXPECT_EQ(result->own_steps, 5);
  const std::string line = "Train: read_ahead does nothing: all variables are in this process";
  const size_t at = log.find(line);
  ASSERT_NE(at, std::string::npos) << log;
  EXPECT_EQ(log.find(line, at + line.size()), std::string::npos) << log;
}

}  // namespace
}  // namespace millrace
