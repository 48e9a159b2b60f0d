// SPDX-License-Identifier: Apache-2.0
//
// What a node and a step cost besides their kernels.
//   bazel run //runtime:executor_benchmark
// Counter nodes: null nodes per second. Chain, fan and random DAG have 100,000 NoOps with control
// edges; the random DAG gives each node one to three predecessors among the 256 before it. The
// argument is the number of threads of the arena.
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "benchmark/benchmark.h"
#include "graph/graph.h"
#include "graph/scope.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_binary.h"
#include "runtime/engine/executor.h"
#include "runtime/rendezvous.h"
#include "runtime/session.h"
#include "runtime/testing/step_ops.h"

namespace millrace {
namespace {

using testing::TestGraph;
using testing::TestStep;

constexpr int kNodes = 100'000;

void RunGraph(benchmark::State& state, TestGraph& graph) {
  TestStep step(static_cast<int>(state.range(0)));
  StatusOr<std::shared_ptr<const Plan>> plan = Plan::Build(*graph.graph(), &step.device, nullptr);
  if (!plan.ok()) return state.SkipWithError(std::string(plan.status().message()).c_str());
  StatusOr<std::unique_ptr<Executor>> executor = Executor::Make(*plan);
  if (!executor.ok()) return state.SkipWithError("Executor::Make");
  const int64_t num_nodes = static_cast<int64_t>((*plan)->nodes().size());
  for (auto _ : state) {
    if (!(*executor)->Run(step.context).ok()) return state.SkipWithError("Run");
  }
  state.counters["nodes"] = benchmark::Counter(static_cast<double>(num_nodes * state.iterations()),
                                               benchmark::Counter::kIsRate);
  state.counters["wakeups"] = static_cast<double>((*executor)->counters().wakeups);
}

void BM_Chain(benchmark::State& state) {
  TestGraph graph;
  Node* node = graph.NoOp("n0");
  for (int i = 1; i < kNodes; ++i) node = graph.NoOp(absl::StrCat("n", i), {node});
  RunGraph(state, graph);
}
BENCHMARK(BM_Chain)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();

void BM_Fan(benchmark::State& state) {
  TestGraph graph;
  Node* first = graph.NoOp("n0");
  for (int i = 1; i < kNodes; ++i) graph.NoOp(absl::StrCat("n", i), {first});
  RunGraph(state, graph);
}
BENCHMARK(BM_Fan)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();

// The predecessors of node i.
class Predecessors {
 public:
  std::vector<int> Of(int i) {
    const int lowest = i > 256 ? i - 256 : 0;
    std::vector<int> result;
    const int wanted = 1 + static_cast<int>(Next() % 3);
    for (int k = 0; k < wanted; ++k) {
      const int p = lowest + static_cast<int>(Next() % static_cast<uint64_t>(i - lowest));
      bool known = false;
      for (const int other : result) known |= other == p;
      if (!known) result.push_back(p);
    }
    return result;
  }

 private:
  uint64_t Next() {
    seed_ ^= seed_ << 13;
    seed_ ^= seed_ >> 7;
    return seed_ ^= seed_ << 17;
  }
  uint64_t seed_ = 88172645463325252u;
};

void BM_RandomDag(benchmark::State& state) {
  TestGraph graph;
  std::vector<Node*> nodes = {graph.NoOp("n0")};
  Predecessors predecessors;
  for (int i = 1; i < kNodes; ++i) {
    std::vector<Node*> controls;
    for (const int p : predecessors.Of(i)) controls.push_back(nodes[static_cast<size_t>(p)]);
    nodes.push_back(graph.NoOp(absl::StrCat("n", i), controls));
  }
  RunGraph(state, graph);
}
BENCHMARK(BM_RandomDag)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();

// The same with a tensor along the first edge of each node.
void BM_RandomDagOfIdentities(benchmark::State& state) {
  TestGraph graph;
  std::vector<Node*> nodes = {graph.Source("n0", 1)};
  Predecessors predecessors;
  for (int i = 1; i < kNodes; ++i) {
    std::vector<Node*> controls;
    for (const int p : predecessors.Of(i)) controls.push_back(nodes[static_cast<size_t>(p)]);
    Node* data = controls.front();
    controls.erase(controls.begin());
    nodes.push_back(graph.Identity(absl::StrCat("n", i), data, controls));
  }
  RunGraph(state, graph);
}
BENCHMARK(BM_RandomDagOfIdentities)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();

void BM_IdentityChain(benchmark::State& state) {
  TestGraph graph;
  Node* node = graph.Source("n0", 1);
  for (int i = 1; i < kNodes; ++i) node = graph.Identity(absl::StrCat("n", i), node);
  RunGraph(state, graph);
}
BENCHMARK(BM_IdentityChain)->Arg(1)->Arg(2)->Unit(benchmark::kMillisecond)->UseRealTime();

// for (i = 0; i < 10,000; ++i) x = x + i: an iteration is ten nodes that run (two Merges, Less,
// LoopCond, two Switches, two AddV2, two NextIterations) and two dead Exits. Counter iterations:
// per second. The second argument is parallel_iterations.
void BM_WhileLoop(benchmark::State& state) {
  constexpr int kIterations = 10'000;
  TestGraph graph;
  const int64_t at_once = state.range(1);
  const auto enter = [&](const char* name, float value, bool is_constant) {
    return graph.Enter(absl::StrCat(name, "/enter"), graph.Source(name, value), "while",
                       is_constant, at_once);
  };
  const auto type = std::make_pair(std::string("T"), testing::AttrOf(DT_FLOAT));
  Node* limit = enter("limit", kIterations, true);
  Node* one = enter("one", 1, true);
  Node* i = graph.LoopMerge("i", enter("i_start", 0, false));
  Node* x = graph.LoopMerge("x", enter("x_start", 0, false));
  Node* cond = graph.LoopCond("cond", graph.Add("Less", "less", {{i, 0}, limit}, {type}));
  Node* i_ways = graph.Switch("i_ways", {i, 0}, cond);
  Node* x_ways = graph.Switch("x_ways", {x, 0}, cond);
  graph.Close(x, graph.Add("AddV2", "x_next", {{x_ways, 1}, {i_ways, 1}}, {type}));
  graph.Close(i, graph.Add("AddV2", "i_next", {{i_ways, 1}, one}, {type}));
  graph.Exit("i_exit", {i_ways, 0});
  graph.Exit("x_exit", {x_ways, 0});
  RunGraph(state, graph);
  state.counters["iterations"] = benchmark::Counter(
      static_cast<double>(kIterations * state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_WhileLoop)
    ->ArgsProduct({{1, 2}, {1, 10}})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

// 64 nodes of 9 us that nothing connects: each alone is not worth waking a thread for.
void BM_CheapNodes(benchmark::State& state) {
  TestGraph graph;
  testing::SetHook("spin", [](KernelContext*) -> Status {
    const int64_t end = absl::GetCurrentTimeNanos() + 9'000;
    while (absl::GetCurrentTimeNanos() < end) {
    }
    return absl::OkStatus();
  });
  for (int i = 0; i < 64; ++i) graph.Probe(absl::StrCat("n", i), {}, 0, "spin");
  RunGraph(state, graph);
}
BENCHMARK(BM_CheapNodes)->Arg(1)->Arg(2)->Unit(benchmark::kMicrosecond)->UseRealTime();

// What goes between the devices of one process in a step: 64 tensors, received before they are sent
// (1) or afterwards (0). Counter tensors: per second.
void BM_SendAndRecv(benchmark::State& state) {
  constexpr uint32_t kTransfers = 64;
  auto table = std::make_shared<TransferTable>();
  for (uint32_t i = 0; i < kTransfers; ++i) {
    const std::string device = "/job:localhost/replica:0/task:0/device:CPU:";
    const StatusOr<RendezvousKey> key = RendezvousKey::Parse(RendezvousKey::Make(
        device + "0", 42, device + "1", absl::StrCat("edge_", i, "_tower/layer/weights"), 0, 0));
    if (!key.ok()) return state.SkipWithError("RendezvousKey");
    table->Add(*key, absl::StrCat("send", i));
  }
  const Tensor value = Tensor::Scalar<float>(1);
  int64_t arrived = 0;
  const auto recv = [&](Rendezvous* rendezvous) {
    for (uint32_t i = 0; i < kTransfers; ++i) {
      rendezvous->RecvAsync(
          Transfer(i), [&](const Status& status, Tensor, bool) { arrived += status.ok() ? 1 : 0; });
    }
  };
  for (auto _ : state) {
    const std::shared_ptr<Rendezvous> rendezvous = MakeLocalRendezvous(table);
    if (state.range(0) == 1) recv(rendezvous.get());
    for (uint32_t i = 0; i < kTransfers; ++i) {
      rendezvous->Send(Transfer(i), value, false).IgnoreError();
    }
    if (state.range(0) == 0) recv(rendezvous.get());
  }
  if (arrived != static_cast<int64_t>(state.iterations()) * kTransfers) {
    return state.SkipWithError("tensors are missing");
  }
  state.counters["tensors"] =
      benchmark::Counter(static_cast<double>(arrived), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_SendAndRecv)->Arg(0)->Arg(1);

// A prepared step that goes to and fro between two devices, 20 times.
void BM_StepOverTwoDevices(benchmark::State& state) {
  Scope root;
  const Output x = Placeholder(root.WithDevice("/device:CPU:0").WithName("x"), DT_FLOAT, {});
  Output y = x;
  for (int i = 1; i <= 20; ++i) {
    y = Add(root.WithDevice(absl::StrCat("/device:CPU:", i % 2)), y, x);
  }
  SessionOptions options;
  options.config.intra_op_parallelism_threads = 1;
  options.config.device_count["CPU"] = 2;
  StatusOr<std::unique_ptr<Session>> session = NewSession(options);
  if (!session.ok() || !(*session)->Extend(root).ok()) return state.SkipWithError("NewSession");
  const auto step = (*session)->Prepare({.feeds = {"x"}, .fetches = {y.name()}});
  if (!step.ok()) return state.SkipWithError("Prepare");
  const std::vector<Tensor> feeds = {Tensor::Scalar<float>(1)};
  std::vector<Tensor> results(1);
  for (auto _ : state) {
    if (!(*step)->RunInto(feeds, absl::MakeSpan(results)).ok()) return state.SkipWithError("Run");
  }
}
BENCHMARK(BM_StepOverTwoDevices)->UseRealTime();

// Ten nodes between a feed and a fetch, none of which a rewrite removes (Identities would all go):
// each adds the feed once more, a scalar.
struct TenNodes {
  explicit TenNodes(int threads) {
    Scope root;
    Output x = Placeholder(root.WithName("x"), DT_FLOAT, {});
    Output y = x;
    for (int i = 0; i < 9; ++i) y = Add(root, y, x);
    fetch = Add(root.WithName("y"), y, x).name();
    SessionOptions options;
    options.config.intra_op_parallelism_threads = threads;
    StatusOr<std::unique_ptr<Session>> made = NewSession(options);
    if (!made.ok()) std::abort();
    session = *std::move(made);
    if (!session->Extend(root).ok()) std::abort();
  }
  std::unique_ptr<Session> session;
  std::string fetch;
};

void BM_TenNodeStepByRun(benchmark::State& state) {
  TenNodes ten(static_cast<int>(state.range(0)));
  const std::vector<Feed> feeds = {{"x", Tensor::Scalar<float>(1)}};
  const std::vector<FetchName> fetches = {ten.fetch};
  for (auto _ : state) {
    auto out = ten.session->Run(feeds, fetches);
    if (!out.ok()) return state.SkipWithError("Run");
    benchmark::DoNotOptimize(out);
  }
  state.counters["steps"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_TenNodeStepByRun)->Arg(1)->Arg(2)->UseRealTime();

void BM_TenNodeStepPrepared(benchmark::State& state) {
  TenNodes ten(static_cast<int>(state.range(0)));
  auto step = ten.session->Prepare({.feeds = {"x"}, .fetches = {ten.fetch}});
  if (!step.ok()) return state.SkipWithError("Prepare");
  const std::vector<Tensor> feeds = {Tensor::Scalar<float>(1)};
  for (auto _ : state) {
    auto out = (*step)->Run(feeds);
    if (!out.ok()) return state.SkipWithError("Run");
    benchmark::DoNotOptimize(out);
  }
  state.counters["steps"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_TenNodeStepPrepared)->Arg(1)->Arg(2)->UseRealTime();

// Threads of the program that share one session and one prepared step: steps of all of them
// together. (The counts of loops begin and end in all threads at once.)
void BM_ThreadsOnOneSession(benchmark::State& state) {
  static TenNodes* ten;
  static std::unique_ptr<PreparedStep>* step;
  if (state.thread_index() == 0) {
    ten = new TenNodes(1);
    auto prepared = ten->session->Prepare({.feeds = {"x"}, .fetches = {ten->fetch}});
    if (!prepared.ok()) std::abort();
    step = new std::unique_ptr<PreparedStep>(*std::move(prepared));
  }
  const std::vector<Tensor> feeds = {
      Tensor::Scalar<float>(static_cast<float>(state.thread_index()))};
  std::vector<Tensor> results(1);
  for (auto _ : state) {
    if (!(*step)->RunInto(feeds, absl::MakeSpan(results)).ok()) state.SkipWithError("Run");
  }
  state.counters["steps"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  if (state.thread_index() == 0) {
    delete step;
    delete ten;
  }
}
BENCHMARK(BM_ThreadsOnOneSession)->ThreadRange(1, 2)->UseRealTime();

// The same by names.
void BM_ThreadsOnOneSessionByRun(benchmark::State& state) {
  static TenNodes* ten;
  if (state.thread_index() == 0) ten = new TenNodes(1);
  const std::vector<Feed> feeds = {
      {"x", Tensor::Scalar<float>(static_cast<float>(state.thread_index()))}};
  const std::vector<FetchName> fetches = {"y"};
  for (auto _ : state) {
    auto out = ten->session->Run(feeds, fetches);
    if (!out.ok()) state.SkipWithError("Run");
    benchmark::DoNotOptimize(out);
  }
  state.counters["steps"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  if (state.thread_index() == 0) delete ten;
}
BENCHMARK(BM_ThreadsOnOneSessionByRun)->ThreadRange(1, 2)->UseRealTime();

// Threads that share nothing of ours: what the machine gives a second thread.
void BM_ThreadsOnSessionsOfTheirOwn(benchmark::State& state) {
  TenNodes ten(1);
  auto step = ten.session->Prepare({.feeds = {"x"}, .fetches = {ten.fetch}});
  if (!step.ok()) std::abort();
  const std::vector<Tensor> feeds = {
      Tensor::Scalar<float>(static_cast<float>(state.thread_index()))};
  std::vector<Tensor> results(1);
  for (auto _ : state) {
    if (!(*step)->RunInto(feeds, absl::MakeSpan(results)).ok()) state.SkipWithError("Run");
  }
  state.counters["steps"] =
      benchmark::Counter(static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_ThreadsOnSessionsOfTheirOwn)->ThreadRange(1, 2)->UseRealTime();

}  // namespace
}  // namespace millrace
