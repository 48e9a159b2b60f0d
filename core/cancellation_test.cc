// SPDX-License-Identifier: Apache-2.0
#include "core/cancellation.h"

#include <memory>
#include <thread>
#include <vector>

#include "core/notification.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

TEST(CancellationTest, CallbacksRunOnceOldestFirstInTheCancellingThread) {
  CancellationManager manager;
  std::vector<int> order;
  std::vector<CancellationManager::Token> tokens(20);
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(
        manager.Register(&tokens[static_cast<size_t>(i)], [&order, i] { order.push_back(i); }));
  }
  EXPECT_FALSE(manager.IsCancelled());
  manager.StartCancel();
  manager.StartCancel();
  EXPECT_TRUE(manager.IsCancelled());
  ASSERT_EQ(order.size(), 20u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST(CancellationTest, DeregisteredCallbackNeverRuns) {
  CancellationManager manager;
  CancellationManager::Token token;
  bool ran = false;
  ASSERT_TRUE(manager.Register(&token, [&] { ran = true; }));
  EXPECT_TRUE(manager.Deregister(token));
  EXPECT_FALSE(manager.Deregister(token)) << "a second time there is nothing to remove";
  manager.StartCancel();
  EXPECT_FALSE(ran);
}

TEST(CancellationTest, RegisterAfterCancelIsRefusedAndDropsTheCallback) {
  CancellationManager manager;
  manager.StartCancel();
  auto owned = std::make_shared<int>(1);
  CancellationManager::Token token = 0;
  bool ran = false;
  EXPECT_FALSE(manager.Register(&token, [&ran, owned] { ran = true; }));
  EXPECT_FALSE(ran);
  EXPECT_EQ(owned.use_count(), 1);
}

TEST(CancellationTest, DeregisterAfterTheCallbackHasRunIsFalse) {
  CancellationManager manager;
  CancellationManager::Token token;
  ASSERT_TRUE(manager.Register(&token, [] {}));
  manager.StartCancel();
  EXPECT_FALSE(manager.Deregister(token));
}

TEST(CancellationTest, DeregisterWaitsUntilTheRunningCallbackHasReturned) {
  CancellationManager manager;
  CancellationManager::Token token;
  Notification inside, go_on;
  std::atomic<bool> returned{false};
  ASSERT_TRUE(manager.Register(&token, [&] {
    inside.Notify();
    go_on.Wait();
    returned = true;
  }));
  std::thread canceller([&] { manager.StartCancel(); });
  inside.Wait();
  std::thread releaser([&] { go_on.Notify(); });
  EXPECT_FALSE(manager.Deregister(token));
  EXPECT_TRUE(returned);
  canceller.join();
  releaser.join();
}

TEST(CancellationTest, DeregisterOfAnotherTokenDoesNotWaitForTheRunningCallback) {
  CancellationManager manager;
  CancellationManager::Token slow, other;
  Notification inside, go_on;
  bool other_ran = false;
  ASSERT_TRUE(manager.Register(&slow, [&] {
    inside.Notify();
    go_on.Wait();
  }));
  ASSERT_TRUE(manager.Register(&other, [&] { other_ran = true; }));
  std::thread canceller([&] { manager.StartCancel(); });
  inside.Wait();
  EXPECT_TRUE(manager.Deregister(other)) << "its turn has not come: it will never run";
  go_on.Notify();
  canceller.join();
  EXPECT_FALSE(other_ran);
}

TEST(CancellationTest, ACallbackMayDeregisterItselfAndOthersAndCancelAgain) {
  CancellationManager manager;
  CancellationManager::Token first, second;
  bool second_ran = false;
  ASSERT_TRUE(manager.Register(&first, [&] {
    EXPECT_FALSE(manager.Deregister(first));
    EXPECT_TRUE(manager.Deregister(second));
    manager.StartCancel();
    CancellationManager::Token late;
    EXPECT_FALSE(manager.Register(&late, [] {}));
  }));
  ASSERT_TRUE(manager.Register(&second, [&] { second_ran = true; }));
  manager.StartCancel();
  EXPECT_FALSE(second_ran);
}

TEST(CancellationTest, EveryWaiterIsEitherWokenOrDeregisteredUnderRaces) {
  for (int round = 0; round < 50; ++round) {
    CancellationManager manager;
    std::atomic<int> woken{0}, removed{0}, refused{0};
    std::vector<std::thread> waiters;
    for (int w = 0; w < 4; ++w) {
      waiters.emplace_back([&] {
        for (int i = 0; i < 20; ++i) {
          CancellationManager::Token token;
          if (!manager.Register(&token, [&] { ++woken; })) {
            ++refused;
          } else if (manager.Deregister(token)) {
            ++removed;
          }
        }
      });
    }
    std::thread canceller([&] { manager.StartCancel(); });
    for (auto& t : waiters) t.join();
    canceller.join();
    EXPECT_EQ(woken + removed + refused, 4 * 20);
  }
}

}  // namespace
}  // namespace millrace
