// SPDX-License-Identifier: Apache-2.0
//
// TrainAndEvaluate in one process, and the evaluator with files that a chief would write.

#include "estimator/train_and_evaluate.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/exit_code.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/free_port.h"
#include "core/testing/tensor_testing.h"
#include "estimator/best_exporter.h"
#include "estimator/estimator_parts.h"
#include "estimator/evaluation_done.h"
#include "estimator/testing/line_model.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "ops/array/placeholder.h"
#include "run/run_file.h"

// covers: article 0-1: one call trains, evaluates and exports, and returns metrics and paths
// covers: article 0-4, 0-24: exporters after evaluations, once at the end or after each
// covers: article 1-20, 1-25: LatestExporter keeps all, or the last five; one exporter, several,
//   none
// covers: article 3-23: the evaluator evaluates new checkpoints
// covers: article 3-36: the role decides what is run
// covers: scenario F2: ps, chief, workers, evaluator in any order, to their end
// covers: scenario F9: the final exporter
// covers: scenario F17: data, hooks and checkpoints that end an evaluator's wait
// covers: scenario F18: data of several trainers: a warning at their end
// covers: training: an Estimator's log has a line for each group of steps, with rate and time left,
//   and one at the end with time, reason, the best evaluation and the exports
// covers: training: a receiver without a feature of the model is refused before the first step,
//   with exporter and feature; a chief that no evaluator followed warns of it; a worker whose turn
//   to begin has not come leaves when the run ends

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

ServingInputReceiver FeedX(const Scope& scope) {
  const Output x = Placeholder(scope.WithName("x"), DT_FLOAT, {-1});
  return {.features = {{"x", x}}, .receivers = {{"x", x}}};
}

// Notes what each call asks for.
class NoteExporter : public Exporter {
 public:
  explicit NoteExporter(std::string name = "note") : name_(std::move(name)) {}
  std::string name() const override { return name_; }
  StatusOr<std::string> Export(const ExporterCall& call) override {
    asked.push_back(
        absl::StrCat(call.result.global_step, call.is_the_final_export ? " final" : ""));
    return "";
  }
  std::vector<std::string> asked;

 private:
  const std::string name_;
};

class TrainAndEvaluateTest : public testing::Test {
 protected:
  TrainAndEvaluateTest()
      : dir_(absl::StrCat(testing::TempDir(), "/tae_",
                          testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs()->RecursivelyDelete(dir_).IgnoreError();
  }
  static FileSystem* fs() { return FileSystem::Posix(); }
  Estimator Line(const RunConfigFields& fields = {.save_checkpoints_steps = 10},
                 const std::string& tf_config = "") {
    EstimatorOptions options;
    options.model_dir = dir_;
    options.config = *RunConfig::Make(fields, tf_config);
    options.clock = clock_;
    return *Estimator::Make(LineModel, options);
  }
  Estimator Evaluator() {
    return Line({}, R"({"cluster": {"chief": ["a:1"], "ps": ["b:1"]},
                        "task": {"type": "evaluator", "index": 0}})");
  }
  EvalSpec Evaluates(double throttle_secs = 0) {
    return {.input_fn = Points,
            .steps = 1,
            .exporters = {note_},
            .start_delay_secs = 0,
            .throttle_secs = throttle_secs};
  }

  const std::string dir_;
  Clock* clock_ = Clock::Real();
  const std::shared_ptr<NoteExporter> note_ = std::make_shared<NoteExporter>();
};

TEST(WorkerDelayTest, WorkersBeginOneAfterTheOther) {
  const auto delay = [](int worker, const RunConfigFields& fields = {}) {
    return WorkerDelaySecs(*RunConfig::Make(
        fields, absl::StrCat(R"({"cluster": {"chief": ["c:1"], "ps": ["p:1"], "worker": ["a:1")",
                             R"(, "b:1", "c:2", "d:1", "e:1", "f:1", "g:1", "h:1", "i:1", "j:1")",
                             R"(, "k:1", "l:1", "m:1"]}, "task": {"type": "worker", "index": )",
                             worker, "}}")));
  };
  EXPECT_EQ(delay(0), 5);
  EXPECT_EQ(delay(1), 10);
  EXPECT_EQ(delay(11), 60);
  EXPECT_EQ(delay(12), 60);
  EXPECT_EQ(delay(1, {.experimental_max_worker_delay_secs = 7}), 7);
  EXPECT_EQ(delay(12, {.experimental_max_worker_delay_secs = 100}), 65);
  EXPECT_EQ(delay(1, {.experimental_max_worker_delay_secs = 0}), 0);
  EXPECT_EQ(delay(1, {.sync = SyncTraining{}}), 0) << "they wait for each other";
}

// --- One process ---------------------------------------------------------------------------------

TEST_F(TrainAndEvaluateTest, EvaluatesEachCheckpointButTheFirstAndTheLastOneAsFinal) {
  ASSERT_OK_AND_ASSIGN(
      const TrainAndEvaluateResult result,
      TrainAndEvaluate(Line(), {.input_fn = Points, .max_steps = 25}, Evaluates()));
  EXPECT_EQ(note_->asked, (std::vector<std::string>{"10", "20", "25 final"}));
  ASSERT_TRUE(result.evaluation.has_value());
  EXPECT_EQ(result.evaluation->global_step, 25);
  ASSERT_OK_AND_ASSIGN(
      const TrainAndEvaluateResult again,
      TrainAndEvaluate(Line(), {.input_fn = Points, .max_steps = 25}, Evaluates()));
  EXPECT_FALSE(again.evaluation.has_value()) << "nothing is trained, nothing is evaluated";
  EXPECT_EQ(again.reason,
            absl::StrCat("max_steps 25 is reached by '", JoinPath(dir_, "model.ckpt-25"), "'"));
  ASSERT_OK_AND_ASSIGN(const TrainAndEvaluateResult asked,
                       TrainAndEvaluate(Line(), {.input_fn = Points, .max_steps = 25}, Evaluates(),
                                        {.evaluate_when_trained_before = true}));
  ASSERT_TRUE(asked.evaluation.has_value());
  EXPECT_EQ(asked.evaluation->global_step, 25);
}

// covers: article 1-23, 1-24: start delay and throttle: fewer evaluations than checkpoints, but the
//   last one always
TEST_F(TrainAndEvaluateTest, AnEvaluationIsThrottledButNotTheLast) {
  ASSERT_OK(
      TrainAndEvaluate(Line(), {.input_fn = Points, .max_steps = 35}, Evaluates(3600)).status());
  EXPECT_EQ(note_->asked, (std::vector<std::string>{"10", "35 final"}));
}

// covers: article 1-18: data that end earlier end the run
TEST_F(TrainAndEvaluateTest, TheEndOfTheDataIsTheEndOfTheJob) {
  EvalSpec eval = Evaluates();
  eval.exporters.push_back(std::make_shared<FinalExporter>("final", ServingInputReceiverFn(FeedX)));
  ASSERT_OK_AND_ASSIGN(
      const TrainAndEvaluateResult result,
      TrainAndEvaluate(Line(), {.input_fn = [] { return FewPoints(12); }, .max_steps = 1000},
                       eval));
  EXPECT_EQ(note_->asked, (std::vector<std::string>{"10", "12", "12 final"}))
      << "evaluated when it was saved, and last when nothing followed";
  ASSERT_EQ(result.exports.size(), 1u);
  EXPECT_TRUE(absl::StartsWith(result.exports[0], dir_ + "/export/final/"));
}

TEST_F(TrainAndEvaluateTest, TheLastLineSumsTheJobUp) {
  EvalSpec eval = Evaluates();
  eval.exporters = {std::make_shared<FinalExporter>("final", ServingInputReceiverFn(FeedX))};
  testing::internal::CaptureStderr();
  const auto result = TrainAndEvaluate(Line(), {.input_fn = Points, .max_steps = 25}, eval);
  std::string log = testing::internal::GetCapturedStderr();
  ASSERT_OK(result.status());
  EXPECT_EQ(result->num_evaluations, 3);
  ASSERT_TRUE(result->best_evaluation.has_value());
  EXPECT_EQ(result->best_evaluation->global_step, 25) << "its loss decreases";
  ASSERT_EQ(result->exports.size(), 1u);
  log.pop_back();
  const std::string last = log.substr(log.rfind('\n') + 1);
  EXPECT_TRUE(absl::StrContains(last, "Estimator: done in 0:")) << last;
  EXPECT_TRUE(absl::StrContains(last,
                                ": reached step 25 of 25; 3 evaluations, smallest loss at "
                                "step 25: global_step = 25, loss = "))
      << last;
  EXPECT_TRUE(absl::EndsWith(last, absl::StrCat("; exported '", result->exports[0], "'"))) << last;
}

TEST_F(TrainAndEvaluateTest, AGroupOfStepsIsOneLineOfTheLog) {
  const Estimator line = Line({.save_checkpoints_steps = 1000, .log_step_count_steps = 10});
  testing::internal::CaptureStderr();
  const Status status =
      TrainAndEvaluate(line, {.input_fn = Points, .max_steps = 40}, Evaluates()).status();
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_OK(status);
  std::vector<std::string> lines;
  for (const absl::string_view one : absl::StrSplit(log, '\n')) {
    if (absl::StrContains(one, "loss = ") && absl::StrContains(one, ", step = ")) {
      lines.emplace_back(one);
    } else {
      EXPECT_FALSE(absl::StrContains(one, "global_step/sec")) << one;
    }
  }
  // A run may read the step before its own update, or after it.
  ASSERT_GE(lines.size(), 4u) << log;
  ASSERT_LE(lines.size(), 5u) << log;
  for (size_t i = 1; i < 3; ++i) {
    EXPECT_TRUE(absl::StrContains(lines[i], " sec), global_step/sec: ")) << lines[i];
    EXPECT_TRUE(absl::EndsWith(lines[i], " left")) << lines[i];
  }
  EXPECT_TRUE(absl::StrContains(log, "Estimator: trained 40 steps in 0:")) << log;
  EXPECT_TRUE(absl::StrContains(log, ". Loss for final step: ")) << log;
}

TEST_F(TrainAndEvaluateTest, TheResultListsTheExportsThatAreThere) {
  EvalSpec eval = Evaluates();
  eval.exporters = {std::make_shared<LatestExporter>("latest", ServingInputReceiverFn(FeedX),
                                                     LatestExporterOptions{.exports_to_keep = 1}),
                    std::make_shared<FinalExporter>("final", ServingInputReceiverFn(FeedX))};
  ASSERT_OK_AND_ASSIGN(const TrainAndEvaluateResult result,
                       TrainAndEvaluate(Line(), {.input_fn = Points, .max_steps = 25}, eval));
  ASSERT_EQ(result.exports.size(), 2u) << "of three of 'latest' one is kept";
  for (const std::string& path : result.exports) EXPECT_TRUE(fs()->FileExists(path)) << path;
  EXPECT_TRUE(absl::StartsWith(result.exports[0], dir_ + "/export/latest/"));
  EXPECT_TRUE(absl::StartsWith(result.exports[1], dir_ + "/export/final/"));
  EXPECT_EQ(result.reason, "reached step 25 of 25");
}

// covers: article 1-14: finite data end the training after the data of all trainers; a warning with
//   several trainers
// The other trainer never comes.
TEST_F(TrainAndEvaluateTest, DataThatEndsIsWarnedOfWhereSeveralTasksTrain) {
  const Estimator line = Line({}, absl::StrCat(R"({"cluster": {"chief": ["127.0.0.1:)", FreePort(),
                                               R"("], "worker": ["127.0.0.1:)", FreePort(),
                                               R"("]}, "task": {"type": "chief", "index": 0}})"));
  testing::internal::CaptureStderr();
  const Status status = TrainAndEvaluate(line, {.input_fn = [] { return FewPoints(12); }},
                                         Evaluates(), {.trainers_grace_secs = 0})
                            .status();
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_OK(status);
  EXPECT_TRUE(absl::StrContains(log,
                                "the training data is finite: each of 2 trainers reads all of it, "
                                "unless it takes its shard"))
      << log;
  ASSERT_OK_AND_ASSIGN(const Tensor step, line.GetVariableValue("global_step"));
  EXPECT_EQ(step.scalar<int64_t>(), 12);
}

TEST_F(TrainAndEvaluateTest, AChiefSaysWhatItLeavesToTheEvaluatorAndWarnsWhenNoneCame) {
  EvalSpec eval = Evaluates();
  eval.exporters.push_back(std::make_shared<NoteExporter>("last"));
  // The other trainer never comes.
  const auto log_of = [&](int64_t max_steps) {
    const Estimator chief =
        Line({}, absl::StrCat(R"({"cluster": {"chief": ["127.0.0.1:)", FreePort(),
                              R"("], "worker": ["127.0.0.1:)", FreePort(),
                              R"("]}, "task": {"type": "chief", "index": 0}})"));
    testing::internal::CaptureStderr();
    const Status status =
        TrainAndEvaluate(chief, {.input_fn = Points, .max_steps = max_steps}, eval).status();
    std::string log = testing::internal::GetCapturedStderr();
    EXPECT_OK(status);
    return log;
  };
  const std::string leaves =
      "evaluations, early stopping by a metric and exports ('note', 'last') are the evaluator's: "
      "without that task there are none";
  const std::string warning = absl::StrCat("'", JoinPath(dir_, "eval"), "' has no evaluation");
  const std::string first = log_of(3);
  EXPECT_TRUE(absl::StrContains(first, leaves)) << first;
  EXPECT_TRUE(absl::StrContains(first, warning)) << first;
  EXPECT_TRUE(absl::StrContains(first, "nor an export ('note', 'last')")) << first;
  EXPECT_TRUE(note_->asked.empty());
  ASSERT_OK(Line().Evaluate(Points, {.steps = 1}).status());
  const std::string second = log_of(6);
  EXPECT_TRUE(absl::StrContains(second, leaves)) << second;
  EXPECT_FALSE(absl::StrContains(second, warning)) << second;
}

TEST_F(TrainAndEvaluateTest, InTensorFlowsWayTheEndOfTheDataIsNotFinal) {
  ASSERT_OK(TrainAndEvaluate(Line(), {.input_fn = [] { return FewPoints(12); }}, Evaluates(),
                             {.tensorflow_ends = true})
                .status());
  EXPECT_EQ(note_->asked, (std::vector<std::string>{"10", "12"}));
}

TEST_F(TrainAndEvaluateTest, TheLegacyLoopEvaluatesBetweenRoundsOfTraining) {
  // Each round reads the data from the beginning: 7 points.
  ASSERT_OK_AND_ASSIGN(
      const TrainAndEvaluateResult result,
      TrainAndEvaluate(Line(), {.input_fn = [] { return FewPoints(7); }, .max_steps = 20},
                       Evaluates(3600), {.legacy_local_loop = true}));
  EXPECT_EQ(note_->asked, (std::vector<std::string>{"7", "14", "20 final"}));
  ASSERT_TRUE(result.evaluation.has_value());
  EXPECT_EQ(result.evaluation->global_step, 20);
  EXPECT_STATUS(TrainAndEvaluate(Line(), {.input_fn = Points, .max_steps = 30}, Evaluates(0),
                                 {.legacy_local_loop = true}),
                kInvalid, "EvalSpec: throttle_secs must be > 0 with legacy_local_loop, got 0");
}

// --- What specs must be --------------------------------------------------------------------------

struct WrongSpec {
  std::string name;
  TrainSpec train;
  EvalSpec eval;
  TrainAndEvaluateOptions options;
  std::string message;
};
class WrongSpecTest : public testing::TestWithParam<WrongSpec> {};

TEST_P(WrongSpecTest, NamesTheField) {
  EstimatorOptions options;
  options.model_dir = absl::StrCat(testing::TempDir(), "/wrong_spec");
  options.config = RunConfig();
  const Estimator line = *Estimator::Make(LineModel, options);
  const Status status =
      TrainAndEvaluate(line, GetParam().train, GetParam().eval, GetParam().options).status();
  EXPECT_STATUS(status, kInvalid, GetParam().message);
  EXPECT_EQ(ExitCode(status), 1);
}

TrainSpec GoodTrain() { return {.input_fn = Points, .max_steps = 1}; }
EvalSpec GoodEval() { return {.input_fn = Points, .steps = 1}; }
template <typename Change>
WrongSpec Wrong(const std::string& name, Change change, const std::string& message) {
  WrongSpec wrong = {name, GoodTrain(), GoodEval(), {}, message};
  change(&wrong);
  return wrong;
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongSpecTest,
    testing::ValuesIn(std::vector<WrongSpec>{
        Wrong(
            "EvalFirst",
            [](WrongSpec* w) {
              w->eval.input_fn = InputFn();
              w->train.input_fn = InputFn();
            },
            "EvalSpec: input_fn must be a function, got none"),
        Wrong(
            "TrainInput", [](WrongSpec* w) { w->train.input_fn = InputFn(); },
            "TrainSpec: input_fn must be a function, got none"),
        Wrong(
            "MaxSteps", [](WrongSpec* w) { w->train.max_steps = 0; },
            "TrainSpec: max_steps must be > 0 or none, got 0"),
        Wrong(
            "TrainHook", [](WrongSpec* w) { w->train.hooks = {nullptr}; },
            "TrainSpec: hooks must be hooks, got a null one"),
        Wrong(
            "Listener", [](WrongSpec* w) { w->train.saving_listeners = {nullptr}; },
            "TrainSpec: saving_listeners must be listeners, got a null one"),
        Wrong(
            "Steps", [](WrongSpec* w) { w->eval.steps = -1; },
            "EvalSpec: steps must be > 0 or none, got -1"),
        Wrong(
            "EvalHook", [](WrongSpec* w) { w->eval.hooks = {nullptr}; },
            "EvalSpec: hooks must be hooks, got a null one"),
        Wrong(
            "StartDelay", [](WrongSpec* w) { w->eval.start_delay_secs = -1; },
            "EvalSpec: start_delay_secs must be >= 0, got -1"),
        Wrong(
            "Throttle", [](WrongSpec* w) { w->eval.throttle_secs = -2; },
            "EvalSpec: throttle_secs must be >= 0, got -2"),
        Wrong(
            "NullExporter", [](WrongSpec* w) { w->eval.exporters = {nullptr}; },
            "EvalSpec: exporters must be exporters, got a null one"),
        Wrong(
            "ExporterWithoutName",
            [](WrongSpec* w) { w->eval.exporters = {std::make_shared<NoteExporter>("")}; },
            "EvalSpec: exporters must have names that directories can have, got ''"),
        Wrong(
            "TwoExportersOfOneName",
            [](WrongSpec* w) {
              w->eval.exporters = {std::make_shared<NoteExporter>("a"),
                                   std::make_shared<NoteExporter>("a")};
            },
            "EvalSpec: exporters must have names that differ, got 'a' twice"),
        Wrong(
            "Name", [](WrongSpec* w) { w->eval.name = "a/b"; },
            "EvalSpec: name must be part of a directory's name, got 'a/b'"),
        Wrong(
            "Grace", [](WrongSpec* w) { w->options.end_grace_secs = -1; },
            "TrainAndEvaluateOptions: end_grace_secs must be >= 0, got -1"),
    }),
    [](const auto& info) { return info.param.name; });

// Feeds "z"; the model needs "x".
ServingInputReceiver FeedZ(const Scope& scope) {
  const Output z = Placeholder(scope.WithName("z"), DT_FLOAT, {-1});
  return {.features = {{"z", z}}, .receivers = {{"z", z}}};
}

TEST_F(TrainAndEvaluateTest, AReceiverWithoutAFeatureOfTheModelIsRefusedBeforeTheFirstStep) {
  const ServingInputReceiverFn feed_z(FeedZ), feed_x(FeedX);
  struct Case {
    std::shared_ptr<Exporter> exporter;
    std::string message;
  };
  const std::string lacks =
      ": model over the features of serving_input_receiver_fn: Estimator: features['x'] must be "
      "one of those given, 'z', got 'x'";
  const std::vector<Case> cases = {
      {std::make_shared<FinalExporter>("final", feed_z), "EvalSpec: exporter 'final'" + lacks},
      {std::make_shared<LatestExporter>("latest", feed_z), "EvalSpec: exporter 'latest'" + lacks},
      {std::make_shared<BestExporter>("best", feed_z), "EvalSpec: exporter 'best'" + lacks},
      {std::make_shared<FinalExporter>("final", ServingInputReceiverFn()),
       "EvalSpec: exporter 'final': Estimator: serving_input_receiver_fn must be a function, got "
       "none"},
      {std::make_shared<LatestExporter>("latest", feed_x,
                                        LatestExporterOptions{.exports_to_keep = 0}),
       "EvalSpec: exporter 'latest': LatestExporter 'latest': exports_to_keep must be > 0, got 0"},
      {std::make_shared<BestExporter>("best", feed_x, BestExporterOptions{.is_better = nullptr}),
       "EvalSpec: exporter 'best': BestExporter 'best': is_better must be a function, got none"},
  };
  const std::vector<Estimator> tasks = {Line(), Evaluator(),
                                        Line({}, R"({"cluster": {"chief": ["a:1"], "ps": ["b:1"]},
                   "task": {"type": "chief", "index": 0}})")};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.message);
    EvalSpec eval = Evaluates();
    eval.exporters = {note_, c.exporter};
    for (const Estimator& task : tasks) {
      const Status status =
          TrainAndEvaluate(task, {.input_fn = Points, .max_steps = 5}, eval).status();
      EXPECT_STATUS(status, kInvalid, c.message);
      EXPECT_TRUE(absl::StartsWith(status.message(), c.message)) << status;
    }
  }
  EXPECT_EQ(Line().latest_checkpoint(), "");
  EXPECT_TRUE(note_->asked.empty());
}

// Workers and ps ask no exporter.
TEST_F(TrainAndEvaluateTest, ATaskThatAsksNoExporterDoesNotCheckThem) {
  class Counts : public NoteExporter {
   public:
    Status Check(const Estimator&) const override {
      ++checks;
      return absl::InvalidArgumentError("no");
    }
    mutable int checks = 0;
  };
  const auto counts = std::make_shared<Counts>();
  EvalSpec eval = Evaluates();
  eval.exporters = {counts};
  EXPECT_STATUS(TrainAndEvaluate(Line(), GoodTrain(), eval), kInvalid,
                "EvalSpec: exporter 'note': no");
  EXPECT_EQ(counts->checks, 1);
  // There is no such role, which is said after exporters are checked.
  const Estimator other = Line({}, R"({"cluster": {"chief": ["a:1"], "sidecar": ["b:1"]},
                                    "task": {"type": "sidecar", "index": 0}})");
  EXPECT_STATUS(TrainAndEvaluate(other, GoodTrain(), eval), kInvalid,
                "TF_CONFIG: task.type must be chief, worker, master, ps or evaluator, got "
                "'sidecar'");
  EXPECT_EQ(counts->checks, 1);
}

TEST_F(TrainAndEvaluateTest, ThereIsOneEvaluator) {
  const Estimator second = Line({}, R"({"cluster": {"chief": ["a:1"]},
                                        "task": {"type": "evaluator", "index": 1}})");
  EXPECT_STATUS(TrainAndEvaluate(second, GoodTrain(), GoodEval()), kInvalid,
                "TF_CONFIG: task.index must be 0 for the evaluator, of which there is one, got 1");
}

// --- A worker that comes late
// ---------------------------------------------------------------------

// The end is below the worker's max_steps, and may be that of an older job elsewhere: here the
// chief came after the worker.
TEST_F(TrainAndEvaluateTest, AWorkerThatWaitsForItsTurnLeavesWithTheRun) {
  FakeClock clock;
  clock_ = &clock;
  const Estimator worker =
      Line({}, absl::StrCat(R"({"cluster": {"chief": ["127.0.0.1:)", FreePort(),
                            R"("], "worker": ["127.0.0.1:)", FreePort(),
                            R"("]}, "task": {"type": "worker", "index": 0}})"));
  clock_ = Clock::Real();
  const EvalSpec eval = Evaluates();
  StatusOr<TrainAndEvaluateResult> result = absl::UnknownError("it has not ended");
  std::thread waits([&] {
    result = TrainAndEvaluate(worker, {.input_fn = Points, .max_steps = 1000}, eval,
                              {.end_grace_secs = 3600});
  });
  clock.AwaitWaiters(1);  // 5 s, since its index is 0
  ASSERT_OK(Line().Train([] { return FewPoints(12); }, {.max_steps = 1000}).status());
  const absl::Time begin = clock.Now();
  clock.Advance(absl::Seconds(1));
  waits.join();
  ASSERT_OK(result.status());
  EXPECT_EQ(result->reason, "the run has ended: the data has ended");
  EXPECT_EQ(result->num_evaluations, 0);
  EXPECT_LT(clock.Now() - begin, absl::Seconds(5));
}

// It may be an older job's: the chief of this one may be on its way.
TEST_F(TrainAndEvaluateTest, AnEndThatStoodThereBeforeTheWorkerHasToStandForTheGrace) {
  ASSERT_OK(Line().Train([] { return FewPoints(12); }, {.max_steps = 1000}).status());
  const Estimator worker = Line({.experimental_max_worker_delay_secs = 0.1},
                                absl::StrCat(R"({"cluster": {"chief": ["127.0.0.1:)", FreePort(),
                                             R"("], "worker": ["127.0.0.1:)", FreePort(),
                                             R"("]}, "task": {"type": "worker", "index": 0}})"));
  testing::internal::CaptureStderr();
  const auto result = TrainAndEvaluate(worker, {.input_fn = Points, .max_steps = 1000}, Evaluates(),
                                       {.end_grace_secs = 0.1});
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_OK(result.status());
  EXPECT_EQ(result->reason, "the run has ended: the data has ended");
  EXPECT_TRUE(absl::StrContains(log,
                                "(the data has ended); leaves unless a chief goes on with it "
                                "within 100ms"))
      << log;
  EXPECT_FALSE(absl::StrContains(log, "leaves before it has begun")) << log;
}

// --- The evaluator -------------------------------------------------------------------------------

TEST_F(TrainAndEvaluateTest, TheEvaluatorEvaluatesTheLastCheckpointOfAnEndedRunAndLeaves) {
  // Training ends with its data, below max_steps.
  ASSERT_OK(Line().Train([] { return FewPoints(12); }, {.max_steps = 1000}).status());
  ASSERT_OK_AND_ASSIGN(const auto end, ReadRunEnd(fs(), dir_));
  ASSERT_TRUE(end.has_value());
  ASSERT_OK_AND_ASSIGN(const TrainAndEvaluateResult result,
                       TrainAndEvaluate(Evaluator(), {.input_fn = Points, .max_steps = 1000},
                                        Evaluates(), {.end_grace_secs = 0}));
  ASSERT_TRUE(result.evaluation.has_value());
  EXPECT_EQ(result.evaluation->global_step, 12);
  EXPECT_EQ(note_->asked, std::vector<std::string>{"12 final"});
  ASSERT_OK_AND_ASSIGN(const auto done, ReadEvaluationDone(fs(), dir_));
  ASSERT_TRUE(done.has_value());
  EXPECT_EQ(done->id, end->id);
  EXPECT_EQ(done->global_step, 12);
  EXPECT_EQ(done->checkpoint, "model.ckpt-12");
  EXPECT_EQ(result.reason, "the data has ended");
  // A later evaluator neither evaluates nor exports again, unless it is asked to.
  const auto come_again = [&] {
    return TrainAndEvaluate(Evaluator(), {.input_fn = Points, .max_steps = 1000}, Evaluates(),
                            {.end_grace_secs = 0});
  };
  ASSERT_OK_AND_ASSIGN(const TrainAndEvaluateResult again, come_again());
  EXPECT_FALSE(again.evaluation.has_value());
  EXPECT_EQ(note_->asked, std::vector<std::string>{"12 final"});
  ASSERT_OK(fs()->DeleteFile(dir_ + "/evaluation_done"));
  ASSERT_OK_AND_ASSIGN(const TrainAndEvaluateResult asked, come_again());
  EXPECT_TRUE(asked.evaluation.has_value());
}

TEST_F(TrainAndEvaluateTest, TheEvaluatorsLastEvaluationIsOfTheCheckpointThatTheEndNames) {
  ASSERT_OK(Line().Train(Points, {.max_steps = 20}).status());
  ASSERT_OK_AND_ASSIGN(auto end, ReadRunEnd(fs(), dir_));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->global_step, 20);
  EXPECT_EQ(end->updates_after_checkpoint, 0);
  end->global_step = 10;
  end->checkpoint = JoinPath(dir_, "model.ckpt-10");
  end->updates_after_checkpoint = 10;
  ASSERT_OK(WriteRunEnd(fs(), dir_, *end));
  ASSERT_OK_AND_ASSIGN(const TrainAndEvaluateResult result,
                       TrainAndEvaluate(Evaluator(), {.input_fn = Points, .max_steps = 1000},
                                        Evaluates(), {.end_grace_secs = 0}));
  ASSERT_TRUE(result.evaluation.has_value());
  EXPECT_EQ(result.evaluation->global_step, 10) << "although there is a later one";
  EXPECT_EQ(note_->asked, std::vector<std::string>{"10 final"});
  ASSERT_OK_AND_ASSIGN(const auto done, ReadEvaluationDone(fs(), dir_));
  ASSERT_TRUE(done.has_value());
  EXPECT_TRUE(HasLastCheckpointOf(*done, *end));
}

TEST_F(TrainAndEvaluateTest, TheEvaluatorFollowsTheCheckpointsOfAChief) {
  TrainAndEvaluateResult result;
  Status status;
  std::thread evaluator([&] {
    const auto run =
        TrainAndEvaluate(Evaluator(), {.input_fn = Points, .max_steps = 40}, Evaluates());
    status = run.status();
    if (run.ok()) result = *run;
  });
  const Estimator line = Line();
  for (const int64_t step : {10, 20, 40}) {
    ASSERT_OK(line.Train(Points, {.max_steps = step}).status());
  }
  evaluator.join();
  ASSERT_OK(status);
  ASSERT_TRUE(result.evaluation.has_value());
  EXPECT_EQ(result.evaluation->global_step, 40);
  EXPECT_EQ(note_->asked.back(), "40 final");
}

// The evaluator saw the end come, so it does not wait for a chief that would continue.
TEST_F(TrainAndEvaluateTest, AnEndBelowMaxStepsThatComesWhileTheEvaluatorLooksCountsAtOnce) {
  FakeClock clock;
  clock_ = &clock;
  Status status;
  std::optional<EvalResult> last;
  std::atomic<bool> ended = false;  // release by the thread, acquire here
  const EvalSpec eval = Evaluates();
  std::thread evaluator([&] {
    const auto run = TrainAndEvaluate(Evaluator(), {.input_fn = Points, .max_steps = 1000}, eval,
                                      {.end_grace_secs = 3600});
    status = run.status();
    if (run.ok()) last = run->evaluation;
    ended = true;
  });
  clock.AwaitWaiters(1);  // it has looked and found no end
  clock_ = Clock::Real();
  ASSERT_OK(Line().Train([] { return FewPoints(12); }, {.max_steps = 1000}).status());
  const absl::Time begin = clock.Now();
  for (int looks = 0; !ended; ++looks) {
    clock.Advance(looks < 100 ? absl::Seconds(1) : absl::Hours(1));
    Clock::Real()->SleepFor(absl::Milliseconds(20));
  }
  evaluator.join();
  ASSERT_OK(status);
  ASSERT_TRUE(last.has_value());
  EXPECT_EQ(last->global_step, 12);
  EXPECT_LT(clock.Now() - begin, absl::Hours(1));
}

TEST_F(TrainAndEvaluateTest, AnIdleEvaluatorLeavesWhenItIsTold) {
  ASSERT_OK_AND_ASSIGN(const TrainAndEvaluateResult result,
                       TrainAndEvaluate(Evaluator(), {.input_fn = Points}, Evaluates(),
                                        {.evaluator_idle_timeout_secs = 0.5}));
  EXPECT_FALSE(result.evaluation.has_value());
  EXPECT_FALSE(fs()->FileExists(dir_ + "/evaluation_done"));
}

TEST_F(TrainAndEvaluateTest, ACheckpointThatIsDeletedUnderTheEvaluatorGivesWayToTheNewer) {
  ASSERT_OK(Line({.save_checkpoints_steps = 10, .keep_checkpoint_max = 0})
                .Train(Points, {.max_steps = 20})
                .status());
  // The state file names the newer checkpoint only; the older one is there, too.
  int calls = 0;
  const std::string dir = dir_;
  EvalSpec eval = Evaluates();
  eval.input_fn = [&calls, dir](const Scope& scope) {
    if (calls++ == 0) {
      for (const char* suffix : {".index", ".data-00000-of-00001", ".meta"}) {
        FileSystem::Posix()->DeleteFile(absl::StrCat(dir, "/model.ckpt-20", suffix)).IgnoreError();
      }
    }
    return Points(scope);
  };
  ASSERT_OK_AND_ASSIGN(const TrainAndEvaluateResult result,
                       TrainAndEvaluate(Evaluator(), {.input_fn = Points, .max_steps = 20}, eval,
                                        {.end_grace_secs = 0}));
  ASSERT_TRUE(result.evaluation.has_value());
  EXPECT_EQ(result.evaluation->global_step, 10);
}

TEST(EvaluationDoneTest, TheCheckpointDecidesWhetherItIsTheLast) {
  const RunEndFile end = {
      .id = "run", .global_step = 604, .checkpoint = "/models/a/model.ckpt-602"};
  EXPECT_TRUE(HasLastCheckpointOf({"run", 602, "model.ckpt-602"}, end))
      << "others counted two steps more before the chief's word of the end";
  EXPECT_FALSE(HasLastCheckpointOf({"run", 604, "model.ckpt-500"}, end));
  EXPECT_FALSE(HasLastCheckpointOf({"run of before", 602, "model.ckpt-602"}, end));
  EXPECT_FALSE(HasLastCheckpointOf({"run", 602, ""}, {.id = "run", .global_step = 602}));
}

TEST(EvaluationDoneTest, DamagedFilesAreNamed) {
  const std::string dir = testing::TempDir();
  FileSystem* const fs = FileSystem::Posix();
  ASSERT_OK(WriteFileAtomically(fs, dir + "/evaluation_done", "{\"id\": 3}"));
  EXPECT_STATUS(ReadEvaluationDone(fs, dir), absl::StatusCode::kDataLoss, "evaluation_done");
  ASSERT_OK(WriteFileAtomically(fs, dir + "/evaluation_done", std::string(3000, '[')));
  EXPECT_STATUS(ReadEvaluationDone(fs, dir), absl::StatusCode::kDataLoss, "evaluation_done");
  ASSERT_OK(fs->DeleteFile(dir + "/evaluation_done"));
  ASSERT_OK_AND_ASSIGN(const auto none, ReadEvaluationDone(fs, dir));
  EXPECT_FALSE(none.has_value());
}

}  // namespace
}  // namespace millrace
