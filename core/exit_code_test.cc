// SPDX-License-Identifier: Apache-2.0
#include "core/exit_code.h"

#include "absl/strings/cord.h"
#include "core/status_kind.h"
#include "gtest/gtest.h"

// covers: training: an exit code says whether another try may succeed

namespace millrace {
namespace {

TEST(ExitCodeTest, ErrorsOfTheUserAreOneAndLostTasksAreWorthAnotherTry) {
  EXPECT_EQ(ExitCode(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCode(absl::InvalidArgumentError("x")), 1);
  EXPECT_EQ(ExitCode(absl::CancelledError("x")), 1);
  EXPECT_EQ(ExitCode(absl::UnavailableError("x")), 128);
  EXPECT_EQ(ExitCode(absl::AbortedError("x")), 128);
}

TEST(ExitCodeTest, AStatusMaySayTheCodeAndKeepsItUnderAPrefix) {
  const Status ended = WithExitCode(absl::CancelledError("ended by SIGTERM"), 143);
  EXPECT_EQ(ExitCode(ended), 143);
  EXPECT_EQ(ExitCode(Suffixed(Prefixed("Train", ended), "; again")), 143);
}

TEST(ExitCodeTest, TheEndOfARunIsDoneAndARefusalIsNotWorthAnotherTry) {
  Status ended = absl::UnavailableError("x"), refused = absl::UnavailableError("x");
  ended.SetPayload(kRunEndKind, absl::Cord());
  refused.SetPayload(kRefusalKind, absl::Cord());
  EXPECT_EQ(ExitCode(ended), 0);
  EXPECT_EQ(ExitCode(refused), 1);
  EXPECT_EQ(ExitCode(WithExitCode(ended, 143)), 143);
}

TEST(ExitCodeTest, TheReportIsOneLineWithTheProgramsName) {
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(ReportedExitCode("bin/x_train", WithExitCode(absl::CancelledError("ended"), 130)), 130);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "x_train: CANCELLED: ended\n");
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(ReportedExitCode("x_train", absl::OkStatus()), 0);
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

}  // namespace
}  // namespace millrace
