// SPDX-License-Identifier: Apache-2.0
#include "core/network_seat.h"

#include <atomic>
#include <functional>
#include <memory>
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
  bool has_links() const override { return links; }
  bool Take() override {
    ++takes;
    return has_work;
  }
  void Serve(absl::Time limit) noexcept override { serve(limit); }
  void Leave() override { ++leaves; }
  void Wake() noexcept override {
    if (++wakes == 1) woken->Notify();
  }

  bool links = true, has_work = true;
  std::function<void(absl::Time)> serve;
  int takes = 0, leaves = 0;
  std::atomic<int> wakes{0};                  // relaxed: looked at when all threads are done
  std::unique_ptr<absl::Notification> woken;  // by the first Wake
};

// The process has one for good.
FakeSeat* Seat() {
  static FakeSeat* const seat = [] {
    auto* const made = new FakeSeat;
    NetworkSeat::SetOfProcess(made, NetworkSeat::kSameHost);
    return made;
  }();
  return seat;
}

class NetworkSeatTest : public ::testing::Test {
 protected:
  NetworkSeatTest() {
    // Nobody else is there: as if it were new.
    FakeSeat& seat = *Seat();
    seat.links = seat.has_work = true;
    seat.takes = seat.leaves = 0;
    seat.wakes = 0;
    seat.woken = std::make_unique<absl::Notification>();
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

TEST_F(NetworkSeatTest, TheFirstSeatOfARankCounts) {
  FakeSeat other;
  NetworkSeat::SetOfProcess(&other, NetworkSeat::kSameHost);
  EXPECT_EQ(NetworkSeat::OfProcess(), &seat_);
}

TEST_F(NetworkSeatTest, TheSeatOfTheFirstRankThatHasLinksIsUsed) {
  static FakeSeat* const next = new FakeSeat;
  next->links = false;
  NetworkSeat::SetOfProcess(next, NetworkSeat::kNetwork);
  EXPECT_EQ(NetworkSeat::OfProcess(), &seat_);
  next->links = true;
  EXPECT_EQ(NetworkSeat::OfProcess(), &seat_);
  seat_.links = false;
  EXPECT_EQ(NetworkSeat::OfProcess(), next);
  next->links = false;
  EXPECT_EQ(NetworkSeat::OfProcess(), nullptr);
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
    EXPECT_LT(limit, absl::InfiniteFuture()) << "who waits for long leaves the seat";
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
    seat_.woken->WaitForNotification();
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

TEST_F(NetworkSeatTest, ThreadsThatSignalMoreThanOnceWakeItOnce) {
  absl::Notification serves;
  seat_.serve = [&](absl::Time) {
    serves.Notify();
    seat_.woken->WaitForNotification();
    // The second one comes while this thread is awake, or after it has left.
    for (;;) {
      MutexLock lock(&mu_);
      if (done_) return;
    }
  };
  std::thread signals([&] {
    serves.WaitForNotification();
    {
      MutexLock lock(&mu_);
      seated_.Signal();
      seated_.Signal();
    }
    SetDone();
  });
  const SeatWish wish;
  AwaitDone();
  signals.join();
  EXPECT_EQ(seat_.wakes, 1);
}

TEST_F(NetworkSeatTest, WhoHasSatForLongLeavesTheSeatToOthers) {
  seat_.serve = [&](absl::Time limit) {
    while (absl::Now() < limit) std::this_thread::yield();  // nothing comes
  };
  const SeatWish wish;
  {
    MutexLock lock(&mu_);
    seated_.Wait(&mu_, absl::InfiniteFuture());
    EXPECT_EQ(seat_.takes, 1);
    seated_.Wait(&mu_, absl::Now());
  }
  EXPECT_EQ(seat_.takes, 1);
  std::thread signals([this] { SetDone(); });
  AwaitDone();
  signals.join();
  EXPECT_EQ(seat_.takes, 1);
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
