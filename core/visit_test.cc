// SPDX-License-Identifier: Apache-2.0
#include "core/visit.h"

#include <thread>

#include "gtest/gtest.h"

namespace millrace {
namespace {

struct Counted final : Visit::Work {
  void RunVisit() noexcept override { ++runs; }
  int runs = 0;
};

TEST(VisitTest, NobodyTakesWorkWithoutAVisit) {
  Counted work;
  EXPECT_FALSE(Visit::Offer(&work));
  { Visit visit; }
  EXPECT_FALSE(Visit::Offer(&work));
}

TEST(VisitTest, TakesOnePieceAndHandsItOutOnce) {
  Counted first, second;
  Visit visit;
  EXPECT_TRUE(Visit::Offer(&first));
  EXPECT_FALSE(Visit::Offer(&second));
  Visit::Work* const work = visit.End();
  ASSERT_EQ(work, &first);
  EXPECT_EQ(first.runs, 0);
  work->RunVisit();
  EXPECT_EQ(first.runs, 1);
  EXPECT_EQ(visit.End(), nullptr);
}

TEST(VisitTest, TakesNothingOnceItHasEnded) {
  Counted work;
  Visit visit;
  EXPECT_EQ(visit.End(), nullptr);
  EXPECT_FALSE(Visit::Offer(&work));
}

TEST(VisitTest, TheInnerOneTakesWhatIsOfferedInIt) {
  Counted inner, outer;
  Visit visit;
  {
    Visit nested;
    EXPECT_TRUE(Visit::Offer(&inner));
    EXPECT_EQ(nested.End(), &inner);
  }
  EXPECT_TRUE(Visit::Offer(&outer));
  EXPECT_EQ(visit.End(), &outer);
}

TEST(VisitTest, IsOfItsThread) {
  Visit visit;
  bool taken = true;
  std::thread([&taken] {
    Counted work;
    taken = Visit::Offer(&work);
  }).join();
  EXPECT_FALSE(taken);
  EXPECT_EQ(visit.End(), nullptr);
}

}  // namespace
}  // namespace millrace
