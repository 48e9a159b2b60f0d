// SPDX-License-Identifier: Apache-2.0
#include "core/random_bits.h"

#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/mutex.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(RandomBitsTest, DrawsAreDifferentAndNeverZeroAlsoFromManyThreads) {
  Mutex mu;
  std::set<uint64_t> seen;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 500; ++i) {
        const uint64_t bits = RandomUint64();
        MutexLock lock(&mu);
        seen.insert(bits);
      }
    });
  }
  for (auto& t : threads) t.join();
  MutexLock lock(&mu);
  EXPECT_EQ(seen.size(), 2000u);
  EXPECT_EQ(seen.count(0), 0u);
}

TEST(RandomBitsTest, EveryBitIsSometimesSet) {
  uint64_t any = 0, all = ~uint64_t{0};
  for (int i = 0; i < 200; ++i) {
    const uint64_t bits = RandomUint64();
    any |= bits;
    all &= bits;
  }
  EXPECT_EQ(any, ~uint64_t{0});
  EXPECT_EQ(all, 0u);
}

TEST(RandomBitsTest, ASeedFixesTheSequenceUntilItsScopeEnds) {
  uint64_t first, second;
  {
    ScopedRandomSeed seed(0);
    // The published first outputs of SplitMix64 with seed 0.
    EXPECT_EQ(first = RandomUint64(), 0xe220a8397b1dcdafull);
    EXPECT_EQ(second = RandomUint64(), 0x6e789e6aa1b965f4ull);
  }
  {
    ScopedRandomSeed seed(0);
    EXPECT_EQ(RandomHexName(), "e220a8397b1dcdaf");
    EXPECT_EQ(RandomUint64(), second);
  }
  EXPECT_NE(RandomUint64(), first);
}

}  // namespace
}  // namespace millrace
