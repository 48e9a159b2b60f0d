// SPDX-License-Identifier: Apache-2.0
#include "core/visit.h"

#include <thread>

#include "core/visiting.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

struct Counted final : Visit::Work {
  void RunVisit() noexcept override { ++runs; }
  int runs = 0;
};

TEST(VisitTest, NobodyTakesWorkWithoutAVisit) {
  Counted work;
  EXPECT_FALSE(Visit::Offer(&work, 1));
  { Visit visit; }
  EXPECT_FALSE(Visit::Offer(&work, 1));
}

TEST(VisitTest, AThreadKnowsWhetherItVisits) {
  EXPECT_FALSE(IsVisiting());
  {
    Visit visit;
    EXPECT_TRUE(IsVisiting());
    std::thread other([] { EXPECT_FALSE(IsVisiting()); });
    other.join();
    {
      Visit nested;
      EXPECT_EQ(nested.End(), nullptr);
      EXPECT_TRUE(IsVisiting());
    }
    EXPECT_EQ(visit.End(), nullptr);
    EXPECT_FALSE(IsVisiting());
  }
  EXPECT_FALSE(IsVisiting());
}

TEST(VisitTest, TakesOnePieceAndHandsItOutOnce) {
  Counted first, second;
  Visit visit;
  EXPECT_TRUE(Visit::Offer(&first, 1));
  EXPECT_FALSE(Visit::Offer(&second, 1));
  Visit::Work* const work = visit.End();
  ASSERT_EQ(work, &first);
  EXPECT_EQ(first.runs, 0);
  Visit::Run(work);
  EXPECT_EQ(first.runs, 1);
  EXPECT_EQ(visit.End(), nullptr);
}

TEST(VisitTest, TakesNothingOnceItHasEnded) {
  Counted work;
  Visit visit;
  EXPECT_EQ(visit.End(), nullptr);
  EXPECT_FALSE(Visit::Offer(&work, 1));
}

TEST(VisitTest, TheInnerOneTakesWhatIsOfferedInIt) {
  Counted inner, outer;
  Visit visit;
  {
    Visit nested;
    EXPECT_TRUE(Visit::Offer(&inner, 2));
    ASSERT_EQ(nested.End(), &inner);
  }
  EXPECT_TRUE(Visit::Offer(&outer, 2));
  ASSERT_EQ(visit.End(), &outer);
  Visit::Run(&inner);
  Visit::Run(&outer);
}

TEST(VisitTest, TakesNoMoreThanRunAtOnce) {
  Counted first, second, third;
  Visit visit, next;
  EXPECT_TRUE(Visit::Offer(&first, 2));
  ASSERT_EQ(next.End(), &first);
  EXPECT_FALSE(Visit::Offer(&second, 1));  // the first one has not been run
  EXPECT_TRUE(Visit::Offer(&second, 2));
  ASSERT_EQ(visit.End(), &second);
  Visit last;
  EXPECT_FALSE(Visit::Offer(&third, 2));
  Visit::Run(&first);
  EXPECT_TRUE(Visit::Offer(&third, 2));
  ASSERT_EQ(last.End(), &third);
  Visit::Run(&second);
  Visit::Run(&third);
  EXPECT_EQ(first.runs + second.runs + third.runs, 3);
}

TEST(VisitTest, IsOfItsThread) {
  Visit visit;
  bool taken = true;
  std::thread([&taken] {
    Counted work;
    taken = Visit::Offer(&work, 1);
  }).join();
  EXPECT_FALSE(taken);
  EXPECT_EQ(visit.End(), nullptr);
}

}  // namespace
}  // namespace millrace
