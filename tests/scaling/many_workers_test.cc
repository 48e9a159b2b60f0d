// SPDX-License-Identifier: Apache-2.0
#include "tests/scaling/many_workers.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "tests/scaling/click_problem.h"
#include "tests/scaling/learner.h"
#include "tests/scaling/problem.h"
#include "tests/scaling/worker_parts.h"

// covers: training: many workers in virtual time: with one worker every way of updating is the same
//   training bit by bit; two synchronous workers are one process with the double batch; backups are
//   not waited for; a seed decides all

namespace millrace::scaling {
namespace {

constexpr int64_t kBatch = 16;

// Without a file, and with rows that most batches share.
std::unique_ptr<Problem> SmallProblem() {
  StatusOr<std::unique_ptr<Problem>> problem =
      MakeClickProblem({.rows = 160, .train = 4'000, .held_out = 300});
  if (!problem.ok()) {
    ADD_FAILURE() << problem.status();
    return nullptr;
  }
  return *std::move(problem);
}

void ExpectSame(const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i], want[i]) << "variable " << i;
}

void ExpectNear(const std::vector<Tensor>& got, const std::vector<Tensor>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) ExpectTensorNear(got[i], want[i], 0, 1e-6);
}

TEST(ManyWorkersTest, WithOneWorkerAllWaysAreTheSameTraining) {
  const auto problem = SmallProblem();
  ASSERT_NE(problem, nullptr);
  for (const std::string optimizer : {"adagrad", "momentum"}) {
    TogetherOptions options{.batch = kBatch,
                            .learner = {.optimizer = optimizer},
                            .evaluate_every = 8 * kBatch,
                            .until_examples = 24 * kBatch};
    ASSERT_OK_AND_ASSIGN(const Together plain, TrainTogether(*problem, options));
    EXPECT_EQ(plain.updates, 24);
    EXPECT_EQ(plain.evaluations.size(), 3);
    TogetherOptions aware = options, synchronous = options, backup = options, local = options;
    // No gradient of one worker is stale.
    aware.learner.staleness = {.scale_by_staleness = 1, .drop_above = 0};
    synchronous.mode = UpdateMode::kSynchronous;
    backup.mode = UpdateMode::kSynchronous;
    backup.backup_workers = 1;
    local.mode = UpdateMode::kLocal;
    for (const TogetherOptions& other : {aware, synchronous, backup, local}) {
      ASSERT_OK_AND_ASSIGN(const Together same, TrainTogether(*problem, other));
      ExpectSame(same.weights, plain.weights);
      EXPECT_EQ(same.examples, plain.examples);
      EXPECT_EQ(same.dropped, 0);
      // The sum of the same times, in another order.
      EXPECT_NEAR(same.time, plain.time, 1e-9);
      ASSERT_EQ(same.evaluations.size(), plain.evaluations.size());
      for (size_t i = 0; i < same.evaluations.size(); ++i) {
        EXPECT_EQ(same.evaluations[i].auc, plain.evaluations[i].auc);
      }
    }
  }
}

TEST(ManyWorkersTest, TwoSynchronousWorkersAreOneProcessWithTheDoubleBatch) {
  const auto problem = SmallProblem();
  ASSERT_NE(problem, nullptr);
  for (const std::string optimizer : {"adagrad", "sgd"}) {
    const TogetherOptions options{.mode = UpdateMode::kSynchronous,
                                  .workers = 2,
                                  .batch = kBatch,
                                  .learner = {.optimizer = optimizer},
                                  .until_examples = 12 * 2 * kBatch};
    ASSERT_OK_AND_ASSIGN(const Together together, TrainTogether(*problem, options));
    EXPECT_EQ(together.updates, 12);

    ASSERT_OK_AND_ASSIGN(const auto learner, Learner::Make(*problem, options.learner));
    ASSERT_OK_AND_ASSIGN(WorkerParts parts,
                         WorkerParts::Make(problem->num_train(), 2, options.seed));
    for (int64_t round = 0; round < together.updates; ++round) {
      std::vector<size_t> both = parts.Next(0, kBatch);
      for (const size_t example : parts.Next(1, kBatch)) both.push_back(example);
      ASSERT_OK_AND_ASSIGN(const ExampleBatch batch, problem->Train(both));
      ASSERT_OK_AND_ASSIGN(const WorkerGradient gradient, learner->Compute(batch));
      ASSERT_OK(learner->Apply(gradient));
    }
    ASSERT_OK_AND_ASSIGN(const std::vector<Tensor> weights, learner->Weights());
    ExpectNear(together.weights, weights);
  }
}

// The mean of variables that each made one step of gradient descent is the step by the mean.
TEST(ManyWorkersTest, LocalWorkersThatMeetAfterEachStepAreSynchronousOnes) {
  const auto problem = SmallProblem();
  ASSERT_NE(problem, nullptr);
  TogetherOptions options{.mode = UpdateMode::kSynchronous,
                          .workers = 3,
                          .local_steps = 1,
                          .batch = kBatch,
                          .learner = {.optimizer = "sgd", .learning_rate = 0.1},
                          .until_examples = 8 * 3 * kBatch};
  ASSERT_OK_AND_ASSIGN(const Together synchronous, TrainTogether(*problem, options));
  options.mode = UpdateMode::kLocal;
  ASSERT_OK_AND_ASSIGN(const Together local, TrainTogether(*problem, options));
  EXPECT_EQ(local.updates, synchronous.updates);
  EXPECT_NEAR(local.time, synchronous.time, 1e-9);
  ExpectNear(local.weights, synchronous.weights);
}

TEST(ManyWorkersTest, ASeedDecidesAll) {
  const auto problem = SmallProblem();
  ASSERT_NE(problem, nullptr);
  for (const UpdateMode mode :
       {UpdateMode::kAsynchronous, UpdateMode::kSynchronous, UpdateMode::kLocal}) {
    TogetherOptions options{.mode = mode,
                            .workers = 4,
                            .backup_workers = 1,
                            .local_steps = 2,
                            .batch = kBatch,
                            .evaluate_every = 8 * kBatch,
                            .until_examples = 32 * kBatch};
    ASSERT_OK_AND_ASSIGN(const Together first, TrainTogether(*problem, options));
    ASSERT_OK_AND_ASSIGN(const Together second, TrainTogether(*problem, options));
    ExpectSame(first.weights, second.weights);
    EXPECT_EQ(first.time, second.time);
    EXPECT_EQ(first.dropped, second.dropped);
    options.seed = 2;
    ASSERT_OK_AND_ASSIGN(const Together third, TrainTogether(*problem, options));
    EXPECT_NE(first.time, third.time);
    EXPECT_NE(first.weights[0], third.weights[0]);
  }
}

// Two workers, one of which takes three times as long; all times are exact.
TEST(ManyWorkersTest, BackupsAreNotWaitedFor) {
  const auto problem = SmallProblem();
  ASSERT_NE(problem, nullptr);
  TogetherOptions options{.mode = UpdateMode::kSynchronous,
                          .workers = 2,
                          .batch = kBatch,
                          .speeds = {.sigma = 0, .slow_share = 0.5, .slow_factor = 3},
                          .until_examples = 8 * kBatch};
  ASSERT_OK_AND_ASSIGN(const Together all, TrainTogether(*problem, options));
  EXPECT_EQ(all.updates, 4);
  EXPECT_EQ(all.time, 12);
  EXPECT_EQ(all.dropped, 0);
  // The fast one makes a round of its own at 1, 2, ... The slow one comes at 3 and 6, before the
  // fast one's step of that time, which has begun later, and is dropped.
  options.backup_workers = 1;
  ASSERT_OK_AND_ASSIGN(const Together fast, TrainTogether(*problem, options));
  EXPECT_EQ(fast.updates, 6);
  EXPECT_EQ(fast.time, 6);
  EXPECT_EQ(fast.dropped, 2);
}

// Three workers whose steps all take 1. At each whole time they come in their order, the first two
// with a staleness of at most 1; the third one has missed both.
TEST(ManyWorkersTest, StaleGradientsAreDroppedAsTheOptimizerSays) {
  const auto problem = SmallProblem();
  ASSERT_NE(problem, nullptr);
  TogetherOptions options{.workers = 3,
                          .batch = kBatch,
                          .learner = {.staleness = {.drop_above = 1}},
                          .speeds = {.sigma = 0},
                          .until_examples = 9 * kBatch};
  ASSERT_OK_AND_ASSIGN(const Together dropping, TrainTogether(*problem, options));
  EXPECT_EQ(dropping.dropped, 3);
  EXPECT_EQ(dropping.updates, 6);
  EXPECT_EQ(dropping.time, 3);
  options.learner.staleness.drop_above = 2;
  ASSERT_OK_AND_ASSIGN(const Together keeping, TrainTogether(*problem, options));
  EXPECT_EQ(keeping.dropped, 0);
  EXPECT_EQ(keeping.updates, 9);
  // Asynchronous workers: nothing is dropped or scaled, so the same.
  options.learner.staleness = {};
  ASSERT_OK_AND_ASSIGN(const Together plain, TrainTogether(*problem, options));
  ExpectSame(plain.weights, keeping.weights);
  options.learner.staleness.scale_by_staleness = 1;
  ASSERT_OK_AND_ASSIGN(const Together scaled, TrainTogether(*problem, options));
  EXPECT_NE(scaled.weights[0], plain.weights[0]);
}

TEST(ManyWorkersTest, TrainingEndsWhereTheAucIsReached) {
  const auto problem = SmallProblem();
  ASSERT_NE(problem, nullptr);
  TogetherOptions options{.workers = 2,
                          .batch = kBatch,
                          .evaluate_every = 2 * kBatch,
                          .until_examples = 100 * kBatch,
                          .until_auc = 0,
                          .smooth = 3};
  ASSERT_OK_AND_ASSIGN(const Together soon, TrainTogether(*problem, options));
  EXPECT_EQ(soon.examples, 6 * kBatch);  // three evaluations have a mean, which is at least 0
  options.until_auc = 2;
  ASSERT_OK_AND_ASSIGN(const Together never, TrainTogether(*problem, options));
  EXPECT_EQ(never.examples, 100 * kBatch);
}

TEST(ManyWorkersTest, OptionsOutOfRangeAreRefused) {
  const auto problem = SmallProblem();
  ASSERT_NE(problem, nullptr);
  const auto refused = [&](const TogetherOptions& options, const char* text) {
    EXPECT_STATUS(TrainTogether(*problem, options), absl::StatusCode::kInvalidArgument, text);
  };
  refused({.workers = 0}, "workers must be in [1, 100000], got 0");
  refused({.workers = 3, .backup_workers = 3}, "got 3 of 3");
  refused({.workers = 3, .backup_workers = -1}, "got -1 of 3");
  refused({.local_steps = 0}, "got 0, 32");
  refused({.batch = 0}, "got 8, 0");
  refused({.workers = 4'001}, "WorkerParts: workers must be in [1, 4000]");
  refused({.learner = {.optimizer = "best"}}, "got 'best'");
}

}  // namespace
}  // namespace millrace::scaling
