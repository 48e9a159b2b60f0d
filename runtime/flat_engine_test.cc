// SPDX-License-Identifier: Apache-2.0
//
// The parts of the flat engine, each alone: pending words, ready lists, costs. Whole steps are in
// executor_test.
#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/node_costs.h"
#include "runtime/pending_words.h"
#include "runtime/ready_list.h"

namespace millrace {
namespace {

// --- Pending words -------------------------------------------------------------------------------

// What becomes ready, by name, when edges arrive at one node: 'c' a control edge, 'd' a dead data
// edge, 'l' a live one.
template <bool kSolo>
std::string ArriveAll(PendingWords& words, bool merge, const std::string& edges,
                      uint32_t num_inputs) {
  std::string log;
  for (const char edge : edges) {
    uint32_t ready = kNoEntry;
    if (!merge) {
      ready = words.Arrive<kSolo>(0, edge == 'd');
    } else if (edge == 'c') {
      ready = words.ArriveControlAtMerge<kSolo>(0, num_inputs);
    } else if (edge == 'd') {
      ready = words.ArriveDeadAtMerge<kSolo>(0, num_inputs);
    } else if (words.TakeMerge<kSolo>(0)) {
      ready = words.ArriveLiveAtMerge<kSolo>(0);
    }
    log += ready == kNoEntry ? '.' : ready == 0 ? 'R' : ready == kDeadEntry ? 'D' : '?';
  }
  return log;
}

std::string Arrivals(bool solo, bool merge, const std::string& edges) {
  PendingWords words(1);
  const auto controls = static_cast<uint32_t>(std::count(edges.begin(), edges.end(), 'c'));
  const auto inputs = static_cast<uint32_t>(edges.size()) - controls;
  const uint32_t initial = merge ? Plan::kMergeNoLive + controls * Plan::kMergeOneControl
                                 : static_cast<uint32_t>(edges.size());
  words.Reset({&initial, 1});
  return solo ? ArriveAll<true>(words, merge, edges, inputs)
              : ArriveAll<false>(words, merge, edges, inputs);
}

TEST(PendingWordsTest, AnOrdinaryNodeWaitsForEveryEdgeAndIsDeadIfOneWas) {
  const struct {
    const char* edges;
    const char* ready;
  } cases[] = {
      {"l", "R"},     {"d", "D"},     {"lll", "..R"}, {"dll", "..D"},
      {"ldl", "..D"}, {"lld", "..D"}, {"ddd", "..D"},
  };
  for (const auto& c : cases) {
    for (const bool solo : {true, false}) EXPECT_EQ(Arrivals(solo, false, c.edges), c.ready);
  }
}

TEST(PendingWordsTest, AMergeStartsWithItsFirstLiveInputAndAllControls) {
  const struct {
    const char* edges;
    const char* ready;
  } cases[] = {
      {"l", "R"},       {"d", "D"},     {"ll", "R."},     {"ld", "R."},     {"dl", ".R"},
      {"dd", ".D"},     {"cl", ".R"},   {"lc", ".R"},     {"cd", ".D"},     {"dc", ".D"},
      {"lcd", ".R."},   {"ldc", "..R"}, {"dlc", "..R"},   {"ddc", "..D"},   {"cdd", "..D"},
      {"dcd", "..D"},   {"lcl", ".R."}, {"llcc", "...R"}, {"clcl", "..R."}, {"dccd", "...D"},
      {"dcld", "..R."},
  };
  for (const auto& c : cases) {
    for (const bool solo : {true, false}) {
      EXPECT_EQ(Arrivals(solo, true, c.edges), c.ready) << c.edges;
    }
  }
}

// Every order of up to two edges of each kind, against the rule in words.
TEST(PendingWordsTest, EveryOrderOfArrivalsStartsAMergeOnce) {
  for (int controls = 0; controls <= 2; ++controls) {
    for (int dead = 0; dead <= 2; ++dead) {
      for (int live = 0; live <= 2; ++live) {
        if (dead + live == 0) continue;
        std::string edges = std::string(static_cast<size_t>(controls), 'c') +
                            std::string(static_cast<size_t>(dead), 'd') +
                            std::string(static_cast<size_t>(live), 'l');
        do {
          const std::string solo = Arrivals(true, true, edges);
          EXPECT_EQ(solo, Arrivals(false, true, edges)) << edges;
          EXPECT_EQ(std::count(solo.begin(), solo.end(), live > 0 ? 'R' : 'D'), 1) << edges;
          EXPECT_EQ(std::count(solo.begin(), solo.end(), '.'),
                    static_cast<int64_t>(edges.size()) - 1)
              << edges;
        } while (std::next_permutation(edges.begin(), edges.end()));
      }
    }
  }
}

TEST(PendingWordsTest, OfManyThreadsExactlyOneMakesTheNodeReady) {
  constexpr uint32_t kNodes = 500;
  constexpr int kThreads = 4;
  PendingWords words(kNodes);
  words.Reset(std::vector<uint32_t>(kNodes, kThreads));
  std::vector<std::atomic<int>> ready(kNodes);  // relaxed: read after join
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t node = 0; node < kNodes; ++node) {
        const bool dead = t == 0 && node % 2 == 0;
        const uint32_t entry = words.Arrive<false>(node, dead);
        if (entry == kNoEntry) continue;
        EXPECT_EQ(entry, node % 2 == 0 ? (node | kDeadEntry) : node);
        ready[node].fetch_add(1, std::memory_order_relaxed);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  for (const std::atomic<int>& count : ready) EXPECT_EQ(count.load(), 1);
}

// --- Ready lists ---------------------------------------------------------------------------------

TEST(ReadyListTest, ALaneGivesBackTheNewestFirstAndKeepsDeadness) {
  ReadyLinks links(3);
  Lane lane;
  lane.Push(links, 0);
  lane.Push(links, 1 | kDeadEntry);
  lane.Push(links, 2);
  EXPECT_EQ(lane.Pop(links), 2u);
  EXPECT_EQ(lane.Pop(links), 1 | kDeadEntry);
  EXPECT_EQ(lane.Pop(links), 0u);
  EXPECT_EQ(lane.head, kNoEntry);
}

TEST(ReadyListTest, TheSharedStackLosesNothingBetweenThreads) {
  constexpr uint32_t kNodes = 2000;
  constexpr int kThreads = 4;
  ReadyLinks links(kNodes);
  SharedStack stack;
  stack.Clear();
  EXPECT_TRUE(stack.IsEmpty());
  EXPECT_EQ(stack.Pop(links), kNoEntry);
  for (uint32_t node = 0; node < kNodes; ++node) stack.Push(links, node);
  EXPECT_FALSE(stack.IsEmpty());
  std::vector<std::atomic<int>> taken(kNodes);  // relaxed: read after join
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (uint32_t round = 0;; ++round) {
        const uint32_t entry = stack.Pop(links);
        if (entry == kNoEntry) return;
        // Some are put back, so that a top comes again while others look at it.
        if (round % 3 == 0) {
          stack.Push(links, entry);
        } else {
          taken[NodeOfEntry(entry)].fetch_add(1, std::memory_order_relaxed);
        }
      }
    });
  }
  for (std::thread& t : threads) t.join();
  EXPECT_TRUE(stack.IsEmpty());
  for (const std::atomic<int>& count : taken) EXPECT_EQ(count.load(), 1);
}

// --- Costs ---------------------------------------------------------------------------------------

TEST(NodeCostsTest, WhatWasNeverMeasuredIsExpensiveAndTheFirstMeasurementCountsAlone) {
  NodeCosts costs(2);
  EXPECT_TRUE(costs.IsExpensive(0));
  costs.AddSample(0, 100);
  EXPECT_FALSE(costs.IsExpensive(0));
  EXPECT_TRUE(costs.IsExpensive(1));
  costs.AddSample(1, NodeCosts::kExpensiveCycles + 1);
  EXPECT_TRUE(costs.IsExpensive(1));
}

TEST(NodeCostsTest, ANodeThatChangesItsWaysIsNoticedAfterAFewSamples) {
  NodeCosts costs(1);
  costs.AddSample(0, 100);
  int samples = 0;
  for (; !costs.IsExpensive(0) && samples < 100; ++samples) costs.AddSample(0, 100'000);
  EXPECT_EQ(samples, 3);  // 1/8 of 100,000 each: 12,600, 23,500, 33,000
  for (samples = 0; costs.IsExpensive(0) && samples < 100; ++samples) costs.AddSample(0, 0);
  EXPECT_EQ(samples, 3);
  // Longer than any number that fits.
  NodeCosts huge(1);
  huge.AddSample(0, ~uint64_t{0});
  EXPECT_TRUE(huge.IsExpensive(0));
}

}  // namespace
}  // namespace millrace
