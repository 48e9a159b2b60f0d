// SPDX-License-Identifier: Apache-2.0
//
// Counts, instead of timing, what a step of the flat engine costs besides its kernels.
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

#include "absl/strings/str_cat.h"
#include "core/mutex.h"
#include "gtest/gtest.h"
#include "runtime/executor.h"
#include "runtime/testing/step_ops.h"

namespace {
thread_local int64_t allocations = 0;     // by this thread
std::atomic<int64_t> all_allocations{0};  // by any thread

void* Allocate(size_t bytes) {
  ++allocations;
  all_allocations.fetch_add(1, std::memory_order_relaxed);
  void* block = std::malloc(bytes == 0 ? 1 : bytes);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
void* Allocate(size_t bytes, std::align_val_t align) {
  ++allocations;
  all_allocations.fetch_add(1, std::memory_order_relaxed);
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

TEST(CountedTest, AChainOfElementwiseKernelsMakesOneTensor) {
  SetHook("increment", [](KernelContext* ctx) -> Status {
    MR_ASSIGN_OR_RETURN(Tensor * out,
                        ctx->ForwardInputOrAllocateOutput({0}, 0, ctx->input(0).shape()));
    out->mutable_flat<float>()[0] += 1;
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

}  // namespace
}  // namespace millrace
