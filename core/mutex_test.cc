// SPDX-License-Identifier: Apache-2.0
#include "core/mutex.h"

#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// With its detector on, Debian's Abseil ends the program at the second order.
TEST(MutexTest, TwoLocksMayBeTakenInBothOrders) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer reports lock orders that could deadlock";
#endif
  Mutex a, b;
  SharedMutex c;
  for (int round = 0; round < 2; ++round) {
    {
      MutexLock first(&a);
      MutexLock second(&b);
      ReaderLock third(&c);
    }
    {
      WriterLock first(&c);
      MutexLock second(&b);
      MutexLock third(&a);
    }
  }
}

TEST(MutexTest, CountsTheLocksOfThisThread) {
  Mutex a;
  SharedMutex b;
  const int64_t before = MutexLockCountForTesting();
  {
    MutexLock first(&a);
    ReaderLock second(&b);
  }
  { WriterLock third(&b); }
  std::thread([&] { MutexLock elsewhere(&a); }).join();
  EXPECT_EQ(MutexLockCountForTesting() - before, 3);
}

TEST(MutexTest, OneThreadAtATime) {
  Mutex mu;
  int64_t count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 10'000; ++i) {
        MutexLock lock(&mu);
        ++count;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(count, 40'000);
}

TEST(CondVarTest, WaitingEndsBySignalOrByTime) {
  Mutex mu;
  CondVar changed;
  bool ready = false;
  {
    MutexLock lock(&mu);
    EXPECT_TRUE(changed.WaitWithTimeout(&mu, absl::Milliseconds(1)));
  }
  std::thread other([&] {
    MutexLock lock(&mu);
    ready = true;
    changed.SignalAll();
  });
  {
    MutexLock lock(&mu);
    while (!ready) changed.Wait(&mu);
  }
  other.join();
}

}  // namespace
}  // namespace millrace
