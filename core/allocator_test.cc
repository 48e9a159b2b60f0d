// SPDX-License-Identifier: Apache-2.0
#include "core/allocator.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "core/buffer.h"
#include "core/cached_memory.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCaching = false;
#else
constexpr bool kCaching = true;
#endif

// Takes the limit back however the test ends.
struct LimitForTest {
  explicit LimitForTest(int64_t bytes) { SetDefaultAllocatorLimit(bytes); }
  ~LimitForTest() { SetDefaultAllocatorLimit(0); }
};

TEST(AllocatorTest, BlocksOfEverySizeAreAlignedAndDisjoint) {
  Allocator* const allocator = DefaultAllocator();
  std::vector<std::pair<unsigned char*, size_t>> blocks;
  for (size_t size = 1; size <= (size_t{8} << 20); size += 1 + size / 3) {
    for (int repeat = 0; repeat < 2; ++repeat) {
      auto* const block = static_cast<unsigned char*>(allocator->Allocate(size));
      ASSERT_NE(block, nullptr) << size;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(block) % Allocator::kAlignment, 0u) << size;
      std::memset(block, static_cast<int>(blocks.size() % 251), size);
      blocks.emplace_back(block, size);
    }
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto [block, size] = blocks[i];
    EXPECT_EQ(block[0], i % 251);
    EXPECT_EQ(block[size / 2], i % 251);
    EXPECT_EQ(block[size - 1], i % 251);
    allocator->Deallocate(block, size);
  }
}

TEST(AllocatorTest, ImpossibleSizesGiveNullAndAreNotCounted) {
  const int64_t before = DefaultAllocatorStats().bytes_in_use;
  for (const size_t size : {size_t{1} << 46, size_t{1} << 47, size_t{1} << 62, SIZE_MAX}) {
    EXPECT_EQ(DefaultAllocator()->Allocate(size), nullptr) << size;
  }
  EXPECT_EQ(DefaultAllocatorStats().bytes_in_use, before);
}

TEST(AllocatorTest, SteadyUseAsksTheSystemOnlyOnce) {
  if (!kCaching) GTEST_SKIP() << "sanitizers see the life of every block: nothing is cached";
  // Small, thread-cached, large, and a 64 MB transfer with its header.
  for (const size_t size :
       {size_t{100}, size_t{200} << 10, size_t{3} << 20, (size_t{64} << 20) + 64}) {
    DefaultAllocator()->Deallocate(DefaultAllocator()->Allocate(size), size);
    const AllocatorStats before = DefaultAllocatorStats();
    for (int i = 0; i < 100; ++i) {
      void* const block = DefaultAllocator()->Allocate(size);
      ASSERT_NE(block, nullptr);
      DefaultAllocator()->Deallocate(block, size);
    }
    const AllocatorStats after = DefaultAllocatorStats();
    EXPECT_EQ(after.num_system_calls, before.num_system_calls) << size;
    EXPECT_EQ(after.num_allocations, before.num_allocations + 100) << size;
    EXPECT_EQ(after.bytes_in_use, before.bytes_in_use) << size;
  }
}

TEST(AllocatorTest, StatsFollowWhatIsInUse) {
  const AllocatorStats before = DefaultAllocatorStats();
  constexpr size_t kSize = 10 << 20;
  void* const block = DefaultAllocator()->Allocate(kSize);
  ASSERT_NE(block, nullptr);
  const AllocatorStats during = DefaultAllocatorStats();
  EXPECT_EQ(during.bytes_in_use - before.bytes_in_use, int64_t{kSize});
  EXPECT_GE(during.peak_bytes_in_use, during.bytes_in_use);
  DefaultAllocator()->Deallocate(block, kSize);
  const AllocatorStats after = DefaultAllocatorStats();
  EXPECT_EQ(after.bytes_in_use, before.bytes_in_use);
  EXPECT_GE(after.peak_bytes_in_use, during.bytes_in_use);
  if (kCaching) {
    EXPECT_GE(after.bytes_cached, int64_t{kSize});
  }
}

TEST(AllocatorTest, WhatIsCachedStaysUnderItsCap) {
  if (!kCaching) GTEST_SKIP() << "sanitizers see the life of every block: nothing is cached";
  const int64_t physical = sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE);
  const int64_t large_cap = std::max(int64_t{512} << 20, physical / 16);
  const int64_t cap = large_cap + (int64_t{64} << 20) + (int64_t{4} << 20);
  std::vector<std::pair<void*, size_t>> blocks;
  const auto take = [&blocks](size_t size, int64_t total) {
    for (int64_t taken = 0; taken < total; taken += static_cast<int64_t>(size)) {
      blocks.emplace_back(DefaultAllocator()->Allocate(size), size);
      ASSERT_NE(blocks.back().first, nullptr);
    }
  };
  // Nothing is written to them, so most of this is address space only.
  take(1 << 10, int64_t{100} << 20);
  take(64 << 10, int64_t{100} << 20);
  take(1 << 20, int64_t{100} << 20);
  take(48 << 20, large_cap + large_cap / 4);
  for (const auto& [block, size] : blocks) DefaultAllocator()->Deallocate(block, size);
  EXPECT_LE(DefaultAllocatorStats().bytes_cached, cap);
  EXPECT_GT(DefaultAllocatorStats().bytes_cached, large_cap / 2);
}

TEST(AllocatorTest, LimitRefusesWhatPassesItAndNothingElse) {
  const int64_t in_use = DefaultAllocatorStats().bytes_in_use;
  LimitForTest limit(in_use + (1 << 20));
  constexpr size_t kPart = 400 << 10;
  void* const a = DefaultAllocator()->Allocate(kPart);
  void* const b = DefaultAllocator()->Allocate(kPart);
  ASSERT_NE(a, nullptr);
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(DefaultAllocator()->Allocate(kPart), nullptr);
  EXPECT_FALSE(Buffer::Allocate(DefaultAllocator(), kPart));
  DefaultAllocator()->Deallocate(a, kPart);
  void* const c = DefaultAllocator()->Allocate(kPart);
  EXPECT_NE(c, nullptr);
  DefaultAllocator()->Deallocate(b, kPart);
  DefaultAllocator()->Deallocate(c, kPart);
  EXPECT_EQ(DefaultAllocatorStats().bytes_in_use, in_use);
}

// One thread only takes, the other only frees: what the second frees must come back to the first.
TEST(AllocatorTest, BlocksFreedOnAnotherThreadAreRecycled) {
  const AllocatorStats before = DefaultAllocatorStats();
  constexpr size_t kSize = 3000;
  constexpr int kBlocks = 20000;
  Mutex mu;
  CondVar cv;
  std::vector<void*> handed;
  bool finished = false;
  std::thread consumer([&] {
    for (bool done = false; !done;) {
      std::vector<void*> mine;
      {
        MutexLock lock(&mu);
        while (handed.empty() && !finished) cv.Wait(&mu);
        mine.swap(handed);
        done = mine.empty();
        cv.SignalAll();
      }
      for (void* block : mine) {
        EXPECT_EQ(*static_cast<unsigned char*>(block), 0x5a);
        DefaultAllocator()->Deallocate(block, kSize);
      }
    }
  });
  for (int i = 0; i < kBlocks; ++i) {
    void* const block = DefaultAllocator()->Allocate(kSize);
    ASSERT_NE(block, nullptr);
    std::memset(block, 0x5a, kSize);
    MutexLock lock(&mu);
    while (handed.size() >= 64) cv.Wait(&mu);
    handed.push_back(block);
    cv.SignalAll();
  }
  {
    MutexLock lock(&mu);
    finished = true;
    cv.SignalAll();
  }
  consumer.join();
  const AllocatorStats after = DefaultAllocatorStats();
  EXPECT_EQ(after.bytes_in_use, before.bytes_in_use);
  EXPECT_EQ(after.num_allocations, before.num_allocations + kBlocks);
  if (kCaching) {
    EXPECT_LT(after.num_system_calls - before.num_system_calls, kBlocks / 10);
  }
}

TEST(AllocatorTest, AnEndingThreadGivesItsCacheToTheOthers) {
  if (!kCaching) GTEST_SKIP() << "sanitizers see the life of every block: nothing is cached";
  constexpr size_t kSize = 150 << 10;
  constexpr int kBlocks = 5;
  const auto take_and_free = [] {
    std::vector<void*> blocks;
    for (int i = 0; i < kBlocks; ++i) blocks.push_back(DefaultAllocator()->Allocate(kSize));
    for (void* block : blocks) DefaultAllocator()->Deallocate(block, kSize);
  };
  std::thread(take_and_free).join();
  const AllocatorStats before = DefaultAllocatorStats();
  std::thread(take_and_free).join();
  const AllocatorStats after = DefaultAllocatorStats();
  EXPECT_EQ(after.num_system_calls, before.num_system_calls);
  EXPECT_EQ(after.num_allocations, before.num_allocations + kBlocks);
  EXPECT_EQ(after.bytes_in_use, before.bytes_in_use);
}

TEST(AllocatorTest, BlocksOfASizeNoLongerInUseDoNotKeepOthersOut) {
  if (!kCaching) GTEST_SKIP() << "sanitizers see the life of every block: nothing is cached";
  constexpr size_t kOldSize = 40 << 10, kSize = 90 << 10;
  std::vector<void*> old;
  for (size_t taken = 0; taken < (size_t{200} << 20); taken += kOldSize) {
    old.push_back(DefaultAllocator()->Allocate(kOldSize));
  }
  for (void* block : old) DefaultAllocator()->Deallocate(block, kOldSize);
  // Each thread finds what the one before it gave back.
  const auto take_and_free = [] {
    DefaultAllocator()->Deallocate(DefaultAllocator()->Allocate(kSize), kSize);
  };
  std::thread(take_and_free).join();
  const int64_t before = DefaultAllocatorStats().num_system_calls;
  for (int i = 0; i < 10; ++i) std::thread(take_and_free).join();
  EXPECT_EQ(DefaultAllocatorStats().num_system_calls, before);
}

TEST(AllocatorTest, ManyThreadsTakeAndFreeEachOthersBlocks) {
  const int64_t before = DefaultAllocatorStats().bytes_in_use;
  constexpr int kThreads = 4, kRounds = 3000;
  Mutex mu;
  std::vector<std::pair<unsigned char*, size_t>> pool;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      uint64_t state = static_cast<uint64_t>(t) + 1;
      for (int i = 0; i < kRounds; ++i) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const size_t size = 1 + (state >> 33) % (size_t{1} << (4 + (state >> 60)));
        auto* const block = static_cast<unsigned char*>(DefaultAllocator()->Allocate(size));
        ASSERT_NE(block, nullptr);
        block[0] = block[size - 1] = static_cast<unsigned char>(size % 253);
        std::pair<unsigned char*, size_t> other{nullptr, 0};
        {
          MutexLock lock(&mu);
          pool.emplace_back(block, size);
          if (pool.size() > 50) {
            std::swap(pool[(state >> 20) % pool.size()], pool.back());
            other = pool.back();
            pool.pop_back();
          }
        }
        if (other.first != nullptr) {
          EXPECT_EQ(other.first[0], other.second % 253);
          EXPECT_EQ(other.first[other.second - 1], other.second % 253);
          DefaultAllocator()->Deallocate(other.first, other.second);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& [block, size] : pool) DefaultAllocator()->Deallocate(block, size);
  EXPECT_EQ(DefaultAllocatorStats().bytes_in_use, before);
}

TEST(AllocatorTest, ReleasingGivesBackWhatIsKeptAndTouchesNothingInUse) {
  if (!kCaching) GTEST_SKIP() << "sanitizers see the life of every block: nothing is cached";
  Allocator* const allocator = DefaultAllocator();
  const size_t sizes[] = {64, 1000, size_t{100} << 10, size_t{3} << 20, size_t{40} << 20};
  char* const used = static_cast<char*>(allocator->Allocate(size_t{1} << 20));
  std::memset(used, 7, size_t{1} << 20);
  int64_t kept = 0;
  for (const size_t size : sizes) {
    allocator->Deallocate(allocator->Allocate(size), size);
    kept += static_cast<int64_t>(size);
  }
  const AllocatorStats before = DefaultAllocatorStats();
  EXPECT_GE(before.bytes_cached, kept);
  EXPECT_EQ(ReleaseCachedMemory(), before.bytes_cached);
  const AllocatorStats after = DefaultAllocatorStats();
  EXPECT_EQ(after.bytes_cached, 0);
  EXPECT_EQ(after.bytes_in_use, before.bytes_in_use);
  EXPECT_EQ(used[12345], 7);
  // The next block comes from the system, and is kept again.
  allocator->Deallocate(allocator->Allocate(1000), 1000);
  EXPECT_EQ(DefaultAllocatorStats().num_system_calls, after.num_system_calls + 1);
  EXPECT_GT(DefaultAllocatorStats().bytes_cached, 0);
  allocator->Deallocate(used, size_t{1} << 20);
}

TEST(BufferTest, CountsReferencesAndReturnsTheBlock) {
  const int64_t before = DefaultAllocatorStats().bytes_in_use;
  {
    BufferRef a = Buffer::Allocate(DefaultAllocator(), 1000);
    ASSERT_TRUE(a);
    EXPECT_EQ(a->size(), 1000u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(a->data()) % Allocator::kAlignment, 0u);
    EXPECT_TRUE(a->RefCountIsOne());
    BufferRef b = a;
    EXPECT_FALSE(a->RefCountIsOne());
    EXPECT_EQ(a.get(), b.get());
    b = BufferRef();
    EXPECT_TRUE(a->RefCountIsOne());
    const BufferRef c = std::move(a);
    EXPECT_FALSE(a);  // NOLINT: moved-from is null by contract
    EXPECT_TRUE(c->RefCountIsOne());
    EXPECT_GT(DefaultAllocatorStats().bytes_in_use, before);
  }
  EXPECT_EQ(DefaultAllocatorStats().bytes_in_use, before);
  EXPECT_FALSE(Buffer::Allocate(DefaultAllocator(), SIZE_MAX - 10));
}

TEST(BufferTest, ExternalMemoryIsReleasedOnceByTheLastHolderOnAnyThread) {
  int memory = 7, releases = 0;
  BufferRef a = Buffer::External(&memory, sizeof(memory), [&releases] { ++releases; });
  std::thread([b = a] { EXPECT_EQ(*static_cast<int*>(b->data()), 7); }).join();
  EXPECT_EQ(releases, 0);
  std::thread([b = std::move(a)]() mutable { b = BufferRef(); }).join();
  EXPECT_EQ(releases, 1);
}

TEST(BufferTest, OfAReadOnlyBufferNobodyIsTheOnlyHolder) {
  const int memory = 7;
  int releases = 0;
  BufferRef a = Buffer::ReadOnly(&memory, sizeof(memory), [&releases] { ++releases; });
  EXPECT_TRUE(a->is_read_only());
  EXPECT_TRUE(a->is_external());
  EXPECT_FALSE(a->RefCountIsOne());
  BufferRef b = a;
  b = BufferRef();
  EXPECT_FALSE(a->RefCountIsOne());
  EXPECT_EQ(releases, 0);
  std::thread([b = std::move(a)]() mutable { b = BufferRef(); }).join();
  EXPECT_EQ(releases, 1);
  EXPECT_FALSE(Buffer::Allocate(DefaultAllocator(), 8)->is_read_only());
}

TEST(MutexTest, CondVarTimesOutAndNotificationWakesWaiters) {
  Mutex mu;
  CondVar cv;
  {
    MutexLock lock(&mu);
    // Nobody signals: only the time, or a spurious return, ends the wait.
    while (!cv.WaitWithTimeout(&mu, absl::Milliseconds(1))) {
    }
  }
  Notification notification;
  EXPECT_FALSE(notification.HasBeenNotified());
  EXPECT_FALSE(notification.WaitFor(absl::Milliseconds(1)));
  BlockingCounter counter(3);
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      notification.Wait();
      counter.Decrement();
    });
  }
  notification.Notify();
  counter.Wait();
  EXPECT_TRUE(notification.WaitFor(absl::ZeroDuration()));
  for (std::thread& thread : threads) thread.join();
}

TEST(MutexTest, ReadersShareWritersDoNot) {
  SharedMutex mu;
  int value = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 1000; ++i) {
        if (i % 4 == 0) {
          WriterLock lock(&mu);
          ++value;
        } else {
          ReaderLock lock(&mu);
          EXPECT_GE(value, 0);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(value, 1000);
}

}  // namespace
}  // namespace millrace
