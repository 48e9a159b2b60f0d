// SPDX-License-Identifier: Apache-2.0
//
// Counts, instead of timing, what a step costs besides its kernels.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "core/allocator.h"
#include "core/cancellation.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/graph.h"
#include "gtest/gtest.h"
#include "runtime/engine/executor.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"
#include "runtime/rendezvous.h"
#include "runtime/step_context.h"
#include "runtime/step_stats.h"
#include "runtime/testing/step_ops.h"

// covers: steps: a step of cheap nodes takes no lock, allocates nothing, wakes no thread
// covers: steps: a tensor that has come is received with one lock and one block of memory
// covers: steps: an iteration on one thread allocates nothing and takes no lock; a million take the
//   memory of a hundred; any allocation of a loop may fail
// covers: steps: any allocation of a step may fail: the step ends with a Status and no memory is
//   lost

namespace {
thread_local int64_t allocations = 0;  // by this thread
// Relaxed: counts. While it is positive, each allocation of any thread takes one off, and the one
// that reaches zero fails.
std::atomic<int64_t> allocations_left{0};

void Count() {
  ++allocations;
  if (allocations_left.load(std::memory_order_relaxed) > 0 &&
      allocations_left.fetch_sub(1, std::memory_order_relaxed) == 1) {
    throw std::bad_alloc();
  }
}

void* Allocate(size_t bytes) {
  Count();
  void* block = std::malloc(bytes == 0 ? 1 : bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void* Allocate(size_t bytes, std::align_val_t align) {
  Count();
  const size_t a = static_cast<size_t>(align);
  void* block = std::aligned_alloc(a, (bytes + a - 1) / a * a);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes); }
void* operator new[](size_t bytes) { return Allocate(bytes); }
void* operator new(size_t bytes, std::align_val_t align) { return Allocate(bytes, align); }
void* operator new[](size_t bytes, std::align_val_t align) { return Allocate(bytes, align); }
void operator delete(void* block) noexcept { std::free(block); }
void operator delete[](void* block) noexcept { std::free(block); }
void operator delete(void* block, size_t) noexcept { std::free(block); }
void operator delete[](void* block, size_t) noexcept { std::free(block); }
void operator delete(void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete[](void* block, std::align_val_t) noexcept { std::free(block); }
void operator delete(void* block, size_t, std::align_val_t) noexcept { std::free(block); }
void operator delete[](void* block, size_t, std::align_val_t) noexcept { std::free(block); }

namespace millrace {
namespace {

using testing::SetHook;
using testing::TestGraph;
using testing::TestStep;

struct Costs {
  int64_t allocations, locks, wakeups, waits;
};

Costs CostsOfSteps(TestGraph& graph, int num_threads, int steps) {
  TestStep step(num_threads);
  StatusOr<std::shared_ptr<const Plan>> plan = Plan::Build(*graph.graph(), &step.device, nullptr);
  EXPECT_TRUE(plan.ok()) << plan.status();
  StatusOr<std::unique_ptr<Executor>> executor = Executor::Make(*plan);
  EXPECT_TRUE(executor.ok()) << executor.status();
  // Steady: states and tensors are recycled, costs are measured.
  for (int i = 0; i < 200; ++i) EXPECT_TRUE((*executor)->Run(step.context).ok());
  const ExecutorCounters before = (*executor)->counters();
  const int64_t locks = MutexLockCountForTesting();
  const int64_t allocated = allocations;
  bool ok = true;
  for (int i = 0; i < steps; ++i) ok &= (*executor)->Run(step.context).ok();
  const Costs costs = {allocations - allocated, MutexLockCountForTesting() - locks,
                       (*executor)->counters().wakeups - before.wakeups,
                       (*executor)->counters().blocking_waits - before.blocking_waits};
  EXPECT_TRUE(ok);
  return costs;
}

// 200 nodes with one to three earlier ones each, by data and by control edges.
void AddCheapNodes(TestGraph& graph) {
  std::vector<Node*> nodes = {graph.Source("n0", 1)};
  uint64_t seed = 88172645463325252u;
  for (int i = 1; i < 200; ++i) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    Node* from = nodes[seed % nodes.size()];
    Node* control = nodes[(seed >> 20) % nodes.size()];
    nodes.push_back(graph.Identity(absl::StrCat("n", i), from, {control}));
  }
}

TEST(CountedTest, AStepOfCheapNodesTakesNoLockAllocatesNothingAndWakesNobody) {
  for (const int threads : {1, 2, 4}) {
    SCOPED_TRACE(threads);
    TestGraph graph;
    AddCheapNodes(graph);
    for (int i = 0; i < 100; ++i)
      graph.NoOp(absl::StrCat("noop", i), {graph.graph()->FindNode("n0")});
    const Costs costs = CostsOfSteps(graph, threads, 1000);
    EXPECT_EQ(costs.allocations, 0);
    EXPECT_EQ(costs.locks, 0);
    EXPECT_EQ(costs.wakeups, 0);
    EXPECT_EQ(costs.waits, 0);
  }
}

TEST(CountedTest, BranchesAndDeadValuesCostNoMore) {
  TestGraph graph;
  Node* data = graph.Bool("data", true);
  Node* pred = graph.Bool("pred", true);
  for (int i = 0; i < 20; ++i) {
    Node* branch = graph.Switch(absl::StrCat("switch", i), data, pred);
    Node* no = graph.Identity(absl::StrCat("no", i), {branch, 0});
    Node* yes = graph.Identity(absl::StrCat("yes", i), {branch, 1});
    // Merge makes a tensor: its value_index.
    graph.NoOp(absl::StrCat("after_no", i), {no});
    graph.NoOp(absl::StrCat("after_yes", i), {yes});
  }
  const Costs costs = CostsOfSteps(graph, 2, 1000);
  EXPECT_EQ(costs.allocations, 0);
  EXPECT_EQ(costs.locks, 0);
  EXPECT_EQ(costs.wakeups, 0);
}

// for i < times, x = i * 2: ten nodes that run in each iteration. The bound is a constant of the
// loop, the counter is changed in place.
void AddLoop(TestGraph& graph, int times, int64_t parallel_iterations) {
  SetHook("increment", [](KernelContext* ctx) -> Status {
    MR_ASSIGN_OR_RETURN(Tensor * out,
                        ctx->ForwardInputOrAllocateOutput({0}, 0, ctx->input(0).shape()));
    out->mutable_raw<float>()[0] += 1;
    return absl::OkStatus();
  });
  const auto enter = [&](const char* name, Node* input, bool is_constant) {
    return graph.Enter(name, input, "loop", is_constant, parallel_iterations);
  };
  Node* limit = enter("limit", graph.Source("times", static_cast<float>(times)), true);
  Node* i = graph.LoopMerge("i", enter("i0", graph.Source("zero", 0), false));
  Node* x = graph.LoopMerge("x", enter("x0", graph.Source("x_zero", 0), false));
  Node* cond = graph.LoopCond(
      "cond", graph.Add("Less", "less", {{i, 0}, limit}, {{"T", testing::AttrOf(DT_FLOAT)}}));
  Node* i_ways = graph.Switch("i_ways", {i, 0}, cond);
  Node* x_ways = graph.Switch("x_ways", {x, 0}, cond);
  graph.Close(i, graph.Probe("i_next", {{i_ways, 1}}, 1, "increment"));
  graph.Close(x, graph.Probe("x_next", {{x_ways, 1}}, 1, "increment"));
  graph.Exit("i_exit", {i_ways, 0});
  graph.Exit("x_exit", {x_ways, 0});
}

TEST(CountedTest, AnIterationOfALoopTakesNoLockAndAllocatesNothing) {
  for (const int64_t parallel : {1, 10}) {
    SCOPED_TRACE(absl::StrCat(parallel, " at once"));
    TestGraph graph;
    AddLoop(graph, 100, parallel);
    const Costs costs = CostsOfSteps(graph, 1, 100);
    EXPECT_EQ(costs.allocations, 0);
    EXPECT_EQ(costs.locks, 0);
    EXPECT_EQ(costs.wakeups, 0);
    EXPECT_EQ(costs.waits, 0);
    testing::ClearHooks();
  }
}

// Merges are not asked which input they passed on: of ten nodes only Less makes a tensor.
TEST(CountedTest, AnIterationMakesNoTensorsButItsKernels) {
  int64_t tensors[2] = {};
  for (const int which : {0, 1}) {
    TestGraph graph;
    AddLoop(graph, which == 0 ? 100 : 1100, 10);
    TestStep step(1);
    StatusOr<std::shared_ptr<const Plan>> plan = Plan::Build(*graph.graph(), &step.device, nullptr);
    ASSERT_TRUE(plan.ok()) << plan.status();
    StatusOr<std::unique_ptr<Executor>> executor = Executor::Make(*plan);
    ASSERT_TRUE(executor.ok());
    const int64_t before = DefaultAllocatorStats().num_allocations;
    ASSERT_TRUE((*executor)->Run(step.context).ok());
    tensors[which] = DefaultAllocatorStats().num_allocations - before;
    testing::ClearHooks();
  }
  EXPECT_EQ(tensors[1] - tensors[0], 1000);
}

TEST(CountedTest, AMillionIterationsTakeNoMoreMemoryThanAHundred) {
  int64_t bytes[2] = {};
  int64_t allocated[2] = {};
  for (const int which : {0, 1}) {
    TestGraph graph;
    AddLoop(graph, which == 0 ? 100 : 1'000'000, 10);
    TestStep step(1);
    StatusOr<std::shared_ptr<const Plan>> plan = Plan::Build(*graph.graph(), &step.device, nullptr);
    ASSERT_TRUE(plan.ok()) << plan.status();
    StatusOr<std::unique_ptr<Executor>> executor = Executor::Make(*plan);
    ASSERT_TRUE(executor.ok());
    const int64_t before = DefaultAllocatorStats().bytes_in_use;
    const int64_t allocations_before = allocations;
    ASSERT_TRUE((*executor)->Run(step.context).ok());
    bytes[which] = DefaultAllocatorStats().bytes_in_use - before;
    allocated[which] = allocations - allocations_before;
    testing::ClearHooks();
  }
  EXPECT_EQ(bytes[0], bytes[1]);
  EXPECT_EQ(allocated[0], allocated[1]);
}

TEST(CountedTest, ATransferByNumberTakesTwoLocksAndNoMemory) {
  auto table = std::make_shared<TransferTable>();
  const std::string device = "/job:localhost/replica:0/task:0/device:CPU:";
  for (uint32_t i = 0; i < 100; ++i) {
    const StatusOr<RendezvousKey> key = RendezvousKey::Parse(
        RendezvousKey::Make(device + "0", 1, device + "1", absl::StrCat("edge_", i), 0, 0));
    ASSERT_TRUE(key.ok()) << key.status();
    table->Add(*key, absl::StrCat("send", i));
  }
  const auto rendezvous = MakeLocalRendezvous(table);
  const Tensor value = Tensor::Scalar<float>(1);
  int64_t arrived = 0;
  const auto recv = [&](uint32_t i) {
    rendezvous->RecvAsync(
        Transfer(i), [&](const Status& status, Tensor, bool) { arrived += status.ok() ? 1 : 0; });
  };
  const int64_t locks = MutexLockCountForTesting();
  const int64_t allocated = allocations;
  for (uint32_t i = 0; i < 100; ++i) {
    if (i % 2 == 0) recv(i);
    rendezvous->Send(Transfer(i), value, false).IgnoreError();
    if (i % 2 == 1) recv(i);
  }
  EXPECT_EQ(allocations - allocated, 0);
  EXPECT_EQ(MutexLockCountForTesting() - locks, 200);
  EXPECT_EQ(arrived, 100);
}

// What a step that is part of several tasks pays for each tensor that has come: its callback, and
// the lock of its slot.
TEST(CountedTest, AReceiveThatEndsWithItsRendezvousTakesOneLockAndOneBlock) {
  constexpr int64_t kReceives = 20, kSteps = 50;
  const std::string device = "/job:localhost/replica:0/task:0/device:CPU:";
  TestGraph graph;
  for (int64_t i = 0; i < kReceives; ++i) {
    graph.Add("_Recv", absl::StrCat("recv", i), {},
              {{"tensor_type", testing::AttrOf(DT_FLOAT)},
               {"tensor_name", testing::AttrOf(absl::StrCat("edge", i))},
               {"send_device", testing::AttrOf(device + "1")},
               {"send_device_incarnation", testing::AttrOf(int64_t{1})},
               {"recv_device", testing::AttrOf(device + "0")}});
  }
  TestStep step;
  const StatusOr<std::shared_ptr<const Plan>> plan =
      Plan::Build(*graph.graph(), &step.device, nullptr);
  ASSERT_TRUE(plan.ok()) << plan.status();
  StatusOr<std::unique_ptr<Executor>> executor = Executor::Make(*plan);
  ASSERT_TRUE(executor.ok()) << executor.status();
  step.context.rendezvous = MakeLocalRendezvous((*plan)->transfer_table());
  const Tensor value = Tensor::Scalar<float>(1);
  const auto costs = [&](bool cancel_aborts_rendezvous) {
    step.context.cancel_aborts_rendezvous = cancel_aborts_rendezvous;
    Costs sum = {};
    for (int64_t i = 0; i < kSteps + 10; ++i) {
      for (const Plan::TransferEnd& end : (*plan)->transfers()) {
        EXPECT_TRUE(step.context.rendezvous->Send(Transfer(end.number), value, false).ok());
      }
      const int64_t locks = MutexLockCountForTesting(), allocated = allocations;
      EXPECT_TRUE((*executor)->Run(step.context).ok());
      if (i < 10) continue;  // until states are recycled
      sum.locks += MutexLockCountForTesting() - locks;
      sum.allocations += allocations - allocated;
    }
    return sum;
  };
  const Costs by_rendezvous = costs(true), by_cancellation = costs(false);
  EXPECT_EQ(by_rendezvous.locks, kSteps * kReceives);
  EXPECT_EQ(by_rendezvous.allocations, kSteps * kReceives);
  // To be told by the cancellation costs each receive two locks and two blocks more.
  EXPECT_EQ(by_cancellation.locks, 3 * kSteps * kReceives);
  EXPECT_EQ(by_cancellation.allocations, 3 * kSteps * kReceives);
}

TEST(CountedTest, AChainOfElementwiseKernelsMakesOneTensor) {
  SetHook("increment", [](KernelContext* ctx) -> Status {
    MR_ASSIGN_OR_RETURN(Tensor * out,
                        ctx->ForwardInputOrAllocateOutput({0}, 0, ctx->input(0).shape()));
    out->mutable_raw<float>()[0] += 1;
    return absl::OkStatus();
  });
  TestGraph graph;
  Node* node = graph.Source("a", 0);
  for (int i = 0; i < 50; ++i) {
    node = graph.Probe(absl::StrCat("n", i), {node}, 1, "increment");
  }
  TestStep step(1);
  StatusOr<std::shared_ptr<const Plan>> plan = Plan::Build(*graph.graph(), &step.device, nullptr);
  ASSERT_TRUE(plan.ok()) << plan.status();
  StatusOr<std::unique_ptr<Executor>> executor = Executor::Make(*plan);
  ASSERT_TRUE(executor.ok());
  ASSERT_TRUE((*executor)->Run(step.context).ok());
  const int64_t before = DefaultAllocatorStats().num_allocations;
  ASSERT_TRUE((*executor)->Run(step.context).ok());
  EXPECT_EQ(DefaultAllocatorStats().num_allocations - before, 1);
  testing::ClearHooks();
}

TEST(CountedTest, AsynchronousKernelsThatAreReadyAllocateNothing) {
  testing::SetAsyncHook("now", [](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    ctx->set_output(0, ctx->TakeInput(0));
    done(absl::OkStatus());
  });
  TestGraph graph;
  Node* node = graph.Source("a", 0);
  for (int i = 0; i < 50; ++i) {
    node = graph.ProbeAsync(absl::StrCat("n", i), {node}, 1, "now");
  }
  const Costs costs = CostsOfSteps(graph, 2, 1000);
  EXPECT_EQ(costs.allocations, 0);
  EXPECT_EQ(costs.locks, 0);
  EXPECT_EQ(costs.wakeups, 0);
  EXPECT_EQ(costs.waits, 0);
  testing::ClearHooks();
}

// Makes the first, second, ... allocation of a step fail, until a step needs no more; each time the
// step ends with a Status, and the next one runs. Returns how many allocations there were.
int FailEachAllocation(TestGraph& graph, int num_threads, absl::StatusCode good,
                       absl::Duration timeout = absl::InfiniteDuration(), bool traced = false) {
  TestStep step(num_threads);
  StatusOr<std::shared_ptr<const Plan>> plan = Plan::Build(*graph.graph(), &step.device, nullptr);
  EXPECT_TRUE(plan.ok()) << plan.status();
  // The k-th allocation fails (0: none); says whether there was one.
  const auto run = [&](Executor& executor, int64_t k, bool* failed) {
    CancellationManager cancellation;
    StepStatsCollector stats;
    StepContext context = step.context;
    context.cancellation = &cancellation;
    context.rendezvous = MakeLocalRendezvous();
    const absl::Time deadline = absl::Now() + timeout;
    const ExecutorOptions options = {.stats = traced ? &stats : nullptr, .deadline = deadline};
    allocations_left = k;
    const absl::StatusCode code = executor.Run(context, options).code();
    *failed = allocations_left.exchange(0) <= 0;
    return code;
  };
  for (int k = 1; k < 10'000; ++k) {
    StatusOr<std::unique_ptr<Executor>> executor = Executor::Make(*plan);
    EXPECT_TRUE(executor.ok());
    if (!executor.ok()) return -1;
    bool failed = false;
    const absl::StatusCode code = run(**executor, k, &failed);
    if (code != good && (!failed || code != absl::StatusCode::kResourceExhausted)) {
      ADD_FAILURE() << "allocation " << k << ": " << absl::StatusCodeToString(code);
      return -1;
    }
    if (!failed) return k - 1;
    EXPECT_EQ(run(**executor, 0, &failed), good) << "after allocation " << k;
  }
  ADD_FAILURE() << "a step does not stop to allocate";
  return -1;
}

// Chains with expensive nodes between cheap ones; kernels that answer at once, and through the
// cancellation.
void AddNodesThatAllocate(TestGraph& graph) {
  testing::SetHook("make", [](KernelContext* ctx) -> Status {
    auto shared = std::make_unique<float>(1);
    for (int i = 0; i < ctx->num_outputs(); ++i) ctx->set_output(i, Tensor::Scalar<float>(*shared));
    return absl::OkStatus();
  });
  testing::SetAsyncHook("now", [](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    auto shared = std::make_shared<AsyncKernel::DoneCallback>(std::move(done));
    ctx->set_output(0, Tensor::Scalar<float>(2));
    (*shared)(absl::OkStatus());
  });
  for (int chain = 0; chain < 4; ++chain) {
    Node* node = graph.Source(absl::StrCat("a", chain), 1);
    for (int i = 0; i < 4; ++i) {
      Node* spin = graph.Add("TestSpin", absl::StrCat("spin", chain, "_", i), {},
                             {{"cycles", testing::AttrOf(int64_t{30'000})}}, {node});
      Node* made = graph.Probe(absl::StrCat("make", chain, "_", i), {node}, 6, "make", {spin});
      node = graph.ProbeAsync(absl::StrCat("now", chain, "_", i), {{made, 5}}, 1, "now");
    }
  }
}

TEST(FailingAllocationsTest, AnyAllocationOfAStepMayFail) {
  for (const int threads : {1, 2}) {
    SCOPED_TRACE(threads);
    TestGraph graph;
    AddNodesThatAllocate(graph);
    EXPECT_GT(FailEachAllocation(graph, threads, absl::StatusCode::kOk), 16);
    testing::ClearHooks();
  }
}

TEST(FailingAllocationsTest, AnyAllocationOfALoopMayFail) {
  for (const int threads : {1, 2}) {
    for (const bool traced : {false, true}) {
      SCOPED_TRACE(threads);
      TestGraph graph;
      AddLoop(graph, 3, 2);
      testing::SetHook("make", [](KernelContext* ctx) -> Status {
        auto shared = std::make_unique<float>(1);
        ctx->set_output(0, Tensor::Scalar<float>(*shared));
        return absl::OkStatus();
      });
      testing::SetAsyncHook("now", [](KernelContext* ctx, AsyncKernel::DoneCallback done) {
        auto shared = std::make_shared<AsyncKernel::DoneCallback>(std::move(done));
        ctx->set_output(0, Tensor::Scalar<float>(2));
        (*shared)(absl::OkStatus());
      });
      // In each iteration of the loop, and in a loop inside of it.
      Node* at = graph.Identity("at", {graph.graph()->FindNode("x_ways"), 1});
      Node* made = graph.Probe("made", {at}, 1, "make");
      graph.ProbeAsync("answered", {made}, 1, "now");
      Node* inner = graph.Enter("inner", at, "inner_loop", false, 3);
      Node* merge = graph.LoopMerge("merge", inner);
      Node* less = graph.Add("Less", "inner_less", {{merge, 0}, {merge, 0}},
                             {{"T", testing::AttrOf(DT_FLOAT)}});
      Node* ways = graph.Switch("ways", {merge, 0}, graph.LoopCond("inner_cond", less));
      graph.Close(merge, {ways, 1});
      graph.Exit("inner_exit", {ways, 0});
      EXPECT_GT(FailEachAllocation(graph, threads, absl::StatusCode::kOk, absl::InfiniteDuration(),
                                   traced),
                20);
      testing::ClearHooks();
    }
  }
}

TEST(FailingAllocationsTest, AnyAllocationOfATracedStepMayFail) {
  TestGraph graph;
  AddNodesThatAllocate(graph);
  EXPECT_GT(FailEachAllocation(graph, 1, absl::StatusCode::kOk, absl::InfiniteDuration(), true),
            100);
  testing::ClearHooks();
}

TEST(FailingAllocationsTest, AnyAllocationOfAFailingStepMayFail) {
  for (const int threads : {1, 2}) {
    SCOPED_TRACE(threads);
    TestGraph graph;
    AddNodesThatAllocate(graph);
    testing::SetHook("fail", [](KernelContext*) -> Status {
      return absl::InvalidArgumentError("wanted, with a text that needs memory of its own");
    });
    // Waits for the cancellation that the error starts.
    testing::SetAsyncHook("wait", [](KernelContext* ctx, AsyncKernel::DoneCallback done) {
      auto shared = std::make_shared<AsyncKernel::DoneCallback>(std::move(done));
      CancellationManager::Token token;
      const auto cancelled = [shared] { (*shared)(absl::CancelledError("cancelled")); };
      if (!ctx->cancellation()->Register(&token, cancelled)) cancelled();
    });
    graph.ProbeAsync("wait", {}, 0, "wait");
    Node* last = graph.graph()->FindNode("now3_3");
    graph.Probe("fail", {}, 0, "fail", {last});
    EXPECT_GT(FailEachAllocation(graph, threads, absl::StatusCode::kInvalidArgument), 20);
    testing::ClearHooks();
  }
}

TEST(FailingAllocationsTest, AnyAllocationOfAStepThatTimesOutMayFail) {
  TestGraph graph;
  testing::SetAsyncHook("wait", [](KernelContext* ctx, AsyncKernel::DoneCallback done) {
    auto shared = std::make_shared<AsyncKernel::DoneCallback>(std::move(done));
    CancellationManager::Token token;
    const auto cancelled = [shared] { (*shared)(absl::CancelledError("cancelled")); };
    if (!ctx->cancellation()->Register(&token, cancelled)) cancelled();
  });
  for (int i = 0; i < 4; ++i) graph.ProbeAsync(absl::StrCat("wait", i), {}, 0, "wait");
  EXPECT_GT(
      FailEachAllocation(graph, 1, absl::StatusCode::kDeadlineExceeded, absl::Milliseconds(2)), 10);
  testing::ClearHooks();
}

}  // namespace
}  // namespace millrace
