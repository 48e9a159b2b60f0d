// SPDX-License-Identifier: Apache-2.0
//
// Hooks that report, feed and run something at the end.
#include <cstdio>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "core/clock.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "graph/scope.h"
#include "gtest/gtest.h"
#include "layers/variable.h"
#include "ops/array/constant.h"
#include "ops/state/resource_variable.h"
#include "runtime/session.h"
#include "train/hooks/feed_fn.h"
#include "train/hooks/final_ops.h"
#include "train/hooks/in_memory_evaluator.h"
#include "train/hooks/logging_tensor.h"
#include "train/hooks/progress_hook.h"
#include "train/hooks/step_counter.h"
#include "train/hooks/step_log.h"
#include "train/hooks/step_timer.h"
#include "train/hooks/stop_at_step.h"
#include "train/monitored_session.h"
#include "train/progress.h"
#include "train/session_creator.h"
#include "train/session_run_hook.h"
#include "train/testing/hooked_model.h"
#include "train/testing/shared_variables.h"

// covers: training: reporting hooks show and guard a loop

namespace millrace {
namespace {

using absl::StatusCode;
using Model = HookedModel;

class ReportingHooksTest : public ::testing::Test {
 protected:
  ReportingHooksTest() { EXPECT_OK(servers_.Restart()); }

  StatusOr<std::unique_ptr<MonitoredSession>> Open(const Model& model,
                                                   std::vector<SessionRunHook*> hooks) {
    SessionCreatorOptions creator;
    creator.target = kSharedTarget;
    MonitoredSessionOptions options;
    options.hooks = std::move(hooks);
    options.recovery_wait = absl::ZeroDuration();
    options.clock = &clock_;
    return MonitoredSession::Open(
        model.root, std::make_unique<ChiefSessionCreator>(model.root, creator), std::move(options));
  }
  // `steps` runs of `seconds` each.
  void Train(MonitoredSession* session, const Model& model, int steps, int seconds = 1,
             bool counts = true) {
    for (int i = 0; i < steps; ++i) {
      clock_.Advance(absl::Seconds(seconds));
      const Tensor x = Tensor::Scalar(static_cast<float>(++runs_));
      const std::vector<FetchName> targets =
          counts ? std::vector<FetchName>{model.count} : std::vector<FetchName>{};
      ASSERT_OK(session->Run({{model.x, x}}, {model.y}, targets).status());
    }
  }

  FakeClock clock_;
  SharedVariables servers_;
  int runs_ = 0;
};

// --- StepTimer -----------------------------------------------------------------------------------

TEST(StepTimerTest, TheFirstQuestionIsDueAndNoStepTwice) {
  const absl::Time now = absl::UnixEpoch();
  StepTimer steps(10), time(absl::Seconds(10)), never(0);
  EXPECT_TRUE(steps.IsDue(3, now));
  EXPECT_TRUE(time.IsDue(3, now));
  EXPECT_FALSE(never.IsDue(3, now));
  steps.Done(3, now);
  time.Done(3, now);
  EXPECT_FALSE(steps.IsDue(3, now));
  EXPECT_FALSE(steps.IsDue(12, now));
  EXPECT_TRUE(steps.IsDue(13, now));
  EXPECT_FALSE(time.IsDue(4, now + absl::Seconds(9)));
  EXPECT_TRUE(time.IsDue(4, now + absl::Seconds(10)));
  EXPECT_FALSE(time.IsDue(3, now + absl::Seconds(10)));
  const auto since = steps.Since(23, now + absl::Seconds(2));
  ASSERT_TRUE(since.has_value());
  EXPECT_EQ(since->steps, 20);
  EXPECT_EQ(since->time, absl::Seconds(2));
  steps.Reset();
  EXPECT_TRUE(steps.IsDue(3, now));
  EXPECT_FALSE(steps.Since(3, now).has_value());
}

TEST(StepTimerTest, APeriodThatIsNoneIsNamed) {
  EXPECT_OK(CheckEvery("every", 1));
  EXPECT_STATUS(CheckEvery("every", 0), StatusCode::kInvalidArgument, "got 0 steps");
  EXPECT_STATUS(CheckEvery("every", -3), StatusCode::kInvalidArgument, "got -3 steps");
  EXPECT_STATUS(CheckEvery("every", -absl::Seconds(2)), StatusCode::kInvalidArgument, "got -2s");
}

// --- StepCounter ---------------------------------------------------------------------------------

TEST_F(ReportingHooksTest, StepsASecondAreThoseOfAllTasksInThePeriod) {
  const Model model;
  StepCounterHook hook({.every = 4});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  ::testing::internal::CaptureStderr();
  // A run reads the step before its own update.
  Train(session.get(), model, 4);
  EXPECT_EQ(hook.steps_per_second(), 0);
  ASSERT_OK(session->raw_session()->Run({}, {}, {model.count}).status());
  Train(session.get(), model, 1);
  EXPECT_EQ(hook.steps_per_second(), 1);
  Train(session.get(), model, 4, /*seconds=*/2);
  EXPECT_EQ(hook.steps_per_second(), 0.5);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(absl::StrContains(log, "global_step/sec: 0.5")) << log;
}

TEST_F(ReportingHooksTest, AStepThatDoesNotMoveIsAWarningOnce) {
  const Model model;
  StepCounterHook hook;
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  ::testing::internal::CaptureStderr();
  Train(session.get(), model, 200, 1, /*counts=*/false);
  const std::string log = ::testing::internal::GetCapturedStderr();
  size_t warnings = 0;
  for (size_t at = 0; (at = log.find("must grow", at)) != std::string::npos; ++at) ++warnings;
  EXPECT_EQ(warnings, 1u) << log;
}

TEST_F(ReportingHooksTest, ACounterThatDoesNotLogStillMeasures) {
  const Model model;
  StepCounterHook hook({.every = 4, .logs = false});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  ::testing::internal::CaptureStderr();
  Train(session.get(), model, 9);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(hook.steps_per_second(), 1);
  EXPECT_FALSE(absl::StrContains(log, "global_step/sec")) << log;
}

// --- StepLog -------------------------------------------------------------------------------------

// The texts of the lines that begin with "loss = ", with "|" between them.
std::string StepLines(const std::string& log) {
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(log, '\n')) {
    const size_t at = line.find("loss = ");
    if (at != absl::string_view::npos) lines.emplace_back(line.substr(at));
  }
  return absl::StrJoin(lines, "|");
}

TEST_F(ReportingHooksTest, AGroupOfStepsIsOneLineWithItsRateAndTheTimeLeft) {
  struct Case {
    std::string name;
    StepLogOptions options;
    int64_t last_step;  // 0: nobody says it
    std::string want;
  };
  const std::string with_rate =
      "loss = 1, step = 0|loss = 4, step = 3 (6.000 sec), global_step/sec: 0.5";
  const std::vector<Case> cases = {
      {"all", {.every = 3}, 100, with_rate + ", 3:14 left"},
      {"no last step", {.every = 3}, 0, with_rate},
      {"no rate",
       {.every = 3, .shows_rate = false},
       100,
       "loss = 1, step = 0|loss = 4, step = 3 (6.000 sec), 3:14 left"},
      {"by time", {.every = absl::Seconds(5)}, 0, with_rate},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    ASSERT_OK(servers_.Restart());
    runs_ = 0;
    const Model model;
    StepLogOptions options = c.options;
    options.loss = model.y;
    StepLogHook hook(options);
    StopAtStepHook last({.last_step = c.last_step});
    std::vector<SessionRunHook*> hooks = {&hook};
    if (c.last_step > 0) hooks.push_back(&last);
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, hooks));
    ::testing::internal::CaptureStderr();
    Train(session.get(), model, 5, /*seconds=*/2);
    EXPECT_EQ(StepLines(::testing::internal::GetCapturedStderr()), c.want);
  }
}

// Steps from the first session on: a later session, and steps that were there, change nothing.
TEST_F(ReportingHooksTest, TheTimeLeftOfSoManyMoreStepsIsKnownWithTheFirstSession) {
  const Model model;
  {
    ASSERT_OK_AND_ASSIGN(const auto before, Open(model, {}));
    Train(before.get(), model, 50);
  }
  const Model again;
  StepLogHook hook({.loss = again.y, .every = 2});
  StopAtStepHook more({.num_steps = 20});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(again, {&hook, &more}));
  runs_ = 0;
  ::testing::internal::CaptureStderr();
  Train(session.get(), again, 3);
  servers_.FailRuns({absl::AbortedError("lost")});
  Train(session.get(), again, 3);
  // To step 70, one a second.
  EXPECT_EQ(StepLines(::testing::internal::GetCapturedStderr()),
            "loss = 1, step = 50|loss = 3, step = 52 (2.000 sec), global_step/sec: 1, 0:18 left|"
            "loss = 4, step = 53|loss = 6, step = 55 (2.000 sec), global_step/sec: 1, 0:15 left");
}

TEST_F(ReportingHooksTest, OfALastStepAndSoManyMoreTheEarlierOneIsTheEnd) {
  for (const auto& [last_step, num_steps, want] :
       {std::tuple(30, 20, "0:18 left"), std::tuple(10, 20, "0:08 left")}) {
    ASSERT_OK(servers_.Restart());
    const Model model;
    StepLogHook hook({.loss = model.y, .every = 2});
    StopAtStepHook last({.last_step = last_step}), more({.num_steps = num_steps});
    ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook, &last, &more}));
    ::testing::internal::CaptureStderr();
    Train(session.get(), model, 3);
    const std::string lines = StepLines(::testing::internal::GetCapturedStderr());
    EXPECT_TRUE(absl::EndsWith(lines, want)) << lines;
  }
}

TEST_F(ReportingHooksTest, ARecoveryIsNoSpeed) {
  const Model model;
  StepLogHook hook({.loss = model.y, .every = 2});
  StopAtStepHook last({.last_step = 100});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook, &last}));
  ::testing::internal::CaptureStderr();
  Train(session.get(), model, 1);
  servers_.FailRuns({absl::AbortedError("lost")});
  clock_.Advance(absl::Seconds(1000));
  Train(session.get(), model, 3);
  EXPECT_EQ(StepLines(::testing::internal::GetCapturedStderr()),
            "loss = 1, step = 0|loss = 2, step = 1|loss = 4, step = 3 (2.000 sec), "
            "global_step/sec: 1, 1:37 left");
}

TEST_F(ReportingHooksTest, AStepLogWithoutALossOrAPeriodIsRefused) {
  const Model model;
  StepLogHook no_loss({.every = 2});
  EXPECT_STATUS(Open(model, {&no_loss}).status(), StatusCode::kInvalidArgument,
                "StepLogHook.Begin: loss must be a tensor, got an invalid one");
  const Model other;
  StepLogHook no_period({.loss = other.y, .every = 0});
  EXPECT_STATUS(Open(other, {&no_period}).status(), StatusCode::kInvalidArgument,
                "StepLogHook.Begin: every must be > 0, got 0 steps");
}

// --- LoggingTensor -------------------------------------------------------------------------------

TEST_F(ReportingHooksTest, ValuesAreLoggedAtTheFirstRunAndThenEachSoManyRuns) {
  const Model model;
  std::vector<std::string> lines;
  LoggingTensorHook hook({.tensors = {{"y", model.y}, {"step", model.step.value}},
                          .every = 3,
                          .sink = [&](const std::string& line) { lines.push_back(line); }});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  Train(session.get(), model, 7);
  EXPECT_EQ(absl::StrJoin(lines, "|"),
            "step = 0, y = 1|step = 3, y = 4 (3.000 sec)|step = 6, y = 7 (3.000 sec)");
  EXPECT_OK(session->Close());
  EXPECT_EQ(lines.size(), 3u);
}

TEST_F(ReportingHooksTest, OrByTimeOrAtTheEndAloneAndAsAFormatterSays) {
  const Model model;
  std::vector<std::string> lines;
  const auto sink = [&](const std::string& line) { lines.push_back(line); };
  LoggingTensorHook by_time(
      {.tensors = {{"y", model.y}}, .every = absl::Seconds(10), .sink = sink});
  LoggingTensorHook at_end({.tensors = {{"step", model.step.value}},
                            .at_end = true,
                            .formatter =
                                [](const std::map<std::string, Tensor>& values) {
                                  return absl::StrCat("at ", TextOf(values.at("step")));
                                },
                            .sink = sink});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&by_time, &at_end}));
  Train(session.get(), model, 4, /*seconds=*/6);
  EXPECT_EQ(absl::StrJoin(lines, "|"), "y = 1|y = 3 (12.000 sec)");
  EXPECT_OK(session->Close());
  EXPECT_EQ(lines.back(), "at 4");
}

TEST_F(ReportingHooksTest, ValuesForPeople) {
  EXPECT_EQ(TextOf(Tensor()), "<none>");
  EXPECT_EQ(TextOf(Tensor::Scalar(2.5f)), "2.5");
  EXPECT_EQ(TextOf(Tensor::Scalar(true)), "true");
  EXPECT_EQ(TextOf(Tensor::Scalar("text")), "text");
  EXPECT_EQ(TextOf(Tensor::Of<int64_t>({1, 2, 3})), "[1 2 3]");
  EXPECT_EQ(TextOf(Tensor::Of<int32_t>({1, 2, 3, 4})), "[1 2 3 ...]");
  EXPECT_EQ(TextOf(Tensor::Vector<double>({})), "[]");
}

TEST_F(ReportingHooksTest, ALoggingHookThatWouldLogNothingIsRefused) {
  const Model model;
  LoggingTensorHook nothing({.every = 1});
  EXPECT_STATUS(Open(model, {&nothing}).status(), StatusCode::kInvalidArgument,
                "tensors must be what is to be logged, got none");
  const Model other;
  LoggingTensorHook never({.tensors = {{"y", other.y}}});
  EXPECT_STATUS(Open(other, {&never}).status(), StatusCode::kInvalidArgument,
                "every, without at_end, must be > 0, got 0 steps");
}

// --- FinalOps, FeedFn ----------------------------------------------------------------------------

TEST_F(ReportingHooksTest, FinalOpsRunOnceAtTheEnd) {
  const Model model;
  FinalOpsHook hook(
      {.fetches = {model.y}, .feeds = {{model.x, Tensor::Scalar(9.f)}}, .targets = {model.grow}});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  Train(session.get(), model, 2);
  EXPECT_TRUE(hook.values().empty());
  EXPECT_OK(session->Close());
  ASSERT_EQ(hook.values().size(), 1u);
  EXPECT_EQ(hook.values()[0].scalar<float>(), 9);
}

TEST_F(ReportingHooksTest, AFunctionFeedsEachRunAndItsEndIsTheEndOfData) {
  const Model model;
  int made = 0;
  FeedFnHook hook({model.x}, [&]() -> StatusOr<std::vector<Tensor>> {
    if (made == 3) return absl::OutOfRangeError("no more");
    return std::vector<Tensor>{Tensor::Scalar(static_cast<float>(++made))};
  });
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  std::vector<float> seen;
  EXPECT_OK(session->Loop([&]() -> Status {
    // A step that is run again has the values that it had.
    if (seen.size() == 1) servers_.FailRuns({absl::UnavailableError("gone")});
    MR_ASSIGN_OR_RETURN(const auto out, session->Run({}, {model.y}));
    seen.push_back(out[0].scalar<float>());
    return absl::OkStatus();
  }));
  EXPECT_EQ(seen, (std::vector<float>{1, 2, 3}));
}

TEST_F(ReportingHooksTest, AFunctionThatGivesTooManyValuesIsRefused) {
  const Model model;
  FeedFnHook hook({model.x}, [] {
    return std::vector<Tensor>{Tensor::Scalar(1.f), Tensor::Scalar(2.f)};
  });
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  EXPECT_STATUS(session->Run({}, {model.y}).status(), StatusCode::kInvalidArgument,
                "FeedFnHook.BeforeRun: the function must give 1 values, got 2");
}

// --- InMemoryEvaluator ---------------------------------------------------------------------------

TEST_F(ReportingHooksTest, AnEvaluationSeesWhatIsTrainedAtTheBeginEachSoManyRunsAndAtTheEnd) {
  Scope eval;
  const Variable w = MakeVariable(eval.WithName("w"), Const(eval, 0.f));
  const Variable total = MakeVariable(eval.WithName("total"), Const(eval, 100.f), {.local = true});
  const Operation add = AssignAddVariableOp(eval.WithName("add"), total.handle, w.value);
  std::vector<std::string> seen;
  InMemoryEvaluatorHook hook(
      {.graph = eval,
       .evaluate = [&](Session* session, int64_t step) -> StatusOr<std::string> {
         MR_RETURN_IF_ERROR(session->Run({}, {}, {add}).status());
         MR_ASSIGN_OR_RETURN(const auto out, session->Run({}, {total.value}));
         seen.push_back(absl::StrCat(step, ":", out[0].scalar<float>()));
         return "";
       },
       .every_n_runs = 2});
  for (int i = 0; i < 2; ++i) {  // a hook may be given to the next session
    seen.clear();
    ASSERT_OK(servers_.Restart());
    const Model trained;
    ASSERT_OK_AND_ASSIGN(const auto session, Open(trained, {&hook}));
    ASSERT_OK(session->Run({}, {}, {trained.count}).status());
    ASSERT_OK(session->Run({}, {}, {trained.count, trained.grow}).status());
    ASSERT_OK(session->Run({}, {}, {trained.count, trained.grow}).status());
    EXPECT_OK(session->Close());
    EXPECT_EQ(absl::StrJoin(seen, " "), "0:101 2:111 3:121");
  }
}

TEST_F(ReportingHooksTest, AnEvaluationOfOtherVariablesIsRefused) {
  const auto evaluate = [](Session*, int64_t) -> StatusOr<std::string> { return ""; };
  {
    const Model model;
    Scope eval;
    MakeVariable(eval.WithName("v"), Const(eval, 0.f));
    InMemoryEvaluatorHook hook({.graph = eval, .evaluate = evaluate});
    EXPECT_STATUS(Open(model, {&hook}).status(), StatusCode::kInvalidArgument,
                  "variable 'v' of the evaluation's graph must be one of the training graph");
  }
  const Model model;
  Scope eval;
  MakeVariable(eval.WithName("w"), Const(eval, 0.));
  InMemoryEvaluatorHook hook({.graph = eval, .evaluate = evaluate});
  EXPECT_STATUS(Open(model, {&hook}).status(), StatusCode::kInvalidArgument,
                "variable 'w' must be double [] in the training graph, too, got float []");
}

// --- Progress ------------------------------------------------------------------------------------

std::string TextIn(FILE* file) {
  std::string text;
  std::rewind(file);
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  return text;
}

TEST_F(ReportingHooksTest, ProgressIsPlainLinesAwayFromATerminal) {
  FILE* const file = std::tmpfile();
  const Model model;
  StopAtStepHook stop({.last_step = 6});
  ProgressHook hook(
      {.loss = model.y,
       .progress = {.style = ProgressOptions::Style::kPlain, .clock = &clock_, .output = file}});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook, &stop}));
  Train(session.get(), model, 6);
  EXPECT_OK(session->Close());
  EXPECT_EQ(TextIn(file),
            "step 0/6  loss 1\n"
            "step 2/6  loss 3  1.0 steps/s  0:04 left\n"
            "step 4/6  loss 5  1.0 steps/s  0:02 left\n"
            "step 6/6  loss 6  1.2 steps/s  0:00 left\n");
  std::fclose(file);
}

TEST_F(ReportingHooksTest, OnATerminalItIsOneLineThatIsRewrittenAndEnded) {
  FILE* const file = std::tmpfile();
  const Model model;
  ProgressHook hook(
      {.progress = {.style = ProgressOptions::Style::kTerminal, .clock = &clock_, .output = file}});
  ASSERT_OK_AND_ASSIGN(const auto session, Open(model, {&hook}));
  Train(session.get(), model, 2);
  clock_.Advance(absl::Seconds(1));
  EXPECT_OK(session->Close());
  EXPECT_EQ(TextIn(file), "\rstep 0\rstep 1  1.0 steps/s\rstep 2  1.0 steps/s\n");
  std::fclose(file);
}

}  // namespace
}  // namespace millrace
