// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "examples/wide_deep/census.h"
#include "gtest/gtest.h"
#include "tests/scaling/census_problem.h"
#include "tests/scaling/click_problem.h"
#include "tests/scaling/learner.h"
#include "tests/scaling/problem.h"
#include "tests/scaling/worker_parts.h"
#include "tests/scaling/worker_speeds.h"

// covers: training: the click log and the parts of many workers are those of a seed; both models
//   learn

namespace millrace::scaling {
namespace {

std::vector<size_t> UpTo(size_t count) {
  std::vector<size_t> all(count);
  for (size_t i = 0; i < count; ++i) all[i] = i;
  return all;
}

TEST(ProblemsTest, ClicksAreAsFrequentAsAskedForAndThoseOfTheSeed) {
  ClickLogOptions options{.rows = 800, .train = 20'000, .held_out = 1'000};
  ASSERT_OK_AND_ASSIGN(const auto problem, MakeClickProblem(options));
  ASSERT_OK_AND_ASSIGN(const auto same, MakeClickProblem(options));
  options.seed = 2;
  ASSERT_OK_AND_ASSIGN(const auto other, MakeClickProblem(options));
  EXPECT_EQ(problem->num_train(), 20'000);
  ASSERT_OK_AND_ASSIGN(const ExampleBatch all, problem->Train(UpTo(20'000)));
  double clicks = 0;
  for (const float click : all[1].flat<float>()) clicks += static_cast<double>(click);
  // The deviation of a mean of 20,000 draws is 0.0028.
  EXPECT_NEAR(clicks / 20'000, 0.2, 0.015);
  std::set<int64_t> ids;
  for (int64_t row = 0; row < 20'000; ++row) {
    for (int64_t field = 0; field < 8; ++field) {
      const int64_t id = all[0].at<int64_t>(row, field);
      ASSERT_EQ(id / 100, field);
      ids.insert(id);
    }
  }
  EXPECT_GT(ids.size(), 700);  // of 800: rare ones are drawn, too
  EXPECT_EQ(problem->held_out(), same->held_out());
  EXPECT_NE(problem->held_out(), other->held_out());
  ASSERT_OK_AND_ASSIGN(const ExampleBatch two, problem->Train({3, 5}));
  EXPECT_EQ(two[0].shape().ToString(), "[2,8]");
  EXPECT_EQ(two[0].at<int64_t>(1, 7), all[0].at<int64_t>(5, 7));
  EXPECT_EQ(two[1].at<float>(0, 0), all[1].at<float>(3, 0));
}

TEST(ProblemsTest, OptionsThatMakeNoLogAreRefused) {
  EXPECT_STATUS(MakeClickProblem({.rows = 7}), absl::StatusCode::kInvalidArgument,
                "rows must be in [8, ");
  EXPECT_STATUS(MakeClickProblem({.train = 0}), absl::StatusCode::kInvalidArgument, "got 0");
  EXPECT_STATUS(MakeClickProblem({.exponent = 1}), absl::StatusCode::kInvalidArgument, "exponent");
  EXPECT_STATUS(MakeClickProblem({.click_rate = 1}), absl::StatusCode::kInvalidArgument,
                "click_rate");
  EXPECT_STATUS(MakeCensusProblem(Census(), Census(), 5), absl::StatusCode::kInvalidArgument,
                "got 0 and 0");
}

TEST(ProblemsTest, BothModelsLearn) {
  ASSERT_OK_AND_ASSIGN(const auto clicks,
                       MakeClickProblem({.rows = 80, .train = 10'000, .held_out = 1'000}));
  ASSERT_OK_AND_ASSIGN(const auto census,
                       MakeCensusProblem(DrawCensus(3'000, 1), DrawCensus(500, 2), 1'000));
  EXPECT_EQ(census->held_out().back().dim(0), 500);
  for (const Problem* problem : {clicks.get(), census.get()}) {
    ASSERT_OK_AND_ASSIGN(const auto learner, Learner::Make(*problem, {.learning_rate = 0.2}));
    ASSERT_OK_AND_ASSIGN(WorkerParts parts, WorkerParts::Make(problem->num_train(), 1, 1));
    for (int step = 0; step < 200; ++step) {
      ASSERT_OK_AND_ASSIGN(const ExampleBatch batch, problem->Train(parts.Next(0, 64)));
      ASSERT_OK_AND_ASSIGN(const WorkerGradient gradient, learner->Compute(batch));
      EXPECT_EQ(gradient.read_step.scalar<int64_t>(), step);
      ASSERT_OK(learner->Apply(gradient));
    }
    ASSERT_OK_AND_ASSIGN(const double auc, learner->HeldOutAuc());
    EXPECT_GT(auc, 0.65);
  }
  EXPECT_STATUS(Learner::Make(*clicks, {.optimizer = "none"}), absl::StatusCode::kInvalidArgument,
                "got 'none'");
}

TEST(ProblemsTest, EachExampleIsDealtToOneWorkerAndComesOnceInARound) {
  ASSERT_OK_AND_ASSIGN(WorkerParts parts, WorkerParts::Make(10, 3, 7));
  ASSERT_OK_AND_ASSIGN(WorkerParts same, WorkerParts::Make(10, 3, 7));
  std::set<size_t> all;
  // Ten cards to three players: four, three and three.
  for (const auto& [worker, size] : {std::pair<size_t, int64_t>{0, 4}, {1, 3}, {2, 3}}) {
    const std::vector<size_t> first = parts.Next(worker, size);
    const std::vector<size_t> second = parts.Next(worker, size);
    const std::set<size_t> part(first.begin(), first.end());
    EXPECT_EQ(static_cast<int64_t>(part.size()), size);
    EXPECT_EQ(std::set<size_t>(second.begin(), second.end()), part);
    all.insert(first.begin(), first.end());
  }
  EXPECT_EQ(all.size(), 10);
  // Whoever asks first, and however much at a time.
  const std::vector<size_t> two = same.Next(2, 2);
  std::vector<size_t> rest = same.Next(2, 4);
  rest.insert(rest.begin(), two.begin(), two.end());
  ASSERT_OK_AND_ASSIGN(parts, WorkerParts::Make(10, 3, 7));
  EXPECT_EQ(rest, parts.Next(2, 6));
  EXPECT_STATUS(WorkerParts::Make(10, 11, 1), absl::StatusCode::kInvalidArgument, "got 11");
  EXPECT_STATUS(WorkerParts::Make(10, 0, 1), absl::StatusCode::kInvalidArgument, "got 0");
}

TEST(ProblemsTest, StepsTakeOneInTheMeanAndThoseOfSlowWorkersLonger) {
  ASSERT_OK_AND_ASSIGN(WorkerSpeeds speeds,
                       WorkerSpeeds::Make(9, {.slow_share = 0.125, .slow_factor = 2}, 3));
  double first = 0, last = 0;
  for (int i = 0; i < 10'000; ++i) {
    first += speeds.NextStep(0);
    last += speeds.NextStep(8);
  }
  // The deviation of a mean of 10,000 is 0.0031.
  EXPECT_NEAR(first / 10'000, 1, 0.02);
  EXPECT_NEAR(last / 10'000, 2, 0.04);
  ASSERT_OK_AND_ASSIGN(speeds, WorkerSpeeds::Make(1, {.sigma = 0}, 3));
  EXPECT_EQ(speeds.NextStep(0), 1);
  EXPECT_STATUS(WorkerSpeeds::Make(1, {.sigma = -1}, 3), absl::StatusCode::kInvalidArgument,
                "sigma");
  EXPECT_STATUS(WorkerSpeeds::Make(1, {.slow_share = 2}, 3), absl::StatusCode::kInvalidArgument,
                "slow_share");
  EXPECT_STATUS(WorkerSpeeds::Make(1, {.slow_factor = 0}, 3), absl::StatusCode::kInvalidArgument,
                "slow_factor");
}

}  // namespace
}  // namespace millrace::scaling
