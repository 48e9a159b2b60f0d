// SPDX-License-Identifier: Apache-2.0
#include "distributed/link/parts_window.h"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <limits>
#include <utility>

#include "absl/time/time.h"
#include "gtest/gtest.h"

// covers: clusters: no more parts of large tensors are on their way than a line needs, be it fast
//   or slow, near or far, and answers that nobody asked for change nothing

namespace millrace {
namespace {

constexpr int64_t kPartBytes = int64_t{256} << 10;
constexpr int64_t kMin = PartsWindow::kMinBytes;
const absl::Time kStart = absl::UnixEpoch();

// A line that moves so many bytes a second, each of which then takes half of `round_trip`; answers
// take the other half.
class Line {
 public:
  Line(double bytes_per_s, absl::Duration round_trip)
      : bytes_per_s_(bytes_per_s), round_trip_(round_trip) {}

  // Some answers come later by up to so much, and none before the one before it.
  void set_jitter(absl::Duration jitter) { jitter_ = jitter; }
  // Sends parts as the window allows for so long. Returns the bytes that were read in that time.
  int64_t Run(absl::Duration duration, PartsWindow* window) {
    const absl::Time end = now_ + duration;
    int64_t read = 0;
    while (now_ < end) {
      while (window->MayLeave(kPartBytes, now_)) {
        window->Left(kPartBytes);
        free_at_ = std::max(free_at_, now_) + absl::Seconds(kPartBytes / bytes_per_s_);
        most_queued_ = std::max(most_queued_, free_at_ - now_);
        read += kPartBytes;
        if (window->NeedsMark()) {
          // One of twenty is late.
          random_ = random_ * 6364136223846793005u + 1442695040888963407u;
          const double drawn = static_cast<double>(random_ >> 11) * 0x1p-53;
          const absl::Duration late =
              drawn < 0.05 ? jitter_ * (drawn / 0.05) : absl::ZeroDuration();
          last_answer_ = std::max(last_answer_, free_at_ + round_trip_ + late);
          answers_.push_back({window->Mark(now_), last_answer_});
        }
      }
      EXPECT_FALSE(answers_.empty()) << "a part that waits is behind a mark";
      if (answers_.empty()) return read;
      const auto [mark, at] = answers_.front();
      answers_.pop_front();
      now_ = std::max(now_, at);
      window->Arrived(mark, now_);
    }
    return read;
  }
  void set_bytes_per_s(double bytes_per_s) { bytes_per_s_ = bytes_per_s; }
  // The longest that a part's last byte would have waited for the line since this was called.
  absl::Duration TakeMostQueued() { return std::exchange(most_queued_, absl::ZeroDuration()); }

 private:
  double bytes_per_s_;
  const absl::Duration round_trip_;
  absl::Time now_ = kStart, free_at_ = kStart;
  std::deque<std::pair<int64_t, absl::Time>> answers_;
  absl::Duration most_queued_, jitter_;
  absl::Time last_answer_ = kStart;
  uint64_t random_ = 1;
};

TEST(PartsWindowTest, BeginsWithItsLeastAndKeepsBackTheRest) {
  PartsWindow window;
  for (int64_t sent = 0; sent < kMin; sent += kPartBytes) {
    EXPECT_TRUE(window.MayLeave(kPartBytes, kStart));
    window.Left(kPartBytes);
    EXPECT_EQ(window.NeedsMark(), (sent + kPartBytes) % PartsWindow::kMarkBytes == 0);
    if (window.NeedsMark()) window.Mark(kStart);
  }
  EXPECT_FALSE(window.MayLeave(1, kStart + absl::Seconds(1)));
  EXPECT_EQ(window.Waited(kStart + absl::Seconds(3)), absl::Seconds(2));
  window.Arrived(1, kStart + absl::Seconds(3));
  EXPECT_EQ(window.under_way(), kMin / 2);
  EXPECT_EQ(window.Waited(kStart + absl::Seconds(3)), absl::ZeroDuration());
  EXPECT_TRUE(window.MayLeave(kPartBytes, kStart + absl::Seconds(3)));
}

// What has no mark yet never fills the window.
TEST(PartsWindowTest, WhoWaitsAlwaysWaitsForAnAnswer) {
  PartsWindow window;
  int64_t mark = 0;
  for (int64_t bytes = 1; bytes <= kPartBytes; bytes = bytes * 3 + 1) {
    for (int i = 0; i < 2'000; ++i) {
      while (!window.MayLeave(bytes, kStart)) {
        ASSERT_GT(mark, 0);
        window.Arrived(mark, kStart + absl::Seconds(1));
        ASSERT_LT(window.under_way(), PartsWindow::kMarkBytes);
      }
      window.Left(bytes);
      if (window.NeedsMark()) mark = window.Mark(kStart);
    }
  }
}

TEST(PartsWindowTest, AFarLineIsFilled) {
  // 1 GB/s and 20 ms: 20 MB must be on their way.
  Line line(1e9, absl::Milliseconds(20));
  PartsWindow window;
  line.Run(absl::Seconds(2), &window);
  line.TakeMostQueued();
  const int64_t read = line.Run(absl::Seconds(2), &window);
  EXPECT_GE(read, 1'800'000'000);
  EXPECT_LT(line.TakeMostQueued(), absl::Milliseconds(20));
}

TEST(PartsWindowTest, ANearLineIsFilledAndLittleQueues) {
  // 3 GB/s, 100 us.
  Line line(3e9, absl::Microseconds(100));
  PartsWindow window;
  line.Run(absl::Seconds(1), &window);
  line.TakeMostQueued();
  EXPECT_GE(line.Run(absl::Seconds(1), &window), 2'700'000'000);
  EXPECT_LT(line.TakeMostQueued(), absl::Milliseconds(2));
}

// A reader that is late at times is no queue.
TEST(PartsWindowTest, ALineWithJitterIsFilled) {
  Line line(1e9, absl::Milliseconds(20));
  line.set_jitter(absl::Milliseconds(15));
  PartsWindow window;
  line.Run(absl::Seconds(4), &window);
  EXPECT_GE(line.Run(absl::Seconds(4), &window), 2'400'000'000);
}

// What its own parts queue is never the line's, however long it sends without a pause.
TEST(PartsWindowTest, ASenderThatNeverPausesQueuesNoMoreAfterMinutes) {
  Line line(125e6, absl::Milliseconds(50));
  PartsWindow window;
  line.Run(absl::Seconds(10), &window);
  line.TakeMostQueued();
  EXPECT_GE(line.Run(absl::Minutes(3), &window), int64_t{20'000'000'000});
  EXPECT_LT(line.TakeMostQueued(), absl::Milliseconds(60));
}

TEST(PartsWindowTest, ALineThatBecomesSlowQueuesItsLeast) {
  Line line(10e9, absl::Milliseconds(5));
  PartsWindow window;
  line.Run(absl::Seconds(2), &window);
  EXPECT_GT(window.window(), int64_t{30} << 20);
  line.set_bytes_per_s(125e6);
  line.Run(absl::Seconds(5), &window);
  line.TakeMostQueued();
  const int64_t read = line.Run(absl::Seconds(2), &window);
  EXPECT_GE(read, 220'000'000);
  // The least window alone takes 8 ms.
  EXPECT_LT(line.TakeMostQueued(), absl::Milliseconds(20));
}

TEST(PartsWindowTest, TheWindowDoesNotGrowWhileNothingWaits) {
  PartsWindow window;
  for (int i = 0; i < 1'000; ++i) {
    window.Left(PartsWindow::kMarkBytes);
    window.Arrived(window.Mark(kStart), kStart);
  }
  EXPECT_EQ(window.window(), kMin);
  EXPECT_EQ(window.under_way(), 0);
}

TEST(PartsWindowTest, AnswersThatNobodyAskedForChangeNothing) {
  PartsWindow window;
  for (const int64_t number : {int64_t{0}, int64_t{1}, std::numeric_limits<int64_t>::max(),
                               std::numeric_limits<int64_t>::min()}) {
    window.Arrived(number, kStart);
  }
  window.Left(PartsWindow::kMarkBytes);
  EXPECT_EQ(window.Mark(kStart), 1);
  window.Arrived(0, kStart);
  EXPECT_EQ(window.under_way(), PartsWindow::kMarkBytes);
  window.Arrived(1, kStart);
  window.Arrived(1, kStart);
  EXPECT_EQ(window.under_way(), 0);
  EXPECT_EQ(window.window(), kMin);
}

TEST(PartsWindowTest, WhoWillNotLeaveDoesNotWait) {
  PartsWindow window;
  window.Left(kMin);
  window.Mark(kStart);
  EXPECT_FALSE(window.MayLeave(kPartBytes, kStart));
  window.StopWaiting();
  EXPECT_EQ(window.Waited(kStart + absl::Hours(1)), absl::ZeroDuration());
}

}  // namespace
}  // namespace millrace
