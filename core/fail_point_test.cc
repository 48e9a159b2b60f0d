// SPDX-License-Identifier: Apache-2.0
#include "core/fail_point.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace millrace {
namespace {

// First in this file: the environment is read once in a process.
TEST(FailPointTest, EnvironmentIsReadAtTheFirstPass) {
  ASSERT_EQ(setenv("MILLRACE_FAIL_POINTS", "test/env=error:aborted", 1), 0);
  EXPECT_EQ(FailPoint("test/other"), absl::OkStatus());
  EXPECT_EQ(FailPoint("test/env").code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(SetFailPoints("").ok());
  EXPECT_EQ(FailPoint("test/env"), absl::OkStatus());
  EXPECT_EQ(fail_point_internal::state.load(), 0) << "the fast path is back";
}

TEST(FailPointTest, ErrorNamesThePoint) {
  ScopedFailPoints points("saver/after_data_rename=error:data_loss");
  ASSERT_EQ(points.status(), absl::OkStatus());
  const Status status = FailPoint("saver/after_data_rename");
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_NE(status.message().find("'saver/after_data_rename'"), std::string::npos);
  EXPECT_EQ(FailPoint("saver/before_data_rename"), absl::OkStatus());
}

TEST(FailPointTest, AfterAndTimesChooseThePasses) {
  ScopedFailPoints points("p=error:14,after=2,times=2|q=error:unavailable,times=0");
  ASSERT_EQ(points.status(), absl::OkStatus());
  std::vector<bool> ok;
  for (int i = 0; i < 6; ++i) ok.push_back(FailPoint("p").ok());
  EXPECT_EQ(ok, (std::vector<bool>{true, true, false, false, true, true}));
  EXPECT_EQ(FailPointPasses("p"), 6);
  EXPECT_EQ(FailPoint("q"), absl::OkStatus());
  EXPECT_EQ(FailPointPasses("unset"), 0);
}

TEST(FailPointTest, ScopeEndClears) {
  { ScopedFailPoints points("p=error:internal"); }
  EXPECT_EQ(FailPoint("p"), absl::OkStatus());
}

TEST(FailPointTest, MalformedTextIsRefusedAndChangesNothing) {
  ScopedFailPoints points("kept=error:internal");
  for (const char* spec : {"p", "p=", "=crash", "p=explode", "p=error", "p=error:", "p=error:ok",
                           "p=error:0", "p=error:17", "p=error:Unavailable", "p=sleep_ms:-1",
                           "p=sleep_ms:x", "p=crash,after=-1", "p=crash,often", "good=crash|bad"}) {
    const Status status = SetFailPoints(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << spec;
    EXPECT_NE(status.message().find("got '"), std::string::npos) << status;
  }
  EXPECT_FALSE(FailPoint("kept").ok());
}

TEST(FailPointTest, HookSeesEveryPassAndMayFailIt) {
  std::vector<std::string> passed;
  SetFailPointHook([&](absl::string_view name) {
    passed.emplace_back(name);
    return passed.size() == 2 ? absl::AbortedError("second") : absl::OkStatus();
  });
  EXPECT_TRUE(FailPoint("a").ok());
  EXPECT_EQ(FailPoint("b"), absl::AbortedError("second"));
  EXPECT_TRUE(FailPoint("c").ok());
  SetFailPointHook(nullptr);
  EXPECT_TRUE(FailPoint("d").ok());
  EXPECT_EQ(passed, (std::vector<std::string>{"a", "b", "c"}));
}

TEST(FailPointTest, SleepLetsTheCallerGoOn) {
  ScopedFailPoints points("p=sleep_ms:1");
  EXPECT_EQ(FailPoint("p"), absl::OkStatus());
}

TEST(FailPointDeathTest, CrashIsAKill) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        ScopedFailPoints points("p=crash,after=1");
        FailPoint("p").IgnoreError();
        FailPoint("p").IgnoreError();
      },
      testing::KilledBySignal(SIGKILL), "");
}

TEST(FailPointDeathTest, MalformedEnvironmentFailsEveryPoint) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        setenv("MILLRACE_FAIL_POINTS", "p=crush", 1);
        const Status status = FailPoint("unrelated");
        exit(status.code() == absl::StatusCode::kInvalidArgument ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace millrace
