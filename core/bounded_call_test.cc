// SPDX-License-Identifier: Apache-2.0
#include "core/bounded_call.h"

#include <memory>

#include "core/notification.h"
#include "gtest/gtest.h"

// covers: training: a call that does not end is left behind with what it holds

namespace millrace {
namespace {

TEST(BoundedCallTest, ACallThatEndsIsWaitedForAndGivesBackWhatItHeld) {
  const auto held = std::make_shared<int>(0);
  BoundedCall call(Clock::Real(), [held] { *held = 7; });
  EXPECT_TRUE(call.WaitUntil(absl::InfiniteFuture()));
  EXPECT_EQ(*held, 7);
  EXPECT_EQ(held.use_count(), 1);
  EXPECT_TRUE(call.WaitUntil(absl::InfinitePast()));
}

TEST(BoundedCallTest, ACallThatDoesNotEndIsLeftBehindWithWhatItHolds) {
  struct Shared {
    Notification go, gone;
  };
  const auto shared = std::make_shared<Shared>();
  struct Last {
    explicit Last(std::shared_ptr<Shared> s) : shared(std::move(s)) {}
    ~Last() { shared->gone.Notify(); }
    std::shared_ptr<Shared> shared;
  };
  FakeClock clock;
  {
    BoundedCall call(&clock, [last = std::make_shared<Last>(shared)] { last->shared->go.Wait(); });
    EXPECT_FALSE(call.WaitUntil(clock.Now()));
  }
  EXPECT_FALSE(shared->gone.HasBeenNotified());
  shared->go.Notify();
  shared->gone.Wait();
}

TEST(BoundedCallTest, SeveralMayWait) {
  Notification go;
  BoundedCall call(Clock::Real(), [&go] { go.Wait(); });
  std::thread other([&call] { EXPECT_TRUE(call.WaitUntil(absl::InfiniteFuture())); });
  go.Notify();
  EXPECT_TRUE(call.WaitUntil(absl::InfiniteFuture()));
  other.join();
}

}  // namespace
}  // namespace millrace
