// SPDX-License-Identifier: Apache-2.0
//
// How fast graphs are built, imported, cut for a run, planned and printed, in nodes per second.
//   bazel run //graph:graph_benchmark
// The stages of a graph of a million nodes, from Extend to the plan of a first Run:
//   bazel run //graph:graph_benchmark -- --benchmark_filter=Million

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "graph/graph.h"
#include "graph/graph_extension.h"
#include "graph/import_export.h"
#include "graph/node_builder.h"
#include "graph/place/partition.h"
#include "graph/place/placer.h"
#include "graph/print.h"
#include "graph/prune.h"
#include "graph/shape_inference.h"
#include "graph/verify.h"
#include "proto/attr_value.pb.h"
#include "proto/graph.pb.h"
#include "proto/node_def.pb.h"
#include "runtime/constant_evaluator.h"
#include "runtime/device.h"
#include "runtime/kernel.h"
#include "runtime/plan.h"

namespace millrace {
namespace {

const OpRegistration kOps[] = {
    OpSpec("BenchSource").Output("y: float").Shape(ScalarShape),
    OpSpec("BenchAdd")
        .Input("a: T")
        .Input("b: T")
        .Output("y: T")
        .Attr("T: {float, int32}")
        .Shape(BroadcastBinaryShape),
};

class NothingKernel : public Kernel {
 public:
  Status Compute(KernelContext*) const override { return absl::OkStatus(); }
};
const KernelRegistration kSourceKernel("BenchSource", KernelFor<NothingKernel>());
const KernelRegistration kAddKernel("BenchAdd", KernelFor<NothingKernel>());

// Nodes with two inputs, each from one of the 64 nodes before it.
tensorflow::GraphDef MakeGraphDef(int n) {
  tensorflow::GraphDef def;
  def.mutable_versions()->set_producer(kGraphVersion);
  uint32_t random = 12345;
  for (int i = 0; i < n; ++i) {
    tensorflow::NodeDef* node = def.add_node();
    node->set_name(absl::StrCat("layer/node_", i));
    if (i == 0) {
      node->set_op("BenchSource");
      continue;
    }
    node->set_op("BenchAdd");
    for (int k = 0; k < 2; ++k) {
      random = random * 1664525 + 1013904223;
      const int back = 1 + static_cast<int>(random >> 8) % std::min(i, 64);
      node->add_input(absl::StrCat("layer/node_", i - back));
    }
    (*node->mutable_attr())["T"].set_type(tensorflow::DT_FLOAT);
  }
  return def;
}

void BM_AddNodesAndEdges(benchmark::State& state) {
  const tensorflow::GraphDef def = MakeGraphDef(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    Graph graph;
    std::vector<Node*> nodes;
    for (const tensorflow::NodeDef& node : def.node()) nodes.push_back(*graph.AddNode(node));
    for (size_t i = 1; i < nodes.size(); ++i) {
      if (!graph.AddEdge(nodes[i - 1], 0, nodes[i], 0).ok() ||
          !graph.AddEdge(nodes[i / 2], 0, nodes[i], 1).ok()) {
        state.SkipWithError("edge");
      }
    }
    benchmark::DoNotOptimize(graph.num_nodes());
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_AddNodesAndEdges)->Arg(100000)->Unit(benchmark::kMillisecond);

void BM_Verify(benchmark::State& state) {
  const tensorflow::GraphDef def = MakeGraphDef(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    if (!VerifyGraphDef(def).ok()) state.SkipWithError("verify");
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_Verify)->Arg(100000)->Unit(benchmark::kMillisecond);

void BM_Import(benchmark::State& state) {
  const tensorflow::GraphDef def = MakeGraphDef(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    Graph graph;
    if (!ImportGraphDef(def, {}, &graph).ok()) state.SkipWithError("import");
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_Import)->Arg(100000)->Unit(benchmark::kMillisecond);

constexpr int kMillion = 1'000'000;
constexpr char kCpu[] = "/job:localhost/replica:0/task:0/device:CPU:0";

void Fail(benchmark::State& state, const Status& status) {
  if (!status.ok()) state.SkipWithError(std::string(status.message()).c_str());
}

// A step of a pipeline over the million nodes: `prepare` is not measured, `run` is.
template <typename Prepare, typename Run>
void Measure(benchmark::State& state, Prepare prepare, Run run) {
  for (auto _ : state) {
    state.PauseTiming();
    auto input = prepare();
    state.ResumeTiming();
    auto output = run(input);
    state.PauseTiming();
    Fail(state, output.status());
    {
      // Freed outside of the measure.
      const auto gone = std::make_pair(std::move(output), std::move(input));
      benchmark::DoNotOptimize(&gone);
    }
    state.ResumeTiming();
  }
  state.SetItemsProcessed(state.iterations() * kMillion);
}

StatusOr<std::unique_ptr<Graph>> Extended(const tensorflow::GraphDef& def) {
  auto graph = std::make_unique<Graph>();
  MR_RETURN_IF_ERROR(ExtendGraph(def, graph.get()));
  return graph;
}

// The session's graph, made once.
const Graph& MillionGraph() {
  static const Graph* const graph = Extended(MakeGraphDef(kMillion))->release();
  return *graph;
}

StatusOr<std::unique_ptr<Graph>> Pruned() {
  MR_ASSIGN_OR_RETURN(
      RunGraph run,
      BuildRunGraph(MillionGraph(), {{}, {}, {absl::StrCat("layer/node_", kMillion - 1)}}));
  return std::move(run.graph);
}

Status Place(Graph* graph) {
  const KernelRegistrySupport kernels;
  return PlaceGraph(graph, {{kCpu, "CPU", 1}}, &kernels, {});
}

void BM_MillionExtend(benchmark::State& state) {
  const tensorflow::GraphDef def = MakeGraphDef(kMillion);
  Measure(
      state, [] { return 0; }, [&](int) { return Extended(def); });
}
BENCHMARK(BM_MillionExtend)->Unit(benchmark::kMillisecond)->Iterations(2);

void BM_MillionExtendByOne(benchmark::State& state) {
  StatusOr<std::unique_ptr<Graph>> graph = Extended(MakeGraphDef(kMillion));
  int n = 0;
  for (auto _ : state) {
    tensorflow::GraphDef one;
    tensorflow::NodeDef* node = one.add_node();
    node->set_name(absl::StrCat("one_", n++));
    node->set_op("BenchAdd");
    node->add_input("layer/node_7");
    node->add_input("layer/node_999");
    (*node->mutable_attr())["T"].set_type(tensorflow::DT_FLOAT);
    Fail(state, ExtendGraph(one, graph->get()));
  }
}
BENCHMARK(BM_MillionExtendByOne)->Unit(benchmark::kMicrosecond);

void BM_MillionPrune(benchmark::State& state) {
  MillionGraph();
  Measure(
      state, [] { return 0; }, [](int) { return Pruned(); });
}
BENCHMARK(BM_MillionPrune)->Unit(benchmark::kMillisecond)->Iterations(2);

void BM_MillionPlace(benchmark::State& state) {
  Measure(
      state, [] { return *Pruned(); },
      [](std::unique_ptr<Graph>& graph) -> StatusOr<int> {
        MR_RETURN_IF_ERROR(Place(graph.get()));
        return 0;
      });
}
BENCHMARK(BM_MillionPlace)->Unit(benchmark::kMillisecond)->Iterations(2);

std::unique_ptr<Graph> Placed() {
  std::unique_ptr<Graph> graph = *Pruned();
  Place(graph.get()).IgnoreError();
  return graph;
}

void BM_MillionPartition(benchmark::State& state) {
  Measure(state, Placed,
          [](std::unique_ptr<Graph>& graph) { return PartitionGraph(std::move(graph)); });
}
BENCHMARK(BM_MillionPartition)->Unit(benchmark::kMillisecond)->Iterations(2);

void BM_MillionPlan(benchmark::State& state) {
  Device device;
  device.name = kCpu;
  device.type = "CPU";
  Measure(state, Placed,
          [&](std::unique_ptr<Graph>& graph) { return Plan::Build(*graph, &device, nullptr); });
}
BENCHMARK(BM_MillionPlan)->Unit(benchmark::kMillisecond)->Iterations(2);

// A hub of 100,000 readers loses them one by one, half to another source, half for good.
void BM_HubEdits(benchmark::State& state) {
  constexpr int kReaders = 100'000;
  for (auto _ : state) {
    state.PauseTiming();
    Graph graph;
    tensorflow::NodeDef def;
    def.set_op("BenchSource");
    def.set_name("hub");
    Node* const hub = *graph.AddNode(def);
    def.set_name("other");
    Node* const other = *graph.AddNode(def);
    def.set_op("BenchAdd");
    (*def.mutable_attr())["T"].set_type(tensorflow::DT_FLOAT);
    std::vector<Node*> readers;
    for (int i = 0; i < kReaders; ++i) {
      def.set_name(absl::StrCat("reader_", i));
      readers.push_back(*graph.AddNode(def));
      Fail(state, graph.AddEdge(hub, 0, readers.back(), 0));
      Fail(state, graph.AddEdge(hub, 0, readers.back(), 1));
    }
    state.ResumeTiming();
    for (int i = 0; i < kReaders; ++i) {
      if (i % 2 == 0) {
        graph.RemoveNode(readers[static_cast<size_t>(i)]);
      } else {
        Fail(state, graph.UpdateInput(readers[static_cast<size_t>(i)], 0, other, 0));
      }
    }
  }
  state.SetItemsProcessed(state.iterations() * kReaders);
}
BENCHMARK(BM_HubEdits)->Unit(benchmark::kMillisecond);

void BM_BuildThroughScope(benchmark::State& state) {
  for (auto _ : state) {
    Scope root;
    Output x = NodeBuilder(root, "BenchSource").Finish().output(0);
    for (int i = 1; i < state.range(0); ++i) {
      x = NodeBuilder(root, "BenchAdd").Input(x).Input(x).Finish().output(0);
    }
    if (!root.ok()) state.SkipWithError("build");
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_BuildThroughScope)->Arg(100000)->Unit(benchmark::kMillisecond);

void BM_Print(benchmark::State& state) {
  const tensorflow::GraphDef def = MakeGraphDef(static_cast<int>(state.range(0)));
  for (auto _ : state) benchmark::DoNotOptimize(GraphToText(def));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_Print)->Arg(100000)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace millrace
