// SPDX-License-Identifier: Apache-2.0
#include "distributed/master/wait_watch.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "core/mutex.h"
#include "distributed/testing/watched_clock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

class WaitWatchTest : public ::testing::Test {
 protected:
  WaitWatchTest() {
    watch_.Start();
    clock_.Settle();
  }

  void Begin(const std::string& name) {
    MutexLock lock(&mu_);
    since_[name] = clock_.FakeClock::Now();
  }
  void End(const std::string& name) {
    MutexLock lock(&mu_);
    since_.erase(name);
  }
  // What is said while the time passes, a second after the other: "<second>: <line>".
  std::vector<std::string> SaidIn(int seconds) {
    std::vector<std::string> said;
    for (int i = 0; i < seconds; ++i) {
      ::testing::internal::CaptureStderr();
      clock_.AdvanceAndSettle(absl::Seconds(1));
      const std::string log = ::testing::internal::GetCapturedStderr();
      for (absl::string_view line : absl::StrSplit(log, '\n', absl::SkipEmpty())) {
        const size_t text = line.rfind("] ");
        if (text != absl::string_view::npos) line.remove_prefix(text + 2);
        said.push_back(absl::StrCat(absl::ToUnixSeconds(clock_.FakeClock::Now()), ": ", line));
      }
    }
    return said;
  }
  using Lines = std::vector<std::string>;

  WatchedClock clock_;
  Mutex mu_;
  std::map<std::string, absl::Time> since_ ABSL_GUARDED_BY(mu_);
  WaitWatch watch_{&clock_, [this] {
                     std::vector<WaitWatch::Wait> waits;
                     MutexLock lock(&mu_);
                     for (const auto& [name, since] : since_) {
                       waits.push_back({since, [name = name] { return name; }});
                     }
                     return waits;
                   }};
};

TEST_F(WaitWatchTest, AWaitIsNamedWhenItIsTenSecondsOldAndEveryTenSecondsAfter) {
  EXPECT_EQ(SaidIn(7), Lines());
  Begin("a");
  EXPECT_EQ(SaidIn(33), (Lines{"17: a since 10s", "27: a since 20s", "37: a since 30s"}));
  End("a");
  EXPECT_EQ(SaidIn(20), Lines());
  Begin("b");
  EXPECT_EQ(SaidIn(11), Lines{"70: b since 10s"});
}

TEST_F(WaitWatchTest, OneThatBeginsLaterIsNamedInItsOwnTimeThenWithTheOthers) {
  Begin("a");
  EXPECT_EQ(SaidIn(4), Lines());
  Begin("b");
  EXPECT_EQ(SaidIn(17),
            (Lines{"10: a since 10s", "14: b since 10s", "20: a since 20s", "20: b since 16s"}));
}

TEST_F(WaitWatchTest, ShortWaitsAreNeverNamed) {
  for (int i = 0; i < 10; ++i) {
    const std::string name = absl::StrCat("step ", i);
    Begin(name);
    EXPECT_EQ(SaidIn(9), Lines());
    End(name);
  }
}

TEST_F(WaitWatchTest, ManyThatWaitTakeFewLines) {
  for (int i = 0; i < 8; ++i) Begin(absl::StrCat("s", i));
  for (const int second : {10, 20}) {
    const Lines said = SaidIn(10);
    ASSERT_EQ(said.size(), 6u) << absl::StrJoin(said, "\n");
    EXPECT_EQ(said.back(), absl::StrCat(second, ": and 3 more steps wait"));
  }
}

}  // namespace
}  // namespace millrace
