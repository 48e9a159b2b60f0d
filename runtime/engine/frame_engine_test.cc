// SPDX-License-Identifier: Apache-2.0
//
// Loops: what runs in which iteration, dead values, the window of parallel iterations, and how a
// step ends in the middle of one. Whole random programs are in //tests/loops.
#include "runtime/engine/frame_engine.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "core/cancellation.h"
#include "core/mutex.h"
#include "core/notification.h"
#include "core/status.h"
#include "core/testing/tensor_testing.h"
#include "gtest/gtest.h"
#include "runtime/engine/executor.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"
#include "runtime/rendezvous.h"
#include "runtime/step_stats.h"
#include "runtime/testing/run_once.h"
#include "runtime/testing/step_ops.h"

// covers: steps: loops: which iteration each node runs in, dead values, the window of parallel
//   iterations, kernels that answer late or never, errors, deadlines and cancellations in the
//   middle, traces

namespace millrace {
namespace {

using testing::AttrOf;
using testing::SetAsyncHook;
using testing::SetHook;
using testing::TestGraph;
using testing::TestStep;

// Counts runs by node and iteration.
class Journal {
 public:
  void Add(const KernelContext& ctx) {
    MutexLock lock(&mu_);
    ++runs_[ctx.node_name()][ctx.iteration()];
  }
  // "0 1 2": the iterations in which the node ran, each once.
  std::string Of(const std::string& node) {
    MutexLock lock(&mu_);
    std::string text;
    for (const auto& [iteration, count] : runs_[node]) {
      absl::StrAppend(&text, text.empty() ? "" : " ", iteration);
      if (count != 1) absl::StrAppend(&text, "x", count);
    }
    return text;
  }
  void Clear() {
    MutexLock lock(&mu_);
    runs_.clear();
  }

 private:
  Mutex mu_;
  std::map<std::string, std::map<int64_t, int>> runs_ ABSL_GUARDED_BY(mu_);
};

class FrameEngineTest : public ::testing::Test {
 protected:
  FrameEngineTest() {
    SetHook("add", [this](KernelContext* ctx) -> Status {
      journal_.Add(*ctx);
      float sum = 0;
      for (int i = 0; i < ctx->num_inputs(); ++i) sum += ctx->input(i).scalar<float>();
      for (int i = 0; i < ctx->num_outputs(); ++i) ctx->set_output(i, Tensor::Scalar<float>(sum));
      return absl::OkStatus();
    });
    SetHook("result", [this](KernelContext* ctx) -> Status {
      MutexLock lock(&mu_);
      results_[ctx->node_name()].push_back(ctx->input(0).scalar<float>());
      return absl::OkStatus();
    });
  }
  ~FrameEngineTest() override { testing::ClearHooks(); }

  // The values that the probe `node` with the hook "result" got.
  std::vector<float> Results(const std::string& node) {
    MutexLock lock(&mu_);
    return std::exchange(results_[node], {});
  }

  // while (i < limit) i = body(i); the Exit of i.
  struct While {
    Node *enter, *merge, *cond, *ways, *exit;
  };
  While AddWhile(TestGraph& graph, const std::string& name, TestGraph::In start, float limit,
                 const std::function<TestGraph::In(TestGraph::In)>& body,
                 int64_t parallel_iterations = 10) {
    While w;
    Node* const bound = graph.Enter(name + "/limit", graph.Source(name + "/limit_value", limit),
                                    name, true, parallel_iterations);
    w.enter = graph.Enter(name + "/enter", start, name, false, parallel_iterations);
    w.merge = graph.LoopMerge(name + "/merge", w.enter);
    Node* const less =
        graph.Add("Less", name + "/less", {{w.merge, 0}, bound}, {{"T", AttrOf(DT_FLOAT)}});
    w.cond = graph.LoopCond(name + "/cond", less);
    w.ways = graph.Switch(name + "/switch", {w.merge, 0}, w.cond);
    w.exit = graph.Exit(name + "/exit", {w.ways, 0});
    graph.Close(w.merge, body({w.ways, 1}));
    return w;
  }

  Mutex mu_;
  std::map<std::string, std::vector<float>> results_ ABSL_GUARDED_BY(mu_);
  Journal journal_;
};

// --- What runs when ------------------------------------------------------------------------------

TEST_F(FrameEngineTest, ALoopRunsItsBodyOnceForEachIteration) {
  for (const int threads : {1, 2, 4}) {
    for (const int64_t parallel : {1, 2, 10}) {
      for (const int times : {0, 1, 5, 1000}) {
        SCOPED_TRACE(absl::StrCat(threads, " threads, ", parallel, " at once, ", times, " times"));
        journal_.Clear();
        TestGraph graph;
        Node* const one = graph.Enter("one", graph.Source("one_value", 1), "loop", true, parallel);
        const While loop = AddWhile(
            graph, "loop", graph.Source("zero", 0), static_cast<float>(times),
            [&](TestGraph::In i) {
              return graph.Probe("body", {i, one}, 1, "add");
            },
            parallel);
        graph.Probe("got", {loop.exit}, 0, "result");
        TestStep step(threads);
        const auto executor = MakeExecutor(graph, step);
        for (int run = 0; run < 3; ++run) {
          journal_.Clear();
          ASSERT_OK(executor->Run(step.context));
          EXPECT_EQ(Results("got"), std::vector<float>{static_cast<float>(times)});
        }
        std::string iterations;
        for (int i = 0; i < times; ++i) absl::StrAppend(&iterations, i == 0 ? "" : " ", i);
        EXPECT_EQ(journal_.Of("body"), iterations);
      }
    }
  }
}

TEST_F(FrameEngineTest, WhatEntersOnceIsThereInTheFirstIterationOnly) {
  TestGraph graph;
  Node* const one = graph.Enter("one", graph.Source("one_value", 1), "loop", true);
  Node* const once = graph.Enter("once", graph.Source("once_value", 7), "loop");
  const While loop = AddWhile(graph, "loop", graph.Source("zero", 0), 3, [&](TestGraph::In i) {
    graph.Probe("with_constant", {i, one}, 0, "add");
    graph.Probe("with_once", {i, once}, 0, "add");
    return graph.Probe("body", {i, one}, 1, "add");
  });
  graph.Probe("got", {loop.exit}, 0, "result");
  for (const int threads : {1, 2}) {
    journal_.Clear();
    ASSERT_OK(RunOnce(graph, threads));
    EXPECT_EQ(journal_.Of("with_constant"), "0 1 2");
    EXPECT_EQ(journal_.Of("with_once"), "0");
    EXPECT_EQ(Results("got"), std::vector<float>{3});
  }
}

TEST_F(FrameEngineTest, LoopsInsideOfLoopsBeginAnewInEachIteration) {
  // for i < 4: for j < 3: sum += 1
  for (const int threads : {1, 2, 4}) {
    for (const int64_t parallel : {1, 3}) {
      SCOPED_TRACE(absl::StrCat(threads, " threads, ", parallel, " at once"));
      TestGraph graph;
      Node* const one_value = graph.Source("one_value", 1);
      Node* const one = graph.Enter("one", one_value, "outer", true, parallel);
      // The sum is the outer loop's second variable.
      Node* const sum_enter =
          graph.Enter("sum/enter", graph.Source("zero_sum", 0), "outer", false, parallel);
      Node* const sum = graph.LoopMerge("sum", sum_enter);
      const While outer = AddWhile(
          graph, "outer", graph.Source("zero", 0), 4,
          [&](TestGraph::In i) {
            return graph.Probe("outer_body", {i, one}, 1, "add");
          },
          parallel);
      Node* const sum_ways = graph.Switch("sum/switch", {sum, 0}, outer.cond);
      Node* const sum_exit = graph.Exit("sum/exit", {sum_ways, 0});
      Node* const inner_one = graph.Enter("inner_one", one, "inner", true, parallel);
      Node* const start = graph.Identity("start", {sum_ways, 1});
      // j = 0 in each iteration of the outer loop; alive exactly when sum is.
      Node* const zero = graph.Source("inner_zero", 0, {start});
      Node* const s_enter = graph.Enter("s/enter", start, "inner", false, parallel);
      Node* const s = graph.LoopMerge("s", s_enter);
      Node* const j_enter = graph.Enter("j/enter", zero, "inner", false, parallel);
      Node* const j = graph.LoopMerge("j", j_enter);
      Node* const three =
          graph.Enter("three", graph.Source("three_value", 3, {start}), "inner", true, parallel);
      Node* const less = graph.Add("Less", "j/less", {{j, 0}, three}, {{"T", AttrOf(DT_FLOAT)}});
      Node* const cond = graph.LoopCond("j/cond", less);
      Node* const j_ways = graph.Switch("j/switch", {j, 0}, cond);
      Node* const s_ways = graph.Switch("s/switch", {s, 0}, cond);
      graph.Close(j, graph.Probe("j/body", {{j_ways, 1}, inner_one}, 1, "add"));
      graph.Close(s, graph.Probe("s/body", {{s_ways, 1}, inner_one}, 1, "add"));
      Node* const s_exit = graph.Exit("s/exit", {s_ways, 0});
      graph.Close(sum, s_exit);
      graph.Probe("got", {sum_exit}, 0, "result");
      graph.Probe("got_i", {outer.exit}, 0, "result");
      TestStep step(threads);
      const auto executor = MakeExecutor(graph, step);
      for (int run = 0; run < 5; ++run) {
        journal_.Clear();
        ASSERT_OK(executor->Run(step.context));
        EXPECT_EQ(Results("got"), std::vector<float>{12});
        EXPECT_EQ(Results("got_i"), std::vector<float>{4});
        EXPECT_EQ(journal_.Of("s/body"), "0x4 1x4 2x4");
        EXPECT_EQ(journal_.Of("outer_body"), "0 1 2 3");
      }
    }
  }
}

// --- Dead values ---------------------------------------------------------------------------------

TEST_F(FrameEngineTest, ALoopOnTheUntakenBranchIsDead) {
  for (const int threads : {1, 2}) {
    for (const bool taken : {false, true}) {
      SCOPED_TRACE(taken);
      journal_.Clear();
      TestGraph graph;
      Node* const pred = graph.Bool("pred", taken);
      Node* const start = graph.Switch("start", graph.Source("zero", 0), pred);
      Node* const one_value = graph.Switch("one_value", graph.Source("one_source", 1), pred);
      Node* const one = graph.Enter("one", {one_value, 1}, "loop", true);
      const While loop = AddWhile(graph, "loop", {start, 1}, 3, [&](TestGraph::In i) {
        return graph.Probe("body", {i, one}, 1, "add");
      });
      Node* const merged = graph.Merge("merged", {{start, 0}, loop.exit});
      graph.Probe("got", {{merged, 0}}, 0, "result");
      graph.Probe("after_loop", {loop.exit}, 1, "add");
      ASSERT_OK(RunOnce(graph, threads));
      EXPECT_EQ(Results("got"), std::vector<float>{taken ? 3.f : 0.f});
      EXPECT_EQ(journal_.Of("body"), taken ? "0 1 2" : "");
      EXPECT_EQ(journal_.Of("after_loop"), taken ? "0" : "");
    }
  }
}

// A dead Enter that comes before the Merge's control inputs is not forgotten.
TEST_F(FrameEngineTest, ADeadEnterCountsWhateverArrivesLater) {
  for (const int threads : {1, 2}) {
    TestGraph graph;
    Node* const dead = graph.Switch("dead", graph.Source("zero", 0), graph.Bool("no", false));
    Node* const enter = graph.Enter("enter", {dead, 1}, "loop");
    Node* late = graph.Source("late0", 1);
    for (int i = 1; i < 20; ++i) late = graph.Identity(absl::StrCat("late", i), late);
    Node* const late_enter = graph.Enter("late", late, "loop");
    Node* const first_control = graph.NoOp("control1", {late_enter});
    Node* const second_control = graph.NoOp("control2", {first_control});
    Node* const merge = graph.LoopMerge("merge", enter, {first_control, second_control});
    Node* const cond = graph.LoopCond(
        "cond", graph.Add("Less", "less", {{merge, 0}, {merge, 0}}, {{"T", AttrOf(DT_FLOAT)}}));
    Node* const ways = graph.Switch("switch", {merge, 0}, cond);
    graph.Close(merge, {ways, 1});
    Node* const exit = graph.Exit("exit", {ways, 0});
    Node* const merged = graph.Merge("merged", {{dead, 0}, exit});
    graph.Probe("got", {{merged, 0}}, 0, "result");
    ASSERT_OK(RunOnce(graph, threads));
    EXPECT_EQ(Results("got"), std::vector<float>{0});
  }
}

TEST_F(FrameEngineTest, BranchesInsideOfALoopAreTakenAnewInEachIteration) {
  // for i < 6: if i < 3: x += 1 else x += 10
  for (const int threads : {1, 2}) {
    for (const int64_t parallel : {1, 10}) {
      journal_.Clear();
      TestGraph graph;
      Node* const one = graph.Enter("one", graph.Source("one_value", 1), "loop", true, parallel);
      Node* const ten = graph.Enter("ten", graph.Source("ten_value", 10), "loop", true, parallel);
      Node* const half = graph.Enter("half", graph.Source("half_value", 3), "loop", true, parallel);
      Node* const x_enter = graph.Enter("x/enter", graph.Source("x0", 0), "loop", false, parallel);
      Node* const x = graph.LoopMerge("x", x_enter);
      TestGraph::In i(nullptr);
      const While loop = AddWhile(
          graph, "loop", graph.Source("zero", 0), 6,
          [&](TestGraph::In in) {
            i = in;
            return graph.Probe("body", {in, one}, 1, "add");
          },
          parallel);
      Node* const x_ways = graph.Switch("x/switch", {x, 0}, loop.cond);
      Node* const early = graph.Add("Less", "early", {i, half}, {{"T", AttrOf(DT_FLOAT)}});
      Node* const branch = graph.Switch("branch", {x_ways, 1}, early);
      Node* const low = graph.Probe("low", {{branch, 1}, one}, 1, "add");
      Node* const high = graph.Probe("high", {{branch, 0}, ten}, 1, "add");
      Node* const merged = graph.Merge("merged", {high, low});
      graph.Close(x, {merged, 0});
      graph.Probe("got", {graph.Exit("x/exit", {x_ways, 0})}, 0, "result");
      ASSERT_OK(RunOnce(graph, threads));
      EXPECT_EQ(Results("got"), std::vector<float>{33});
      EXPECT_EQ(journal_.Of("low"), "0 1 2");
      EXPECT_EQ(journal_.Of("high"), "3 4 5");
    }
  }
}

// --- Straight loops ------------------------------------------------------------------------------

// A traced step runs its nodes as they become ready; other steps run a straight loop in a fixed
// order. The results are the same, and each node runs in the same iterations.
TEST_F(FrameEngineTest, AStraightLoopIsTheLoopNodeByNode) {
  SetHook("take", [this](KernelContext* ctx) -> Status {
    journal_.Add(*ctx);
    const Tensor a = ctx->TakeInput(0), b = ctx->TakeInput(1);
    ctx->set_output(0, Tensor::Scalar<float>(a.scalar<float>() + b.scalar<float>()));
    return absl::OkStatus();
  });
  const auto less = [](TestGraph& graph, const char* name, TestGraph::In a, TestGraph::In b) {
    return graph.Add("Less", name, {a, b}, {{"T", AttrOf(DT_FLOAT)}});
  };
  const std::vector<std::string> probes = {"early",  "late",  "after_early", "after_late",
                                           "either", "takes", "constant_too"};
  for (const int threads : {1, 2}) {
    for (const int64_t parallel : {1, 10}) {
      for (const int times : {0, 1, 2, 40, 600}) {
        SCOPED_TRACE(absl::StrCat(threads, " threads, ", parallel, " at once, ", times, " times"));
        TestGraph graph;
        const auto constant = [&](const char* name, float value) {
          return graph.Enter(name, graph.Source(absl::StrCat(name, "_value"), value), "loop", true,
                             parallel);
        };
        Node* const one = constant("one", 1);
        Node* const half = constant("half", static_cast<float>(times / 2));
        Node* const yes = graph.Enter("yes", graph.Bool("yes_value", true), "loop", true, parallel);
        // Two variables change places, so that one is overwritten before the other is read.
        Node* const x = graph.LoopMerge(
            "x", graph.Enter("x/enter", graph.Source("x0", 1), "loop", false, parallel));
        Node* const y = graph.LoopMerge(
            "y", graph.Enter("y/enter", graph.Source("y0", 2), "loop", false, parallel));
        TestGraph::In i(nullptr);
        const While loop = AddWhile(
            graph, "loop", graph.Source("zero", 0), static_cast<float>(times),
            [&](TestGraph::In in) {
              i = in;
              return graph.Probe("takes", {in, one}, 1, "take");
            },
            parallel);
        Node* const x_ways = graph.Switch("x/switch", {x, 0}, loop.cond);
        Node* const y_ways = graph.Switch("y/switch", {y, 0}, loop.cond);
        // A branch, what waits for it, and what runs on either side.
        Node* const branch = graph.Switch("branch", {x_ways, 1}, less(graph, "is_early", i, half));
        Node* const early = graph.Probe("early", {{branch, 1}, one}, 1, "add");
        Node* const late = graph.Probe("late", {{branch, 0}}, 1, "add");
        graph.Probe("after_early", {i}, 0, "add", {early});
        graph.Probe("after_late", {i}, 0, "add", {late});
        Node* const merged = graph.Merge("merged", {early, late});
        graph.Probe("which", {{merged, 0}}, 0, "add");
        Node* const trigger = graph.Add("ControlTrigger", "trigger", {}, {}, {early, late});
        graph.Probe("either", {i}, 0, "add", {trigger});
        // A branch on what does not change.
        Node* const always = graph.Switch("always", {y_ways, 1}, yes);
        Node* const passed = graph.Identity("passed", one);
        graph.Close(x, graph.Probe("constant_too", {{always, 1}, passed}, 1, "add"));
        graph.Close(y, {merged, 0});
        graph.Probe("got_x", {graph.Exit("x/exit", {x_ways, 0})}, 0, "result");
        graph.Probe("got_y", {graph.Exit("y/exit", {y_ways, 0})}, 0, "result");
        graph.Probe("got_i", {loop.exit}, 0, "result");
        TestStep step(threads);
        const auto executor = MakeExecutor(graph, step);
        journal_.Clear();
        StepStatsCollector collector;
        ASSERT_OK(executor->Run(step.context, {.stats = &collector}));
        std::vector<std::vector<float>> results = {Results("got_x"), Results("got_y"),
                                                   Results("got_i")};
        EXPECT_EQ(results[2], std::vector<float>{static_cast<float>(times)});
        std::vector<std::string> runs;
        for (const std::string& probe : probes) runs.push_back(journal_.Of(probe));
        for (int run = 0; run < 3; ++run) {
          journal_.Clear();
          ASSERT_OK(executor->Run(step.context));
          EXPECT_EQ(Results("got_x"), results[0]);
          EXPECT_EQ(Results("got_y"), results[1]);
          EXPECT_EQ(Results("got_i"), results[2]);
          for (size_t p = 0; p < probes.size(); ++p) {
            EXPECT_EQ(journal_.Of(probes[p]), runs[p]) << probes[p];
          }
        }
      }
    }
  }
}

// A loop in which one variable ends before the others must not run as a straight loop.
TEST_F(FrameEngineTest, AVariableMayEndBeforeTheLoop) {
  for (const int threads : {1, 2}) {
    for (const int64_t parallel : {1, 10}) {
      TestGraph graph;
      Node* const one = graph.Enter("one", graph.Source("one_value", 1), "loop", true, parallel);
      Node* const few = graph.Enter("few", graph.Source("few_value", 3), "loop", true, parallel);
      Node* const x = graph.LoopMerge(
          "x", graph.Enter("x/enter", graph.Source("x0", 5), "loop", false, parallel));
      TestGraph::In i(nullptr);
      const While loop = AddWhile(
          graph, "loop", graph.Source("zero", 0), 6,
          [&](TestGraph::In in) {
            i = in;
            return graph.Probe("body", {in, one}, 1, "add");
          },
          parallel);
      Node* const is_early = graph.Add("Less", "early", {i, few}, {{"T", AttrOf(DT_FLOAT)}});
      Node* const x_ways = graph.Switch("x/switch", {x, 0}, is_early);
      graph.Close(x, graph.Probe("x_body", {{x_ways, 1}, one}, 1, "add"));
      graph.Probe("got_x", {graph.Exit("x/exit", {x_ways, 0})}, 0, "result");
      graph.Probe("got_i", {loop.exit}, 0, "result");
      TestStep step(threads);
      const auto executor = MakeExecutor(graph, step);
      for (int run = 0; run < 3; ++run) {
        journal_.Clear();
        ASSERT_OK(executor->Run(step.context));
        EXPECT_EQ(Results("got_x"), std::vector<float>{8});
        EXPECT_EQ(Results("got_i"), std::vector<float>{6});
        EXPECT_EQ(journal_.Of("x_body"), "0 1 2");
        EXPECT_EQ(journal_.Of("body"), "0 1 2 3 4 5");
      }
    }
  }
}

TEST_F(FrameEngineTest, APredThatIsNoScalarIsRefusedInALoop) {
  SetHook("shaped", [](KernelContext* ctx) -> Status {
    ctx->set_output(0, ctx->iteration() < 5 ? ctx->TakeInput(0) : Tensor::Of({1.0f, 2.0f}));
    return absl::OkStatus();
  });
  TestGraph graph;
  Node* const one = graph.Enter("one", graph.Source("one_value", 1), "loop", true);
  AddWhile(graph, "loop", graph.Source("zero", 0), 9, [&](TestGraph::In i) {
    Node* const pred = graph.Add("Less", "pred", {graph.Probe("shaped", {i}, 1, "shaped"), one},
                                 {{"T", AttrOf(DT_FLOAT)}});
    Node* const ways = graph.Switch("ways", i, pred);
    return graph.Probe("body", {{graph.Merge("merged", {{ways, 0}, {ways, 1}}), 0}, one}, 1, "add");
  });
  const Status status = RunOnce(graph);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(
      absl::StartsWith(status.message(), "Switch 'ways': pred must be a scalar, got shape [2]"))
      << status;
}

// --- The window of parallel iterations -----------------------------------------------------------

// Asynchronous kernels that answer when they are told to.
class Answers {
 public:
  void Add(int64_t iteration, AsyncKernel::DoneCallback done) {
    MutexLock lock(&mu_);
    waiting_.emplace(iteration, std::move(done));
    most_ = std::max(most_, waiting_.size());
    changed_.SignalAll();
  }
  // Waits until `n` kernels wait, then lets the one of the newest iteration answer.
  void AnswerNewestOf(size_t n) {
    AsyncKernel::DoneCallback done;
    {
      MutexLock lock(&mu_);
      while (waiting_.size() < n) changed_.Wait(&mu_);
      auto newest = std::prev(waiting_.end());
      done = std::move(newest->second);
      waiting_.erase(newest);
    }
    done(absl::OkStatus());
  }
  size_t most() {
    MutexLock lock(&mu_);
    return most_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  std::multimap<int64_t, AsyncKernel::DoneCallback> waiting_ ABSL_GUARDED_BY(mu_);
  size_t most_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST_F(FrameEngineTest, AsManyIterationsAsAllowedAreUnderWayAtOnce) {
  for (const int threads : {1, 2}) {
    for (const int64_t parallel : {1, 2, 3, 10}) {
      SCOPED_TRACE(absl::StrCat(threads, " threads, ", parallel, " at once"));
      Answers answers;
      SetAsyncHook("later", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
        answers.Add(ctx->iteration(), std::move(done));
      });
      constexpr int kTimes = 24;
      TestGraph graph;
      Node* const one = graph.Enter("one", graph.Source("one_value", 1), "loop", true, parallel);
      const While loop = AddWhile(
          graph, "loop", graph.Source("zero", 0), kTimes,
          [&](TestGraph::In i) {
            graph.ProbeAsync("slow", {i}, 0, "later");
            return graph.Probe("body", {i, one}, 1, "add");
          },
          parallel);
      graph.Probe("got", {loop.exit}, 0, "result");
      TestStep step(threads);
      const auto executor = MakeExecutor(graph, step);
      std::thread answering([&] {
        // The newest first: older iterations stay open as long as they can.
        for (int left = kTimes; left > 0;) {
          // Only the answer of the oldest iteration makes room.
          const size_t window =
              std::min<size_t>(static_cast<size_t>(parallel), static_cast<size_t>(left));
          for (size_t n = window; n > 0; --n, --left) answers.AnswerNewestOf(n);
        }
      });
      EXPECT_OK(executor->Run(step.context));
      answering.join();
      EXPECT_EQ(answers.most(), static_cast<size_t>(parallel));
      EXPECT_EQ(Results("got"), std::vector<float>{kTimes});
    }
  }
}

TEST_F(FrameEngineTest, ExpensiveNodesOfSeveralIterationsRunAtTheSameTime) {
  Mutex mu;
  CondVar changed;
  int inside = 0, most = 0;
  SetHook("meet", [&](KernelContext*) -> Status {
    MutexLock lock(&mu);
    most = std::max(most, ++inside);
    changed.SignalAll();
    // Each kernel waits until two are inside at once, at most 20 s.
    const absl::Time limit = absl::Now() + absl::Seconds(20);
    while (most < 2 && absl::Now() < limit) changed.WaitWithTimeout(&mu, absl::Milliseconds(50));
    --inside;
    return absl::OkStatus();
  });
  TestGraph graph;
  Node* const one = graph.Enter("one", graph.Source("one_value", 1), "loop", true);
  const While loop = AddWhile(graph, "loop", graph.Source("zero", 0), 4, [&](TestGraph::In i) {
    graph.Probe("meet", {i}, 0, "meet");
    return graph.Probe("body", {i, one}, 1, "add");
  });
  graph.Probe("got", {loop.exit}, 0, "result");
  ASSERT_OK(RunOnce(graph, 2));
  EXPECT_GE(most, 2);
  EXPECT_EQ(Results("got"), std::vector<float>{4});
}

TEST_F(FrameEngineTest, OneThreadEndsAnIterationBeforeItBeginsTheNext) {
  std::vector<int64_t> order;
  SetHook("order", [&](KernelContext* ctx) -> Status {
    order.push_back(ctx->iteration());
    ctx->set_output(0, ctx->TakeInput(0));
    return absl::OkStatus();
  });
  TestGraph graph;
  Node* const one = graph.Enter("one", graph.Source("one_value", 1), "loop", true);
  const While loop = AddWhile(graph, "loop", graph.Source("zero", 0), 4, [&](TestGraph::In i) {
    Node* chain = graph.Probe("a", {i}, 1, "order");
    for (const char* name : {"b", "c", "d"}) chain = graph.Probe(name, {chain}, 1, "order");
    return graph.Probe("body", {i, one}, 1, "add");
  });
  static_cast<void>(loop);
  ASSERT_OK(RunOnce(graph));
  EXPECT_EQ(order, (std::vector<int64_t>{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3}));
}

// --- Asynchronous kernels ------------------------------------------------------------------------

TEST_F(FrameEngineTest, AsynchronousKernelsMayBeOnTheWayRoundTheLoop) {
  for (const int threads : {1, 2}) {
    for (const bool at_once : {false, true}) {
      SCOPED_TRACE(at_once);
      std::vector<std::thread> answering;
      std::mutex mu;
      SetAsyncHook("plus", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
        ctx->set_output(0, Tensor::Scalar<float>(ctx->input(0).scalar<float>() +
                                                 ctx->input(1).scalar<float>()));
        if (at_once) return done(absl::OkStatus());
        std::lock_guard<std::mutex> lock(mu);
        answering.emplace_back([answer = std::move(done)]() mutable { answer(absl::OkStatus()); });
      });
      TestGraph graph;
      Node* const one = graph.Enter("one", graph.Source("one_value", 1), "loop", true);
      const While loop = AddWhile(graph, "loop", graph.Source("zero", 0), 50, [&](TestGraph::In i) {
        return graph.ProbeAsync("body", {i, one}, 1, "plus");
      });
      graph.Probe("got", {loop.exit}, 0, "result");
      ASSERT_OK(RunOnce(graph, threads));
      for (std::thread& thread : answering) thread.join();
      EXPECT_EQ(Results("got"), std::vector<float>{50});
    }
  }
}

// --- How a step ends in the middle ---------------------------------------------------------------

TEST_F(FrameEngineTest, AnErrorEndsTheLoopAndTheNextStepRuns) {
  std::atomic<int> fails_in{0};
  SetHook("may_fail", [&](KernelContext* ctx) -> Status {
    if (ctx->iteration() == fails_in) return absl::InvalidArgumentError("wanted");
    ctx->set_output(0, ctx->TakeInput(0));
    return absl::OkStatus();
  });
  for (const int threads : {1, 2}) {
    for (const int64_t parallel : {1, 10}) {
      TestGraph graph;
      Node* const one = graph.Enter("one", graph.Source("one_value", 1), "loop", true, parallel);
      const While loop = AddWhile(
          graph, "loop", graph.Source("zero", 0), 20,
          [&](TestGraph::In i) {
            Node* const checked = graph.Probe("scope/checked", {i}, 1, "may_fail");
            return graph.Probe("body", {checked, one}, 1, "add");
          },
          parallel);
      graph.Probe("got", {loop.exit}, 0, "result");
      TestStep step(threads);
      const auto executor = MakeExecutor(graph, step);
      for (const int when : {0, 7, 19, -1}) {
        fails_in = when;
        CancellationManager cancellation;
        StepContext context = step.context;
        context.cancellation = &cancellation;
        context.rendezvous = MakeLocalRendezvous();
        const Status status = executor->Run(context);
        if (when >= 0) {
          EXPECT_EQ(status.message(),
                    "TestProbe 'scope/checked': wanted\n\t [[{{node scope/checked}}]]");
          EXPECT_EQ(Results("got"), std::vector<float>{});
        } else {
          EXPECT_OK(status);
          EXPECT_EQ(Results("got"), std::vector<float>{20});
        }
      }
    }
  }
}

// A loop that never ends.
void AddEndlessLoop(TestGraph& graph, Node* start) {
  Node* const enter = graph.Enter("endless/enter", start, "endless");
  Node* const merge = graph.LoopMerge("endless/merge", enter);
  graph.Close(merge, {merge, 0});
}

TEST_F(FrameEngineTest, ALoopWithoutAnExitEndsSoonAfterItsDeadline) {
  for (const int threads : {1, 2}) {
    TestGraph graph;
    AddEndlessLoop(graph, graph.Source("zero", 0));
    TestStep step(threads);
    const auto executor = MakeExecutor(graph, step);
    for (int run = 0; run < 3; ++run) {
      CancellationManager cancellation;
      StepContext context = step.context;
      context.cancellation = &cancellation;
      context.rendezvous = MakeLocalRendezvous();
      const Status status =
          executor->Run(context, {.deadline = absl::Now() + absl::Milliseconds(20)});
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    }
  }
}

TEST_F(FrameEngineTest, ALoopWithoutAnExitEndsWhenItIsCancelled) {
  for (const int threads : {1, 2}) {
    std::atomic<int64_t> reached{0};
    Notification far;
    SetHook("count", [&](KernelContext* ctx) -> Status {
      if (reached.fetch_add(1) == 1000) far.Notify();
      ctx->set_output(0, ctx->TakeInput(0));
      return absl::OkStatus();
    });
    TestGraph graph;
    Node* const enter = graph.Enter("enter", graph.Source("zero", 0), "endless");
    Node* const merge = graph.LoopMerge("merge", enter);
    graph.Close(merge, graph.Probe("count", {{merge, 0}}, 1, "count"));
    TestStep step(threads);
    const auto executor = MakeExecutor(graph, step);
    std::thread canceller([&] {
      far.Wait();
      step.cancellation.StartCancel();
    });
    const Status status = executor->Run(step.context);
    canceller.join();
    EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  }
}

TEST_F(FrameEngineTest, AKernelThatDoesNotAnswerIsNamedWithItsIteration) {
  AsyncKernel::DoneCallback kept;
  SetAsyncHook("silent", [&](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    if (ctx->iteration() != 3) return done(absl::OkStatus());
    kept = std::move(done);
  });
  for (const int threads : {1, 2}) {
    TestGraph graph;
    Node* const one = graph.Enter("one", graph.Source("one_value", 1), "loop", true);
    const While loop = AddWhile(graph, "loop", graph.Source("zero", 0), 20, [&](TestGraph::In i) {
      graph.ProbeAsync("waits", {i}, 0, "silent");
      return graph.Probe("body", {i, one}, 1, "add");
    });
    static_cast<void>(loop);
    auto step = std::make_shared<TestStep>(threads);
    std::weak_ptr<TestStep> alive = step;
    auto executor = MakeExecutor(graph, *step);
    const Status status = executor->Run(
        step->context, {.deadline = absl::Now() + absl::Milliseconds(20), .keep = step});
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(status.message(),
              "Timed out waiting for notification; the step waited for TestProbeAsync 'waits' in "
              "iteration 3 of 'loop'");
    executor.reset();
    step.reset();
    EXPECT_FALSE(alive.expired());
    kept(absl::OkStatus());
    EXPECT_TRUE(alive.expired());
  }
}

// --- Graphs that are no loops --------------------------------------------------------------------

TEST_F(FrameEngineTest, AnExitWithTwoValuesFailsTheStep) {
  TestGraph graph;
  Node* const one = graph.Enter("one", graph.Source("one_value", 1), "loop", true);
  While loop = AddWhile(graph, "loop", graph.Source("zero", 0), 3, [&](TestGraph::In i) {
    return graph.Probe("body", {i, one}, 1, "add");
  });
  // Not behind the Switch: alive in every iteration.
  Node* const wrong = graph.Exit("wrong", {loop.merge, 0});
  graph.Probe("got", {wrong}, 0, "result");
  for (const int threads : {1, 2}) {
    const Status status = RunOnce(graph, threads);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_TRUE(absl::StartsWith(status.message(),
                                 "Exit 'wrong': must have a value in one iteration of its loop, "
                                 "got a second one in iteration 1 of 'loop'"))
        << status;
  }
}

TEST_F(FrameEngineTest, ALoopThatHalfBeginsIsNamed) {
  // In the second iteration of "outer" the inner loop gets nothing from `once`.
  for (const int threads : {1, 2}) {
    TestGraph graph;
    Node* const one = graph.Enter("one", graph.Source("one_value", 1), "outer", true);
    Node* const once = graph.Enter("once", graph.Source("once_value", 1), "outer");
    const While outer = AddWhile(graph, "outer", graph.Source("zero", 0), 3, [&](TestGraph::In i) {
      Node* const in = graph.Enter("in", i, "inner");
      Node* const in_once = graph.Enter("in_once", once, "inner");
      graph.Probe("inside", {in}, 0, "add");
      graph.Probe("inside_once", {in_once}, 0, "add");
      return graph.Probe("body", {i, one}, 1, "add");
    });
    graph.Probe("got", {outer.exit}, 0, "result");
    TestStep step(threads);
    const auto executor = MakeExecutor(graph, step);
    for (int run = 0; run < 2; ++run) {
      const Status status = executor->Run(step.context);
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_TRUE(absl::StrContains(
          status.message(),
          "loop 'inner' must get something from each of its 2 Enters when it gets it from one, got "
          "nothing from 1 of them in iteration 1 of loop 'outer'"))
          << status;
    }
  }
}

TEST_F(FrameEngineTest, WhatIsFetchedMustBeOutsideOfLoops) {
  TestGraph graph;
  Node* const one = graph.Enter("one", graph.Source("one_value", 1), "loop", true);
  const While loop = AddWhile(graph, "loop", graph.Source("zero", 0), 3, [&](TestGraph::In i) {
    return graph.Probe("body", {i, one}, 1, "add");
  });
  graph.Add("_Retval", "_retval_merge_0_0", {{loop.merge, 0}},
            {{"T", AttrOf(DT_FLOAT)}, {"index", AttrOf(int64_t{0})}});
  TestStep step;
  const Status status = Plan::Build(*graph.graph(), &step.device, nullptr).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(status.message(),
                                "what is fetched must be outside of loops, got a tensor of loop "
                                "'loop'; fetch what leaves the loop through an Exit"))
      << status;
}

// --- Names of frames, traces ---------------------------------------------------------------------

TEST_F(FrameEngineTest, TransfersAreKeyedByTensorFlowsFrameIdAndTheIteration) {
  const std::string device = "/job:localhost/replica:0/task:0/device:CPU:0";
  const auto ends = [&](const char* type) {
    return std::vector<std::pair<std::string, tensorflow::AttrValue>>{
        {type, AttrOf(DT_FLOAT)},
        {"tensor_name", AttrOf("edge_1_i")},
        {"send_device", AttrOf(device)},
        {"send_device_incarnation", AttrOf(int64_t{1})},
        {"recv_device", AttrOf(device)}};
  };
  TestGraph graph;
  const std::string frame = "while/while_context";
  Node* const one = graph.Enter("one", graph.Source("one_value", 1), frame, true);
  const While loop = AddWhile(graph, frame, graph.Source("zero", 0), 3, [&](TestGraph::In i) {
    Node* const body = graph.Probe("body", {i, one}, 1, "add");
    graph.Add("_Send", "send", {i}, ends("T"));
    return body;
  });
  graph.Probe("got", {loop.exit}, 0, "result");
  TestStep step;
  const auto executor = MakeExecutor(graph, step);
  ASSERT_OK(executor->Run(step.context));
  for (int i = 0; i <= 3; ++i) {
    ASSERT_OK_AND_ASSIGN(const RendezvousKey key,
                         RendezvousKey::Parse(RendezvousKey::Make(device, 1, device, "edge_1_i",
                                                                  1496156560211570566u, i)));
    bool dead = false;
    ASSERT_OK_AND_ASSIGN(const Tensor value,
                         step.context.rendezvous->Recv(key, &dead, absl::Seconds(10)));
    EXPECT_EQ(dead, i == 3);  // a dead value is sent, too
    if (!dead) {
      EXPECT_EQ(value.scalar<float>(), static_cast<float>(i));
    }
  }
}

TEST_F(FrameEngineTest, ATraceHasALineForEachIteration) {
  TestGraph graph;
  Node* const one = graph.Enter("one", graph.Source("one_value", 1), "loop", true);
  const While loop = AddWhile(graph, "loop", graph.Source("zero", 0), 3, [&](TestGraph::In i) {
    return graph.Probe("body", {i, one}, 1, "add");
  });
  graph.Probe("got", {loop.exit}, 0, "result");
  TestStep step;
  const auto executor = MakeExecutor(graph, step);
  StepStatsCollector collector;
  ASSERT_OK(executor->Run(step.context, {.stats = &collector}));
  tensorflow::StepStats stats;
  collector.TakeInto(&stats);
  std::vector<std::string> lines;
  for (const auto& node : stats.dev_stats(0).node_stats()) {
    if (node.node_name() == "body") lines.push_back(node.timeline_label());
  }
  EXPECT_EQ(lines, (std::vector<std::string>{
                       "body = TestProbe(loop/switch:1, one) in iteration 0 of loop",
                       "body = TestProbe(loop/switch:1, one) in iteration 1 of loop",
                       "body = TestProbe(loop/switch:1, one) in iteration 2 of loop"}));
}

}  // namespace
}  // namespace millrace
