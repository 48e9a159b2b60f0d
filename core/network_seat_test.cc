// SPDX-License-Identifier: Apache-2.0
#include "core/network_seat.h"

#include <atomic>
#include <functional>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// Serve does what the test says.
class FakeSeat final : public NetworkSeat {
 public:
  bool Take() override {
    ++takes;
    return has_work;
  }
  void Serve(absl::Time limit) noexcept override { serve(limit); }
  void Leave() override { ++leaves; }
  void Wake() noexcept override {
    ++wakes;
    if (!woken.HasBeenNotified()) woken.Notify();
  }

  bool has_work = true;
  std::function<void(absl::Time)> serve;
  int takes = 0, leaves = 0;
  std::atomic<int> wakes{0};  // relaxed: looked at when all threads are done
  absl::Notification woken;
};

// The process has one for good.
FakeSeat* Seat() {
  static FakeSeat* const seat = [] {
    auto* const made = new FakeSeat;
    NetworkSeat::SetOfProcess(made);
    return made;
  }();
  return seat;
}

class NetworkSeatTest : public ::testing::Test {
 protected:
  NetworkSeatTest() {
    // Nobody else is there: as if it were new.
    FakeSeat& seat = *Seat();
    seat.has_work = true;
    seat.takes = seat.leaves = 0;
    seat.wakes = 0;
    seat.serve = [](absl::Time) { ADD_FAILURE() << "nobody is to serve"; };
  }

  void AwaitDone() {
    MutexLock lock(&mu_);
    while (!done_) seated_.Wait(&mu_, absl::InfiniteFuture());
  }
  void SetDone() {
    MutexLock lock(&mu_);
    done_ = true;
    seated_.Signal();
  }

  FakeSeat& seat_ = *Seat();
  Mutex mu_;
  SeatedCondVar seated_;
  bool done_ = false;
};

TEST_F(NetworkSeatTest, TheFirstSeatOfAProcessCounts) {
  FakeSeat other;
  NetworkSeat::SetOfProcess(&other);
  EXPECT_EQ(NetworkSeat::OfProcess(), &seat_);
}

TEST_F(NetworkSeatTest, WithoutAWishItIsAConditionVariable) {
  std::thread signals([this] { SetDone(); });
  AwaitDone();
  signals.join();
  EXPECT_EQ(seat_.takes, 0);
  EXPECT_EQ(seat_.wakes, 0);
  {
    const SeatWish wish;
    const SeatWish inner;
  }
  MutexLock lock(&mu_);
  seated_.Wait(&mu_, absl::Now());
  EXPECT_EQ(seat_.takes, 0) << "the wish is over";
}

TEST_F(NetworkSeatTest, WhoWaitsServesUntilTheConditionHolds) {
  int served = 0;
  seat_.serve = [&](absl::Time limit) {
    EXPECT_EQ(limit, absl::InfiniteFuture());
    // What it serves may need the lock, and may be what it waits for.
    if (++served == 3) SetDone();
  };
  const SeatWish wish;
  AwaitDone();
  EXPECT_EQ(served, 3);
  EXPECT_EQ(seat_.leaves, 3);
  EXPECT_EQ(seat_.wakes, 0) << "a thread that serves need not be woken";
}

TEST_F(NetworkSeatTest, AnotherThreadWakesTheOneInTheSeat) {
  absl::Notification serves;
  seat_.serve = [&](absl::Time) {
    serves.Notify();
    seat_.woken.WaitForNotification();
  };
  std::thread signals([&] {
    serves.WaitForNotification();
    SetDone();
  });
  const SeatWish wish;
  AwaitDone();
  signals.join();
  EXPECT_EQ(seat_.wakes, 1);
  EXPECT_EQ(seat_.leaves, 1);
}

TEST_F(NetworkSeatTest, AThreadThatFindsTheSeatTakenWaitsAsElsewhere) {
  seat_.has_work = false;
  std::thread signals([this] { SetDone(); });
  const SeatWish wish;
  AwaitDone();
  signals.join();
  EXPECT_EQ(seat_.wakes, 0);
  MutexLock lock(&mu_);
  const absl::Time limit = absl::Now();
  seated_.Wait(&mu_, limit);
  EXPECT_GE(absl::Now(), limit) << "a limit that has passed does not block";
}

}  // namespace
}  // namespace millrace
