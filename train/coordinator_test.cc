// SPDX-License-Identifier: Apache-2.0
#include "train/coordinator.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/time.h"
#include "core/clock.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

// covers: training: threads of hooks are stopped and joined within a bound; their first error is
//   the loop's

namespace millrace {
namespace {

using absl::StatusCode;

TEST(CoordinatorTest, WithoutThreadsJoinReturnsAtOnce) { EXPECT_OK(Coordinator().Join()); }

TEST(CoordinatorTest, TheFirstErrorOfAThreadStopsAllAndIsThatOfJoin) {
  const Coordinator coordinator;
  coordinator.Start("waits", [](const Coordinator& c) -> Status {
    c.WaitForStop();
    return absl::InternalError("second");
  });
  coordinator.Start("fails", [](const Coordinator&) { return absl::InternalError("first"); });
  EXPECT_TRUE(coordinator.WaitForStop());
  EXPECT_STATUS(coordinator.error(), StatusCode::kInternal, "first");
  EXPECT_STATUS(coordinator.Join(), StatusCode::kInternal, "first");
}

TEST(CoordinatorTest, TheEndOfDataIsACleanStop) {
  const Coordinator coordinator;
  coordinator.Start("reads", [](const Coordinator&) { return absl::OutOfRangeError("no more"); });
  EXPECT_TRUE(coordinator.WaitForStop());
  EXPECT_OK(coordinator.Join());
}

TEST(CoordinatorTest, JoinWaitsForThreadsThatEndByThemselves) {
  const Coordinator coordinator;
  std::atomic<int> ended = 0;
  for (int i = 0; i < 4; ++i) {
    coordinator.Start("counts", [&](const Coordinator&) {
      ++ended;
      return absl::OkStatus();
    });
  }
  EXPECT_OK(coordinator.Join());
  EXPECT_EQ(ended, 4);
  EXPECT_FALSE(coordinator.ShouldStop());
}

TEST(CoordinatorTest, ThreadsThatDoNotEndAreNamedAndLeftBehind) {
  FakeClock clock;
  const auto release = std::make_shared<Notification>();
  const auto left = std::make_shared<Notification>();
  {
    const Coordinator coordinator(&clock);
    coordinator.Start("stubborn", [release, left](const Coordinator&) {
      release->Wait();
      left->Notify();
      return absl::OkStatus();
    });
    coordinator.RequestStop();
    std::thread time([&] {
      clock.AwaitWaiters(1);
      clock.Advance(absl::Seconds(10));
    });
    EXPECT_STATUS(coordinator.Join({.stop_grace = absl::Seconds(10)}),
                  StatusCode::kDeadlineExceeded, "threads still running: stubborn");
    time.join();
  }
  release->Notify();
  left->Wait();
}

TEST(CoordinatorTest, ARecordedErrorBeatsThreadsThatStillRun) {
  const Coordinator coordinator;
  const auto release = std::make_shared<Notification>();
  coordinator.Start("stubborn", [release](const Coordinator&) {
    release->Wait();
    return absl::OkStatus();
  });
  coordinator.RequestStop(absl::AbortedError("a task went away"));
  EXPECT_STATUS(coordinator.Join({.stop_grace = absl::ZeroDuration()}), StatusCode::kAborted,
                "a task went away");
  release->Notify();
}

TEST(CoordinatorTest, LiveThreadsMayBeIgnored) {
  const Coordinator coordinator;
  const auto release = std::make_shared<Notification>();
  coordinator.Start("stubborn", [release](const Coordinator&) {
    release->Wait();
    return absl::OkStatus();
  });
  coordinator.RequestStop();
  EXPECT_OK(coordinator.Join({.stop_grace = absl::ZeroDuration(), .ignore_live_threads = true}));
  EXPECT_STATUS(coordinator.ClearStop(), StatusCode::kFailedPrecondition, "got 1 that run");
  release->Notify();
}

TEST(CoordinatorTest, AfterJoinAnErrorIsNotKeptAndClearStopBeginsAnew) {
  const Coordinator coordinator;
  coordinator.RequestStop();
  EXPECT_OK(coordinator.Join());
  coordinator.RequestStop(absl::InternalError("too late"));
  EXPECT_OK(coordinator.error());
  ASSERT_OK(coordinator.ClearStop());
  EXPECT_FALSE(coordinator.ShouldStop());
  coordinator.RequestStop(absl::InternalError("in time"));
  EXPECT_STATUS(coordinator.Join(), StatusCode::kInternal, "in time");
}

TEST(CoordinatorTest, ALooperTicksAtOnceThenOncePerPeriodAndSkipsMissedTicks) {
  FakeClock clock;
  const Coordinator coordinator(&clock);
  std::atomic<int> ticks = 0;
  coordinator.StartLooper("ticks", absl::Seconds(60), [&] {
    ++ticks;
    return absl::OkStatus();
  });
  clock.AwaitWaiters(1);
  EXPECT_EQ(ticks, 1);
  clock.Advance(absl::Seconds(59));
  clock.AwaitWaiters(1);
  EXPECT_EQ(ticks, 1);
  clock.Advance(absl::Seconds(1));
  while (ticks < 2) std::this_thread::yield();
  clock.AwaitWaiters(1);
  // Three periods late: one tick, not three.
  clock.Advance(absl::Seconds(200));
  while (ticks < 3) std::this_thread::yield();
  clock.AwaitWaiters(1);
  EXPECT_EQ(ticks, 3);
  coordinator.RequestStop();
  EXPECT_OK(coordinator.Join());
  EXPECT_EQ(ticks, 3);
}

TEST(CoordinatorTest, AWaitForTheStopEndsAtItsDeadline) {
  FakeClock clock;
  const Coordinator coordinator(&clock);
  EXPECT_FALSE(coordinator.WaitForStop(clock.Now()));
  coordinator.RequestStop();
  EXPECT_TRUE(coordinator.WaitForStop(clock.Now()));
}

}  // namespace
}  // namespace millrace
