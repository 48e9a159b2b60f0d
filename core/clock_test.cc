// SPDX-License-Identifier: Apache-2.0
#include "core/clock.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(FakeClockTest, StandsStillUntilAdvanced) {
  FakeClock clock(absl::FromUnixSeconds(100));
  EXPECT_EQ(clock.Now(), absl::FromUnixSeconds(100));
  EXPECT_EQ(clock.Now(), absl::FromUnixSeconds(100));
  clock.Advance(absl::Milliseconds(1500));
  EXPECT_EQ(clock.Now(), absl::FromUnixMillis(101'500));
}

TEST(FakeClockTest, SleeperWakesWhenItsTimeHasComeAndNotBefore) {
  FakeClock clock;
  std::atomic<bool> awake{false};
  std::thread sleeper([&] {
    clock.SleepFor(absl::Seconds(10));
    awake = true;
  });
  clock.AwaitWaiters(1);
  clock.Advance(absl::Seconds(9));
  EXPECT_EQ(clock.NumWaiters(), 1);
  EXPECT_FALSE(awake);
  clock.Advance(absl::Seconds(1));
  sleeper.join();
  EXPECT_TRUE(awake);
  EXPECT_EQ(clock.NumWaiters(), 0);
}

TEST(FakeClockTest, SleepOfNothingReturns) {
  FakeClock clock;
  clock.SleepFor(absl::ZeroDuration());
  clock.SleepFor(absl::Seconds(-1));
  EXPECT_EQ(clock.NumWaiters(), 0);
}

TEST(FakeClockTest, WaitUntilEndsAtItsDeadline) {
  FakeClock clock;
  Mutex mu;
  CondVar cv;
  const absl::Time deadline = clock.Now() + absl::Seconds(5);
  std::thread waiter([&] {
    MutexLock lock(&mu);
    while (!clock.WaitUntil(&cv, &mu, deadline)) {
    }
    EXPECT_GE(clock.Now(), deadline);
  });
  for (int second = 0; second < 5; ++second) {
    clock.AwaitWaiters(1);
    clock.Advance(absl::Seconds(1));
  }
  waiter.join();
}

TEST(FakeClockTest, ReachedDeadlineDoesNotWait) {
  FakeClock clock;
  Mutex mu;
  CondVar cv;
  MutexLock lock(&mu);
  EXPECT_TRUE(clock.WaitUntil(&cv, &mu, clock.Now()));
}

TEST(FakeClockTest, ASignalEndsTheWaitBeforeTheDeadline) {
  FakeClock clock;
  Mutex mu;
  CondVar cv;
  bool ready = false;
  bool reached = true;
  std::thread waiter([&] {
    MutexLock lock(&mu);
    while (!ready) reached = clock.WaitUntil(&cv, &mu, clock.Now() + absl::Hours(1));
  });
  clock.AwaitWaiters(1);
  {
    MutexLock lock(&mu);
    ready = true;
    cv.SignalAll();
  }
  waiter.join();
  EXPECT_FALSE(reached);
}

// A waiter may destroy its mutex as soon as it is back: Advance() must not touch it then.
TEST(FakeClockTest, WaitersComeAndGoWhileTimeMoves) {
  FakeClock clock;
  std::atomic<int> running{4};
  std::vector<std::thread> waiters;
  for (int w = 0; w < 4; ++w) {
    waiters.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        auto mu = std::make_unique<Mutex>();
        auto cv = std::make_unique<CondVar>();
        mu->Lock();
        const absl::Time deadline = clock.Now() + absl::Milliseconds(i % 3);
        while (!clock.WaitUntil(cv.get(), mu.get(), deadline)) {
        }
        mu->Unlock();
      }
      --running;
    });
  }
  std::vector<std::thread> movers;
  for (int m = 0; m < 2; ++m) {
    movers.emplace_back([&] {
      while (running > 0) clock.Advance(absl::Milliseconds(1));
    });
  }
  for (auto& t : waiters) t.join();
  for (auto& t : movers) t.join();
  EXPECT_EQ(clock.NumWaiters(), 0);
}

TEST(RealClockTest, WaitUntilReportsThatTheDeadlineWasReached) {
  Clock* clock = Clock::Real();
  Mutex mu;
  CondVar cv;
  const absl::Time deadline = clock->Now() + absl::Milliseconds(5);
  MutexLock lock(&mu);
  while (!clock->WaitUntil(&cv, &mu, deadline)) {
  }
  EXPECT_GE(clock->Now(), deadline);
  EXPECT_TRUE(clock->WaitUntil(&cv, &mu, absl::InfinitePast()));
}

}  // namespace
}  // namespace millrace
