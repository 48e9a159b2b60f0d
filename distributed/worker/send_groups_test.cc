// SPDX-License-Identifier: Apache-2.0
#include "distributed/worker/send_groups.h"

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "distributed/worker/step_edges.h"
#include "gtest/gtest.h"

// covers: clusters: what a step sends to a task in one wave leaves together, whatever of it is dead
//   or large; what may wait for another step, in a function too, and what is in a loop holds
//   nothing back

namespace millrace {
namespace {

constexpr SendGroups::Next kWait = SendGroups::Next::kWait;
constexpr SendGroups::Next kLeave = SendGroups::Next::kLeave;
constexpr SendGroups::Next kFree = SendGroups::Next::kFree;
constexpr int64_t kSmall = 100;

// Of sends with these groups.
StepEdges::Peer PeerOf(const std::vector<int>& groups) {
  StepEdges::Peer peer;
  peer.groups = groups;
  for (const int group : groups) {
    if (group == StepEdges::kNoGroup) continue;
    const size_t i = static_cast<size_t>(group);
    if (peer.group_sizes.size() <= i) peer.group_sizes.resize(i + 1);
    ++peer.group_sizes[i];
  }
  return peer;
}

TEST(SendGroupsTest, TheLastOfAGroupLetsItLeaveInWhateverOrderTheyCome) {
  const StepEdges::Peer peer = PeerOf({0, 1, 0, 1, 0});
  SendGroups groups(peer);
  EXPECT_EQ(groups.Add(4, kSmall), kWait);
  EXPECT_EQ(groups.Add(1, kSmall), kWait);
  EXPECT_EQ(groups.Add(0, kSmall), kWait);
  EXPECT_EQ(groups.Add(2, kSmall), kLeave);
  EXPECT_EQ(groups.Add(3, kSmall), kLeave);
}

TEST(SendGroupsTest, AGroupOfOneLeavesAtOnce) {
  const StepEdges::Peer peer = PeerOf({0});
  EXPECT_EQ(SendGroups(peer).Add(0, kSmall), kLeave);
}

TEST(SendGroupsTest, DeadTensorsCount) {
  const StepEdges::Peer peer = PeerOf({0, 0});
  SendGroups groups(peer);
  EXPECT_EQ(groups.Add(0, 0), kWait);
  EXPECT_EQ(groups.Add(1, 0), kLeave);
}

TEST(SendGroupsTest, ALargeTensorLeavesAtOnceAndCounts) {
  const StepEdges::Peer peer = PeerOf({0, 0, 0});
  SendGroups groups(peer);
  EXPECT_EQ(groups.Add(0, SendGroups::kLargeBytes - 1), kWait);
  EXPECT_EQ(groups.Add(1, SendGroups::kLargeBytes), kLeave);
  groups.Leaving();
  EXPECT_EQ(groups.Add(2, kSmall), kLeave);
}

// 63 KiB each: four are below 256 KiB, the fifth is not.
TEST(SendGroupsTest, NoMoreThan256KiBWaitAllGroupsTogether) {
  const StepEdges::Peer peer = PeerOf({0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1});
  SendGroups groups(peer);
  for (size_t round = 0; round < 2; ++round) {
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(groups.Add(5 * round + i, 63 << 10), kWait) << i;
    EXPECT_EQ(groups.Add(5 * round + 4, 63 << 10), kLeave);
    groups.Leaving();
  }
  EXPECT_EQ(groups.Add(10, kSmall), kLeave);
  EXPECT_EQ(groups.Add(11, kSmall), kLeave);
}

TEST(SendGroupsTest, WhatIsInNoGroupWaitsForNone) {
  const StepEdges::Peer peer = PeerOf({StepEdges::kNoGroup, 0, StepEdges::kNoGroup, 0});
  SendGroups groups(peer);
  EXPECT_EQ(groups.Add(1, kSmall), kWait);
  EXPECT_EQ(groups.Add(0, kSmall), kFree);
  EXPECT_EQ(groups.Add(2, SendGroups::kLargeBytes), kLeave);
  EXPECT_EQ(groups.Add(3, kSmall), kLeave);
}

// However threads are interleaved, each group is let go once.
TEST(SendGroupsTest, OneThreadFindsTheLastOfEachGroup) {
  constexpr int kThreads = 4, kGroups = 50;
  std::vector<int> of;
  for (int i = 0; i < kThreads * kGroups; ++i) of.push_back(i % kGroups);
  const StepEdges::Peer peer = PeerOf(of);
  for (int round = 0; round < 20; ++round) {
    SendGroups groups(peer);
    std::atomic<int> let_go{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kGroups; ++i) {
          if (groups.Add(static_cast<size_t>(t * kGroups + i), 1) == kLeave) {
            let_go.fetch_add(1, std::memory_order_relaxed);
          }
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(let_go.load(), kGroups);
  }
}

}  // namespace
}  // namespace millrace
