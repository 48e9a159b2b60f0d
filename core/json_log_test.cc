// SPDX-License-Identifier: Apache-2.0
//
// Runs with MILLRACE_LOG_FORMAT=json.
#include <regex.h>

#include <string>

#include "core/logging.h"
#include "gtest/gtest.h"

// covers: clusters: a line of the log is one JSON object with time, level, task, run, step and
//   message where the environment asks for it

namespace millrace {
namespace {

bool Matches(const std::string& text, const char* pattern) {
  regex_t compiled;
  if (regcomp(&compiled, pattern, REG_EXTENDED | REG_NOSUB) != 0) return false;
  const int result = regexec(&compiled, text.c_str(), 0, nullptr, 0);
  regfree(&compiled);
  return result == 0;
}

constexpr char kTime[] =
    "^\\{\"time\":\"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{6}Z\",";

TEST(JsonLogTest, ALineIsAnObject) {
  SetMinLogLevel(LogLevel::kInfo);
  testing::internal::CaptureStderr();
  LogWarning("waiting for ", 3, " tasks");
  const std::string before = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(Matches(before, (std::string(kTime) + "\"level\":\"WARNING\",\"thread\":[0-9]+,"
                                                    "\"place\":\"json_log_test\\.cc:[0-9]+\","
                                                    "\"message\":\"waiting for 3 tasks\"\\}\n$")
                                  .c_str()))
      << before;

  SetLogTask("/job:ps/task:0");
  SetLogTask("/job:ps/task:1");  // a process is one task
  SetLogRun("f3a9");
  SetLogStep(1'200);
  testing::internal::CaptureStderr();
  LogInfo("saved");
  const std::string after = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(Matches(after, (std::string(kTime) +
                              "\"level\":\"INFO\",\"task\":\"/job:ps/task:0\",\"run\":\"f3a9\","
                              "\"step\":1200,\"thread\":[0-9]+,")
                                 .c_str()))
      << after;
}

TEST(JsonLogTest, TextsAreEscaped) {
  testing::internal::CaptureStderr();
  LogError("a \"b\" \\ c\n\td\x01 \xc3\xa4 \xff");
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("\"message\":\"a \\\"b\\\" \\\\ c\\n\\u0009d\\u0001 \xc3\xa4 \\\\xff\"}\n"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace millrace
