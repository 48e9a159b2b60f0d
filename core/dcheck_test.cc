// SPDX-License-Identifier: Apache-2.0
#include "core/dcheck.h"

#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(DCheckTest, ChecksAreOnInTests) { EXPECT_TRUE(DChecksAreOn()); }

TEST(DCheckTest, AConditionThatHoldsSaysNothing) {
  int asked = 0;
  MR_DCHECK(++asked == 1, "the first question is the first");
  EXPECT_EQ(asked, 1);
}

TEST(DCheckDeathTest, OneThatDoesNotHoldNamesLineSentenceAndCondition) {
  const int two = 2;
  EXPECT_DEATH(MR_DCHECK(two == 3, "two is three"),
               "core/dcheck_test.cc:[0-9]+: MR_DCHECK: two is three; 'two == 3' does not hold");
}

}  // namespace
}  // namespace millrace
