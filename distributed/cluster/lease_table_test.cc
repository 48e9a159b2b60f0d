// SPDX-License-Identifier: Apache-2.0
#include "distributed/cluster/lease_table.h"

#include "core/testing/tensor_testing.h"
#include "distributed/testing/watched_clock.h"
#include "gtest/gtest.h"

// covers: clusters: a renewed lease never expires, also in a process that was stopped

namespace millrace {
namespace {

class LeaseTableTest : public ::testing::Test {
 protected:
  void Advance(absl::Duration duration) { clock_.AdvanceAndSettle(duration); }
  std::vector<std::string> expired() {
    MutexLock lock(&mu_);
    return expired_;
  }
  WatchedClock clock_;
  Mutex mu_;
  std::vector<std::string> expired_ ABSL_GUARDED_BY(mu_);
  LeaseTable table_{&clock_, [this](const std::string& handle, absl::Duration silent) {
                      MutexLock lock(&mu_);
                      EXPECT_GE(silent, absl::Seconds(60)) << handle;
                      expired_.push_back(handle);
                    }};
};

TEST_F(LeaseTableTest, ALeaseThatNobodyRenewsExpiresAtItsEndAndNotBefore) {
  table_.Grant("a", absl::Seconds(60));
  Advance(absl::Seconds(45));
  Advance(absl::Seconds(14));
  EXPECT_TRUE(expired().empty());
  Advance(absl::Seconds(1));
  EXPECT_EQ(expired(), std::vector<std::string>{"a"});
}

TEST_F(LeaseTableTest, ALeaseThatIsRenewedNeverExpires) {
  const auto lease = table_.Grant("a", absl::Seconds(60));
  table_.Grant("b", absl::Seconds(60));
  for (int i = 0; i < 20; ++i) {
    lease->Renew();
    Advance(absl::Seconds(10));
  }
  EXPECT_EQ(expired(), std::vector<std::string>{"b"});
}

TEST_F(LeaseTableTest, ALeaseThatIsDoubtedEndsAfterAThirdUnlessItIsRenewed) {
  table_.Grant("a", absl::Seconds(60));
  const auto renewed = table_.Grant("b", absl::Seconds(60));
  Advance(absl::Seconds(1));
  table_.Doubt("a");
  table_.Doubt("b");
  renewed->Renew();
  Advance(absl::Seconds(5));
  Advance(absl::Seconds(14));
  EXPECT_TRUE(expired().empty());
  Advance(absl::Seconds(1));
  EXPECT_EQ(expired(), std::vector<std::string>{"a"});
}

// Whoever doubts may have better reason than silence: the owner's process has closed a connection.
TEST_F(LeaseTableTest, ADoubtMaySayHowSoon) {
  table_.Grant("a", absl::Seconds(600));
  const auto renewed = table_.Grant("b", absl::Seconds(600));
  table_.Grant("c", absl::Seconds(600));
  Advance(absl::Seconds(100));
  table_.Doubt("a", absl::Seconds(4));
  table_.Doubt("b", absl::Seconds(4));
  table_.Doubt("nobody", absl::Seconds(4));
  Advance(absl::Seconds(1));
  table_.Doubt("a", absl::Seconds(4));  // another connection: no later for that
  renewed->Renew();
  Advance(absl::Seconds(2));
  EXPECT_TRUE(expired().empty());
  Advance(absl::Seconds(1));
  EXPECT_EQ(expired(), std::vector<std::string>{"a"});
  Advance(absl::Seconds(300));
  EXPECT_EQ(expired(), std::vector<std::string>{"a"});
}

TEST_F(LeaseTableTest, AProcessThatWasStoppedTakesTheRenewalsThatWaitedFirst) {
  const auto lease = table_.Grant("a", absl::Seconds(60));
  table_.Grant("b", absl::Seconds(60));
  Advance(absl::Hours(1));
  EXPECT_TRUE(expired().empty());
  lease->Renew();
  Advance(absl::Seconds(15));
  EXPECT_EQ(expired(), std::vector<std::string>{"b"});
}

TEST_F(LeaseTableTest, AClockThatIsSetBackDelaysNoEndByMoreThanTheLease) {
  table_.Grant("a", absl::Seconds(60));
  Advance(absl::Seconds(10));
  Advance(-absl::Hours(1));
  Advance(absl::Seconds(45));
  Advance(absl::Seconds(14));
  EXPECT_TRUE(expired().empty());
  Advance(absl::Seconds(1));
  EXPECT_EQ(expired(), std::vector<std::string>{"a"});
}

TEST_F(LeaseTableTest, WhatIsDroppedDoesNotExpire) {
  table_.Grant("a", absl::Seconds(60));
  table_.Drop("a");
  table_.Drop("a");
  table_.Drop("never");
  Advance(absl::Hours(1));
  Advance(absl::Hours(1));
  EXPECT_TRUE(expired().empty());
}

TEST_F(LeaseTableTest, AStoppedTableGrantsNothing) {
  table_.Grant("a", absl::Seconds(60));
  table_.Stop();
  table_.Stop();
  EXPECT_EQ(table_.Grant("b", absl::Seconds(60)), nullptr);
  clock_.Advance(absl::Hours(1));
  EXPECT_TRUE(expired().empty());
}

}  // namespace
}  // namespace millrace
