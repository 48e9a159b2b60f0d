// SPDX-License-Identifier: Apache-2.0
//
// Steps that end early: by a deadline, also under kernels that never answer, and by a cancellation.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/cancellation.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "runtime/engine/detached_parts.h"
#include "runtime/engine/executor.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"
#include "runtime/rendezvous.h"
#include "runtime/step_context.h"
#include "runtime/testing/executor_fixture.h"
#include "runtime/testing/kernel_gate.h"
#include "runtime/testing/run_once.h"
#include "runtime/testing/step_ops.h"

// covers: steps: a kernel that drops its callback, calls it twice or never answers holds up neither
//   Run nor Close

namespace millrace {
namespace {

using testing::AttrOf;
using testing::ExecutorTest;
using testing::Gate;
using testing::SetAsyncHook;
using testing::SetHook;
using testing::TestGraph;
using testing::TestStep;

// --- Deadlines -----------------------------------------------------------------------------------

// A step whose parts have one owner, so that it can be left to a kernel that does not answer.
struct OwnedStep {
  explicit OwnedStep(int threads) : step(threads) {}
  TestStep step;
};

TEST_F(ExecutorTest, AKernelThatNeverAnswersIsNamedAtTheDeadlineAndKeepsWhatItUses) {
  for (const int threads : {1, 2}) {
    SCOPED_TRACE(threads);
    Gate gate;
    KernelContext* seen = nullptr;
    SetAsyncHook("silent", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
      seen = ctx;
      gate.Wait(ctx, std::move(done));
    });
    auto owned = std::make_shared<OwnedStep>(threads);
    const std::weak_ptr<OwnedStep> watch = owned;
    {
      TestGraph graph;
      Node* silent = graph.ProbeAsync("scope/silent", {graph.Source("a", 7)}, 1, "silent");
      graph.Probe("reader", {silent}, 0, "sum");
      std::unique_ptr<Executor> executor = MakeExecutor(graph, owned->step);
      const Status status = executor->Run(
          owned->step.context, {.deadline = absl::Now() + absl::Milliseconds(20), .keep = owned});
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_EQ(status.message(),
                "Timed out waiting for notification; the step waited for TestProbeAsync "
                "'scope/silent'");
      owned.reset();
    }
    ASSERT_FALSE(watch.expired());
    EXPECT_EQ(seen->input(0).scalar<float>(), 7);
    EXPECT_TRUE(seen->cancellation()->IsCancelled());
    EXPECT_EQ(seen->node_name(), "scope/silent");
    seen->set_output(0, Tensor::Scalar<float>(2));
    gate.Open();
    EXPECT_TRUE(watch.expired());
    EXPECT_FALSE(journal_.Has("reader"));
  }
}

TEST_F(ExecutorTest, DetachedPartsNameAKernelThatNeverAnswersAndLeaveItBehind) {
  for (const int threads : {1, 2}) {
    SCOPED_TRACE(threads);
    Gate gate;
    SetAsyncHook("silent", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
      gate.Wait(ctx, std::move(done));
    });
    auto owned = std::make_shared<OwnedStep>(threads);
    const std::weak_ptr<OwnedStep> watch = owned;
    {
      TestGraph graph;
      Node* silent = graph.ProbeAsync("scope/silent", {}, 1, "silent");
      graph.Probe("reader", {silent}, 0, "sum");
      std::unique_ptr<Executor> executor = MakeExecutor(graph, owned->step);
      const PartitionRun part = {executor.get(), &owned->step.context};
      DetachedParts parts;
      int ended = 0;
      Status result;
      parts.Start({&part, 1}, {.keep = std::move(owned)}, [&](Status status) {
        ++ended;
        result = std::move(status);
      });
      parts.EndOverdue().IgnoreError();
      EXPECT_EQ(ended, 0);
      EXPECT_TRUE(parts.LeaveSilent());
      EXPECT_EQ(ended, 1);
      EXPECT_EQ(result.code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_EQ(result.message(),
                "Timed out waiting for notification; the step waited for TestProbeAsync "
                "'scope/silent'");
      EXPECT_TRUE(parts.LeaveSilent());
    }
    EXPECT_FALSE(watch.expired());
    gate.Open();
    EXPECT_TRUE(watch.expired());
    EXPECT_FALSE(journal_.Has("reader"));
  }
}

TEST_F(ExecutorTest, AStepThatWasAbandonedIsNotInTheWayOfTheNextOne) {
  Gate gate;
  std::atomic<bool> wait{true};
  SetAsyncHook("silent", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    if (wait) return gate.Wait(ctx, std::move(done));
    ctx->set_output(0, Tensor::Scalar<float>(5));
    done(absl::OkStatus());
  });
  TestGraph graph;
  graph.Probe("reader", {graph.ProbeAsync("silent", {}, 1, "silent")}, 0, "sum");
  auto first = std::make_shared<OwnedStep>(2);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, first->step);
  const Status overdue = executor->Run(
      first->step.context, {.deadline = absl::Now() + absl::Milliseconds(20), .keep = first});
  EXPECT_EQ(overdue.code(), absl::StatusCode::kDeadlineExceeded) << overdue;
  CancellationManager cancellation;
  StepContext context = first->step.context;
  context.cancellation = &cancellation;
  context.rendezvous = MakeLocalRendezvous();
  wait = false;
  const Status status = executor->Run(context);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(last_, 5);
  gate.Open();
}

TEST_F(ExecutorTest, AnErrorBeforeTheDeadlineIsReportedInsteadOfIt) {
  Gate gate;
  SetAsyncHook("silent", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    gate.Wait(ctx, std::move(done));
  });
  TestGraph graph;
  Node* silent = graph.ProbeAsync("silent", {}, 0, "silent");
  graph.Probe("bad", {}, 0, "fail", {graph.NoOp("first")});
  graph.NoOp("after", {silent});
  auto owned = std::make_shared<OwnedStep>(1);
  std::unique_ptr<Executor> executor = MakeExecutor(graph, owned->step);
  const Status status = executor->Run(
      owned->step.context, {.deadline = absl::Now() + absl::Milliseconds(20), .keep = owned});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_EQ(status.message(), "TestProbe 'bad': wanted\n\t [[{{node bad}}]]");
  gate.Open();
}

TEST_F(ExecutorTest, WhatAnswersTheCancellationEndsAnOverdueStepWithoutBeingAbandoned) {
  // Without `keep` Run waits for the kernels, which answer soon.
  Gate gate;
  SetAsyncHook("late", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    gate.Wait(ctx, std::move(done));
  });
  TestGraph graph;
  for (int i = 0; i < 12; ++i) graph.ProbeAsync(absl::StrCat("late", i), {}, 0, "late");
  TestStep step;
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  CancellationManager::Token token;
  ASSERT_TRUE(step.cancellation.Register(
      &token, [&] { gate.Open(absl::CancelledError("wait was cancelled")); }));
  const Status status =
      executor->Run(step.context, {.deadline = absl::Now() + absl::Milliseconds(20)});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "TestProbeAsync 'late0', ")) << status;
  EXPECT_TRUE(absl::EndsWith(status.message(), " and 4 more")) << status;
}

// --- Cancellation --------------------------------------------------------------------------------

TEST_F(ExecutorTest, CancellationBetweenAnyTwoNodesStopsTheStep) {
  constexpr int kNodes = 20;
  for (int at = 0; at < kNodes; ++at) {
    journal_.Clear();
    TestStep step(2);
    SetHook("node", [&](KernelContext* ctx) -> Status {
      journal_.Add(ctx->node_name());
      if (journal_.order().size() == static_cast<size_t>(at + 1)) step.cancellation.StartCancel();
      ctx->set_output(0, ctx->TakeInput(0));
      return absl::OkStatus();
    });
    TestGraph graph;
    Node* node = graph.Source("a", 0);
    for (int i = 0; i < kNodes; ++i) node = graph.Probe(absl::StrCat("n", i), {node}, 1, "node");
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    const Status status = executor->Run(step.context);
    EXPECT_EQ(journal_.order().size(), static_cast<size_t>(at + 1));
    if (at + 1 < kNodes) {
      EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
      EXPECT_TRUE(IsDerived(status));
    }
  }
}

TEST_F(ExecutorTest, CancellationEndsAStepThatOnlyWaits) {
  SetAsyncHook("cancellable", [](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    auto shared = std::make_shared<AsyncKernel::DoneCallback>(std::move(done));
    CancellationManager::Token token;
    if (!ctx->cancellation()->Register(
            &token, [shared] { (*shared)(absl::CancelledError("wait was cancelled")); })) {
      (*shared)(absl::CancelledError("wait was cancelled"));
    }
  });
  for (const int threads : {1, 2}) {
    TestGraph graph;
    for (int i = 0; i < 5; ++i) {
      graph.NoOp(absl::StrCat("after", i),
                 {graph.ProbeAsync(absl::StrCat("wait", i), {}, 0, "cancellable")});
    }
    TestStep step(threads);
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    std::thread canceller([&] { step.cancellation.StartCancel(); });
    const Status status = executor->Run(step.context);
    canceller.join();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  }
}

TEST_F(ExecutorTest, ARecvThatNobodyServesEndsAtTheDeadlineOrByCancellation) {
  const std::string device = "/job:localhost/replica:0/task:0/device:CPU:0";
  TestGraph graph;
  Node* recv = graph.Add("_Recv", "recv", {},
                         {{"tensor_type", AttrOf(DT_FLOAT)},
                          {"tensor_name", AttrOf("nobody_sends_this")},
                          {"send_device", AttrOf(device)},
                          {"send_device_incarnation", AttrOf(int64_t{1})},
                          {"recv_device", AttrOf(device)}});
  graph.Probe("reader", {recv}, 0, "sum");
  {
    TestStep step;
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    const Status status =
        executor->Run(step.context, {.deadline = absl::Now() + absl::Milliseconds(20)});
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "Timed out waiting for notification"));
    EXPECT_EQ(executor->counters().blocking_waits, 1);
  }
  {
    TestStep step;
    std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
    std::thread canceller([&] { step.cancellation.StartCancel(); });
    EXPECT_EQ(executor->Run(step.context).code(), absl::StatusCode::kCancelled);
    canceller.join();
  }
}

TEST_F(ExecutorTest, ADeadlineThatPassedStopsBetweenNodes) {
  TestGraph graph;
  Node* a = graph.Source("a", 1);
  graph.Probe("never", {a}, 0, "sum");
  TestStep step;
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  const Status status = executor->Run(step.context, {.deadline = absl::InfinitePast()});
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(journal_.order().empty());
}

}  // namespace
}  // namespace millrace
