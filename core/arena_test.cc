// SPDX-License-Identifier: Apache-2.0
#include "core/arena.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

struct Kind {
  const char* name;
  std::unique_ptr<Arena> (*make)(int num_threads);
};

constexpr double kExpensive = 1e6;  // 1 ms per item: every item is worth a part

class ArenaTest : public testing::TestWithParam<Kind> {
 protected:
  static std::unique_ptr<Arena> MakeArena(int num_threads) { return GetParam().make(num_threads); }
};

TEST_P(ArenaTest, EveryItemIsVisitedOnce) {
  for (const int num_threads : {1, 2, 3, 8}) {
    auto arena = MakeArena(num_threads);
    EXPECT_EQ(arena->num_threads(), num_threads);
    for (const int64_t n : {0, 1, 2, 7, 1000, 10007}) {
      for (const double cost : {0.0, 3.0, 100.0, 1e4, 1e9}) {
        std::vector<std::atomic<int>> visits(static_cast<size_t>(n));
        arena->ParallelFor(n, cost, [&](int64_t begin, int64_t end) {
          EXPECT_LT(begin, end);
          for (int64_t i = begin; i < end; ++i) ++visits[static_cast<size_t>(i)];
        });
        EXPECT_TRUE(std::all_of(visits.begin(), visits.end(), [](auto& v) { return v == 1; }))
            << n << " items of " << cost << " ns on " << num_threads << " threads";
      }
    }
  }
}

TEST_P(ArenaTest, CheapOrSenselessCostRunsInTheCallerInOnePart) {
  auto arena = MakeArena(4);
  const struct {
    int64_t n;
    double cost_ns;
  } cases[] = {{1, 1e9},         {100, 10.0},  {19'999, 1.0},
               {1'000'000, 0.0}, {1000, -5.0}, {1000, std::numeric_limits<double>::quiet_NaN()}};
  for (const auto& c : cases) {
    int calls = 0;
    arena->ParallelFor(c.n, c.cost_ns, [&](int64_t begin, int64_t end) {
      ++calls;
      EXPECT_EQ(begin, 0);
      EXPECT_EQ(end, c.n);
    });
    EXPECT_EQ(calls, 1) << c.n << " x " << c.cost_ns;
  }
}

TEST_P(ArenaTest, PartsCostAtLeastTenMicrosecondsExceptTheLast) {
  auto arena = MakeArena(4);
  for (const double cost : {0.5, 7.0, 900.0, 30'000.0}) {
    const int64_t n = 200'001;
    arena->ParallelFor(n, cost, [&](int64_t begin, int64_t end) {
      if (end != n) {
        EXPECT_GE(static_cast<double>(end - begin) * cost, 10'000.0);
      }
    });
  }
}

TEST_P(ArenaTest, BlocksAreTheSameOnAnyNumberOfThreads) {
  const struct {
    int64_t n, block;
  } cases[] = {{0, 4}, {1, 4}, {4, 4}, {5, 4}, {8, 4}, {1000, 1}, {1000, 7}, {10007, 64}};
  for (const auto& c : cases) {
    std::vector<std::pair<int64_t, int64_t>> expected;
    for (int64_t i = 0; i < c.n; i += c.block) expected.emplace_back(i, std::min(c.n, i + c.block));
    for (const int num_threads : {1, 2, 3, 8}) {
      auto arena = MakeArena(num_threads);
      for (const double cost : {0.0, 10.0, 1e4, 1e9}) {
        Mutex mu;
        std::vector<std::pair<int64_t, int64_t>> calls;
        arena->ParallelBlocks(c.n, c.block, cost, [&](int64_t begin, int64_t end) {
          MutexLock lock(&mu);
          calls.emplace_back(begin, end);
        });
        std::sort(calls.begin(), calls.end());
        EXPECT_EQ(calls, expected) << c.n << " items in blocks of " << c.block << ", " << cost
                                   << " ns, on " << num_threads << " threads";
      }
    }
  }
}

TEST_P(ArenaTest, ASumOverBlocksHasTheSameBitsOnAnyNumberOfThreads) {
  constexpr int64_t kItems = 100'003, kBlock = 1'000;
  const auto sum_on = [&](int num_threads) {
    auto arena = MakeArena(num_threads);
    std::vector<float> sums(kItems / kBlock + 1);
    arena->ParallelBlocks(kItems, kBlock, 1e3, [&](int64_t begin, int64_t end) {
      float sum = 0;
      for (int64_t i = begin; i < end; ++i) sum += 1.0f / static_cast<float>(i + 1);
      sums[static_cast<size_t>(begin / kBlock)] = sum;
    });
    float total = 0;
    for (const float sum : sums) total += sum;
    return total;
  };
  const float alone = sum_on(1);
  for (const int num_threads : {2, 3, 4, 8}) EXPECT_EQ(sum_on(num_threads), alone) << num_threads;
}

TEST_P(ArenaTest, HugeCountsAreCutIntoBlocksWithoutOverflow) {
  auto arena = MakeArena(2);
  const int64_t huge = std::numeric_limits<int64_t>::max();
  std::atomic<int64_t> items{0}, calls{0};
  arena->ParallelBlocks(huge, huge / 3, 1.0, [&](int64_t begin, int64_t end) {
    items += end - begin;
    ++calls;
  });
  EXPECT_EQ(items, huge);
  EXPECT_EQ(calls, 4);
}

TEST_P(ArenaTest, ExceptionOfABlockReachesTheCaller) {
  for (const int num_threads : {1, 2, 4}) {
    auto arena = MakeArena(num_threads);
    EXPECT_THROW(arena->ParallelBlocks(100, 3, kExpensive,
                                       [](int64_t begin, int64_t) {
                                         if (begin == 51) throw std::runtime_error("block 17");
                                       }),
                 std::runtime_error);
  }
}

TEST_P(ArenaTest, InfiniteCostAndHugeCountsAreSplitWithoutOverflow) {
  auto arena = MakeArena(2);
  std::atomic<int64_t> items{0};
  arena->ParallelFor(5, std::numeric_limits<double>::infinity(),
                     [&](int64_t begin, int64_t end) { items += end - begin; });
  EXPECT_EQ(items, 5);
  const int64_t huge = int64_t{1} << 61;
  items = 0;
  arena->ParallelFor(huge, 1.0, [&](int64_t begin, int64_t end) { items += end - begin; });
  EXPECT_EQ(items, huge);
}

TEST_P(ArenaTest, AnotherThreadHelps) {
  auto arena = MakeArena(2);
  Mutex mu;
  std::set<std::thread::id> seen;
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (absl::Now() < deadline) {
    arena->ParallelFor(8, kExpensive, [&](int64_t, int64_t) {
      const absl::Time until = absl::Now() + absl::Microseconds(200);
      while (absl::Now() < until) {
      }
      MutexLock lock(&mu);
      seen.insert(std::this_thread::get_id());
    });
    MutexLock lock(&mu);
    if (seen.size() >= 2) break;
  }
  MutexLock lock(&mu);
  EXPECT_GE(seen.size(), 2u);  // not always the same helper
  EXPECT_EQ(seen.count(std::this_thread::get_id()), 1u) << "the caller takes part";
}

TEST_P(ArenaTest, NeverMoreThanNumThreadsWorkOnALoop) {
  for (const int num_threads : {1, 2, 3}) {
    auto arena = MakeArena(num_threads);
    std::atomic<int> now{0}, most{0};
    for (int round = 0; round < 50; ++round) {
      arena->ParallelFor(64, kExpensive, [&](int64_t, int64_t) {
        const int here = ++now;
        int seen = most;
        while (here > seen && !most.compare_exchange_weak(seen, here)) {
        }
        --now;
      });
    }
    EXPECT_LE(most, num_threads);
    EXPECT_GE(most, 1);
  }
}

TEST_P(ArenaTest, NestedLoopsEnd) {
  for (const int num_threads : {1, 2, 4}) {
    auto arena = MakeArena(num_threads);
    std::atomic<int64_t> leaves{0};
    arena->ParallelFor(8, kExpensive, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        arena->ParallelFor(8, kExpensive, [&](int64_t b, int64_t e) {
          for (int64_t j = b; j < e; ++j) {
            arena->ParallelFor(8, kExpensive, [&](int64_t x, int64_t y) { leaves += y - x; });
          }
        });
      }
    });
    EXPECT_EQ(leaves, 8 * 8 * 8);
  }
}

TEST_P(ArenaTest, ManyConcurrentCallersEachGetTheirOwnResult) {
  auto arena = MakeArena(2);
  std::vector<std::thread> callers;
  std::atomic<int> right{0};
  for (int c = 0; c < 8; ++c) {
    callers.emplace_back([&, c] {
      for (int round = 0; round < 25; ++round) {
        std::atomic<int64_t> sum{0};
        arena->ParallelFor(100, kExpensive, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) sum += i * c;
        });
        if (sum == 4950 * c) ++right;
      }
    });
  }
  for (auto& t : callers) t.join();
  EXPECT_EQ(right, 8 * 25);
}

TEST_P(ArenaTest, ScheduledTaskRunsWhileTheCallerBlocksAlsoWithOneThread) {
  for (const int num_threads : {1, 2}) {
    auto arena = MakeArena(num_threads);
    Notification ran;
    std::thread::id runner;
    arena->Schedule([&] {
      runner = std::this_thread::get_id();
      ran.Notify();
    });
    ran.Wait();
    EXPECT_NE(runner, std::this_thread::get_id());
  }
}

TEST_P(ArenaTest, TasksScheduledFromTasksRun) {
  for (const int num_threads : {1, 2}) {
    auto arena = MakeArena(num_threads);
    BlockingCounter left(1000);
    arena->Schedule([&] {
      for (int i = 0; i < 10; ++i) {
        arena->Schedule([&] {
          for (int j = 0; j < 100; ++j) arena->Schedule([&] { left.Decrement(); });
        });
      }
    });
    left.Wait();
  }
}

TEST_P(ArenaTest, LoopsInsideTasksEndWhenAllThreadsAreInLoops) {
  for (const int num_threads : {1, 2}) {
    auto arena = MakeArena(num_threads);
    BlockingCounter left(20);
    std::atomic<int64_t> items{0};
    for (int i = 0; i < 20; ++i) {
      arena->Schedule([&] {
        arena->ParallelFor(32, kExpensive, [&](int64_t b, int64_t e) { items += e - b; });
        left.Decrement();
      });
    }
    left.Wait();
    EXPECT_EQ(items, 20 * 32);
  }
}

thread_local int loops_on_this_thread = 0;

TEST_P(ArenaTest, NoTaskRunsOnAThreadThatIsInsideALoop) {
  auto arena = MakeArena(2);
  constexpr int kTasks = 200;
  BlockingCounter left(kTasks);
  std::atomic<int> nested{0};
  auto loop = [&] {
    ++loops_on_this_thread;
    arena->ParallelFor(16, kExpensive, [](int64_t, int64_t) {});
    --loops_on_this_thread;
  };
  for (int i = 0; i < kTasks; ++i) {
    arena->Schedule([&] {
      if (loops_on_this_thread > 0) ++nested;
      loop();
      left.Decrement();
    });
    loop();
  }
  left.Wait();
  EXPECT_EQ(nested, 0);
}

TEST_P(ArenaTest, ExceptionOfABodyReachesTheCallerAfterAllPartsHaveReturned) {
  for (const int num_threads : {1, 2, 4}) {
    auto arena = MakeArena(num_threads);
    for (int round = 0; round < 20; ++round) {
      std::atomic<int> inside{0};
      std::string message;
      try {
        arena->ParallelFor(64, kExpensive, [&](int64_t begin, int64_t end) {
          ++inside;
          const bool bad = begin <= 17 && 17 < end;
          --inside;
          if (bad) throw std::runtime_error("item 17");
        });
      } catch (const std::runtime_error& error) {
        message = error.what();
      }
      EXPECT_EQ(message, "item 17");
      EXPECT_EQ(inside, 0);
    }
    std::atomic<int64_t> items{0};
    arena->ParallelFor(64, kExpensive, [&](int64_t b, int64_t e) { items += e - b; });
    EXPECT_EQ(items, 64) << "the arena works on after an exception";
  }
}

TEST_P(ArenaTest, BadAllocInsideANestedLoopKeepsItsType) {
  auto arena = MakeArena(2);
  EXPECT_THROW(arena->ParallelFor(4, kExpensive,
                                  [&](int64_t, int64_t) {
                                    arena->ParallelFor(4, kExpensive, [](int64_t, int64_t) {
                                      throw std::bad_alloc();
                                    });
                                  }),
               std::bad_alloc);
}

TEST_P(ArenaTest, DestructorWaitsForScheduledTasks) {
  for (const int num_threads : {1, 2}) {
    std::atomic<int> ran{0};
    {
      auto arena = MakeArena(num_threads);
      for (int i = 0; i < 100; ++i) arena->Schedule([&] { ++ran; });
    }
    EXPECT_EQ(ran, 100);
  }
}

TEST_P(ArenaTest, ATaskMayScheduleWhileTheArenaIsDestroyed) {
  std::atomic<int> ran{0};
  {
    const std::unique_ptr<Arena> arena = MakeArena(2);
    Arena* const raw = arena.get();
    for (int i = 0; i < 8; ++i) {
      arena->Schedule([&ran, raw] {
        raw->Schedule([&ran] { ran.fetch_add(1); });
        ran.fetch_add(1);
      });
    }
  }
  EXPECT_EQ(ran.load(), 16);
}

TEST_P(ArenaTest, WhatATaskOwnsIsGoneWhenTheArenaIs) {
  auto token = std::make_shared<int>(7);
  {
    auto arena = MakeArena(2);
    for (int i = 0; i < 10; ++i) arena->Schedule([token] {});
  }
  EXPECT_EQ(token.use_count(), 1);
}

// In the middle of the task, or with what the task owns when it is over.
TEST_P(ArenaTest, ItsLastOwnerMayBeATaskOfItsOwn) {
  for (const int num_threads : {1, 2}) {
    for (const bool in_the_middle : {false, true}) {
      for (int round = 0; round < 50; ++round) {
        constexpr int kTasks = 10;
        const auto left = std::make_shared<BlockingCounter>(kTasks);
        std::shared_ptr<Arena> arena = MakeArena(num_threads);
        const std::weak_ptr<Arena> watch = arena;
        Arena* const borrowed = arena.get();
        borrowed->Schedule([left, in_the_middle, arena = std::move(arena)]() mutable {
          for (int i = 0; i < kTasks; ++i) arena->Schedule([left] { left->Decrement(); });
          if (in_the_middle) arena = nullptr;
        });
        left->Wait();
        while (!watch.expired()) std::this_thread::yield();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ArenaTest,
                         testing::Values(
#if !defined(__SANITIZE_THREAD__)  // the system's TBB is not instrumented
                             Kind{"Tbb", &Arena::MakeTbb},
#endif
                             Kind{"Threads", &Arena::MakeThreads}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(DefaultArenaTest, IsOneForTheProcess) {
  EXPECT_EQ(Arena::Default(), Arena::Default());
  EXPECT_GE(Arena::Default()->num_threads(), 1);
}

// In a process of its own: the arena is made once.
TEST(DefaultArenaDeathTest, SizeComesFromTheEnvironment) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  const struct {
    const char* value;
    int num_threads;
  } cases[] = {{"1", 1}, {"3", 3}, {"0", cores}, {"-4", cores}, {"many", cores}};
  for (const auto& c : cases) {
    EXPECT_EXIT(
        {
          setenv("MILLRACE_NUM_THREADS", c.value, 1);
          std::_Exit(Arena::Default()->num_threads() == c.num_threads ? 0 : 1);
        },
        testing::ExitedWithCode(0), "")
        << c.value;
  }
}

TEST(DefaultArenaTest, ZeroMeansTheNumberOfCores) {
  EXPECT_EQ(Arena::Make(0)->num_threads(),
            static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
}

}  // namespace
}  // namespace millrace
