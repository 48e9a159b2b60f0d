// SPDX-License-Identifier: Apache-2.0
#include "train/job_recovery.h"

#include "absl/time/time.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: training: lost sessions are counted in a row, with pauses that double

namespace millrace {
namespace {

using absl::StatusCode;

const Status kLoss = absl::UnavailableError("ps is gone");

TEST(JobRecoveryTest, LossesInARowAreBounded) {
  JobRecovery recovery({.speaker = "Test", .max_losses = 2});
  EXPECT_OK(recovery.NoteLoss(kLoss));
  EXPECT_OK(recovery.NoteLoss(kLoss));
  EXPECT_STATUS(recovery.NoteLoss(kLoss), StatusCode::kUnavailable,
                "ps is gone; gave up after 2 new sessions in a row");
  EXPECT_STATUS(JobRecovery({.speaker = "Test"}).NoteLoss(kLoss), StatusCode::kUnavailable,
                "gave up after 0 new sessions");
}

TEST(JobRecoveryTest, ASessionThatBeginsAtALaterStepResetsTheCount) {
  JobRecovery recovery({.speaker = "Test", .max_losses = 1});
  for (const int64_t step : {0, 7, 8}) {
    recovery.SessionBegan(step, step);
    EXPECT_OK(recovery.NoteLoss(kLoss)) << step;
  }
  for (const int64_t step : {8, 3, -1}) {
    recovery.SessionBegan(step, step);
    EXPECT_FALSE(recovery.NoteLoss(kLoss).ok()) << step;
  }
}

TEST(JobRecoveryTest, StepsOfOtherTasksDoNotResetTheCount) {
  JobRecovery recovery({.speaker = "Test", .max_losses = 2});
  for (const int64_t step : {0, 7, 8}) {
    recovery.SessionBegan(step, 0);
    EXPECT_EQ(recovery.NoteLoss(kLoss).ok(), step < 8) << step;
  }
  recovery.SessionBegan(9, 1);
  EXPECT_OK(recovery.NoteLoss(kLoss));
  // Nor do its own that are lost again.
  recovery.SessionBegan(9, 2);
  EXPECT_OK(recovery.NoteLoss(kLoss));
  recovery.SessionBegan(9, 3);
  EXPECT_FALSE(recovery.NoteLoss(kLoss).ok());
}

TEST(JobRecoveryTest, TheFirstSessionComesAtOnceAndLaterOnesAfterGrowingPauses) {
  JobRecovery recovery(
      {.speaker = "Test", .max_losses = 20, .longest_pause = absl::Milliseconds(50)});
  for (int round = 0; round < 2; ++round) {
    recovery.SessionBegan(round, round);
    for (const int pause_ms : {0, 10, 20, 40, 50, 50}) {
      EXPECT_OK(recovery.NoteLoss(kLoss));
      EXPECT_EQ(recovery.pause(), absl::Milliseconds(pause_ms)) << round;
    }
  }
}

}  // namespace
}  // namespace millrace
