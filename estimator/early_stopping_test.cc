// SPDX-License-Identifier: Apache-2.0
#include "estimator/early_stopping.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <source_location>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/file_system.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "estimator/estimator.h"
#include "estimator/exporter.h"
#include "estimator/testing/line_model.h"
#include "estimator/train_and_evaluate.h"
#include "gtest/gtest.h"
#include "run/run_file.h"
#include "saver/event_writer.h"
#include "train/session_run_hook.h"

// covers: training: an Estimator is stopped early by the name of a metric, with the metric in the
//   reason of its end; started again it leaves without a step; names that no evaluation has are
//   refused with those that there are; files that are damaged or not read are told once; what
//   another training has left there does not count
// covers: training: an evaluation that the training process makes stops it early before the next
//   step, without waiting for the next look at the files

namespace millrace {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class NoteExporter : public Exporter {
 public:
  std::string name() const override { return "note"; }
  StatusOr<std::string> Export(const ExporterCall& call) override {
    asked.push_back(
        absl::StrCat(call.result.global_step, call.is_the_final_export ? " final" : ""));
    return "";
  }
  std::vector<std::string> asked;
};

class EarlyStoppingTest : public testing::Test {
 protected:
  EarlyStoppingTest()
      : dir_(absl::StrCat(testing::TempDir(), "/early_stopping_",
                          testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs()->RecursivelyDelete(dir_).IgnoreError();
  }
  static FileSystem* fs() { return FileSystem::Posix(); }
  Estimator Line() const {
    EstimatorOptions options;
    options.model_dir = dir_;
    options.config = *RunConfig::Make({.save_checkpoints_steps = 10}, "");
    return *Estimator::Make(LineModel, options);
  }
  EvalSpec Evaluates() const {
    return {.input_fn = Points,
            .steps = 1,
            .exporters = {note_},
            .start_delay_secs = 0,
            .throttle_secs = 0};
  }
  // As an evaluation writes its results.
  void Write(const std::string& directory, int64_t step, float auc) const {
    ASSERT_OK_AND_ASSIGN(const auto events, EventWriter::Open(JoinPath(dir_, directory)));
    ASSERT_OK(events->AddScalar("auc", auc, step));
    ASSERT_OK(events->Close());
  }

  const std::string dir_;
  const std::shared_ptr<NoteExporter> note_ = std::make_shared<NoteExporter>();
};

// Its error decreases, and so never increases.
TEST_F(EarlyStoppingTest, TrainingEndsWhenTheMetricGetsNoBetterAndAgainBeforeTheFirstStep) {
  const Estimator line = Line();
  const auto train = [&](int64_t max_steps, int64_t patience) {
    return TrainAndEvaluate(line,
                            {.input_fn = Points,
                             .max_steps = max_steps,
                             .hooks = {StopIfNoIncrease(line, "mse", patience, {.every = 1})}},
                            Evaluates());
  };
  const std::string why = "early stopping: mse has not increased for 20 steps";
  testing::internal::CaptureStderr();
  const auto first = train(1000, 20);
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_OK(first.status());
  EXPECT_EQ(first->reason, why);
  EXPECT_TRUE(absl::StrContains(log, "training has ended: " + why)) << log;
  ASSERT_TRUE(first->evaluation.has_value());
  EXPECT_EQ(first->evaluation->global_step, 30);
  const std::vector<std::string> asked = {"10", "20", "30", "30 final"};
  EXPECT_EQ(note_->asked, asked);
  ASSERT_OK_AND_ASSIGN(const auto end, ReadRunEnd(fs(), dir_));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->reason, why);
  EXPECT_EQ(end->global_step, 30);

  // The same job once more.
  ASSERT_OK_AND_ASSIGN(const TrainAndEvaluateResult again, train(1000, 20));
  EXPECT_EQ(again.reason, why);
  EXPECT_FALSE(again.evaluation.has_value());
  EXPECT_EQ(note_->asked, asked) << "nothing is exported again";
  EXPECT_EQ(line.latest_checkpoint(), JoinPath(dir_, "model.ckpt-30")) << "no step was trained";

  // With more patience.
  ASSERT_OK_AND_ASSIGN(const TrainAndEvaluateResult further, train(35, 200));
  EXPECT_EQ(further.reason, "reached step 35 of 35");
  ASSERT_TRUE(further.evaluation.has_value());
  EXPECT_EQ(further.evaluation->global_step, 35);
}

// With the default of `every`, a minute; the whole training takes less.
TEST_F(EarlyStoppingTest, AnEvaluationInTheTrainingProcessIsReadBeforeTheNextStep) {
  const Estimator line = Line();
  const Estimator copy = line;
  ASSERT_OK_AND_ASSIGN(
      const TrainAndEvaluateResult result,
      TrainAndEvaluate(
          copy,
          {.input_fn = Points, .max_steps = 1000, .hooks = {StopIfNoIncrease(line, "mse", 20)}},
          Evaluates()));
  EXPECT_EQ(result.reason, "early stopping: mse has not increased for 20 steps");
  EXPECT_EQ(note_->asked, (std::vector<std::string>{"10", "20", "30", "30 final"}));
  EXPECT_EQ(line.latest_checkpoint(), JoinPath(dir_, "model.ckpt-30")) << "not a step later";
}

// Its results are not in this directory; the loop ends where it would have.
TEST_F(EarlyStoppingTest, AnEvaluationOfAnotherNameStopsNothing) {
  const Estimator line = Line();
  EvalSpec eval = Evaluates();
  eval.name = "other";
  ASSERT_OK_AND_ASSIGN(
      const TrainAndEvaluateResult result,
      TrainAndEvaluate(
          line, {.input_fn = Points, .max_steps = 40, .hooks = {StopIfNoIncrease(line, "mse", 10)}},
          eval));
  EXPECT_EQ(result.reason, "reached step 40 of 40");
}

TEST_F(EarlyStoppingTest, EachFunctionComparesWhatEvaluationsHaveWritten) {
  struct Case {
    std::string name;
    std::function<std::shared_ptr<SessionRunHook>(const Estimator&)> make;
    std::string reason;
  };
  const std::string last_step = "reached step 5 of 5";
  const std::vector<Case> cases = {
      {"above", [](const Estimator& e) { return StopIfHigher(e, "auc", 0.75, {.every = 1}); },
       "early stopping: auc is above 0.75"},
      {"not above", [](const Estimator& e) { return StopIfHigher(e, "auc", 0.8, {.every = 1}); },
       last_step},
      {"above too early",
       [](const Estimator& e) {
         return StopIfHigher(e, "auc", 0.75, {.min_steps = 3, .every = 1});
       },
       last_step},
      {"below", [](const Estimator& e) { return StopIfLower(e, "auc", 0.61, {.every = 1}); },
       "early stopping: auc is below 0.61"},
      {"not below", [](const Estimator& e) { return StopIfLower(e, "auc", 0.59, {.every = 1}); },
       last_step},
      {"no increase",
       [](const Estimator& e) { return StopIfNoIncrease(e, "auc", 1, {.every = 1}); },
       "early stopping: auc has not increased for 1 steps"},
      {"patience", [](const Estimator& e) { return StopIfNoIncrease(e, "auc", 2, {.every = 1}); },
       last_step},
      {"no decrease",
       [](const Estimator& e) { return StopIfNoDecrease(e, "auc", 2, {.every = 1}); },
       "early stopping: auc has not decreased for 2 steps"},
      {"another directory",
       [this](const Estimator& e) {
         return StopIfHigher(e, "auc", 0.5, {.eval_dir = JoinPath(dir_, "eval_other"), .every = 1});
       },
       last_step},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    fs()->RecursivelyDelete(dir_).IgnoreError();
    const Estimator line = Line();
    ASSERT_OK(line.Train(Points, {.max_steps = 3}).status());
    Write("eval", 1, 0.6f);
    Write("eval", 2, 0.1f);
    Write("eval", 2, 0.79f);  // counts: it came later
    Write("eval", 3, 0.7f);
    Write("eval_other", 3, 0.2f);
    ASSERT_OK_AND_ASSIGN(const TrainOutcome outcome,
                         line.Train(Points, {.max_steps = 5, .hooks = {c.make(line)}}));
    EXPECT_EQ(outcome.reason, c.reason);
  }
}

// Somebody has deleted the checkpoints, to train anew or from an earlier one, and not `eval`.
TEST_F(EarlyStoppingTest, EvaluationsOfAnotherTrainingDoNotCount) {
  Write("eval", 0, 0.9f);
  Write("eval", 300, 0.9f);
  const Estimator line = Line();
  const auto train = [&](int64_t max_steps) {
    return line.Train(
        Points, {.max_steps = max_steps, .hooks = {StopIfHigher(line, "auc", 0.8, {.every = 1})}});
  };
  ASSERT_OK_AND_ASSIGN(const TrainOutcome fresh, train(3));
  EXPECT_EQ(fresh.reason, "reached step 3 of 3");
  fs()->RecursivelyDelete(JoinPath(dir_, "eval")).IgnoreError();
  Write("eval", 4, 0.9f);
  ASSERT_OK_AND_ASSIGN(const TrainOutcome further, train(6));
  EXPECT_EQ(further.reason, "reached step 6 of 6") << "step 4 was not reached when it began";
  // Of its own steps they count.
  ASSERT_OK_AND_ASSIGN(const TrainOutcome last, train(9));
  EXPECT_EQ(last.reason, "early stopping: auc is above 0.8");
}

TEST_F(EarlyStoppingTest, AMetricThatNoEvaluationHasIsRefusedWithThoseThatThereAre) {
  const Estimator line = Line();
  const Status status =
      TrainAndEvaluate(line,
                       {.input_fn = Points,
                        .max_steps = 1000,
                        .hooks = {StopIfNoDecrease(line, "mze", 20, {.every = 1})}},
                       Evaluates())
          .status();
  EXPECT_STATUS(status, kInvalid,
                absl::StrCat("StopIfNoDecrease: metric must be one that the evaluations in '",
                             JoinPath(dir_, "eval"), "' have, got 'mze'; they have loss, mse"));
  EXPECT_EQ(line.latest_checkpoint(), JoinPath(dir_, "model.ckpt-10")) << "at the first evaluation";
}

TEST_F(EarlyStoppingTest, DamagedFilesAreReadAsFarAsTheyCanBe) {
  const Estimator line = Line();
  ASSERT_OK(line.Train(Points, {.max_steps = 1}).status());
  Write("eval", 1, 0.9f);
  ASSERT_OK(WriteFileAtomically(fs(), JoinPath(dir_, "eval/events.out.tfevents.9999999999.torn"),
                                "no records at all, only text"));
  ASSERT_OK_AND_ASSIGN(
      const TrainOutcome outcome,
      line.Train(Points,
                 {.max_steps = 3, .hooks = {StopIfHigher(line, "auc", 0.8, {.every = 1})}}));
  EXPECT_EQ(outcome.reason, "early stopping: auc is above 0.8");
}

// How often `text` stands in `log`.
int Count(const std::string& log, const std::string& text) {
  int count = 0;
  for (size_t at = 0; (at = log.find(text, at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST_F(EarlyStoppingTest, DamageIsToldOnceHoweverOftenItIsRead) {
  Write("eval", 1, 0.5f);
  ASSERT_OK(WriteFileAtomically(fs(), JoinPath(dir_, "eval/events.out.tfevents.0000000001.torn"),
                                "no records at all, only text"));
  const Estimator line = Line();
  testing::internal::CaptureStderr();
  const auto outcome =
      line.Train(Points, {.max_steps = 5, .hooks = {StopIfHigher(line, "auc", 0.8, {.every = 1})}});
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_OK(outcome.status());
  EXPECT_EQ(outcome->own_steps, 5);
  EXPECT_EQ(Count(log, "is read in part"), 1) << log;
}

TEST_F(EarlyStoppingTest, StorageThatDoesNotAnswerStopsNoTraining) {
  ASSERT_OK(fs()->RecursivelyCreateDirectory(dir_));
  std::error_code error;
  std::filesystem::create_symlink("eval", JoinPath(dir_, "eval"), error);  // to itself
  ASSERT_FALSE(error) << error.message();
  const Estimator line = Line();
  testing::internal::CaptureStderr();
  const auto outcome =
      line.Train(Points, {.max_steps = 5, .hooks = {StopIfLower(line, "auc", 0.8, {.every = 1})}});
  const std::string log = testing::internal::GetCapturedStderr();
  ASSERT_OK(outcome.status());
  EXPECT_EQ(outcome->reason, "reached step 5 of 5");
  EXPECT_EQ(Count(log, "StopIfLower: '" + JoinPath(dir_, "eval") + "' is not read"), 1) << log;
}

TEST_F(EarlyStoppingTest, WrongArgumentsAreNamedWhenTrainingBegins) {
  const Estimator line = Line();
  const Estimator none =
      Estimator::ErrorAt(std::source_location::current(), absl::InvalidArgumentError("no columns"));
  struct Case {
    std::shared_ptr<SessionRunHook> hook;
    std::string text;
  };
  const std::vector<Case> cases = {
      {StopIfNoIncrease(line, "", 10), "StopIfNoIncrease: metric must be a metric's name, got ''"},
      {StopIfNoIncrease(line, "auc", 0), "StopIfNoIncrease: max_steps must be > 0, got 0"},
      {StopIfNoDecrease(line, "auc", -5), "StopIfNoDecrease: max_steps must be > 0, got -5"},
      {StopIfHigher(line, "auc", NAN), "StopIfHigher: threshold must be a number, got nan"},
      {StopIfLower(line, "auc", NAN), "StopIfLower: threshold must be a number, got nan"},
      {StopIfLower(line, "auc", 1, {.min_steps = -1}),
       "StopIfLower: min_steps must be >= 0, got -1"},
      {StopIfLower(line, "auc", 1, {.every = 0}), "EarlyStoppingHook.Begin: every must be > 0"},
      {StopIfHigher(none, "auc", 1), "no columns"},
  };
  for (const Case& c : cases) {
    const Status status = line.Train(Points, {.max_steps = 3, .hooks = {c.hook}}).status();
    EXPECT_STATUS(status, kInvalid, c.text);
    EXPECT_TRUE(absl::StrContains(status.message(), "EarlyStoppingHook.Begin: ")) << status;
  }
  EXPECT_EQ(line.latest_checkpoint(), "");
}

}  // namespace
}  // namespace millrace
