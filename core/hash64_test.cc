// SPDX-License-Identifier: Apache-2.0
#include "core/hash64.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(Hash64Test, EqualsPublishedValues) {
  EXPECT_EQ(Hash64(""), 9328806548029283899ull);
  EXPECT_EQ(Hash64("hello"), 5943547241907780938ull);
  EXPECT_EQ(Hash64("hello") % 10, 8u);
  // The frame id of a loop at the top of a graph.
  EXPECT_EQ(Hash64(";0;while/while_context"), 1496156560211570566ull);
}

TEST(Hash64Test, EveryLengthAndSeedCounts) {
  std::set<uint64_t> seen;
  const std::string text(40, 'a');
  for (size_t n = 0; n <= text.size(); ++n) {
    EXPECT_TRUE(seen.insert(Hash64(absl::string_view(text.data(), n))).second) << n;
  }
  EXPECT_NE(Hash64("hello", 1), Hash64("hello", 2));
}

}  // namespace
}  // namespace millrace
