// SPDX-License-Identifier: Apache-2.0
#include "data/dropped_rows.h"

#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"

namespace millrace::data {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

DroppedRows Rows(const DropLimit& limit) {
  return DroppedRows(limit, {.where = "reader", .unit = "rows", .hint = "more is allowed so"});
}
Status Bad(const char* message = "bad") { return absl::DataLossError(message); }

TEST(DroppedRows, AreAtMostAShareFromANumberOfRowsOn) {
  DroppedRows rows = Rows({});
  EXPECT_OK(rows.Drop(Bad("line 1: first")));
  for (int i = 0; i < 11; ++i) EXPECT_OK(rows.Drop(Bad()));
  EXPECT_OK(rows.Keep(987));
  EXPECT_EQ(rows.Text(), "12 of 999 rows (1.2012 %), the first: line 1: first");
  // A good one, but there are 1,000 now.
  EXPECT_STATUS(rows.Keep(), kInvalid,
                "reader: at most 1 % of the rows may be dropped, got 12 of 1000 rows (1.2 %), the "
                "first: line 1: first; more is allowed so");
  EXPECT_EQ(rows.kept(), 988);
  EXPECT_EQ(rows.dropped(), 12);
}

// Rows that are kept several at a time are counted one by one.
TEST(DroppedRows, AreTheSameInBlocks) {
  for (const int64_t block : {1, 7, 300, 5000}) {
    DroppedRows rows({}, {});
    for (int i = 0; i < 11; ++i) ASSERT_OK(rows.Drop(InvalidArgument("bad")));
    Status status;
    for (int64_t kept = 0; kept < 5000 && status.ok(); kept += block) status = rows.Keep(block);
    EXPECT_FALSE(status.ok()) << block;
    DroppedRows fewer({}, {});
    for (int i = 0; i < 10; ++i) ASSERT_OK(fewer.Drop(InvalidArgument("bad")));
    for (int64_t kept = 0; kept < 5000; kept += block) ASSERT_OK(fewer.Keep(block)) << block;
  }
}

TEST(DroppedRows, MayBeExactlyTheShare) {
  DroppedRows rows = Rows({});
  for (int i = 0; i < 10; ++i) EXPECT_OK(rows.Drop(Bad()));
  EXPECT_OK(rows.Keep(990));
  EXPECT_STATUS(rows.Drop(Bad()), kInvalid, "got 11 of 1001 rows");
}

TEST(DroppedRows, AreAtMostANumber) {
  DroppedRows rows = Rows({.most = 1, .most_share = 1});
  EXPECT_OK(rows.Drop(Bad()));
  EXPECT_STATUS(rows.Drop(Bad()), kInvalid,
                "at most 1 rows may be dropped, got 2 of 2 rows (100 %)");
  DroppedRows none = Rows({.most = 0});
  EXPECT_OK(none.Keep(5));
  EXPECT_STATUS(none.Drop(Bad()), kInvalid, "at most 0 rows");
}

TEST(DroppedRows, MayBeAll) {
  DroppedRows rows = Rows({.most_share = 1});
  for (int i = 0; i < 3000; ++i) ASSERT_OK(rows.Drop(Bad()));
}

TEST(DroppedRows, GoOnWhereTheyWere) {
  DroppedRows rows = Rows({});
  rows.Restore(990, 10, "line 3: x");
  EXPECT_EQ(rows.first(), "line 3: x");
  EXPECT_STATUS(rows.Drop(Bad()), kInvalid, "got 11 of 1001 rows (1.0989 %), the first: line 3: x");
}

}  // namespace
}  // namespace millrace::data
