// SPDX-License-Identifier: Apache-2.0
#include "train/train.h"

#include <signal.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "core/exit_code.h"
#include "core/fail_point.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "layers/embedding.h"
#include "layers/normalization.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "proto/config.pb.h"
#include "proto/device_attributes.pb.h"
#include "proto/event.pb.h"
#include "proto/summary.pb.h"
#include "run/run_file.h"
#include "runtime/session.h"
#include "saver/event_reader.h"
#include "saver/loaded_model.h"
#include "saver/saver.h"
#include "saver/tensor_bundle.h"
#include "train/adam.h"
#include "train/gradient_descent.h"
#include "train/optimizer.h"

// covers: training: the count of recoveries restarts after progress; only the lost step runs again,
//   with its batch
// covers: training: how stale gradients are is measured in the step, shown, and named by the NaN
//   guard
// covers: training: `Train` writes losses, its rate and its checkpoints as events, and says why it
//   ended
// covers: training: `Train` runs the updates of moving averages with its steps, ends with its last
//   step saved, continues where it ended, also after SIGTERM and Ctrl-C, recovers, evaluates,
//   exports; wrong options are refused before a step

namespace millrace {
namespace {

using absl::StatusCode;

// --- A session that can be lost ------------------------------------------------------------------

// How many more steps run before a session of "lost://" is lost, once; -1: none is lost.
int runs_until_loss = -1;

class LosableSession : public Session {
 public:
  explicit LosableSession(std::unique_ptr<Session> session) : session_(std::move(session)) {}
  StatusOr<std::unique_ptr<PreparedStep>> Prepare(const Signature&) override {
    return absl::UnimplementedError("by name only");
  }
  Status Close() override { return session_->Close(); }
  StatusOr<std::vector<tensorflow::DeviceAttributes>> ListDevices() override {
    return session_->ListDevices();
  }

 protected:
  Status DoExtend(const tensorflow::GraphDef& graph) override { return session_->Extend(graph); }
  StatusOr<std::vector<Tensor>> DoRun(const tensorflow::RunOptions& options,
                                      absl::Span<const Feed> feeds,
                                      absl::Span<const FetchName> fetches,
                                      absl::Span<const FetchName> targets,
                                      tensorflow::RunMetadata* metadata) override {
    if (!feeds.empty() && feeds[0].name.name() == "x:0" && runs_until_loss >= 0 &&
        --runs_until_loss < 0) {
      return absl::UnavailableError("ps is gone");
    }
    return session_->Run(options, feeds, fetches, targets, metadata);
  }
  void AddSourceLines(std::vector<std::pair<std::string, std::string>>) override {}

 private:
  const std::unique_ptr<Session> session_;
};

const SessionFactoryRegistration registration(
    "lost://", [](const SessionOptions&) -> StatusOr<std::unique_ptr<Session>> {
      MR_ASSIGN_OR_RETURN(auto session, NewSession());
      return std::make_unique<LosableSession>(std::move(session));
    });

// --- The model -----------------------------------------------------------------------------------

// y = wx + b, to be 3x - 1.
struct Model {
  explicit Model(bool counts = true) {
    x = Placeholder(root.WithName("x"), DT_FLOAT, {-1});
    y = Placeholder(root.WithName("y"), DT_FLOAT, {-1});
    w = MakeVariable(root.WithName("w"), Const(root, 0.0f));
    b = MakeVariable(root.WithName("b"), Const(root, 0.0f));
    predicted = Add(root.WithName("predicted"), Mul(root, w.value, x), b.value);
    errors = Square(root, Sub(root, predicted, y));
    loss = ReduceMean(root.WithName("loss"), errors);
    MinimizeOptions options;
    if (counts) options.global_step = GlobalStep(root);
    op = AdamOptimizer({.learning_rate = 0.1}).Minimize(root, loss, options);
  }
  Feeds Batch() const {
    return {{x, Tensor::Vector<float>({-1, 0, 1, 2})}, {y, Tensor::Vector<float>({-4, -1, 2, 5})}};
  }
  Scope root;
  Output x, y, predicted, errors, loss;
  Variable w, b;
  Operation op;
};

class TrainTest : public ::testing::Test {
 protected:
  TrainTest() : dir_(JoinPath(::testing::TempDir(), absl::StrCat("train_", RandomHexName()))) {}
  ~TrainTest() override { FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError(); }

  // The options of a job in dir_/run that prints nothing.
  TrainOptions Options(const Model& model, int64_t steps) const {
    TrainOptions options;
    options.data = [&model] { return model.Batch(); };
    options.steps = steps;
    options.dir = run();
    options.loss = model.loss;
    options.save_every = 0;
    options.progress = false;
    return options;
  }
  std::string run() const { return JoinPath(dir_, "run"); }
  std::string Checkpoint(int64_t step) const { return absl::StrCat(run(), "/model.ckpt-", step); }
  std::string Latest() const {
    return LatestCheckpoint(FileSystem::Posix(), run()).value_or("none");
  }
  static int64_t SavedStep(const std::string& checkpoint) {
    const auto reader = BundleReader::Open(FileSystem::Posix(), checkpoint);
    EXPECT_OK(reader.status());
    const auto step = (*reader)->Read("global_step");
    EXPECT_OK(step.status());
    return step->scalar<int64_t>();
  }

  const std::string dir_;
};

// --- Steps ---------------------------------------------------------------------------------------

TEST_F(TrainTest, TheLastStepIsSavedAndTheNextCallGoesOnFromIt) {
  Model first;
  ASSERT_OK_AND_ASSIGN(const TrainResult result, Train(first.root, first.op, Options(first, 30)));
  EXPECT_EQ(result.global_step, 30);
  EXPECT_EQ(result.own_steps, 30);
  EXPECT_LT(result.loss, 9);
  EXPECT_EQ(result.checkpoint, Checkpoint(30));
  EXPECT_EQ(Latest(), Checkpoint(30));
  EXPECT_EQ(SavedStep(Latest()), 30);

  Model second;
  ASSERT_OK_AND_ASSIGN(const TrainResult more, Train(second.root, second.op, Options(second, 50)));
  EXPECT_EQ(more.global_step, 50);
  EXPECT_EQ(more.own_steps, 20);
  EXPECT_LT(more.loss, result.loss);
  EXPECT_EQ(Latest(), Checkpoint(50));
}

TEST_F(TrainTest, FinishedTrainingIsNotRepeated) {
  {
    Model model;
    ASSERT_OK(Train(model.root, model.op, Options(model, 5)).status());
  }
  FileSystem* const fs = FileSystem::Posix();
  ASSERT_OK_AND_ASSIGN(const double written,
                       fs->GetModificationTime(BundleIndexPath(Checkpoint(5))));
  Model model;
  TrainOptions options = Options(model, 5);
  options.data = []() -> FeedsOrEnd { return absl::InternalError("must not be called"); };
  ASSERT_OK_AND_ASSIGN(const TrainResult result, Train(model.root, model.op, options));
  EXPECT_EQ(result.global_step, 5);
  EXPECT_EQ(result.own_steps, 0);
  EXPECT_EQ(result.checkpoint, Checkpoint(5));
  ASSERT_OK_AND_ASSIGN(const double now, fs->GetModificationTime(BundleIndexPath(Checkpoint(5))));
  EXPECT_EQ(now, written);
}

TEST_F(TrainTest, AWarmStartWithNothingToDoKeepsACheckpointOfItsOwn) {
  Model first;
  ASSERT_OK(Train(first.root, first.op, Options(first, 20)).status());
  Model second;
  TrainOptions options = Options(second, 20);
  options.dir = dir_ + "/own";
  options.supervisor.begin_from = Latest();
  ASSERT_OK_AND_ASSIGN(const TrainResult result, Train(second.root, second.op, options));
  EXPECT_EQ(result.own_steps, 0);
  EXPECT_EQ(result.checkpoint, options.dir + "/model.ckpt-20");
  EXPECT_EQ(LatestCheckpoint(FileSystem::Posix(), options.dir), result.checkpoint);
}

TEST_F(TrainTest, TheGoalIsTheEndOfTheRunAndALateTaskLeaves) {
  {
    Model model;
    ASSERT_OK(Train(model.root, model.op, Options(model, 5)).status());
  }
  FileSystem* const fs = FileSystem::Posix();
  ASSERT_OK_AND_ASSIGN(const auto end, ReadRunEnd(fs, run()));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->global_step, 5);
  EXPECT_EQ(end->goal, 5);
  EXPECT_EQ(end->checkpoint, Checkpoint(5));
  EXPECT_EQ(end->reason, "reached step 5 of 5");
  {
    Model model;
    TrainOptions options = Options(model, 5);
    options.is_chief = false;
    options.target = "lost://";
    ASSERT_OK_AND_ASSIGN(const TrainResult result, Train(model.root, model.op, options));
    EXPECT_EQ(result.own_steps, 0);
    EXPECT_EQ(result.global_step, 5);
  }
  // A job that has nothing left to do writes its end again.
  Model model;
  ASSERT_OK(Train(model.root, model.op, Options(model, 5)).status());
  ASSERT_OK_AND_ASSIGN(const auto again, ReadRunEnd(fs, run()));
  ASSERT_TRUE(again.has_value());
  EXPECT_NE(again->token, end->token);
  EXPECT_EQ(again->checkpoint, Checkpoint(5));
}

TEST_F(TrainTest, TrainingThatIsToContinueHasNotEnded) {
  Model model;
  TrainOptions options = Options(model, 50);
  int batches = 0;
  options.data = [&]() -> FeedsOrEnd {
    if (++batches == 5) return absl::DataLossError("bad record");
    return model.Batch();
  };
  EXPECT_FALSE(Train(model.root, model.op, options).ok());
  Model second;
  TrainOptions signalled = Options(second, 50);
  signalled.data = [&] {
    ::raise(SIGTERM);
    return second.Batch();
  };
  EXPECT_FALSE(Train(second.root, second.op, signalled).ok());
  EXPECT_TRUE(FileSystem::Posix()->FileExists(RunFilePath(run())));
  EXPECT_FALSE(FileSystem::Posix()->FileExists(RunEndFilePath(run())));
}

TEST_F(TrainTest, AnOperationThatDoesNotCountIsCounted) {
  for (const bool has_step : {false, true}) {
    SCOPED_TRACE(has_step);
    FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError();
    Model model(/*counts=*/false);
    if (has_step) GlobalStep(model.root);
    ASSERT_OK_AND_ASSIGN(const TrainResult result, Train(model.root, model.op, Options(model, 7)));
    EXPECT_EQ(result.global_step, 7);
    EXPECT_EQ(result.own_steps, 7);
    EXPECT_EQ(SavedStep(Checkpoint(7)), 7);
  }
}

// Batch normalisation, with its updates given and not given: the moving averages are trained once
// per step. Its last batch is [1, 3]: mean 2, variance 1.
TEST_F(TrainTest, MovingAveragesAreTrained) {
  enum class Updates { kNotMentioned, kWithTheOperation, kOff };
  for (const bool counts : {true, false}) {
    for (const Updates updates :
         {Updates::kNotMentioned, Updates::kWithTheOperation, Updates::kOff}) {
      SCOPED_TRACE(absl::StrCat("counts ", counts, ", updates ", static_cast<int>(updates)));
      Scope root;
      const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {-1, 1});
      const BatchNormalizationLayer y =
          BatchNormalization(root, x, /*training=*/true, {.momentum = 0.5});
      const Output loss = ReduceMean(root, Square(root, y));
      MinimizeOptions minimize;
      if (counts) minimize.global_step = GlobalStep(root);
      Operation op =
          GradientDescentOptimizer({.learning_rate = 0.1}).Minimize(root, loss, minimize);
      if (updates == Updates::kWithTheOperation) op = TrainWithUpdates(root, op);
      std::vector<Tensor> averages;
      TrainOptions options;
      options.data = [&] { return Feeds{{x, TensorOf<float>({2, 1}, {1, 5})}}; };
      options.steps = 2;
      options.loss = loss;
      options.progress = false;
      options.update_ops = updates != Updates::kOff;
      options.eval = [&](Session* session) -> StatusOr<std::string> {
        MR_ASSIGN_OR_RETURN(averages,
                            session->Run({}, {y.moving_mean.value, y.moving_variance.value}));
        return "";
      };
      ASSERT_OK_AND_ASSIGN(const TrainResult result, Train(root, op, options));
      EXPECT_EQ(result.global_step, 2);
      ASSERT_EQ(averages.size(), 2u);
      // They begin at 0 and 1, and move half of the way in each step.
      const bool off = updates == Updates::kOff;
      ExpectTensorNear(averages[0], TensorOf<float>({1}, {off ? 0 : 2.25f}), 1e-6, 1e-6);
      ExpectTensorNear(averages[1], TensorOf<float>({1}, {off ? 1 : 3.25f}), 1e-6, 1e-6);
    }
  }
}

TEST_F(TrainTest, UpdatesOfAnotherGraphAreAnErrorByName) {
  Model model;
  model.root.AddToNodeCollection("update_ops", "gone");
  EXPECT_STATUS(Train(model.root, model.op, Options(model, 1)).status(), StatusCode::kNotFound,
                "Train: collection 'update_ops': an entry must be of the graph, got 'gone'");
}

TEST_F(TrainTest, UpdatesOfAnotherModelThatCannotRunAreNamed) {
  Model model;
  const Output other = Placeholder(model.root.WithName("other"), DT_FLOAT, {-1, 1});
  model.root.AddToNodeCollection("update_ops",
                                 Neg(model.root.WithName("reads_other"), other).name());
  EXPECT_STATUS(Train(model.root, model.op, Options(model, 1)).status(),
                StatusCode::kInvalidArgument,
                "; a step runs 1 operation(s) of 'update_ops', first 'reads_other', too; "
                ".update_ops = false leaves another model's out");
  Model again;
  const Output fed = Placeholder(again.root.WithName("other"), DT_FLOAT, {-1, 1});
  again.root.AddToNodeCollection("update_ops", Neg(again.root, fed).name());
  TrainOptions options = Options(again, 1);
  options.update_ops = false;
  EXPECT_OK(Train(again.root, again.op, options));
}

TEST_F(TrainTest, ADirectoryIsNotNeeded) {
  Model model;
  TrainOptions options = Options(model, 3);
  options.dir = "";
  ASSERT_OK_AND_ASSIGN(const TrainResult result, Train(model.root, model.op, options));
  EXPECT_EQ(result.global_step, 3);
  EXPECT_EQ(result.checkpoint, "");
}

TEST_F(TrainTest, WithoutLossNothingIsGuardedOrShown) {
  Model model;
  TrainOptions options = Options(model, 3);
  options.loss = Output();
  ASSERT_OK_AND_ASSIGN(const TrainResult result, Train(model.root, model.op, options));
  EXPECT_TRUE(std::isnan(result.loss));
}

// --- Data ----------------------------------------------------------------------------------------

TEST_F(TrainTest, TheEndOfTheDataIsTheEnd) {
  for (const bool by_status : {false, true}) {
    SCOPED_TRACE(by_status);
    FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError();
    Model model;
    int batches = 0;
    TrainOptions options = Options(model, /*steps=*/by_status ? 0 : 100);
    options.data = [&]() -> FeedsOrEnd {
      if (batches++ < 6) return model.Batch();
      if (by_status) return absl::OutOfRangeError("no more");
      return std::nullopt;
    };
    ASSERT_OK_AND_ASSIGN(const TrainResult result, Train(model.root, model.op, options));
    EXPECT_EQ(result.global_step, 6);
    EXPECT_EQ(Latest(), Checkpoint(6));
  }
}

TEST_F(TrainTest, TheOrderOfTheFeedsMayChange) {
  std::vector<double> losses;
  for (const bool changes : {false, true}) {
    Model model;
    TrainOptions options = Options(model, 20);
    options.dir = "";
    int batches = 0;
    options.data = [&] {
      Feeds feeds = model.Batch();
      if (changes && ++batches % 3 == 0) std::swap(feeds[0], feeds[1]);
      return feeds;
    };
    ASSERT_OK_AND_ASSIGN(const TrainResult result, Train(model.root, model.op, options));
    losses.push_back(result.loss);
  }
  EXPECT_EQ(losses[0], losses[1]);
}

TEST_F(TrainTest, ShapesOfBatchesMayChange) {
  Model model;
  TrainOptions options = Options(model, 9);
  int64_t batches = 0;
  options.data = [&] {
    const std::vector<float> xs(static_cast<size_t>(++batches % 4 + 1), 1.0f);
    return Feeds{{model.x, Tensor::Vector<float>(xs)}, {"y", Tensor::Vector<float>(xs)}};
  };
  EXPECT_OK(Train(model.root, model.op, options).status());
}

TEST_F(TrainTest, AGraphMayMakeItsOwnInput) {
  Scope root;
  const Variable w = MakeVariable(root.WithName("w"), Const(root, 4.0f));
  const Output loss = Square(root, w.value);
  const Operation op = GradientDescentOptimizer({.learning_rate = 0.25}).Minimize(root, loss);
  ASSERT_OK_AND_ASSIGN(const TrainResult result,
                       Train(root, op, {.steps = 4, .loss = loss, .progress = false}));
  // 4, 2, 1, 0.5: each step halves w.
  EXPECT_EQ(result.loss, 0.25);
}

TEST_F(TrainTest, DataThatFailsInTheMiddleLosesNothing) {
  // kUnavailable would mean a lost session, if a session returned it.
  for (const StatusCode code : {StatusCode::kDataLoss, StatusCode::kUnavailable}) {
    FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError();
    Model model;
    TrainOptions options = Options(model, 100);
    int batches = 0;
    options.data = [&]() -> FeedsOrEnd {
      if (batches++ < 4) return model.Batch();
      return Status(code, "record 4 is torn");
    };
    EXPECT_STATUS(Train(model.root, model.op, options).status(), code,
                  "Train: data after global step 4: record 4 is torn");
    EXPECT_EQ(batches, 5);
    EXPECT_EQ(Latest(), Checkpoint(4));
  }
}

// --- Signals -------------------------------------------------------------------------------------

TEST_F(TrainTest, ASignalEndsWithALastCheckpointAndTheNextCallGoesOn) {
  int64_t ended_at = 0;
  for (const int signal : {SIGTERM, SIGINT}) {
    struct sigaction before = {};
    ASSERT_EQ(::sigaction(signal, nullptr, &before), 0);
    Model model;
    TrainOptions options = Options(model, 1000);
    int batches = 0;
    options.data = [&] {
      if (++batches == 10) ::raise(signal);
      return model.Batch();
    };
    const auto result = Train(model.root, model.op, options);
    ended_at += 10;
    EXPECT_STATUS(result.status(), StatusCode::kCancelled,
                  absl::StrCat("Train: ended by ", signal == SIGINT ? "SIGINT" : "SIGTERM",
                               " at global step ", ended_at, "; saved ", Checkpoint(ended_at),
                               ", start again to go on from it"));
    EXPECT_EQ(ExitCode(result.status()), 128 + signal);
    EXPECT_EQ(Latest(), Checkpoint(ended_at));
    struct sigaction after = {};
    ASSERT_EQ(::sigaction(signal, nullptr, &after), 0);
    EXPECT_EQ(after.sa_handler, before.sa_handler);
  }
}

TEST_F(TrainTest, ASignalWithoutALastCheckpointHasAnotherExitCode) {
  const ScopedFailPoints full("saver/before_save=error:resource_exhausted");
  ASSERT_OK(full.status());
  Model model;
  TrainOptions options = Options(model, 1000);
  options.supervisor.stop_grace = absl::Milliseconds(500);
  options.data = [&] {
    ::raise(SIGTERM);
    return model.Batch();
  };
  const Status status = Train(model.root, model.op, options).status();
  EXPECT_STATUS(
      status, StatusCode::kResourceExhausted,
      "Train: ended by SIGTERM at global step 1: Supervisor: last checkpoint not written");
  EXPECT_EQ(ExitCode(status), kExitRetryable);
}

TEST_F(TrainTest, ASignalWhereNothingIsKeptSaysSo) {
  Model model;
  TrainOptions options = Options(model, 1000);
  options.dir = "";
  options.data = [&] {
    ::raise(SIGTERM);
    return model.Batch();
  };
  EXPECT_STATUS(Train(model.root, model.op, options).status(), StatusCode::kCancelled,
                "ended by SIGTERM at global step 1; nothing is kept without a dir");
}

TEST_F(TrainTest, SignalsAreLeftAloneWhereTheCallerHandlesThem) {
  struct sigaction ignore = {};
  ignore.sa_handler = SIG_IGN;
  struct sigaction former = {};
  ASSERT_EQ(::sigaction(SIGINT, &ignore, &former), 0);
  Model model;
  TrainOptions options = Options(model, 5);
  options.handle_signals = false;
  options.data = [&] {
    ::raise(SIGINT);
    return model.Batch();
  };
  EXPECT_OK(Train(model.root, model.op, options).status());
  ASSERT_EQ(::sigaction(SIGINT, &former, nullptr), 0);
}

// --- Checkpoints, recovery -----------------------------------------------------------------------

TEST_F(TrainTest, ACheckpointIsWrittenEachSoManySteps) {
  Model model;
  TrainOptions options = Options(model, 25);
  options.save_every = 10;
  ASSERT_OK(Train(model.root, model.op, options).status());
  const auto state = ReadCheckpointState(FileSystem::Posix(), run());
  ASSERT_TRUE(state.has_value());
  EXPECT_EQ(state->all, (std::vector<std::string>{Checkpoint(10), Checkpoint(20), Checkpoint(25)}));
}

TEST_F(TrainTest, ALostSessionIsFollowedByOneFromTheLastCheckpoint) {
  Model model;
  TrainOptions options = Options(model, 30);
  options.target = "lost://";
  options.save_every = 10;
  options.supervisor.recovery_wait = absl::Milliseconds(1);
  runs_until_loss = 14;
  int batches = 0;
  options.data = [&model, &batches] {
    ++batches;
    return model.Batch();
  };
  ASSERT_OK_AND_ASSIGN(const TrainResult result, Train(model.root, model.op, options));
  EXPECT_EQ(result.global_step, 30);
  // The lost step runs again with its own batch.
  EXPECT_EQ(batches, 34);
  // Steps 11 to 14 were lost with the session.
  EXPECT_EQ(result.own_steps, 34);
  EXPECT_EQ(Latest(), Checkpoint(30));
}

TEST_F(TrainTest, RecoveryIsGivenUp) {
  Model model;
  TrainOptions options = Options(model, 30);
  options.target = "lost://";
  options.max_recoveries = 0;
  runs_until_loss = 3;
  EXPECT_STATUS(Train(model.root, model.op, options).status(), StatusCode::kUnavailable,
                "ps is gone; gave up after 0 new sessions");
  EXPECT_EQ(Latest(), "none");
}

TEST_F(TrainTest, ALossThatIsNotFiniteEndsTrainingAndIsNotSaved) {
  Model model;
  TrainOptions options = Options(model, 100);
  options.save_every = 3;
  int batches = 0;
  options.data = [&] {
    Feeds feeds = model.Batch();
    if (++batches == 5) feeds[0].value = Tensor::Vector<float>({NAN, 0, 0, 0});
    return feeds;
  };
  EXPECT_STATUS(Train(model.root, model.op, options).status(), StatusCode::kInvalidArgument,
                "NaN guard: the loss must be finite, got nan at global step 5");
  EXPECT_EQ(Latest(), Checkpoint(3));
}

// A step after whose own update three updates of other tasks are counted.
Operation WithOthers(const Model& model) {
  const Scope after = model.root.WithControlDependencies({model.op});
  return AssignAddVariableOp(after.WithName("others"), GlobalStep(model.root).handle,
                             Const(after, int64_t{3}));
}

TEST_F(TrainTest, StalenessIsMeasuredShownAndNamedByTheGuard) {
  Model model;
  const Operation op = WithOthers(model);
  TrainOptions options = Options(model, 200);
  options.target = "lost://";
  options.progress = true;
  options.report_every = 100;
  options.supervisor.recovery_wait = absl::Milliseconds(1);
  ::testing::internal::CaptureStdout();
  const auto result = Train(model.root, op, options);
  const std::string text = ::testing::internal::GetCapturedStdout();
  ASSERT_OK(result.status());
  EXPECT_EQ(result->global_step, 200);
  EXPECT_EQ(result->own_steps, 50);
  EXPECT_EQ(result->staleness.mean, 3);
  EXPECT_EQ(result->staleness.max, 3);
  EXPECT_TRUE(absl::StrContains(text, "Step: 100, loss: ")) << text;
  EXPECT_TRUE(absl::StrContains(text, ", staleness: 3")) << text;
  EXPECT_TRUE(absl::StrContains(text, "step 200/200  loss ")) << text;
  EXPECT_TRUE(absl::StrContains(text, "  staleness 3")) << text;

  Model bad;
  options = Options(bad, 400);
  options.target = "lost://";
  options.data = [&bad] {
    Feeds feeds = bad.Batch();
    feeds[0].value = Tensor::Vector<float>({NAN, 0, 0, 0});
    return feeds;
  };
  EXPECT_STATUS(
      Train(bad.root, WithOthers(bad), options).status(), StatusCode::kInvalidArgument,
      "NaN guard: the loss must be finite, got nan at global step 204; this task's gradients were "
      "stale by 3.0 updates of other tasks on average, 3 at most: lower the learning rate, to "
      "about "
      "1/4 of what one task alone stands, or train with fewer workers; or look for bad input");
}

// One task in a process of its own has no others.
TEST_F(TrainTest, ATaskAloneIsNotStale) {
  Model model;
  ASSERT_OK_AND_ASSIGN(const TrainResult alone, Train(model.root, model.op, Options(model, 20)));
  EXPECT_EQ(alone.staleness.max, 0);
  Model on_servers;
  TrainOptions options = Options(on_servers, 40);
  options.target = "lost://";
  ASSERT_OK_AND_ASSIGN(const TrainResult there, Train(on_servers.root, on_servers.op, options));
  EXPECT_EQ(there.own_steps, 20);
  EXPECT_EQ(there.staleness.max, 0);
}

// --- What TensorBoard shows ----------------------------------------------------------------------

// "loss@10", "global_step/sec@10", "CHECKPOINT@10", in the order of the files.
std::string EventsIn(const std::string& directory) {
  std::vector<std::string> texts;
  auto reader = EventReader::Open(FileSystem::Posix(), directory);
  while (reader.ok()) {
    const auto event = (*reader)->Next();
    if (!event.ok()) break;
    if (event->has_session_log()) texts.push_back(absl::StrCat("CHECKPOINT@", event->step()));
    for (const auto& value : event->summary().value()) {
      texts.push_back(absl::StrCat(value.tag(), "@", event->step()));
    }
  }
  return absl::StrJoin(texts, " ");
}

// No step was closed in order when the files are read in the middle, as after kill -9.
TEST_F(TrainTest, LossesAndTheRateAreInEventFilesUpToTheLastCheckpoint) {
  Model model;
  TrainOptions options = Options(model, 25);
  options.save_every = 10;
  options.summary_every = 5;
  int batches = 0;
  std::string in_the_middle;
  options.data = [&] {
    if (++batches == 13) in_the_middle = EventsIn(run());
    return model.Batch();
  };
  std::vector<std::string> checkpoints;
  options.supervisor.on_checkpoint = [&](int64_t step, const std::string& path) {
    checkpoints.push_back(absl::StrCat(step, " ", Basename(path)));
  };
  ASSERT_OK(Train(model.root, model.op, options).status());
  const std::string up_to_ten =
      "loss@1 loss@5 global_step/sec@5 loss@10 global_step/sec@10 CHECKPOINT@10";
  EXPECT_EQ(in_the_middle, up_to_ten);
  EXPECT_EQ(EventsIn(run()),
            absl::StrCat(up_to_ten,
                         " loss@15 global_step/sec@15 loss@20 global_step/sec@20 CHECKPOINT@20 "
                         "loss@25 global_step/sec@25 CHECKPOINT@25"));
  EXPECT_EQ(checkpoints,
            (std::vector<std::string>{"10 model.ckpt-10", "20 model.ckpt-20", "25 model.ckpt-25"}));
}

TEST_F(TrainTest, TheLastStepIsShownWhateverEndsTheTraining) {
  Model model;
  TrainOptions options = Options(model, /*steps=*/0);
  int batches = 0;
  options.data = [&]() -> FeedsOrEnd {
    if (++batches > 7) return std::nullopt;
    return model.Batch();
  };
  ASSERT_OK(Train(model.root, model.op, options).status());
  EXPECT_EQ(EventsIn(run()), "loss@1 loss@7 global_step/sec@7 CHECKPOINT@7");
  Model second;
  options = Options(second, 100);
  options.data = [&] {
    ::raise(SIGTERM);
    return second.Batch();
  };
  EXPECT_FALSE(Train(second.root, second.op, options).ok());
  EXPECT_EQ(EventsIn(run()), "loss@1 loss@7 global_step/sec@7 CHECKPOINT@7 loss@8 CHECKPOINT@8");
}

TEST_F(TrainTest, NoEventsAreWrittenWhereNobodyAskedForThem) {
  Model model;
  TrainOptions options = Options(model, 5);
  options.summary_every = 0;
  ASSERT_OK(Train(model.root, model.op, options).status());
  ASSERT_OK_AND_ASSIGN(const auto files, EventFiles(FileSystem::Posix(), run()));
  EXPECT_TRUE(files.empty());
}

// --- A directory of another model ----------------------------------------------------------------

TEST_F(TrainTest, ADirectoryOfAnotherModelIsRefusedAndItsRunStaysAsItIs) {
  {
    Model model;
    ASSERT_OK(Train(model.root, model.op, Options(model, 5)).status());
  }
  Scope root;
  const Variable other = MakeVariable(root.WithName("other"), Const(root, 4.0f));
  const Output loss = Square(root, other.value);
  const Operation op = GradientDescentOptimizer({.learning_rate = 0.25}).Minimize(root, loss);
  const Status refused =
      Train(root, op, {.steps = 9, .dir = run(), .loss = loss, .progress = false}).status();
  EXPECT_STATUS(
      refused, StatusCode::kFailedPrecondition,
      absl::StrCat("Supervisor: logdir '", run(), "' must hold checkpoints of this model, got ",
                   "another model's: '", Checkpoint(5), "' lacks 1 ('other'; built at "));
  EXPECT_EQ(ExitCode(refused), 1);
  ASSERT_OK_AND_ASSIGN(const auto end, ReadRunEnd(FileSystem::Posix(), run()));
  EXPECT_TRUE(end.has_value());
  Model model;
  ASSERT_OK_AND_ASSIGN(const TrainResult more, Train(model.root, model.op, Options(model, 8)));
  EXPECT_EQ(more.own_steps, 3);
}

// --- Why it ended --------------------------------------------------------------------------------

TEST_F(TrainTest, WhyTrainingEndedIsInTheResultAndInTheLog) {
  Model model;
  ::testing::internal::CaptureStderr();
  const auto reached = Train(model.root, model.op, Options(model, 6));
  const std::string log = ::testing::internal::GetCapturedStderr();
  ASSERT_OK(reached.status());
  EXPECT_EQ(reached->reason, "reached step 6 of 6");
  EXPECT_TRUE(absl::StrContains(log, "Train: training has ended: reached step 6 of 6")) << log;
  // Nothing is left to do; what the last step came to is known all the same.
  Model again;
  ASSERT_OK_AND_ASSIGN(const TrainResult before, Train(again.root, again.op, Options(again, 6)));
  EXPECT_EQ(before.reason, "step 6 of 6 was reached before");
  EXPECT_EQ(before.own_steps, 0);
  EXPECT_EQ(before.loss, reached->loss);
  // A task that comes too late.
  Model late;
  TrainOptions options = Options(late, 6);
  options.is_chief = false;
  options.target = "lost://";
  ASSERT_OK_AND_ASSIGN(const TrainResult left, Train(late.root, late.op, options));
  EXPECT_EQ(left.reason, "the run has ended: reached step 6 of 6");
  EXPECT_EQ(left.loss, reached->loss);
  Model more;
  options = Options(more, /*steps=*/0);
  int batches = 0;
  options.data = [&]() -> FeedsOrEnd {
    if (++batches > 2) return std::nullopt;
    return more.Batch();
  };
  ASSERT_OK_AND_ASSIGN(const TrainResult ended, Train(more.root, more.op, options));
  EXPECT_EQ(ended.reason, "the data ended after step 8");
}

// --- What is printed; evaluation -----------------------------------------------------------------

TEST_F(TrainTest, StepsEvaluationsAndCheckpointsArePrintedInTheirOrder) {
  Model model;
  TrainOptions options = Options(model, 5);
  options.save_every = 2;
  options.report_every = 2;
  options.eval_every = 4;
  options.progress = true;
  std::vector<int64_t> evaluated;
  options.eval = [&](Session* session) -> StatusOr<std::string> {
    MR_ASSIGN_OR_RETURN(const auto out, session->Run({}, {"global_step/Read/ReadVariableOp"}));
    evaluated.push_back(out[0].scalar<int64_t>());
    return absl::StrCat("accuracy: ", evaluated.size());
  };
  ::testing::internal::CaptureStdout();
  const auto result = Train(model.root, model.op, options);
  const std::string printed = ::testing::internal::GetCapturedStdout();
  ASSERT_OK(result.status());
  EXPECT_EQ(evaluated, (std::vector<int64_t>{4, 5}));
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(printed, '\n', absl::SkipEmpty())) {
    lines.emplace_back(line.substr(0, line.find(", loss")));
  }
  ASSERT_GE(lines.size(), 2u);
  EXPECT_TRUE(absl::StartsWith(lines[0], "step 1/5  loss 11.5")) << lines[0];
  std::erase_if(lines, [](const std::string& line) { return absl::StartsWith(line, "step "); });
  EXPECT_EQ(lines, (std::vector<std::string>{
                       "Step: 2", absl::StrCat("Saved ", Checkpoint(2)), "Step: 4",
                       absl::StrCat("Saved ", Checkpoint(4)), "Step: 4, accuracy: 1",
                       absl::StrCat("Saved ", Checkpoint(5)), "Step: 5, accuracy: 2"}));
  EXPECT_TRUE(absl::StrContains(printed, "step 5/5  loss ")) << printed;
}

TEST_F(TrainTest, AnEvaluationThatFailsEndsTrainingAndLosesNothing) {
  Model model;
  TrainOptions options = Options(model, 10);
  options.eval_every = 4;
  options.eval = [](Session*) -> StatusOr<std::string> {
    return absl::NotFoundError("no test images");
  };
  EXPECT_STATUS(Train(model.root, model.op, options).status(), StatusCode::kNotFound,
                "Train: eval at global step 4: no test images");
  EXPECT_EQ(Latest(), Checkpoint(4));
}

// --- Export --------------------------------------------------------------------------------------

TEST_F(TrainTest, TheTrainedModelIsExportedAndPredicts) {
  const std::string model_dir = JoinPath(dir_, "model");
  for (const int64_t steps : {500, 700}) {
    FileSystem::Posix()->RecursivelyDelete(model_dir).IgnoreError();
    Model model;
    TrainOptions options = Options(model, steps);
    options.export_to = model_dir;
    options.signature = {.inputs = {{"x", model.x}}, .outputs = {{"y", model.predicted}}};
    ASSERT_OK(Train(model.root, model.op, options).status());
    ASSERT_OK_AND_ASSIGN(const LoadedModel loaded, LoadModel(model_dir));
    ASSERT_OK_AND_ASSIGN(const NamedTensors out,
                         loaded.Predict({{"x", Tensor::Vector<float>({0, 10})}}));
    ExpectTensorNear(out.at("y"), TensorOf<float>({2}, {-1, 29}), 0, 0.5);
  }
  // Nothing is left to do, and the export is not written again.
  Model again;
  TrainOptions options = Options(again, 700);
  options.export_to = model_dir;
  options.signature = {.inputs = {{"x", again.x}}, .outputs = {{"y", again.predicted}}};
  EXPECT_OK(Train(again.root, again.op, options).status());
  // More steps would need another export directory, and Train refuses them before it trains.
  Model more;
  options = Options(more, 800);
  options.export_to = model_dir;
  options.signature = {.inputs = {{"x", more.x}}, .outputs = {{"y", more.predicted}}};
  EXPECT_STATUS(Train(more.root, more.op, options).status(), StatusCode::kFailedPrecondition,
                absl::StrCat("Train: ExportModel: the export directory '", model_dir,
                             "' must be new or empty, got 3 files in it"));
  EXPECT_EQ(Latest(), Checkpoint(700));
}

TEST_F(TrainTest, SlotsOfATableInPartsAreSavedUnderNamesOfTheirOwn) {
  Model model(/*counts=*/false);
  const Output ids = Const<int64_t>(model.root, {0, 3});
  const EmbeddingLayer rows =
      Embedding(model.root, ids, 4, 2, {.partitioner = FixedSizePartitioner(2)});
  const Output loss = ReduceSum(model.root, Square(model.root, rows));
  const Operation op = AdamOptimizer({.learning_rate = 0.1}).Minimize(model.root, loss);
  ASSERT_OK(Train(model.root, op, Options(model, 3)).status());
  ASSERT_OK_AND_ASSIGN(const auto reader, BundleReader::Open(FileSystem::Posix(), Checkpoint(3)));
  for (const char* name :
       {"embedding/embeddings", "embedding/embeddings/Adam", "embedding/embeddings/Adam_1"}) {
    EXPECT_TRUE(reader->Contains(name)) << name;
  }
}

// No export without its checkpoint: a job that is started again would take the export as done.
TEST_F(TrainTest, AModelWhoseLastCheckpointCannotBeWrittenIsTrainedToTheEndAndNotExported) {
  const std::string model_dir = JoinPath(dir_, "model");
  Model model;
  TrainOptions options = Options(model, 20);
  options.save_every = absl::Milliseconds(1);
  options.supervisor.recovery_wait = absl::Milliseconds(1);
  options.supervisor.stop_grace = absl::Milliseconds(100);
  bool blocked = false;
  int batches = 0;
  options.data = [&]() -> Feeds {
    ++batches;
    if (!blocked) {  // the service may have made the directory again
      FileSystem::Posix()->RecursivelyDelete(run()).IgnoreError();
      blocked = WriteFileAtomically(FileSystem::Posix(), run(), "no directory").ok();
    }
    return model.Batch();
  };
  options.export_to = model_dir;
  options.signature = {.inputs = {{"x", model.x}}, .outputs = {{"y", model.predicted}}};
  const Status status = Train(model.root, model.op, options).status();
  EXPECT_NE(status.message().find("checkpoint not written"), std::string::npos) << status;
  EXPECT_EQ(ExitCode(status), kExitRetryable) << status;
  EXPECT_EQ(batches, 20);
  EXPECT_FALSE(FileSystem::Posix()->FileExists(model_dir));
}

TEST_F(TrainTest, ADiskThatIsFullForAWhileCostsNothingButItsCheckpoints) {
  for (const bool by_time : {false, true}) {
    FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError();
    const ScopedFailPoints full("saver/before_index=error:resource_exhausted,times=3");
    ASSERT_OK(full.status());
    Model model;
    TrainOptions options = Options(model, 40);
    if (by_time) {
      options.save_every = absl::Milliseconds(1);
    } else {
      options.save_every = 5;
    }
    options.supervisor.recovery_wait = absl::Milliseconds(1);
    const auto result = Train(model.root, model.op, options);
    ASSERT_OK(result.status());
    EXPECT_EQ(result->own_steps, 40);
    EXPECT_EQ(result->checkpoint, Checkpoint(40));
    EXPECT_EQ(SavedStep(Latest()), 40);
    EXPECT_GE(FailPointPasses("saver/before_index"), 4);
    // The three failed saves left no files.
    ASSERT_OK_AND_ASSIGN(const auto files, FileSystem::Posix()->GetChildren(run()));
    for (const std::string& file : files) {
      if (file.find(".data-") == std::string::npos) continue;
      const std::string index = file.substr(0, file.find(".data-")) + ".index";
      EXPECT_NE(std::find(files.begin(), files.end(), index), files.end()) << file;
    }
  }
}

// --- Bad options ---------------------------------------------------------------------------------

TEST_F(TrainTest, OptionsThatCannotWorkAreRefusedBeforeTraining) {
  struct Case {
    const char* name;
    std::function<void(const Model&, TrainOptions*)> change;
    StatusCode code;
    std::string text;
  };
  Scope other_root;
  const Output other = Placeholder(other_root.WithName("other"), DT_FLOAT, PartialShape::Scalar());
  const std::string file = JoinPath(dir_, "file");
  ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(dir_));
  ASSERT_OK(WriteFileAtomically(FileSystem::Posix(), file, "not a directory"));
  const auto kInvalid = StatusCode::kInvalidArgument;
  const std::vector<Case> cases = {
      {"Steps", [](const Model&, TrainOptions* o) { o->steps = -3; }, kInvalid,
       "Train: steps must be >= 0, got -3"},
      {"NoEnd",
       [](const Model&, TrainOptions* o) {
         o->steps = 0;
         o->data = nullptr;
       },
       kInvalid, "Train: data or steps must say when training ends, got neither"},
      {"Recoveries", [](const Model&, TrainOptions* o) { o->max_recoveries = -1; }, kInvalid,
       "Train: max_recoveries must be >= 0, got -1"},
      {"SaveEvery", [](const Model&, TrainOptions* o) { o->save_every = -5; }, kInvalid,
       "Train: save_every must be >= 0, got -5"},
      {"ReportEvery", [](const Model&, TrainOptions* o) { o->report_every = absl::Seconds(-1); },
       kInvalid, "Train: report_every must be >= 0, got -1s"},
      {"SummaryEvery", [](const Model&, TrainOptions* o) { o->summary_every = -1; }, kInvalid,
       "Train: summary_every must be >= 0, got -1"},
      {"EvalEvery", [](const Model&, TrainOptions* o) { o->eval_every = 5; }, kInvalid,
       "Train: eval_every must come with eval, got none"},
      {"LossOfRows", [](const Model& m, TrainOptions* o) { o->loss = m.errors; }, kInvalid,
       "must be a float or double scalar, got float of shape [?]; ReduceMean makes one"},
      {"LossOfWholeNumbers",
       [](const Model& m, TrainOptions* o) { o->loss = GlobalStep(m.root).value; }, kInvalid,
       "must be a float or double scalar, got int64 of shape []"},
      {"ForeignLoss", [&](const Model&, TrainOptions* o) { o->loss = other; }, kInvalid,
       "Train: loss must be of the model's graph, got one of another Scope"},
      {"ExportWithoutSignature",
       [&](const Model&, TrainOptions* o) { o->export_to = dir_ + "/model"; }, kInvalid,
       "Train: export_to must come with the signature of the model, got no outputs"},
      {"SignatureWithoutExport",
       [](const Model& m, TrainOptions* o) {
         o->signature.outputs = {{"y", m.predicted}};
       },
       kInvalid, "Train: export_to must come with the signature of the model, got a signature"},
      {"InvalidOutput",
       [&](const Model&, TrainOptions* o) {
         o->export_to = dir_ + "/model";
         o->signature.outputs = {{"y", Output()}};
       },
       kInvalid, "output 'y' must be a tensor of the model's graph, got an invalid output"},
      {"ForeignOutput",
       [&](const Model&, TrainOptions* o) {
         o->export_to = dir_ + "/model";
         o->signature.outputs = {{"y", other}};
       },
       kInvalid, "output 'y' must be a tensor of the model's graph, got one of another Scope"},
      {"InputLeftOut",
       [&](const Model& m, TrainOptions* o) {
         o->export_to = dir_ + "/model";
         o->signature.outputs = {{"y", m.predicted}};
       },
       kInvalid, "the outputs need 'x', which must be an input; inputs are none"},
      {"ExportIntoAFile",
       [&](const Model& m, TrainOptions* o) {
         o->export_to = file + "/model";
         o->signature = {.inputs = {{"x", m.x}}, .outputs = {{"y", m.predicted}}};
       },
       StatusCode::kFailedPrecondition, "Train: ExportModel: the export directory '"},
      {"DirectoryThatIsAFile", [&](const Model&, TrainOptions* o) { o->dir = file; },
       StatusCode::kFailedPrecondition,
       absl::StrCat("Supervisor: logdir '", file, "' must be a directory that can be written")},
      {"UnknownTarget", [](const Model&, TrainOptions* o) { o->target = "http://x"; },
       StatusCode::kNotFound, "target 'http://x'"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    Model model;
    TrainOptions options = Options(model, 10);
    int batches = 0;
    options.data = [&] {
      ++batches;
      return model.Batch();
    };
    c.change(model, &options);
    EXPECT_STATUS(Train(model.root, model.op, options).status(), c.code, c.text);
    EXPECT_EQ(batches, 0);
  }
}

TEST_F(TrainTest, WrongFeedsAndOperationsAreNamed) {
  struct Case {
    const char* name;
    std::function<Feeds(const Model&)> feeds;
    std::string text;
  };
  Scope other_root;
  const Output other = Placeholder(other_root.WithName("other"), DT_FLOAT, {-1});
  const Tensor four = Tensor::Vector<float>({1, 2, 3, 4});
  const std::vector<Case> cases = {
      {"UnknownName",
       [&](const Model&) {
         return Feeds{{"xx:0", four}, {"y", four}};
       },
       "xx:0"},
      {"OfAnotherScope",
       [&](const Model& m) {
         return Feeds{{other, four}, {m.y, four}};
       },
       "feed 'other:0' must be of the graph"},
      {"NotFed",
       [&](const Model& m) {
         return Feeds{{m.x, four}};
       },
       "'y'"},
      {"WrongType",
       [&](const Model& m) {
         return Feeds{{m.x, Tensor::Vector<int32_t>({1})}, {m.y, four}};
       },
       "x:0"},
  };
  for (const Case& c : cases) {
    // In the first step, and after three good ones.
    for (const int good : {0, 3}) {
      SCOPED_TRACE(absl::StrCat(c.name, " ", good));
      Model model;
      TrainOptions options = Options(model, 10);
      options.dir = "";
      int batches = 0;
      options.data = [&] { return batches++ < good ? model.Batch() : c.feeds(model); };
      const auto result = Train(model.root, model.op, options);
      EXPECT_FALSE(result.ok());
      EXPECT_TRUE(absl::StrContains(result.status().message(), c.text)) << result.status();
    }
  }
  Model model;
  EXPECT_STATUS(Train(model.root, Operation(), Options(model, 1)).status(),
                StatusCode::kInvalidArgument, "must be of the model's graph, got an invalid one");
  EXPECT_STATUS(Train(model.root, other.op(), Options(model, 1)).status(),
                StatusCode::kInvalidArgument, "got one of another Scope");
  EXPECT_OK(Train(model.root, model.op, Options(model, 1)).status());
  EXPECT_STATUS(Train(model.root, model.op, Options(model, 2)).status(),
                StatusCode::kFailedPrecondition, "Graph is finalized");
}

}  // namespace
}  // namespace millrace
