// SPDX-License-Identifier: Apache-2.0
#include "run/tell_again.h"

#include <vector>

#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(TellAgainTest, ACallThatIsNotAnsweredIsMadeAgainAfterEachPauseAndThenGivenUp) {
  TellAgain again;
  for (const absl::Duration pause : kTellAgainAfter) EXPECT_EQ(again.NextPause(), pause);
  EXPECT_EQ(again.NextPause(), std::nullopt);
  EXPECT_EQ(again.NextPause(), std::nullopt);
}

TEST(TellAgainTest, OnlyACallThatMayNotHaveBeenHeardIsUnanswered) {
  EXPECT_TRUE(IsUnanswered(absl::UnavailableError("x")));
  EXPECT_TRUE(IsUnanswered(absl::DeadlineExceededError("x")));
  EXPECT_FALSE(IsUnanswered(absl::OkStatus()));
  EXPECT_FALSE(IsUnanswered(absl::NotFoundError("x")));
}

}  // namespace
}  // namespace millrace
