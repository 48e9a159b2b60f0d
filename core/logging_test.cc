// SPDX-License-Identifier: Apache-2.0
#include "core/logging.h"

#include <regex>
#include <string>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

class LoggingTest : public testing::Test {
 protected:
  void SetUp() override { SetMinLogLevel(LogLevel::kInfo); }
};

TEST_F(LoggingTest, OneLineWithSeverityTimeAndPlace) {
  InitLogging("logging_test");
  testing::internal::CaptureStderr();
  LogWarning("waiting for ", 3, " tasks, ", 0.5, " s");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(std::regex_match(
      text, std::regex("W\\d{8} \\d\\d:\\d\\d:\\d\\d\\.\\d{6} +\\d+ logging_test\\.cc:\\d+\\] "
                       "waiting for 3 tasks, 0\\.5 s\n")))
      << text;
}

TEST_F(LoggingTest, SeveritiesAreMarked) {
  testing::internal::CaptureStderr();
  LogInfo("first");
  LogError("second");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.substr(0, 1), "I");
  EXPECT_NE(text.find("\nE"), std::string::npos) << text;
}

TEST_F(LoggingTest, QuieterThanTheMinimumIsNotWritten) {
  SetMinLogLevel(LogLevel::kError);
  EXPECT_FALSE(LogEnabled(LogLevel::kWarning));
  testing::internal::CaptureStderr();
  LogInfo("one");
  LogWarning("two");
  LogError("three");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find("one"), std::string::npos);
  EXPECT_EQ(text.find("two"), std::string::npos);
  EXPECT_NE(text.find("three"), std::string::npos);
}

TEST_F(LoggingTest, LinesOfManyThreadsDoNotMix) {
  testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 50; ++i) LogInfo("<", std::string(100, 'x'), ">");
    });
  }
  for (auto& t : threads) t.join();
  const std::string text = testing::internal::GetCapturedStderr();
  const std::string payload = "] <" + std::string(100, 'x') + ">\n";
  int lines = 0;
  for (size_t at = text.find(payload); at != std::string::npos; at = text.find(payload, at + 1)) {
    ++lines;
  }
  EXPECT_EQ(lines, 200);
}

TEST(LogThrottleTest, SaysYesOncePerPeriod) {
  FakeClock clock;
  LogThrottle throttle(absl::Seconds(10), /*wait_first=*/false, &clock);
  EXPECT_TRUE(throttle.ShouldLog());
  EXPECT_FALSE(throttle.ShouldLog());
  clock.Advance(absl::Seconds(9));
  EXPECT_FALSE(throttle.ShouldLog());
  clock.Advance(absl::Seconds(1));
  EXPECT_TRUE(throttle.ShouldLog());
  EXPECT_FALSE(throttle.ShouldLog());
}

TEST(LogThrottleTest, CanWaitAPeriodBeforeTheFirst) {
  FakeClock clock;
  LogThrottle throttle(absl::Seconds(10), /*wait_first=*/true, &clock);
  EXPECT_FALSE(throttle.ShouldLog());
  clock.Advance(absl::Seconds(10));
  EXPECT_TRUE(throttle.ShouldLog());
}

}  // namespace
}  // namespace millrace
