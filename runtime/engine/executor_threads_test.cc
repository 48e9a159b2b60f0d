// SPDX-License-Identifier: Apache-2.0
//
// Several threads in one step: when they are woken, and that they lose and change nothing.
#include <x86intrin.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/cancellation.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "runtime/engine/executor.h"
#include "runtime/kernel.h"
#include "runtime/rendezvous.h"
#include "runtime/step_context.h"
#include "runtime/testing/executor_fixture.h"
#include "runtime/testing/run_once.h"
#include "runtime/testing/step_ops.h"

namespace millrace {
namespace {

using testing::AttrOf;
using testing::ExecutorTest;
using testing::SetAsyncHook;
using testing::SetHook;
using testing::TestGraph;
using testing::TestStep;

TEST_F(ExecutorTest, TwoExpensiveNodesRunAtTheSameTime) {
  // Each waits until the other one has begun: with one thread this would never end.
  std::atomic<int> begun{0};
  std::atomic<bool> meet{false};
  SetHook("work", [&](KernelContext*) -> Status {
    if (meet) {
      ++begun;
      while (begun < 2) std::this_thread::yield();
    }
    return absl::OkStatus();
  });
  TestGraph graph;
  graph.Probe("x", {}, 0, "work");
  graph.Probe("y", {}, 0, "work");
  TestStep step(2);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  meet = true;  // kernels that were never measured count as expensive
  ASSERT_TRUE(executor->Run(step.context).ok());
  EXPECT_EQ(begun, 2);
  EXPECT_GE(executor->counters().wakeups, 1);
}

TEST_F(ExecutorTest, OneExpensiveNodeAtATimeWakesNobody) {
  TestGraph graph;
  Node* previous = graph.NoOp("start");
  for (int i = 0; i < 10; ++i) {
    previous = graph.Add("TestSpin", absl::StrCat("spin", i), {},
                         {{"cycles", AttrOf(int64_t{100'000})}}, {previous});
  }
  TestStep step(2);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(executor->Run(step.context).ok());
  EXPECT_EQ(executor->counters().wakeups, 0);
}

TEST_F(ExecutorTest, MeasuredCheapNodesWakeNobodyAndBecomeExpensiveAgain) {
  std::atomic<int64_t> cycles{0};
  SetHook("work", [&](KernelContext*) -> Status {
    const auto begin = std::chrono::steady_clock::now();
    while (std::chrono::steady_clock::now() - begin < std::chrono::microseconds(cycles)) {
    }
    return absl::OkStatus();
  });
  TestGraph graph;
  for (int i = 0; i < 10; ++i) graph.Probe(absl::StrCat("n", i), {}, 0, "work");
  TestStep step(2);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  const auto wakeups_of = [&](int steps) {
    const int64_t before = executor->counters().wakeups;
    for (int i = 0; i < steps; ++i) EXPECT_TRUE(executor->Run(step.context).ok());
    return executor->counters().wakeups - before;
  };
  wakeups_of(100);
  // A descheduled thread makes a cheap node look expensive for a while: rare, not never.
  EXPECT_LT(wakeups_of(100), 20);
  cycles = 200;
  wakeups_of(100);
  EXPECT_GE(wakeups_of(20), 20);
}

TEST_F(ExecutorTest, ParallelStepsGiveTheResultsOfSerialOnes) {
  TestGraph graph;
  std::vector<TestGraph::In> last;
  for (int chain = 0; chain < 8; ++chain) {
    Node* node = graph.Source(absl::StrCat("s", chain), static_cast<float>(chain));
    for (int i = 0; i < 10; ++i) {
      Node* spin = graph.Add("TestSpin", absl::StrCat("spin", chain, "_", i), {},
                             {{"cycles", AttrOf(int64_t{40'000})}}, {node});
      node = graph.Probe(absl::StrCat("n", chain, "_", i), {node}, 1, "sum", {spin});
    }
    last.push_back(node);
  }
  graph.Probe("total", last, 0, "sum");
  for (const int threads : {1, 2, 4}) {
    TestStep step(threads);
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    for (int i = 0; i < 10; ++i) {
      ASSERT_TRUE(executor->Run(step.context).ok());
      EXPECT_EQ(last_, 28);
    }
  }
}

TEST_F(ExecutorTest, ErrorsWhileSeveralThreadsWorkEndTheStepOnce) {
  TestGraph graph;
  SetHook("spin or fail", [](KernelContext* ctx) -> Status {
    if (absl::EndsWith(ctx->node_name(), "7")) return absl::DataLossError("seven");
    return absl::OkStatus();
  });
  for (int i = 0; i < 40; ++i) {
    Node* spin =
        graph.Add("TestSpin", absl::StrCat("spin", i), {}, {{"cycles", AttrOf(int64_t{40'000})}});
    graph.Probe(absl::StrCat("n", i), {}, 0, "spin or fail", {spin});
  }
  TestStep step(4);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  for (int i = 0; i < 50; ++i) {
    CancellationManager cancellation;
    StepContext context = step.context;
    context.cancellation = &cancellation;
    context.rendezvous = MakeLocalRendezvous();
    EXPECT_EQ(executor->Run(context).code(), absl::StatusCode::kDataLoss);
  }
}

TEST_F(ExecutorTest, HandingOverInTheMiddleOfALongListOfEdgesLosesNoArrival) {
  // `root` makes two expensive nodes ready, hands one over and goes on with its many edges to
  // `join`, while those of the other node arrive there from another thread.
  constexpr int kEdges = 20'000;
  SetHook("spin", [](KernelContext* ctx) -> Status {
    const uint64_t begin = __rdtsc();
    while (__rdtsc() - begin < 30'000) {
    }
    ctx->set_output(0, Tensor::Scalar<float>(1));
    return absl::OkStatus();
  });
  TestGraph graph;
  Node* root = graph.Source("root", 1);
  Node* spins[2] = {graph.Probe("spin0", {}, 1, "spin", {root}),
                    graph.Probe("spin1", {}, 1, "spin", {root})};
  std::vector<TestGraph::In> inputs;
  for (int i = 0; i < kEdges; ++i) inputs.push_back(root);
  for (int i = 0; i < kEdges; ++i) inputs.push_back(spins[0]);
  for (int i = 0; i < kEdges; ++i) inputs.push_back(spins[1]);
  graph.Probe("join", inputs, 0, "sum");
  TestStep step(2);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  for (int i = 0; i < 50; ++i) {
    const Status status = executor->Run(step.context);
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(last_, 3 * kEdges);
  }
}

TEST_F(ExecutorTest, NothingIsLostWhenAKernelFinishesWhileTheLastLoopLeaves) {
  // Another thread spins for `done` and calls it the moment it sees it.
  constexpr int kNodes = 200, kSteps = 100;
  std::atomic<AsyncKernel::DoneCallback*> box{nullptr};
  SetAsyncHook("box", [&](KernelContext*, AsyncKernel::DoneCallback done) {
    box.store(new AsyncKernel::DoneCallback(std::move(done)));
  });
  TestGraph graph;
  Node* node = graph.NoOp("start");
  for (int i = 0; i < kNodes; ++i) {
    // Work for the loop before it leaves.
    for (int k = 0; k < i % 40; ++k) graph.NoOp(absl::StrCat("n", i, "_", k), {node});
    node = graph.ProbeAsync(absl::StrCat("n", i), {}, 0, "box", {node});
  }
  for (const int threads : {1, 2}) {
    TestStep step(threads);
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    std::atomic<bool> stop{false};
    std::thread finisher([&] {
      uint32_t seed = 1;
      while (!stop) {
        AsyncKernel::DoneCallback* done = box.exchange(nullptr);
        if (done == nullptr) continue;
        // A little later or earlier each time, to hit every moment of the other thread.
        seed = seed * 1664525u + 1013904223u;
        for (uint32_t i = 0; i < seed >> 22; ++i) asm volatile("");
        (*done)(absl::OkStatus());
        delete done;
      }
    });
    for (int i = 0; i < kSteps; ++i) {
      const Status status = executor->Run(step.context);
      ASSERT_TRUE(status.ok()) << status;
    }
    stop = true;
    finisher.join();
  }
}

}  // namespace
}  // namespace millrace
