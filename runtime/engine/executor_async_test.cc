// SPDX-License-Identifier: Apache-2.0
//
// Asynchronous kernels: steps that wait for them, and kernels that break the rules of `done`.
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/tensor.h"
#include "core/visit.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "runtime/engine/detached_parts.h"
#include "runtime/engine/executor.h"
#include "runtime/kernel.h"
#include "runtime/testing/executor_fixture.h"
#include "runtime/testing/kernel_gate.h"
#include "runtime/testing/run_once.h"
#include "runtime/testing/step_ops.h"

// covers: steps: a kernel that drops its callback, calls it twice or never answers holds up neither
//   Run nor Close
// covers: steps: a step that waited for other tasks goes on without locks once its last tensor has
//   come, and may wait again
// covers: steps: a dropped done callback fails its node, a second call is ignored

namespace millrace {
namespace {

using testing::ExecutorTest;
using testing::Gate;
using testing::SetAsyncHook;
using testing::TestGraph;
using testing::TestStep;

// --- Steps that wait -----------------------------------------------------------------------------

TEST_F(ExecutorTest, WhatAMessageMadeReadyIsDoneByTheVisitOfItsThread) {
  Gate gate;
  SetAsyncHook("wait", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    gate.Wait(ctx, std::move(done));
  });
  TestGraph graph;
  // Three tensors of one message, and what each of them makes ready.
  for (int i = 0; i < 3; ++i) {
    Node* const recv = graph.ProbeAsync(absl::StrCat("recv", i), {}, 1, "wait");
    graph.NoOp(absl::StrCat("after", i), {recv});
  }
  graph.Probe("last", {graph.Source("a", 1)}, 0, "sum");
  TestStep step(2);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  for (int i = 0; i < 3; ++i) {
    Notification finished;
    Status result;
    const PartitionRun part = {executor.get(), &step.context};
    DetachedParts parts;
    parts.Start({&part, 1}, {}, [&](Status status) {
      result = status;
      finished.Notify();
    });
    gate.AwaitWaiters(3);
    Visit visit;
    EXPECT_EQ(gate.Open(), 3u);
    Visit::Work* const work = visit.End();
    ASSERT_NE(work, nullptr);
    EXPECT_FALSE(finished.HasBeenNotified());
    Visit::Run(work);
    EXPECT_TRUE(finished.HasBeenNotified());
    EXPECT_TRUE(result.ok()) << result;
  }
  EXPECT_EQ(executor->counters().wakeups, 0);
}

// The visit that runs all of the rest is the step's only thread, and goes on as one, until a kernel
// makes the step wait once more.
TEST_F(ExecutorTest, AStepThatIsOneThreadsAgainWaitsAndIsTakenUpOnceMore) {
  for (const int threads : {1, 2}) {
    SCOPED_TRACE(threads);
    Gate gate;
    SetAsyncHook("wait", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
      gate.Wait(ctx, std::move(done));
    });
    TestGraph graph;
    std::vector<TestGraph::In> received;
    for (int i = 0; i < 3; ++i) {
      received.push_back(graph.ProbeAsync(absl::StrCat("recv", i), {}, 1, "wait"));
    }
    Node* node = graph.Probe("sum", received, 1, "sum");
    for (int i = 0; i < 20; ++i) node = graph.Probe(absl::StrCat("n", i), {node}, 1, "sum");
    node = graph.ProbeAsync("again", {node}, 1, "wait");
    for (int i = 20; i < 40; ++i) node = graph.Probe(absl::StrCat("n", i), {node}, 1, "sum");
    graph.Probe("last", {node}, 0, "sum");
    TestStep step(threads);
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    for (int i = 0; i < 20; ++i) {
      last_ = 0;
      Notification finished;
      Status result;
      const PartitionRun part = {executor.get(), &step.context};
      DetachedParts parts;
      parts.Start({&part, 1}, {}, [&](Status status) {
        result = status;
        finished.Notify();
      });
      for (const size_t waiters : {size_t{3}, size_t{1}}) {
        gate.AwaitWaiters(waiters);
        EXPECT_FALSE(finished.HasBeenNotified());
        Visit visit;
        EXPECT_EQ(gate.Open(), waiters);
        if (Visit::Work* const work = visit.End()) Visit::Run(work);
      }
      finished.Wait();
      EXPECT_TRUE(result.ok()) << result;
      EXPECT_EQ(last_, 1);  // what the gate gives "again"
    }
  }
}

TEST_F(ExecutorTest, AHostThatWaitsIsAskedBeforeAVisit) {
  Gate gate;
  SetAsyncHook("wait", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    gate.Wait(ctx, std::move(done));
  });
  TestGraph graph;
  graph.NoOp("after", {graph.ProbeAsync("recv", {}, 1, "wait")});
  TestStep step(2);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  Visit::Work* work = nullptr;
  std::thread network([&] {
    gate.AwaitWaiters(1);
    // The host has nothing left to do; it parks soon.
    while (executor->counters().blocking_waits == 0) std::this_thread::yield();
    Visit visit;
    EXPECT_EQ(gate.Open(), 1u);
    work = visit.End();
    if (work != nullptr) Visit::Run(work);
  });
  EXPECT_TRUE(executor->Run(step.context).ok());
  network.join();
  EXPECT_EQ(work, nullptr);
  EXPECT_EQ(executor->counters().wakeups, 0);
}

TEST_F(ExecutorTest, MoreWaitingKernelsThanThreadsDoNotStopAStep) {
  for (const int threads : {1, 2}) {
    SCOPED_TRACE(threads);
    journal_.Clear();
    Gate gate;
    SetAsyncHook("wait", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
      gate.Wait(ctx, std::move(done));
    });
    TestGraph graph;
    std::vector<TestGraph::In> waiting;
    for (int i = 0; i < 50; ++i) {
      waiting.push_back(graph.ProbeAsync(absl::StrCat("wait", i), {}, 1, "wait"));
    }
    graph.Probe("sum", waiting, 0, "sum");
    graph.Probe("meanwhile", {graph.Source("a", 1)}, 0, "sum");
    TestStep step(threads);
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    std::thread opener([&] {
      gate.AwaitWaiters(50);
      gate.Open();
    });
    ASSERT_TRUE(executor->Run(step.context).ok());
    opener.join();
    EXPECT_TRUE(journal_.Has("meanwhile"));
    EXPECT_EQ(last_, 50);
  }
}

TEST_F(ExecutorTest, AnAsynchronousKernelMayFinishBeforeItReturns) {
  SetAsyncHook("now", [](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    ctx->set_output(0, Tensor::Scalar<float>(ctx->input(0).scalar<float>() + 1));
    done(absl::OkStatus());
  });
  TestGraph graph;
  Node* node = graph.Source("a", 0);
  for (int i = 0; i < 100; ++i) node = graph.ProbeAsync(absl::StrCat("n", i), {node}, 1, "now");
  graph.Probe("sum", {node}, 0, "sum");
  TestStep step(2);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(executor->Run(step.context).ok());
  EXPECT_EQ(last_, 100);
  EXPECT_EQ(executor->counters().wakeups, 0);
  EXPECT_EQ(executor->counters().blocking_waits, 0);
}

TEST_F(ExecutorTest, LongChainsOfWaitingKernelsKeepTheStackFlat) {
  // Each node is finished by another thread, which must not run the rest of the step inside.
  Gate gate;
  SetAsyncHook("wait", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    gate.Wait(ctx, std::move(done));
  });
  TestGraph graph;
  Node* node = graph.Source("a", 0);
  for (int i = 0; i < 500; ++i) node = graph.ProbeAsync(absl::StrCat("n", i), {node}, 1, "wait");
  graph.Probe("sum", {node}, 0, "sum");
  TestStep step(1);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  std::thread opener([&] {
    for (size_t opened = 0; opened < 500;) {
      gate.AwaitWaiters(1);
      opened += gate.Open();
    }
  });
  ASSERT_TRUE(executor->Run(step.context).ok());
  opener.join();
  EXPECT_EQ(last_, 1);
}

TEST_F(ExecutorTest, AnErrorOfAnAsynchronousKernelEndsTheStepOnce) {
  for (const int threads : {1, 2}) {
    Gate gate;
    SetAsyncHook("wait", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
      gate.Wait(ctx, std::move(done));
    });
    TestGraph graph;
    for (int i = 0; i < 8; ++i) graph.ProbeAsync(absl::StrCat("n", i), {}, 1, "wait");
    TestStep step(threads);
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    std::atomic<int> calls{0};
    Notification finished;
    Status result;
    const PartitionRun part = {executor.get(), &step.context};
    DetachedParts parts;
    parts.Start({&part, 1}, {}, [&](Status status) {
      ++calls;
      result = status;
      finished.Notify();
    });
    gate.AwaitWaiters(8);
    EXPECT_EQ(calls, 0);
    EXPECT_EQ(gate.Open(absl::OutOfRangeError("no more")), 8u);
    finished.Wait();
    EXPECT_EQ(calls, 1);
    EXPECT_EQ(result.code(), absl::StatusCode::kOutOfRange);
    EXPECT_TRUE(absl::StrContains(result.message(), "TestProbeAsync 'n")) << result;
  }
}

TEST_F(ExecutorTest, DetachedPartsReturnWhileKernelsWait) {
  for (const int threads : {1, 2}) {
    journal_.Clear();
    Gate gate;
    SetAsyncHook("wait", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
      gate.Wait(ctx, std::move(done));
    });
    TestGraph graph;
    Node* waiting = graph.ProbeAsync("wait", {}, 1, "wait");
    Node* a = graph.Probe("a", {waiting}, 1, "sum");
    graph.Probe("b", {a, waiting}, 0, "sum");
    TestStep step(threads);
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    Notification finished;
    const PartitionRun part = {executor.get(), &step.context};
    DetachedParts parts;
    parts.Start({&part, 1}, {}, [&](Status status) {
      EXPECT_TRUE(status.ok()) << status;
      finished.Notify();
    });
    EXPECT_FALSE(finished.HasBeenNotified());
    EXPECT_EQ(gate.Open(), 1u);
    finished.Wait();
    EXPECT_EQ(last_, 2);
  }
}

// --- Kernels that break the rules of `done` ------------------------------------------------------

TEST_F(ExecutorTest, AKernelThatDropsDoneFailsItsNode) {
  SetAsyncHook("drop", [](KernelContext*, AsyncKernel::DoneCallback) {});
  for (const int threads : {1, 2}) {
    TestGraph graph;
    graph.NoOp("after", {graph.ProbeAsync("drop", {}, 0, "drop")});
    const Status status = RunOnce(graph, threads);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_EQ(status.message(),
              "TestProbeAsync 'drop': the kernel dropped its done callback without calling it"
              "\n\t [[{{node drop}}]]");
  }
}

TEST_F(ExecutorTest, AKernelThatDropsDoneLaterOnAnotherThreadEndsTheStep) {
  Gate gate;
  SetAsyncHook("wait", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    gate.Wait(ctx, std::move(done));
  });
  TestGraph graph;
  graph.NoOp("after", {graph.ProbeAsync("drop", {}, 0, "wait")});
  TestStep step;
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  std::thread dropper([&] {
    gate.AwaitWaiters(1);
    gate.Drop();
  });
  const Status status = executor->Run(step.context);
  dropper.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "TestProbeAsync 'drop': the kernel dropped"))
      << status;
}

TEST_F(ExecutorTest, ASecondCallOfDoneChangesNothing) {
  SetAsyncHook("twice", [](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    ctx->set_output(0, Tensor::Scalar<float>(1));
    done(absl::OkStatus());
    done(absl::InternalError("again"));
  });
  TestGraph graph;
  Node* node = graph.ProbeAsync("twice", {}, 1, "twice");
  graph.Probe("sum", {node}, 0, "sum");
  TestStep step(2);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  for (int i = 0; i < 3; ++i) {
    const Status status = executor->Run(step.context);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ(last_, 1);
  }
}

TEST_F(ExecutorTest, AKernelThatThrowsAfterItGaveDoneAwayHasFailedWhenDoneIsCalled) {
  Gate gate;
  SetAsyncHook("throw", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    gate.Wait(ctx, std::move(done));
    throw std::runtime_error("too late");
  });
  TestGraph graph;
  graph.NoOp("after", {graph.ProbeAsync("thrower", {}, 1, "throw")});
  TestStep step;
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  Notification finished;
  Status result;
  const PartitionRun part = {executor.get(), &step.context};
  DetachedParts parts;
  parts.Start({&part, 1}, {}, [&](Status status) {
    result = status;
    finished.Notify();
  });
  EXPECT_FALSE(finished.HasBeenNotified());
  EXPECT_EQ(gate.Open(), 1u);
  finished.Wait();
  EXPECT_EQ(result.message(),
            "TestProbeAsync 'thrower': the kernel threw: too late\n\t [[{{node thrower}}]]");
}

}  // namespace
}  // namespace millrace
