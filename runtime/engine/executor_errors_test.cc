// SPDX-License-Identifier: Apache-2.0
//
// Steps that fail, graphs that cannot be planned, and how their errors read.
#include <atomic>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
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
#include "runtime/plan.h"
#include "runtime/rendezvous.h"
#include "runtime/step_context.h"
#include "runtime/testing/executor_fixture.h"
#include "runtime/testing/run_once.h"
#include "runtime/testing/step_ops.h"

// covers: steps: errors: the first one wins, the node is named once, the line that built it follows

namespace millrace {
namespace {

using testing::ExecutorTest;
using testing::SetAsyncHook;
using testing::SetHook;
using testing::TestGraph;
using testing::TestStep;

TEST_F(ExecutorTest, AnErrorStopsTheStepAndNamesOpAndNode) {
  TestGraph graph;
  Node* a = graph.Source("a", 1);
  Node* bad = graph.Probe("scope/bad", {a}, 1, "fail");
  graph.Probe("child", {bad}, 1, "sum");
  graph.Probe("after", {}, 1, "sum", {bad});
  TestStep step;
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  const Status status = executor->Run(step.context);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "TestProbe 'scope/bad': wanted\n\t [[{{node scope/bad}}]]");
  EXPECT_EQ(journal_.order(), std::vector<std::string>{"scope/bad"});
  EXPECT_TRUE(step.cancellation.IsCancelled());
  // The rendezvous passes the error on as Derived: another node's.
  const StatusOr<RendezvousKey> key =
      RendezvousKey::Parse(RendezvousKey::Make("/job:a/replica:0/task:0/device:CPU:0", 1,
                                               "/job:a/replica:0/task:0/device:CPU:0", "x", 0, 0));
  ASSERT_TRUE(key.ok());
  const Status sent = step.context.rendezvous->Send(*key, Tensor::Scalar<float>(1), false);
  EXPECT_TRUE(IsDerived(sent)) << sent;
  EXPECT_TRUE(absl::StrContains(sent.message(), "wanted")) << sent;
}

TEST_F(ExecutorTest, AnErrorStopsAStepThatCannotBeCancelledToo) {
  TestGraph graph;
  Node* bad = graph.Probe("bad", {}, 0, "fail");
  graph.Probe("other", {}, 0, "sum", {graph.NoOp("before")});
  static_cast<void>(bad);
  TestStep step;
  step.context.cancellation = nullptr;
  step.context.rendezvous = nullptr;
  EXPECT_EQ(MakeExecutor(graph, step)->Run(step.context).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(journal_.order(), std::vector<std::string>{"bad"});
}

TEST_F(ExecutorTest, AfterAnErrorTheNextStepStartsClean) {
  TestGraph graph;
  std::atomic<bool> fail{true};
  SetHook("sometimes", [&](KernelContext* ctx) -> Status {
    if (fail) return absl::AbortedError("not now");
    ctx->set_output(0, ctx->TakeInput(0));
    return absl::OkStatus();
  });
  Node* a = graph.Source("a", 1);
  Node* b = graph.Source("b", 2);
  Node* bad = graph.Probe("bad", {a}, 1, "sometimes");
  graph.Probe("sum", {bad, b, b}, 0, "sum");
  TestStep step;
  std::unique_ptr<Executor> executor = MakeExecutor(graph, step);
  for (int i = 0; i < 5; ++i) {
    fail = i % 2 == 0;
    CancellationManager cancellation;
    StepContext context = step.context;
    context.cancellation = &cancellation;
    context.rendezvous = MakeLocalRendezvous();
    EXPECT_EQ(executor->Run(context).ok(), i % 2 == 1);
  }
  EXPECT_EQ(last_, 5);
}

TEST_F(ExecutorTest, ExceptionsBecomeStatus) {
  struct Case {
    const char* name;
    std::function<void()> thrower;
    absl::StatusCode code;
    const char* text;
  };
  const std::vector<Case> cases = {
      {"bad_alloc", [] { throw std::bad_alloc(); }, absl::StatusCode::kResourceExhausted,
       "out of memory"},
      {"runtime_error", [] { throw std::runtime_error("onednn says no"); },
       absl::StatusCode::kInternal, "onednn says no"},
      {"int", [] { throw 3; }, absl::StatusCode::kInternal, "threw"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    SetHook("throw", [&](KernelContext*) -> Status {
      c.thrower();
      return absl::OkStatus();
    });
    SetAsyncHook("throw", [&](KernelContext*, AsyncKernel::DoneCallback) { c.thrower(); });
    for (const bool async : {false, true}) {
      TestGraph graph;
      if (async) {
        graph.ProbeAsync("thrower", {}, 0, "throw");
      } else {
        graph.Probe("thrower", {}, 0, "throw");
      }
      const Status status = RunOnce(graph);
      EXPECT_EQ(status.code(), c.code) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), c.text)) << status;
      EXPECT_TRUE(absl::StrContains(status.message(), "[[{{node thrower}}]]")) << status;
    }
  }
}

TEST_F(ExecutorTest, OutputsAreChecked) {
  SetHook("missing", [](KernelContext* ctx) -> Status {
    ctx->set_output(0, Tensor::Scalar<float>(1));
    return absl::OkStatus();
  });
  SetHook("wrong type", [](KernelContext* ctx) -> Status {
    for (int i = 0; i < 2; ++i) ctx->set_output(i, Tensor::Scalar<int32_t>(1));
    return absl::OkStatus();
  });
  for (const auto& [hook, text] :
       {std::pair("missing", "Missing 1-th output from"),
        std::pair("wrong type", "output 0 must be of type float, got int32")}) {
    TestGraph graph;
    graph.Probe("bad", {}, 2, hook);
    const Status status = RunOnce(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_TRUE(absl::StrContains(status.message(), text)) << status;
  }
}

TEST_F(ExecutorTest, APlanOfWhatCannotRunIsRefused) {
  TestStep step;
  const auto error = [&step](TestGraph& graph) {
    return Plan::Build(*graph.graph(), &step.device, nullptr).status();
  };
  {
    TestGraph graph;
    graph.Add("TestNoKernel", "nobody");
    const Status status = error(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "nobody")) << status;
  }
  {
    TestGraph graph;
    graph.Add("MadeUpOp", "strange");
    const Status status = error(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "MadeUpOp")) << status;
  }
  {
    TestGraph graph;
    graph.Add("TestThrowsInInit", "thrower");
    const Status status = error(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "building the kernel threw")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "thrower")) << status;
  }
  {
    TestGraph graph;
    Node* a = graph.NoOp("a");
    Node* b = graph.NoOp("b", {a});
    graph.graph()->AddControlEdge(b, a);
    const Status status = error(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "cycle")) << status;
  }
  {
    TestGraph graph;
    SetHook("unused", [](KernelContext*) { return absl::OkStatus(); });
    Node* probe = graph.Probe("open", {graph.Source("a", 1)}, 0, "unused");
    graph.graph()->RemoveNode(graph.graph()->FindNode("a"));
    static_cast<void>(probe);
    const Status status = error(graph);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "input 0 must be connected")) << status;
  }
}

TEST(NodeErrorTest, PutsWhereInFrontAndTheSuffixBehindOnce) {
  const Status plain = absl::InvalidArgumentError("axis must be >= 0, got -1");
  const Status once = NodeError(plain, "Tile", "a/b");
  EXPECT_EQ(once.message(), "Tile 'a/b': axis must be >= 0, got -1\n\t [[{{node a/b}}]]");
  EXPECT_EQ(NodeError(absl::InvalidArgumentError("Tile 'a/b': bad"), "Tile", "a/b").message(),
            "Tile 'a/b': bad\n\t [[{{node a/b}}]]");
  EXPECT_EQ(NodeError(once, "Call", "c").message(), absl::StrCat(once.message(), "\n\t [[c]]"));
  const Status derived = Derived(once);
  EXPECT_EQ(NodeError(derived, "_Recv", "r"), derived);
  EXPECT_EQ(WithoutDerivedMark(derived), once);
  EXPECT_EQ(Derived(derived), derived);
  EXPECT_TRUE(NodeError(absl::OkStatus(), "X", "x").ok());
}

}  // namespace
}  // namespace millrace
