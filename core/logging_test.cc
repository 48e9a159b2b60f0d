// SPDX-License-Identifier: Apache-2.0
#include "core/logging.h"

#include <regex.h>

#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

bool Matches(const std::string& text, const char* pattern) {
  regex_t compiled;
  if (regcomp(&compiled, pattern, REG_EXTENDED | REG_NOSUB) != 0) return false;
  const int result = regexec(&compiled, text.c_str(), 0, nullptr, 0);
  regfree(&compiled);
  return result == 0;
}

class LoggingTest : public testing::Test {
 protected:
  void SetUp() override { SetMinLogLevel(LogLevel::kInfo); }
};

TEST_F(LoggingTest, OneLineWithSeverityTimeAndPlace) {
  InitLogging("logging_test");
  testing::internal::CaptureStderr();
  LogWarning("waiting for ", 3, " tasks, ", 0.5, " s");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(Matches(text,
                      "^W[0-9]{8} [0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{6} +[0-9]+ "
                      "logging_test\\.cc:[0-9]+\\] waiting for 3 tasks, 0\\.5 s\n$"))
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

// In a process of its own: the environment is read once.
TEST(LoggingDeathTest, MinimumComesFromTheEnvironment) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const struct {
    const char* value;
    int info, warning, error;
  } cases[] = {{"0", 1, 1, 1}, {"1", 0, 1, 1}, {"2", 0, 0, 1}, {"loud", 1, 1, 1}, {"-1", 1, 1, 1}};
  for (const auto& c : cases) {
    EXPECT_EXIT(
        {
          setenv("MILLRACE_MIN_LOG_LEVEL", c.value, 1);
          const bool right = LogEnabled(LogLevel::kInfo) == (c.info == 1) &&
                             LogEnabled(LogLevel::kWarning) == (c.warning == 1) &&
                             LogEnabled(LogLevel::kError) == (c.error == 1);
          exit(right ? 0 : 1);
        },
        testing::ExitedWithCode(0), "")
        << c.value;
  }
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
