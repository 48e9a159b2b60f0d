// SPDX-License-Identifier: Apache-2.0
//
// The regressor of houses over many rows: what it measures, and that memory does not grow with
// their number.

#include "examples/housing/houses.h"

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "core/file_system.h"
#include "core/testing/tensor_testing.h"
#include "data/dataset.h"
#include "gtest/gtest.h"
#include "train/session_run_hook.h"

// covers: article 1-12, 1-13: a function that returns an input function of a file, a mode and a
//   batch size
// covers: scenario F7: a regressor with one more metric, 3.2 million rows

namespace millrace {
namespace {

constexpr int64_t kEvalBatch = int64_t{1} << 15;

// "VmRSS", "VmHWM" of this process, in KiB.
int64_t MemoryKiB(const std::string& what) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(what + ":", 0) != 0) continue;
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    int64_t kib = 0;
    if (words.size() > 1 && absl::SimpleAtoi(words[1], &kib)) return kib;
  }
  return 0;
}

class HousesTest : public testing::Test {
 protected:
  HousesTest()
      : dir_(absl::StrCat(testing::TempDir(), "/",
                          testing::UnitTest::GetInstance()->current_test_info()->name())) {
    FileSystem::Posix()->RecursivelyDelete(dir_).IgnoreError();
  }
  EstimatorOptions InDir() const {
    return {.config = *RunConfig::Make(
                {.model_dir = dir_, .tf_random_seed = 3, .save_checkpoints_steps = 10000}, "")};
  }
  static InputFn Drawn(int64_t rows, int64_t batch) {
    return [=](Mode mode) {
      data::Dataset houses = DrawnHouses(mode == Mode::kTrain ? 1 : 2, rows, batch);
      return Input(mode == Mode::kTrain ? houses.Repeat() : houses, {.labels = {"price"}});
    };
  }
  const std::string dir_;
};

// covers: article 1-10, 1-11: one more metric, by AddMetrics: rmse, whose square is average_loss
TEST_F(HousesTest, TheSquareOfRmseIsTheAverageLoss) {
  const Estimator houses = HousePrices(InDir());
  ASSERT_OK(houses.status());
  ASSERT_OK(houses.Train(Drawn(20000, 100), {.max_steps = 1000}));
  ASSERT_OK_AND_ASSIGN(const EvalResult all, houses.Evaluate(Drawn(100000, kEvalBatch)));
  EXPECT_NEAR(all["rmse"] * all["rmse"], all["average_loss"], 1e-4);
  EXPECT_LT(all["rmse"], 0.75);
  EXPECT_GT(all["rmse"], 0.5) << "there is noise in prices";
  // Four batches, the last one smaller: the loss is the mean of their sums.
  EXPECT_NEAR(all["loss"], all["average_loss"] * 100000 / 4, all["loss"] * 1e-4);
  ASSERT_OK_AND_ASSIGN(const EvalResult some,
                       houses.Evaluate(Drawn(100000, kEvalBatch), {.steps = 2}));
  EXPECT_NEAR(some["rmse"] * some["rmse"], some["average_loss"], 1e-4);
  EXPECT_NEAR(some["loss"], some["average_loss"] * static_cast<double>(kEvalBatch),
              some["loss"] * 1e-4);
}

TEST_F(HousesTest, RowsAreTheSameFromFilesAndDrawn) {
  ASSERT_OK(FileSystem::Posix()->RecursivelyCreateDirectory(dir_));
  ASSERT_OK(WriteHouses(dir_ + "/eval.csv", 2, 0, 1000));
  const Estimator houses = HousePrices(InDir());
  ASSERT_OK(houses.Train(Drawn(1000, 100), {.max_steps = 5}));
  ASSERT_OK_AND_ASSIGN(const EvalResult drawn, houses.Evaluate(Drawn(1000, 300)));
  ASSERT_OK_AND_ASSIGN(const EvalResult read,
                       houses.Evaluate(ReadHouses(dir_, "eval", Mode::kEval, 300)));
  EXPECT_EQ(drawn["rmse"], read["rmse"]);
  EXPECT_EQ(drawn["label/mean"], read["label/mean"]);
}

// covers: article 0-19: evaluation data without end are ended by steps; without steps a warning
// covers: article 1-22: an evaluation over endless rows gets a warning
TEST_F(HousesTest, EvaluationWithoutAnEndIsWarnedOf) {
  const Estimator houses = HousePrices(InDir());
  const auto endless = [] {
    return Input(DrawnHouses(2, 100, 10).Repeat().Take(data::kForever), {.labels = {"price"}});
  };
  class StopSoon : public SessionRunHook {
   public:
    std::string name() const override { return "StopSoon"; }
    Status AfterRun(RunContext* context, const RunValues&) override {
      if (++steps_ == 3) context->RequestStop("enough");
      return absl::OkStatus();
    }

   private:
    int steps_ = 0;
  };
  testing::internal::CaptureStderr();
  const Status status =
      houses.Evaluate(endless, {.hooks = {std::make_shared<StopSoon>()}}).status();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_OK(status);
  EXPECT_NE(log.find("Evaluate has no number of steps, and its data has no end"), std::string::npos)
      << log;
}

// covers: article 1-21, 1-22: evaluations of batches of 32,768, over 3.2 million rows, in memory
//   that does not grow
// 3.2 million rows in batches of 2^15: after the first tenth memory stays what it is.
TEST_F(HousesTest, MemoryDoesNotGrowWithTheRowsOfAnEvaluation) {
  class Meter : public SessionRunHook {
   public:
    std::string name() const override { return "Meter"; }
    Status AfterRun(RunContext*, const RunValues&) override {
      if (++steps_ == 10) at_a_tenth_ = MemoryKiB("VmHWM");
      return absl::OkStatus();
    }
    int64_t steps() const { return steps_; }
    int64_t at_a_tenth() const { return at_a_tenth_; }

   private:
    int64_t steps_ = 0, at_a_tenth_ = 0;
  };
  const Estimator houses = HousePrices(InDir());
  ASSERT_OK(houses.Train(Drawn(1000, 100), {.max_steps = 5}));
  const auto meter = std::make_shared<Meter>();
  ASSERT_OK_AND_ASSIGN(const EvalResult result,
                       houses.Evaluate(Drawn(3'200'000, kEvalBatch), {.hooks = {meter}}));
  EXPECT_EQ(meter->steps(), 98);
  EXPECT_NEAR(result["rmse"] * result["rmse"], result["average_loss"], 1e-4);
  const int64_t grown = MemoryKiB("VmHWM") - meter->at_a_tenth();
  std::printf("evaluation of 3.2 million rows: %lld KiB after a tenth, grown by %lld KiB\n",
              static_cast<long long>(meter->at_a_tenth()), static_cast<long long>(grown));
  EXPECT_GT(meter->at_a_tenth(), 0);
  EXPECT_LE(grown, 32 * 1024) << "KiB after " << meter->at_a_tenth();
}

}  // namespace
}  // namespace millrace
