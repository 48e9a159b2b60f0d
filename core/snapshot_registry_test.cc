// SPDX-License-Identifier: Apache-2.0
#include "core/snapshot_registry.h"

#include <atomic>
#include <list>
#include <new>
#include <set>
#include <thread>

#include "core/mutex.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

using Numbers = std::set<int>;
using Registry = SnapshotRegistry<int, Numbers>;

bool merge_fails = false;
void Merge(const std::list<int>& items, Numbers* next) {
  for (const int item : items) {
    next->insert(item);
    if (merge_fails) throw std::bad_alloc();
  }
}

TEST(SnapshotRegistry, ReadHasWhatWasAddedBefore) {
  Registry registry(&Merge);
  EXPECT_EQ(registry.Read(), Numbers());
  registry.Add(1);
  const Numbers& first = registry.Read();
  EXPECT_EQ(first, Numbers({1}));
  std::list<int> more = {2, 3};
  registry.AddAll(&more);
  EXPECT_TRUE(more.empty());
  EXPECT_EQ(registry.Read(), Numbers({1, 2, 3}));
  EXPECT_EQ(first, Numbers({1}));  // what was published stays as it is
}

TEST(SnapshotRegistry, ReadTakesALockOnlyAfterAnAdd) {
  Registry registry(&Merge);
  registry.Add(1);
  const Numbers* const snapshot = &registry.Read();
  const int64_t before = MutexLockCountForTesting();
  std::list<int> none;
  registry.AddAll(&none);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(&registry.Read(), snapshot);
  EXPECT_EQ(MutexLockCountForTesting(), before);
}

TEST(SnapshotRegistry, AMergeThatFailsIsMadeAgain) {
  Registry registry(&Merge);
  registry.Add(1);
  const Numbers& before = registry.Read();
  registry.Add(2);
  registry.Add(3);
  merge_fails = true;
  EXPECT_THROW(registry.Read(), std::bad_alloc);
  EXPECT_THROW(registry.Read(), std::bad_alloc);
  merge_fails = false;
  EXPECT_EQ(before, Numbers({1}));
  EXPECT_EQ(registry.Read(), Numbers({1, 2, 3}));
}

TEST(SnapshotRegistry, ReadersSeeAllOfAnAddOrNothing) {
  Registry registry(&Merge);
  std::atomic<bool> done{false};
  std::thread reader([&] {
    while (!done.load()) EXPECT_EQ(registry.Read().size() % 3, 0u);
  });
  for (int i = 0; i < 300; i += 3) {
    std::list<int> three = {i, i + 1, i + 2};
    registry.AddAll(&three);
    EXPECT_TRUE(registry.Read().contains(i));
  }
  done.store(true);
  reader.join();
}

}  // namespace
}  // namespace millrace
