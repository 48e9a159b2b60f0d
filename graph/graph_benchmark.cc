// SPDX-License-Identifier: Apache-2.0
//
// How fast graphs are built, imported and printed, in nodes per second.
//   bazel run //graph:graph_benchmark

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "graph/import_export.h"
#include "graph/node_builder.h"
#include "graph/print.h"
#include "graph/shape_inference.h"

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
