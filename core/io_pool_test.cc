// SPDX-License-Identifier: Apache-2.0
#include "core/io_pool.h"

#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "core/background_thread.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(IoPoolTest, BlockedTasksUpToTheBoundRunAtTheSameTime) {
  IoPool pool(4);
  BlockingCounter arrived(4);
  Notification go;
  BlockingCounter left(4);
  for (int i = 0; i < 4; ++i) {
    pool.Schedule([&] {
      arrived.Decrement();
      go.Wait();
      left.Decrement();
    });
  }
  arrived.Wait();  // hangs unless four run together
  go.Notify();
  left.Wait();
}

TEST(IoPoolTest, NeverMoreThreadsThanTheBound) {
  Mutex mu;
  std::set<std::thread::id> threads;
  std::atomic<int> now{0}, most{0};
  {
    IoPool pool(3);
    for (int i = 0; i < 300; ++i) {
      pool.Schedule([&] {
        const int here = ++now;
        int seen = most;
        while (here > seen && !most.compare_exchange_weak(seen, here)) {
        }
        {
          MutexLock lock(&mu);
          threads.insert(std::this_thread::get_id());
        }
        --now;
      });
    }
  }
  EXPECT_LE(most, 3);
  MutexLock lock(&mu);
  EXPECT_LE(threads.size(), 3u);
  EXPECT_EQ(threads.count(std::this_thread::get_id()), 0u);
}

TEST(IoPoolTest, OneThreadRunsTasksInTheOrderOfSchedule) {
  std::vector<int> order;
  {
    IoPool pool(1);
    for (int i = 0; i < 100; ++i) pool.Schedule([&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(IoPoolTest, DestructorRunsAlsoWhatTasksSchedule) {
  std::atomic<int> ran{0};
  {
    IoPool pool(2);
    for (int i = 0; i < 10; ++i) {
      pool.Schedule([&] {
        ++ran;
        pool.Schedule([&] {
          ++ran;
          pool.Schedule([&] { ++ran; });
        });
      });
    }
  }
  EXPECT_EQ(ran, 30);
}

TEST(IoPoolTest, ATaskMayDropTheLastOwnerOfItsPool) {
  for (int max_threads : {1, 3}) {
    std::atomic<int> ran{0};
    Notification go, dropped;
    auto pool = std::make_shared<IoPool>(max_threads);
    IoPool* const raw = pool.get();
    raw->Schedule([&, owner = pool]() mutable {
      go.Wait();
      owner.reset();
      EXPECT_EQ(ran, 10);
      dropped.Notify();
    });
    for (int i = 0; i < 10; ++i) raw->Schedule([&] { ++ran; });
    pool.reset();
    go.Notify();
    dropped.Wait();
  }
}

TEST(IoPoolTest, AnUnusedPoolIsDestroyedWithoutEverHavingAThread) { IoPool pool(1000); }

TEST(IoPoolTest, WithoutThreadsTasksRunInSchedule) {
  IoPool none(0);
  for (IoPool* const pool : {&none, IoPool::InCaller()}) {
    std::thread::id ran;
    pool->Schedule([&] {
      pool->Schedule([&] { ran = std::this_thread::get_id(); });
      EXPECT_EQ(ran, std::this_thread::get_id());
    });
    EXPECT_EQ(ran, std::this_thread::get_id());
  }
}

TEST(IoPoolTest, ManyProducersLoseNothing) {
  std::atomic<int> ran{0};
  {
    IoPool pool(4);
    std::vector<std::thread> producers;
    for (int p = 0; p < 4; ++p) {
      producers.emplace_back([&] {
        for (int i = 0; i < 500; ++i) pool.Schedule([&] { ++ran; });
      });
    }
    for (auto& t : producers) t.join();
  }
  EXPECT_EQ(ran, 2000);
}

TEST(IoPoolTest, DefaultIsOneForTheProcess) {
  EXPECT_EQ(IoPool::Default(), IoPool::Default());
  Notification ran;
  IoPool::Default()->Schedule([&] { ran.Notify(); });
  ran.Wait();
}

// covers: serving: files of a load are read at the priority of its thread
TEST(IoPoolTest, ThreadsInTheBackgroundHaveAPoolOfTheirPriority) {
  constexpr int kLowest = 19;
  IoPool* const usual = IoPool::Default();
  const auto priority_of_a_task = [] {
    Notification done;
    int nice = 0;
    IoPool::Default()->Schedule([&] {
      nice = ::getpriority(PRIO_PROCESS, 0);
      done.Notify();
    });
    done.Wait();
    return nice;
  };
  const int own = ::getpriority(PRIO_PROCESS, 0);
  EXPECT_EQ(priority_of_a_task(), own);
  std::thread background([&] {
    BecomeBackgroundThread();
    EXPECT_NE(IoPool::Default(), usual);
    EXPECT_EQ(priority_of_a_task(), own);
    ASSERT_EQ(::setpriority(PRIO_PROCESS, static_cast<id_t>(::gettid()), kLowest), 0);
    EXPECT_EQ(priority_of_a_task(), kLowest);
  });
  background.join();
  EXPECT_EQ(IoPool::Default(), usual);
  EXPECT_EQ(priority_of_a_task(), own);
}

}  // namespace
}  // namespace millrace
