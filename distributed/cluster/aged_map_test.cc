// SPDX-License-Identifier: Apache-2.0
#include "distributed/cluster/aged_map.h"

#include <cstdint>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/testing/tensor_testing.h"
#include "distributed/cluster/kept_status.h"
#include "gtest/gtest.h"

// covers: clusters: what a task remembers for late callers has a bound in bytes; the oldest goes

namespace millrace {
namespace {

using Map = AgedMap<std::string, int>;
constexpr int64_t kEntry = Map::kEntryBytes;

absl::Time At(int seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(AgedMapTest, AHundredTimesTheBoundHoldsNoMoreThanTheBoundAndTheYoungestStay) {
  Map map(10 * (kEntry + 50));
  for (int i = 0; i < 1000; ++i) {
    map.Put(absl::StrCat(i), i, 50, At(i));
    ASSERT_LE(map.bytes(), 10 * (kEntry + 50));
  }
  EXPECT_EQ(map.size(), 10u);
  EXPECT_EQ(map.Find("989"), nullptr);
  for (int i = 990; i < 1000; ++i) {
    ASSERT_NE(map.Find(absl::StrCat(i)), nullptr) << i;
    EXPECT_EQ(*map.Find(absl::StrCat(i)), i);
  }
}

TEST(AgedMapTest, AnEntryThatIsLargerThanTheBoundIsNotKeptAndDrivesNoOtherOut) {
  Map map(3 * kEntry);
  map.Put("a", 1, 0, At(0));
  map.Put("large", 2, 3 * kEntry, At(1));
  EXPECT_EQ(map.Find("large"), nullptr);
  EXPECT_NE(map.Find("a"), nullptr);
  EXPECT_EQ(map.bytes(), kEntry);
  Map none(0);
  none.Put("a", 1, 0, At(0));
  EXPECT_EQ(none.size(), 0u);
}

TEST(AgedMapTest, PutAgainIsTheYoungestAndCountsOnce) {
  Map map(2 * kEntry + 100);
  map.Put("a", 1, 10, At(0));
  map.Put("b", 2, 10, At(1));
  map.Put("a", 3, 20, At(2));
  EXPECT_EQ(map.bytes(), 2 * kEntry + 30);
  map.Put("c", 4, 80, At(3));  // there is room for one more when one goes
  EXPECT_EQ(map.Find("b"), nullptr);
  ASSERT_NE(map.Find("a"), nullptr);
  EXPECT_EQ(*map.Find("a"), 3);
}

TEST(AgedMapTest, WhatIsErasedAndWhatIsOldCountsNoMore) {
  Map map(100 * kEntry);
  for (int i = 0; i < 10; ++i) map.Put(absl::StrCat(i), i, 1, At(i));
  EXPECT_TRUE(map.Erase("5"));
  EXPECT_FALSE(map.Erase("5"));
  map.DropBefore(At(3));
  EXPECT_EQ(map.size(), 6u);
  EXPECT_EQ(map.Find("2"), nullptr);
  EXPECT_NE(map.Find("3"), nullptr);
  EXPECT_EQ(map.DropOldest(), "3");
  map.DropBefore(absl::InfiniteFuture());
  EXPECT_EQ(map.size(), 0u);
  EXPECT_EQ(map.bytes(), 0);
}

TEST(KeptStatusTest, ALongTextIsCutAndItsPayloadsStay) {
  Status status = absl::AbortedError(std::string(1 << 20, 'x'));
  status.SetPayload("type", absl::Cord("value"));
  const Status kept = KeptStatus(status);
  EXPECT_EQ(kept.code(), absl::StatusCode::kAborted);
  EXPECT_LT(kept.message().size(), kMaxKeptMessageBytes + 100);
  EXPECT_EQ(kept.GetPayload("type"), absl::Cord("value"));
  EXPECT_LT(KeptBytes(kept), 2048);
  EXPECT_GT(KeptBytes(kept), static_cast<int64_t>(kMaxKeptMessageBytes));
  const Status shorter = absl::AbortedError("why");
  EXPECT_EQ(KeptStatus(shorter), shorter);
  EXPECT_EQ(KeptBytes(absl::OkStatus()), 0);
}

}  // namespace
}  // namespace millrace
