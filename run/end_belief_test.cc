// SPDX-License-Identifier: Apache-2.0
#include "run/end_belief.h"

#include "gtest/gtest.h"

// covers: training: an end that may be old is believed after a grace time

namespace millrace {
namespace {

constexpr absl::Duration kGrace = absl::Seconds(60);
const absl::Time kStart = absl::UnixEpoch();

TEST(EndBeliefTest, AnEndThatStoodThereFromTheStartIsDoubtedForTheGrace) {
  EndBelief belief({.grace = kGrace});
  EXPECT_EQ(belief.believed_from(), absl::InfiniteFuture());
  EXPECT_TRUE(belief.Hear({{.token = "t", .global_step = 7}}, kStart));
  EXPECT_TRUE(belief.is_doubted());
  EXPECT_FALSE(belief.Hear({{.token = "t", .global_step = 7}}, kStart + kGrace / 2));
  EXPECT_FALSE(belief.is_believed(kStart + kGrace - absl::Seconds(1)));
  EXPECT_TRUE(belief.is_believed(kStart + kGrace));
}

TEST(EndBeliefTest, AnEndThatCameWhileWeListenedIsBelievedAtOnce) {
  EndBelief belief({.grace = kGrace});
  EXPECT_FALSE(belief.Hear(std::nullopt, kStart));
  EXPECT_TRUE(belief.Hear({{.token = "t"}}, kStart + absl::Seconds(1)));
  EXPECT_EQ(belief.believed_from(), kStart + absl::Seconds(1));
}

TEST(EndBeliefTest, AnEndOfAnotherOwnerIsAnotherEnd) {
  EndBelief belief({.grace = kGrace});
  belief.Hear({{.token = "t"}}, kStart);
  EXPECT_TRUE(belief.Hear({{.token = "u"}}, kStart + absl::Seconds(5)));
  EXPECT_EQ(belief.believed_from(), kStart + absl::Seconds(5));
}

TEST(EndBeliefTest, AGoalDecidesWhenItIsKnown) {
  EndBelief reached({.grace = kGrace, .goal = 10}), below({.grace = kGrace, .goal = 10});
  reached.Hear({{.global_step = 10}}, kStart);
  EXPECT_TRUE(reached.is_believed(kStart));
  below.Hear(std::nullopt, kStart);
  below.Hear({{.global_step = 9}}, kStart);
  EXPECT_FALSE(below.is_believed(kStart));
  EXPECT_TRUE(below.is_believed(kStart + kGrace));
}

TEST(EndBeliefTest, TheLastStepThatSomeoneWaitsForIsAnEndAtOnceAndOneBelowMayBe) {
  EndBelief reached({.grace = kGrace, .last_step = 10}), below({.grace = kGrace, .last_step = 10});
  reached.Hear({{.global_step = 10}}, kStart);
  EXPECT_TRUE(reached.is_believed(kStart));
  below.Hear({{.global_step = 9}}, kStart);
  EXPECT_FALSE(below.is_believed(kStart));
  EXPECT_TRUE(below.is_believed(kStart + kGrace));
  below.Hear({{.token = "t", .global_step = 9}}, kStart + absl::Seconds(1));
  EXPECT_TRUE(below.is_believed(kStart + absl::Seconds(1)));
}

TEST(EndBeliefTest, ADirectoryTellsOfTheEndThatItsOwnerHasWritten) {
  EXPECT_FALSE(EndBelief::ToldBy(std::nullopt).has_value());
  const auto told = EndBelief::ToldBy(RunEndFile{.token = "t", .global_step = 7});
  ASSERT_TRUE(told.has_value());
  EXPECT_EQ(told->token, "t");
  EXPECT_EQ(told->global_step, 7);
}

TEST(EndBeliefTest, AnEndThatIsTakenBackOrForgottenIsNone) {
  EndBelief belief({.grace = kGrace});
  belief.Hear({{.token = "t"}}, kStart);
  belief.Hear(std::nullopt, kStart + absl::Seconds(1));
  EXPECT_FALSE(belief.is_believed(absl::InfinitePast()));
  EXPECT_EQ(belief.believed_from(), absl::InfiniteFuture());
  belief.Hear({{.token = "t"}}, kStart + absl::Seconds(2));
  EXPECT_FALSE(belief.is_doubted());
  belief.Forget();
  belief.Hear({{.token = "t"}}, kStart + absl::Seconds(3));
  EXPECT_TRUE(belief.is_doubted());
}

}  // namespace
}  // namespace millrace
