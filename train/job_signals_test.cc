// SPDX-License-Identifier: Apache-2.0
#include "train/job_signals.h"

#include <signal.h>

#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/exit_code.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: training: SIGTERM and Ctrl-C ask a job to leave once; a step that hangs is ended

namespace millrace {
namespace {

using absl::StatusCode;

// A job that notes what its signals ask of it.
class JobSignalsTest : public testing::Test {
 protected:
  JobSignalsOptions Options(bool keeps_checkpoints) {
    return {.speaker = "Test",
            .grace = absl::Seconds(20),
            .clock = &clock_,
            .keeps_checkpoints = [keeps_checkpoints] { return keeps_checkpoints; },
            .request_leave =
                [this](const Status& why) {
                  MutexLock lock(&mu_);
                  leaves_.push_back(why);
                },
            .end_step =
                [this](absl::Duration time) {
                  overdue_after_ = time;
                  overdue_.Notify();
                }};
  }
  std::vector<Status> leaves() {
    MutexLock lock(&mu_);
    return leaves_;
  }

  FakeClock clock_;
  Notification overdue_;
  absl::Duration overdue_after_;  // before overdue_

 private:
  Mutex mu_;
  std::vector<Status> leaves_ ABSL_GUARDED_BY(mu_);
};

TEST_F(JobSignalsTest, ASignalIsNotedAtOnceAndAsksToLeaveOnce) {
  for (const int signal : {SIGTERM, SIGINT}) {
    JobSignals signals(Options(/*keeps_checkpoints=*/true));
    EXPECT_EQ(signals.Note(), 0) << "nobody watches";
    signals.Watch();
    signals.Watch();
    EXPECT_EQ(signals.Note(), 0);
    EXPECT_FALSE(signals.noted().has_value());
    const size_t before = leaves().size();
    ASSERT_EQ(::raise(signal), 0);
    EXPECT_EQ(signals.Note(), signal);
    EXPECT_EQ(signals.Note(), signal);
    EXPECT_EQ(signals.noted()->at, clock_.Now());
    clock_.AwaitWaiters(1);  // the watching thread waits for the end of the step
    ASSERT_EQ(leaves().size(), before + 1);
    const Status why = leaves().back();
    EXPECT_STATUS(why, StatusCode::kCancelled,
                  signal == SIGTERM ? "Test: ended by SIGTERM" : "Test: ended by SIGINT");
    EXPECT_EQ(ExitCode(why), 128 + signal);
    signals.EndBegins();
    signals.Unwatch();
    EXPECT_EQ(signals.noted()->signal, signal) << "what was noted stays";
  }
  EXPECT_FALSE(overdue_.HasBeenNotified());
}

TEST_F(JobSignalsTest, AStepThatHangsIsEndedAfterItsPartOfTheGrace) {
  JobSignals signals(Options(/*keeps_checkpoints=*/true));
  signals.Watch();
  ASSERT_EQ(::raise(SIGTERM), 0);
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Seconds(10) - absl::Milliseconds(1));
  EXPECT_FALSE(overdue_.WaitFor(absl::Milliseconds(20)));
  clock_.Advance(absl::Milliseconds(1));
  overdue_.Wait();
  EXPECT_EQ(overdue_after_, absl::Seconds(10));
  signals.Unwatch();
}

TEST_F(JobSignalsTest, WhereNothingIsKeptAStepHasASecond) {
  JobSignals signals(Options(/*keeps_checkpoints=*/false));
  signals.Watch();
  ASSERT_EQ(::raise(SIGTERM), 0);
  clock_.AwaitWaiters(1);
  clock_.Advance(absl::Seconds(1));
  overdue_.Wait();
  EXPECT_EQ(overdue_after_, absl::Seconds(1));
  signals.Unwatch();
}

TEST_F(JobSignalsTest, WhatComesAfterTheEndHasBegunIsNotTold) {
  struct sigaction before = {};
  ASSERT_EQ(::sigaction(SIGTERM, nullptr, &before), 0);
  JobSignals signals(Options(/*keeps_checkpoints=*/true));
  signals.Watch();
  signals.EndBegins();
  ASSERT_EQ(::raise(SIGTERM), 0);
  signals.Unwatch();
  EXPECT_TRUE(leaves().empty());
  EXPECT_FALSE(signals.noted().has_value());
  signals.Watch();
  struct sigaction handlers = {};
  ASSERT_EQ(::sigaction(SIGTERM, nullptr, &handlers), 0);
  EXPECT_EQ(handlers.sa_handler, before.sa_handler) << "not watched again";
}

}  // namespace
}  // namespace millrace
