// SPDX-License-Identifier: Apache-2.0
#include "net/timers.h"

#include <atomic>
#include <memory>
#include <vector>

#include "core/mutex.h"
#include "core/notification.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(TimersTest, FireInTheOrderOfTheirTimesWhateverTheOrderOfSetting) {
  const absl::Time start = Timers::Real()->Now() + absl::Milliseconds(30);
  Mutex mu;
  std::vector<int> order;
  BlockingCounter left(3);
  std::vector<std::shared_ptr<Timer>> timers;
  for (const int i : {2, 0, 1}) {
    timers.push_back(Timers::Real()->Start(start + absl::Milliseconds(i), [&, i] {
      {
        MutexLock lock(&mu);
        order.push_back(i);
      }
      left.Decrement();
    }));
  }
  left.Wait();
  MutexLock lock(&mu);
  EXPECT_EQ(order, (std::vector<int>{0, 1, 2}));
}

TEST(TimersTest, ACancelledTimerNeverFiresAndLetsGoOfWhatItHolds) {
  auto held = std::make_shared<int>(1);
  std::weak_ptr<int> seen = held;
  std::atomic<bool> fired{false};
  auto timer = Timers::Real()->Start(Timers::Real()->Now() + absl::Hours(1),
                                     [&fired, held = std::move(held)] { fired = true; });
  timer->Cancel();
  timer->Cancel();
  timer.reset();
  EXPECT_TRUE(seen.expired());
  EXPECT_FALSE(fired);
}

TEST(TimersTest, ATimerThatNobodyHoldsFiresWhileItIsSet) {
  Notification fired;
  Timers::Real()->Start(Timers::Real()->Now() + absl::Milliseconds(5), [&] { fired.Notify(); });
  fired.Wait();
}

TEST(TimersTest, ATimerThatFiredIsSetAgainByItself) {
  Notification fired;
  int times = 0;
  std::shared_ptr<Timer> timer;
  timer = Timers::Real()->Make([&] {
    if (++times == 3) return fired.Notify();
    timer->Set(absl::InfinitePast());
  });
  timer->Set(absl::InfinitePast());
  fired.Wait();
  EXPECT_EQ(times, 3);
}

TEST(TimersTest, AnEarlierTimerIsNotHeldUpByALaterOne) {
  const auto late = Timers::Real()->Start(absl::InfiniteFuture(), [] {});
  Notification fired;
  const auto early =
      Timers::Real()->Start(Timers::Real()->Now() + absl::Milliseconds(1), [&] { fired.Notify(); });
  fired.Wait();
  late->Cancel();
}

}  // namespace
}  // namespace millrace
