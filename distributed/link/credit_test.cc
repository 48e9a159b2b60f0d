// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/credit.h"

#include <algorithm>
#include <cstdint>
#include <random>

#include "absl/time/time.h"
#include "core/testing/tensor_testing.h"
#include "distributed/link/frame.h"
#include "gtest/gtest.h"

// covers: clusters: credit of a link that overflows, is returned twice or never comes neither opens
//   the window further nor stops the sender without a bound

namespace millrace {
namespace {

constexpr int64_t kWindow = kMinWindowBytes;
const absl::Time kStart = absl::UnixEpoch();

SendCredit Opened() {
  SendCredit credit;
  EXPECT_OK(credit.Open(kWindow));
  return credit;
}

TEST(CreditTest, NothingLeavesBeforeTheWindowOpens) {
  SendCredit credit;
  EXPECT_FALSE(credit.Take(1, kStart));
  EXPECT_STATUS(credit.Return(1), absl::StatusCode::kInvalidArgument, "taken, 0 bytes, got 1");
  EXPECT_STATUS(credit.Open(kMinWindowBytes - 1), absl::StatusCode::kInvalidArgument,
                "the window must be at least 2097152 bytes, got 2097151");
  EXPECT_STATUS(credit.Open(0), absl::StatusCode::kInvalidArgument, "got 0");
  EXPECT_STATUS(credit.Open(INT64_MIN), absl::StatusCode::kInvalidArgument, "at least");
  ASSERT_OK(credit.Open(INT64_MAX));
  EXPECT_TRUE(credit.Take(1, kStart));
}

TEST(CreditTest, WhatIsTakenComesBackOnce) {
  SendCredit credit = Opened();
  EXPECT_TRUE(credit.Take(kWindow - 10, kStart));
  EXPECT_FALSE(credit.Take(11, kStart));
  EXPECT_TRUE(credit.Take(10, kStart));
  EXPECT_EQ(credit.left(), 0);
  EXPECT_FALSE(credit.Take(1, kStart));
  EXPECT_OK(credit.Return(0));
  EXPECT_OK(credit.Return(7));
  EXPECT_EQ(credit.left(), 7);
  // Doubled, overflowing, negative: refused, and the window stays as it is.
  EXPECT_STATUS(credit.Return(kWindow), absl::StatusCode::kInvalidArgument,
                "must have been taken, 2097145 bytes, got 2097152");
  EXPECT_STATUS(credit.Return(INT64_MAX), absl::StatusCode::kInvalidArgument, "must have been");
  EXPECT_STATUS(credit.Return(-1), absl::StatusCode::kInvalidArgument, "got -1");
  EXPECT_STATUS(credit.Return(INT64_MIN), absl::StatusCode::kInvalidArgument, "must have been");
  EXPECT_EQ(credit.left(), 7);
  EXPECT_OK(credit.Return(kWindow - 7));
  EXPECT_EQ(credit.left(), kWindow);
  EXPECT_STATUS(credit.Return(1), absl::StatusCode::kInvalidArgument, "taken, 0 bytes, got 1");
}

TEST(CreditTest, TellsHowLongAFrameHasWaitedForCreditThatDoesNotCome) {
  SendCredit credit = Opened();
  EXPECT_EQ(credit.Waited(kStart), absl::ZeroDuration());
  ASSERT_TRUE(credit.Take(kWindow, kStart));
  EXPECT_EQ(credit.Waited(kStart + absl::Seconds(5)), absl::ZeroDuration());  // nothing waits
  EXPECT_FALSE(credit.Take(100, kStart + absl::Seconds(10)));
  EXPECT_FALSE(credit.Take(100, kStart + absl::Seconds(40)));
  EXPECT_EQ(credit.Waited(kStart + absl::Seconds(70)), absl::Seconds(60));
  // Too few bytes are no progress: a peer could return one from time to time.
  ASSERT_OK(credit.Return(0));
  EXPECT_EQ(credit.Waited(kStart + absl::Seconds(70)), absl::Seconds(60));
  ASSERT_OK(credit.Return(1));
  EXPECT_FALSE(credit.Take(100, kStart + absl::Seconds(70)));
  EXPECT_EQ(credit.Waited(kStart + absl::Seconds(71)), absl::Seconds(61));
  ASSERT_OK(credit.Return(99));
  EXPECT_TRUE(credit.Take(100, kStart + absl::Seconds(72)));
  EXPECT_EQ(credit.Waited(kStart + absl::Seconds(99)), absl::ZeroDuration());
  // A frame that is dropped waits no longer.
  EXPECT_FALSE(credit.Take(100, kStart + absl::Seconds(100)));
  credit.StopWaiting();
  EXPECT_EQ(credit.Waited(kStart + absl::Seconds(200)), absl::ZeroDuration());
}

// Whatever lies in a pool, a frame leaves once all before it has come back.
TEST(CreditTest, WhatLiesInAPoolTakesThreeQuartersOfTheWindowAtMost) {
  for (const int64_t window : {kMinWindowBytes, kMinWindowBytes + 1, kDefaultWindowBytes}) {
    EXPECT_EQ(CreditOf(300, 0, window), 300);
    EXPECT_EQ(CreditOf(300, 100'000, window), 100'300);
    const int64_t most = CreditOf(300, INT64_MAX, window);
    EXPECT_EQ(CreditOf(300, window, window), most);
    EXPECT_LE(most, window);
    SendCredit send;
    ASSERT_OK(send.Open(window));
    ReceiveCredit receive(window);
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(send.Take(most, absl::UnixEpoch()));
      ASSERT_OK(receive.Received(most));
      ASSERT_TRUE(receive.IsDue());
      ASSERT_OK(send.Return(receive.TakeOwed()));
      // As much as may stay unreturned is not in its way.
      while (!receive.IsDue()) {
        EXPECT_GE(send.left(), most);
        ASSERT_TRUE(send.Take(1000, absl::UnixEpoch()));
        ASSERT_OK(receive.Received(1000));
      }
      ASSERT_OK(send.Return(receive.TakeOwed()));
    }
  }
}

// Nor is what the receiver holds back in its way: it takes what there is.
TEST(CreditTest, WhatLiesInAPoolLeavesWhileAFrameWould) {
  for (const int64_t window : {kMinWindowBytes, kDefaultWindowBytes}) {
    for (const int64_t held : {window / 4 + 1, window / 2, window - 2 * kMaxFrameBytes}) {
      SendCredit send;
      ASSERT_OK(send.Open(window));
      ReceiveCredit receive(window);
      ASSERT_TRUE(send.Take(held, kStart));
      ASSERT_OK(receive.Received(held));
      receive.Hold(held);
      for (int i = 0; i < 20; ++i) {
        const int64_t left = send.left();
        const int64_t taken = send.TakePooled(300, 2 * window, kStart);
        ASSERT_EQ(taken, std::min(left, CreditOf(300, 2 * window, window)));
        ASSERT_OK(receive.ReceivedPooled(taken, 300, 2 * window));
        ASSERT_TRUE(receive.IsDue());
        ASSERT_OK(send.Return(receive.TakeOwed()));
        EXPECT_EQ(send.left(), window - held);
      }
    }
  }
  // With less than any frame may need it waits, unless that is all that it takes.
  SendCredit send = Opened();
  ASSERT_TRUE(send.Take(kWindow - kMaxFrameBytes + 1, kStart));
  EXPECT_EQ(send.TakePooled(300, kMaxFrameBytes, kStart), 0);
  EXPECT_EQ(send.Waited(kStart + absl::Seconds(1)), absl::Seconds(1));
  EXPECT_EQ(send.TakePooled(300, 1000, kStart), 1300);
}

TEST(CreditTest, WhatAFrameSaysOfItsCreditIsChecked) {
  ReceiveCredit credit(kWindow);
  constexpr char kRule[] =
      "a frame with tensors in a pool, or kept ones, must take 300 to 1300 bytes";
  for (const int64_t lie : {int64_t{0}, int64_t{299}, int64_t{1301}, INT64_MIN, INT64_MAX}) {
    EXPECT_STATUS(credit.ReceivedPooled(lie, 300, 1000), absl::StatusCode::kInvalidArgument, kRule);
  }
  EXPECT_OK(credit.ReceivedPooled(300, 300, 1000));
  EXPECT_OK(credit.ReceivedPooled(1300, 300, 1000));
  EXPECT_EQ(credit.owed(), 1600);
  ASSERT_OK(credit.Received(kWindow - 1700));
  EXPECT_STATUS(credit.ReceivedPooled(1300, 300, 1000), absl::StatusCode::kInvalidArgument,
                "within the window");
}

TEST(CreditTest, AFrameWithoutCreditIsRefused) {
  ReceiveCredit credit(kWindow);
  EXPECT_OK(credit.Received(kWindow - 1));
  EXPECT_STATUS(credit.Received(2), absl::StatusCode::kInvalidArgument,
                "within the window, 1 of 2097152 bytes are left, got 2");
  EXPECT_OK(credit.Received(1));
  EXPECT_EQ(credit.TakeOwed(), kWindow);
  EXPECT_EQ(credit.TakeOwed(), 0);
  EXPECT_OK(credit.Received(kWindow));
}

TEST(CreditTest, AQuarterOfTheWindowIsDue) {
  ReceiveCredit credit(kWindow);
  EXPECT_FALSE(credit.IsDue());
  ASSERT_OK(credit.Received(kWindow / 4 - 1));
  EXPECT_FALSE(credit.IsDue());
  ASSERT_OK(credit.Received(1));
  EXPECT_TRUE(credit.IsDue());
  EXPECT_EQ(credit.owed(), kWindow / 4);
}

TEST(CreditTest, WhatIsHeldIsNotOwedUntilItIsLetGo) {
  ReceiveCredit credit(kWindow);
  ASSERT_OK(credit.Received(kWindow / 2));
  credit.Hold(kWindow / 2);
  EXPECT_FALSE(credit.IsDue());
  EXPECT_EQ(credit.TakeOwed(), 0);
  // Also more than has come: what comes later is held as well.
  credit.Hold(1000);
  ASSERT_OK(credit.Received(1200));
  EXPECT_EQ(credit.TakeOwed(), 200);
  // The window is as large as it was.
  EXPECT_STATUS(credit.Received(kWindow), absl::StatusCode::kInvalidArgument, "within the window");
  credit.LetGo(kWindow / 2);
  EXPECT_TRUE(credit.IsDue());
  EXPECT_EQ(credit.TakeOwed(), kWindow / 2);
  credit.LetGo(1000);
  EXPECT_EQ(credit.TakeOwed(), 1000);
  EXPECT_OK(credit.Received(kWindow));
}

// Else a transfer would wait for a quarter that cannot come.
TEST(CreditTest, AQuarterOfWhatIsNotHeldIsDue) {
  const struct {
    int64_t held, come;  // besides
    bool is_due;
  } kCases[] = {
      {kWindow / 2, kWindow / 8 - 1, false},
      {kWindow / 2, kWindow / 8, true},
      {kWindow - 400, 99, false},
      {kWindow - 400, 100, true},
      {kWindow - 1, 0, false},
      {kWindow - 1, 1, true},
      {kWindow, 0, false},
  };
  for (const auto& c : kCases) {
    ReceiveCredit credit(kWindow);
    ASSERT_OK(credit.Received(c.held + c.come));
    credit.Hold(c.held);
    EXPECT_EQ(credit.owed(), c.come);
    EXPECT_EQ(credit.IsDue(), c.is_due) << c.held << ", " << c.come;
    credit.Hold(kWindow);  // more than the window
    EXPECT_FALSE(credit.IsDue());
  }
}

// A receiver that returns only what is due, and frames of any size: all of them get through, also
// when it holds some of the window back.
TEST(CreditTest, HeldBackReturnsNeverStopTheSender) {
  for (const int64_t held : {int64_t{0}, kWindow / 2, kWindow - (512 << 10)}) {
    std::mt19937_64 random(1);
    SendCredit sender = Opened();
    ReceiveCredit receiver(kWindow);
    if (held > 0) {
      ASSERT_TRUE(sender.Take(held, kStart));
      ASSERT_OK(receiver.Received(held));
      receiver.Hold(held);
    }
    int64_t on_the_way = 0;
    for (int i = 0; i < 10'000; ++i) {
      const int64_t bytes = 1 + static_cast<int64_t>(random() % (330 << 10));
      int tries = 0;
      while (!sender.Take(bytes, kStart)) {
        ASSERT_LT(++tries, 3) << held;
        ASSERT_OK(receiver.Received(on_the_way));
        on_the_way = 0;
        if (receiver.IsDue()) {
          ASSERT_OK(sender.Return(receiver.TakeOwed()));
        }
      }
      on_the_way += bytes;
      ASSERT_EQ(sender.left(), sender.window() - held - on_the_way - receiver.owed());
    }
  }
}

}  // namespace
}  // namespace millrace
