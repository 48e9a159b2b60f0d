// SPDX-License-Identifier: Apache-2.0
#include "runtime/session/step_pool.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/cancellation.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/session/direct_binding.h"

// covers: steps: each thread that runs steps of a session has its own state in session and engine;
//   step numbers are unique
// covers: steps: a thread's state of steps by names is freed when the session drops it, closes or
//   abandons the step to a kernel that does not answer

namespace millrace {
namespace {

using Step = StepPool::Step;
using State = StepPool::State;

// A thread that does what it is told, and has done it when Do returns.
class Other {
 public:
  Other() : thread_([this] { Loop(); }) {}
  ~Other() {
    Do(nullptr);
    thread_.join();
  }
  void Do(std::function<void()> task) {
    MutexLock lock(&mu_);
    task_ = std::move(task);
    told_ = true;
    changed_.SignalAll();
    while (told_) changed_.Wait(&mu_);
  }

 private:
  void Loop() {
    MutexLock lock(&mu_);
    for (bool goes_on = true; goes_on;) {
      while (!told_) changed_.Wait(&mu_);
      goes_on = task_ != nullptr;
      if (goes_on) task_();
      told_ = false;
      changed_.SignalAll();
    }
  }

  Mutex mu_;
  CondVar changed_;
  std::function<void()> task_ ABSL_GUARDED_BY(mu_);
  bool told_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

// Begins and ends a step; the state that it had.
State* StateOfAStep(StepPool& pool) {
  StatusOr<Step> step = pool.Begin();
  EXPECT_OK(step);
  return step.ok() ? step->operator->() : nullptr;
}

TEST(StepPoolTest, ThreadsThatRunStepsAtTheSameTimeKeepAStateEach) {
  StepPool pool("pool");
  Other other;
  State *mine = nullptr, *others = nullptr;
  {
    ASSERT_OK_AND_ASSIGN(const Step step, pool.Begin());
    mine = step.operator->();
    other.Do([&] { others = StateOfAStep(pool); });
    EXPECT_NE(mine, others);
  }
  for (int i = 0; i < 10; ++i) {
    // Whoever was the last to end a step.
    EXPECT_EQ(StateOfAStep(pool), mine);
    other.Do([&] { EXPECT_EQ(StateOfAStep(pool), others); });
    other.Do([&] { EXPECT_EQ(StateOfAStep(pool), others); });
  }
}

TEST(StepPoolTest, AStateIsMadeOnlyWhenNoneIsIdle) {
  StepPool pool("pool");
  State* const first = StateOfAStep(pool);
  Other other;
  other.Do([&] { EXPECT_EQ(StateOfAStep(pool), first); });
  // A step inside of a step.
  ASSERT_OK_AND_ASSIGN(const Step outer, pool.Begin());
  EXPECT_EQ(outer.operator->(), first);
  State* const second = StateOfAStep(pool);
  EXPECT_NE(second, first);
  EXPECT_EQ(StateOfAStep(pool), second);
  other.Do([&] { EXPECT_EQ(StateOfAStep(pool), second); });
}

TEST(StepPoolTest, EveryStepHasANumberOfItsOwn) {
  constexpr int kThreads = 4, kSteps = 5000;
  StepPool pool("pool");
  std::vector<std::vector<int64_t>> numbers(kThreads);
  std::vector<std::thread> threads;
  for (std::vector<int64_t>& of_thread : numbers) {
    threads.emplace_back([&pool, &of_thread] {
      for (int i = 0; i < kSteps; ++i) {
        const StatusOr<Step> step = pool.Begin();
        if (step.ok()) of_thread.push_back(step->number());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<int64_t> all;
  for (const std::vector<int64_t>& of_thread : numbers)
    all.insert(of_thread.begin(), of_thread.end());
  EXPECT_EQ(all.size(), static_cast<size_t>(kThreads) * kSteps);
  EXPECT_GE(*all.begin(), 1);
}

TEST(StepPoolTest, AStateRemembersBindingsUntilTheyAreToBeForgotten) {
  StepPool pool("pool");
  std::weak_ptr<const DirectBinding> weak;
  const auto remember = [&](Step& step, uint64_t version) {
    auto binding = std::make_shared<const DirectBinding>();
    weak = binding;
    EXPECT_EQ(step.Keep("key", binding, version), binding.get());
  };
  {
    ASSERT_OK_AND_ASSIGN(Step step, pool.Begin());
    EXPECT_EQ(step.Find("key"), nullptr);
    remember(step, pool.version());
    EXPECT_EQ(step.Find("key"), weak.lock().get());
    EXPECT_EQ(step.Find("another"), nullptr);
  }
  {
    ASSERT_OK_AND_ASSIGN(Step step, pool.Begin());
    EXPECT_EQ(step.Find("key"), weak.lock().get());
    EXPECT_NE(step.Find("key"), nullptr);
  }
  pool.Forget();  // of an idle state at once
  EXPECT_TRUE(weak.expired());

  // Of one whose step runs, when that ends.
  {
    ASSERT_OK_AND_ASSIGN(Step step, pool.Begin());
    EXPECT_EQ(step.Find("key"), nullptr);
    remember(step, pool.version());
    pool.Forget();
    EXPECT_FALSE(weak.expired());
    EXPECT_EQ(step.Find("key"), nullptr);
  }
  EXPECT_TRUE(weak.expired());

  // What was bound before Forget, and comes later.
  {
    ASSERT_OK_AND_ASSIGN(Step step, pool.Begin());
    const uint64_t version = pool.version();
    pool.Forget();
    remember(step, version);
  }
  EXPECT_TRUE(weak.expired());

  // A closed pool remembers nothing, nor does a step that is left to others.
  std::shared_ptr<const void> left;
  {
    ASSERT_OK_AND_ASSIGN(Step step, pool.Begin());
    remember(step, pool.version());
    left = step.Share(nullptr);
  }
  EXPECT_TRUE(weak.expired());
  left = nullptr;
  {
    ASSERT_OK_AND_ASSIGN(Step step, pool.Begin());
    remember(step, pool.version());
  }
  EXPECT_FALSE(weak.expired());
  pool.Close(absl::CancelledError("over"));
  EXPECT_TRUE(weak.expired());
}

TEST(StepPoolTest, AStateRemembersTheLastFewBindings) {
  StepPool pool("pool");
  ASSERT_OK_AND_ASSIGN(Step step, pool.Begin());
  std::vector<std::weak_ptr<const DirectBinding>> weak;
  for (int i = 0; i < 100; ++i) {
    auto binding = std::make_shared<const DirectBinding>();
    weak.push_back(binding);
    step.Keep(std::to_string(i), binding, pool.version());
    EXPECT_EQ(step.Find(std::to_string(i)), binding.get());
  }
  int alive = 0;
  for (int i = 0; i < 100; ++i) {
    const auto binding = weak[static_cast<size_t>(i)].lock();
    EXPECT_EQ(step.Find(std::to_string(i)), binding.get());
    alive += binding == nullptr ? 0 : 1;
  }
  EXPECT_EQ(alive, 8);
}

// Threads that remember and find, and one that makes them forget all the time.
TEST(StepPoolTest, ForgettingTakesTurnsWithSteps) {
  constexpr int kThreads = 3, kSteps = 3000;
  StepPool pool("pool");
  std::atomic<int> live{0};
  std::atomic<bool> over{false};
  std::thread forgetter([&] {
    while (!over.load()) pool.Forget();
  });
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kSteps; ++i) {
        const std::string key = std::to_string(i % 3);
        const uint64_t version = pool.version();
        StatusOr<Step> step = pool.Begin();
        ASSERT_OK(step);
        const DirectBinding* binding = step->Find(key);
        if (binding == nullptr) {
          live.fetch_add(1);
          binding =
              step->Keep(key,
                         std::shared_ptr<const DirectBinding>(new DirectBinding,
                                                              [&live](const DirectBinding* gone) {
                                                                live.fetch_sub(1);
                                                                delete gone;
                                                              }),
                         version);
        }
        EXPECT_FALSE(binding->is_used.load());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  over.store(true);
  forgetter.join();
  pool.Forget();
  EXPECT_EQ(live.load(), 0);
}

TEST(StepPoolTest, CloseCancelsTheStepsOfAllThreadsAndWaitsForThem) {
  constexpr int kThreads = 3;
  StepPool pool("pool");
  std::vector<std::thread> threads;
  BlockingCounter begun(kThreads);
  std::atomic<int> ended{0};
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      StateOfAStep(pool);
      StatusOr<Step> step = pool.Begin();
      ASSERT_OK(step);
      Notification cancelled;
      CancellationManager::Token token;
      ASSERT_TRUE((*step)->cancellation->Register(&token, [&] { cancelled.Notify(); }));
      begun.Decrement();
      cancelled.Wait();
      (*step)->cancellation->Deregister(token);
      ended.fetch_add(1);
      step = absl::CancelledError();  // ends it
    });
  }
  begun.Wait();
  StateOfAStep(pool);  // an idle one between those that Close looks for
  pool.Close(absl::CancelledError("over"));
  EXPECT_EQ(ended.load(), kThreads);
  EXPECT_STATUS(pool.Begin().status(), absl::StatusCode::kCancelled, "over");
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace millrace
