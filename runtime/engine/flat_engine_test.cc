// SPDX-License-Identifier: Apache-2.0
//
// The parts of the flat engine, each alone: pending words, ready lists, costs, and which nodes it
// hands over. Whole steps are in executor_test.cc and executor_*_test.cc.
#include "runtime/engine/flat_engine.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/engine/node_costs.h"
#include "runtime/engine/pending_words.h"
#include "runtime/engine/ready_list.h"
#include "runtime/engine/step.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"
#include "runtime/testing/step_ops.h"

// covers: steps: each thread that runs steps of a session has its own state in session and engine;
//   step numbers are unique

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
      const uint32_t word = words.Arrive<kSolo>(0, edge == 'd');
      if (PendingWords::IsReady(word)) ready = word;
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

// Every order of up to two edges of each kind, compared with the rule.
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
        const uint32_t word = words.Arrive<false>(node, dead);
        if (!PendingWords::IsReady(word)) continue;
        EXPECT_EQ(word, node % 2 == 0 ? kDeadEntry : 0u);
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

TEST(ReadyListTest, ALanePushesOnlyWhatIsReady) {
  ReadyLinks links(4);
  Lane lane;
  lane.PushIf(false, links, 0, 3);
  EXPECT_EQ(lane.head, kNoEntry);
  lane.PushIf(true, links, 1, 0);
  lane.PushIf(false, links, 2, 1 | kDeadEntry);
  lane.PushIf(true, links, 3, kDeadEntry);
  EXPECT_EQ(lane.Pop(links), 3 | kDeadEntry);
  EXPECT_EQ(lane.Pop(links), 1u);
  EXPECT_EQ(lane.head, kNoEntry);
}

TEST(ReadyListTest, AWrongGuessChangesNothing) {
  ReadyLinks links(3);
  for (const uint32_t guess : {0u, 1u, 2u, kNoEntry}) {
    Lane lane;
    lane.Push(links, 2);
    lane.Push(links, 1);
    EXPECT_EQ(lane.Pop(links, guess), 1u) << guess;
    EXPECT_EQ(lane.Pop(links, guess), 2u) << guess;
    EXPECT_EQ(lane.head, kNoEntry) << guess;
  }
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
        // Some are put back, so that an old top returns while other threads look at it.
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

TEST(ReadyListTest, ALaneGivesAwayItsOldestMeasuredNodes) {
  ReadyLinks links(6);
  Lane lane;
  const auto cycles_of = [](uint32_t entry) { return uint64_t{10} * (entry + 1); };
  for (uint32_t node = 0; node < 5; ++node) lane.PushMeasured(links, node, cycles_of(node));
  EXPECT_EQ(lane.measured_cycles, 10u + 20 + 30 + 40 + 50);
  // 50 and 40 are kept: together at least 60.
  const ReadyChain old = lane.TakeOldMeasured(links, 60, cycles_of);
  EXPECT_EQ(old.first, 2u);
  EXPECT_EQ(links.Below(2), 1u);
  EXPECT_EQ(links.Below(1), 0u);
  EXPECT_EQ(old.last, 0u);
  EXPECT_EQ(lane.measured_cycles, 90u);
  EXPECT_EQ(lane.PopMeasured(links, cycles_of), 4u);
  EXPECT_EQ(lane.PopMeasured(links, cycles_of), 3u);
  EXPECT_EQ(lane.measured, kNoEntry);
  EXPECT_EQ(lane.measured_cycles, 0u);
  lane.PushMeasured(links, 5, 60);
  EXPECT_EQ(lane.TakeOldMeasured(links, 100, cycles_of).first, kNoEntry);
  EXPECT_EQ(lane.measured, 5u);
}

TEST(ReadyListTest, TheSharedStackGivesAwayWhatIsWorthItTogether) {
  ReadyLinks links(8);
  SharedStack stack;
  stack.Clear();
  links.SetBelow(2, 1);
  links.SetBelow(1, 0);
  stack.Push(links, ReadyChain{2, 0});
  stack.Push(links, ReadyChain{3, 3});
  const auto cycles_of = [](uint32_t entry) { return uint64_t{entry == 1 ? 100u : 10u}; };
  ReadyChain batch = stack.Pop(links, 25, cycles_of);
  EXPECT_EQ(batch.first, 3u);
  EXPECT_EQ(links.Below(3), 2u);
  EXPECT_EQ(batch.last, 1u);  // 10 + 10 + 100
  batch = stack.Pop(links, 25, cycles_of);
  EXPECT_EQ(batch.first, 0u);
  EXPECT_EQ(batch.last, 0u);
  EXPECT_EQ(stack.Pop(links, 25, cycles_of).first, kNoEntry);
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
  for (; !costs.IsExpensive(0) && samples < 100; ++samples) costs.AddSample(0, 400'000);
  EXPECT_EQ(samples,
            4);  // the first alone says nothing; then 1/8 of the rest: 50,000, 94,000, 132,000
  for (samples = 0; costs.IsExpensive(0) && samples < 100; ++samples) costs.AddSample(0, 0);
  EXPECT_EQ(samples, 1);  // a half of 132,000
  // More cycles than a cost can hold.
  NodeCosts huge(1);
  huge.AddSample(0, ~uint64_t{0});
  EXPECT_TRUE(huge.IsExpensive(0));
}

TEST(NodeCostsTest, AThreadThatLostItsCoreInsideOfAKernelDoesNotMakeItExpensive) {
  NodeCosts costs(1);
  costs.AddSample(0, 80'000);
  for (int i = 0; i < 100; ++i) {
    costs.AddSample(0, 10'000'000);  // 4 ms of somebody else
    EXPECT_FALSE(costs.IsExpensive(0)) << i;
    costs.AddSample(0, 80'000);
    EXPECT_FALSE(costs.IsExpensive(0)) << i;
  }
  EXPECT_EQ(costs.Cycles(0), 80'000u);
  // A first measurement that was wrong is forgotten after a few.
  NodeCosts late(1);
  late.AddSample(0, 10'000'000);
  int samples = 0;
  for (; late.IsExpensive(0) && samples < 100; ++samples) late.AddSample(0, 2'000);
  EXPECT_EQ(samples, 7);  // 10,000,000 / 2^7 is below 100,000
}

// --- States of steps -----------------------------------------------------------------------------

TEST(FlatEngineTest, ThreadsThatRunStepsAtTheSameTimeKeepAStateEach) {
  testing::SetHook("state", [](KernelContext*) { return absl::OkStatus(); });
  testing::TestGraph graph;
  graph.Probe("n", {}, 0, "state");
  testing::TestStep step(1);
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<const Plan> plan,
                       Plan::Build(*graph.graph(), &step.device, nullptr));
  FlatEngine engine(plan);
  struct Nobody : StepEnd {
    void StepEnded(Step*) override {}
  } nobody;
  const auto run = [](Step* begun) {
    EXPECT_TRUE(begun->WorkFromRoots());
    EXPECT_OK(begun->TakeResult());
  };
  const auto state_of_a_step = [&] {
    Step* const begun = engine.Begin({.context = &step.context, .end = &nobody});
    run(begun);
    return begun;
  };
  Step* const mine = engine.Begin({.context = &step.context, .end = &nobody});
  Step* others = nullptr;
  Notification other_has_run;
  Notification go_on;
  std::thread other([&] {
    others = state_of_a_step();
    other_has_run.Notify();
    go_on.Wait();
    for (int i = 0; i < 10; ++i) EXPECT_EQ(state_of_a_step(), others);
  });
  other_has_run.Wait();
  EXPECT_NE(mine, others);
  run(mine);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(state_of_a_step(), mine);
  go_on.Notify();
  other.join();
  EXPECT_EQ(state_of_a_step(), mine);
  testing::ClearHooks();
}

// --- Batches -------------------------------------------------------------------------------------

// Runs a step of `count` unconnected nodes that are known to cost `cycles` each.
struct BatchOutcome {
  Status status;
  int64_t wakeups;
};
BatchOutcome RunKnownCosts(int count, uint32_t cycles) {
  testing::TestGraph graph;
  for (int i = 0; i < count; ++i) graph.Probe(std::to_string(i), {}, 0, "batch");
  testing::TestStep step(2);
  StatusOr<std::shared_ptr<const Plan>> plan = Plan::Build(*graph.graph(), &step.device, nullptr);
  if (!plan.ok()) return {plan.status(), 0};
  FlatEngine engine(*plan);
  for (uint32_t i = 0; i < (*plan)->nodes().size(); ++i) engine.costs().AddSample(i, cycles);
  struct Ended : StepEnd {
    void StepEnded(Step*) override { notification.Notify(); }
    Notification notification;
  } ended;
  Step* const begun = engine.Begin({.context = &step.context, .end = &ended});
  if (!begun->WorkFromRoots()) ended.notification.Wait();
  return {begun->TakeResult(), engine.wakeups};
}

TEST(FlatStepTest, CheapNodesThatAreWorthItTogetherRunOnSeveralThreads) {
  // The first kernel waits for one on another thread; alone it would give up.
  std::atomic<int> threads{0};
  thread_local bool counted = false;
  testing::SetHook("batch", [&](KernelContext*) -> Status {
    if (counted) return absl::OkStatus();
    counted = true;
    threads.fetch_add(1);
    const absl::Time end = absl::Now() + absl::Seconds(30);
    while (threads.load() < 2) {
      if (absl::Now() > end) return absl::InternalError("nobody else came");
      std::this_thread::yield();
    }
    return absl::OkStatus();
  });
  const BatchOutcome outcome = RunKnownCosts(64, NodeCosts::kExpensiveCycles - 1);
  counted = false;
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_GE(outcome.wakeups, 1);
  testing::ClearHooks();
}

TEST(FlatStepTest, NodesThatAreNotWorthItTogetherWakeNobody) {
  testing::SetHook("batch", [](KernelContext*) { return absl::OkStatus(); });
  // A few cheap nodes, and many that are too cheap to hand over.
  for (const auto& [count, cycles] : {std::pair(4, 40'000u), std::pair(500, 1'000u)}) {
    const BatchOutcome outcome = RunKnownCosts(count, cycles);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    EXPECT_EQ(outcome.wakeups, 0);
  }
  testing::ClearHooks();
}

}  // namespace
}  // namespace millrace
