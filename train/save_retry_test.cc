// SPDX-License-Identifier: Apache-2.0
#include "train/save_retry.h"

#include "absl/time/time.h"
#include "core/status.h"
#include "gtest/gtest.h"
#include "run/training_run.h"

// covers: training: a save that storage refused is tried again; one of another chief is not

namespace millrace {
namespace {

TEST(SaveRetryTest, OnlyErrorsThatNoRetryMendsAreNotRetried) {
  for (const Status& status :
       {absl::ResourceExhaustedError("full"), absl::PermissionDeniedError("read-only"),
        absl::UnknownError("input/output error"), absl::NotFoundError("no such directory"),
        absl::UnavailableError("away"), absl::DataLossError("bad block"),
        absl::InternalError("bug")}) {
    EXPECT_TRUE(MayTryAgain(status)) << status;
  }
  const TrainingRun run = {.name = "run", .id = "1"};
  for (const Status& status :
       {absl::InvalidArgumentError("no name of a file"), absl::UnimplementedError("no format"),
        FencedError("Test", run, "another"), RunEndedError("Test", run, {.reason = "done"})}) {
    EXPECT_FALSE(MayTryAgain(status)) << status;
  }
}

TEST(SaveRetryTest, PausesGrowToAMinuteAndStartOverAfterASuccess) {
  SaveRetry retry(absl::Seconds(1));
  for (const int seconds : {1, 2, 4, 8, 16, 32, 60, 60}) {
    EXPECT_EQ(retry.NextPause(), absl::Seconds(seconds));
  }
  retry.Reset();
  EXPECT_EQ(retry.NextPause(), absl::Seconds(1));
}

TEST(SaveRetryTest, AFirstPauseOfMoreThanAMinuteStaysAndNoneIsShort) {
  SaveRetry slow(absl::Minutes(5));
  EXPECT_EQ(slow.NextPause(), absl::Minutes(5));
  EXPECT_EQ(slow.NextPause(), absl::Minutes(5));
  SaveRetry none(absl::ZeroDuration());
  EXPECT_EQ(none.NextPause(), absl::Milliseconds(1));
}

}  // namespace
}  // namespace millrace
