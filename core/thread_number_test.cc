// SPDX-License-Identifier: Apache-2.0
#include "core/thread_number.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "core/notification.h"
#include "gtest/gtest.h"

namespace millrace {
namespace {

// The numbers of `count` threads that live at the same time.
std::vector<int> NumbersOf(int count) {
  std::vector<int> numbers(static_cast<size_t>(count));
  std::vector<Notification> asked(numbers.size());
  Notification all_asked;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < numbers.size(); ++i) {
    threads.emplace_back([&, i] {
      numbers[i] = ThreadNumber();
      EXPECT_EQ(ThreadNumber(), numbers[i]);
      asked[i].Notify();
      all_asked.Wait();
    });
  }
  for (Notification& one : asked) one.Wait();
  all_asked.Notify();
  for (std::thread& thread : threads) thread.join();
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

TEST(ThreadNumberTest, LivingThreadsHaveTheLowestNumbersThatAreFree) {
  // Whoever has asked before keeps its number: this thread, and nobody else in this program.
  const int mine = ThreadNumber();
  for (int round = 0; round < 2; ++round) {
    std::vector<int> numbers = NumbersOf(20);
    numbers.push_back(mine);
    std::sort(numbers.begin(), numbers.end());
    for (int i = 0; i <= 20; ++i) EXPECT_EQ(numbers[static_cast<size_t>(i)], i);
    EXPECT_EQ(ThreadNumber(), mine);
  }
}

TEST(ThreadNumberTest, MoreThreadsThanNumbersShareThem) {
  const std::vector<int> numbers = NumbersOf(kThreadNumbers + 10);
  EXPECT_GE(numbers.front(), 0);
  EXPECT_LT(numbers.back(), kThreadNumbers);
  EXPECT_NE(std::adjacent_find(numbers.begin(), numbers.end()), numbers.end());
}

}  // namespace
}  // namespace millrace
