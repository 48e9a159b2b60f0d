// SPDX-License-Identifier: Apache-2.0
//
// How long the passes take on graphs of n nodes.
//   bazel run -c opt //graph/rewrite:rewrite_benchmark

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "core/tensor.h"
#include "graph/attr.h"
#include "graph/rewrite/rewrite.h"
#include "proto/node_def.pb.h"
#include "runtime/constant_evaluator.h"

namespace millrace {
namespace {

struct Made {
  std::unique_ptr<Graph> graph = std::make_unique<Graph>();
  std::vector<Node*> keep;
};

Node* Add(Graph* graph, const char* op, const std::string& name, const char* type_attr,
          const std::vector<Node*>& inputs) {
  tensorflow::NodeDef def;
  def.set_name(name);
  def.set_op(op);
  SetAttr(DT_INT32, &(*def.mutable_attr())[type_attr]);
  if (absl::string_view(op) == "Const") {
    SetAttr(Tensor::Scalar<int32_t>(3), &(*def.mutable_attr())["value"]);
  }
  if (absl::string_view(op) == "_Arg" || absl::string_view(op) == "_Retval") {
    SetAttr(int64_t{0}, &(*def.mutable_attr())["index"]);
  }
  Node* node = *graph->AddNode(std::move(def));
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!graph->AddEdge(inputs[i], 0, node, static_cast<int>(i)).ok()) std::abort();
  }
  return node;
}

// Nodes that nothing can be done about, each with two inputs of the 64 nodes before it.
Made Busy(int n) {
  Made made;
  std::vector<Node*> nodes = {Add(made.graph.get(), "_Arg", "arg", "T", {})};
  uint32_t random = 12345;
  for (int i = 1; i < n; ++i) {
    Node* inputs[2];
    for (Node*& input : inputs) {
      random = random * 1664525 + 1013904223;
      input = nodes[nodes.size() - 1 - (random >> 8) % std::min<size_t>(nodes.size(), 64)];
    }
    nodes.push_back(
        Add(made.graph.get(), "AddV2", absl::StrCat("n", i), "T", {inputs[0], inputs[1]}));
  }
  made.keep = {nodes[0], Add(made.graph.get(), "_Retval", "ret", "T", {nodes.back()})};
  return made;
}

Made Identities(int n) {
  Made made;
  Node* last = Add(made.graph.get(), "_Arg", "arg", "T", {});
  made.keep = {last};
  for (int i = 0; i < n; ++i) {
    last = Add(made.graph.get(), "Identity", absl::StrCat("n", i), "T", {last});
  }
  made.keep.push_back(Add(made.graph.get(), "_Retval", "ret", "T", {last}));
  return made;
}

Made Constants(int n) {
  Made made;
  Node* last = Add(made.graph.get(), "Const", "c", "dtype", {});
  for (int i = 0; i < n; ++i) {
    last = Add(made.graph.get(), "AddV2", absl::StrCat("n", i), "T", {last, last});
  }
  made.keep = {Add(made.graph.get(), "_Retval", "ret", "T", {last})};
  return made;
}

template <Made (*kMake)(int)>
void BM_Rewrite(benchmark::State& state) {
  RewriteOptions options;
  for (const RewritePass& pass : RewritePasses()) options.passes.emplace_back(pass.name);
  int after = 0;
  for (auto _ : state) {
    state.PauseTiming();
    Made made = kMake(static_cast<int>(state.range(0)));
    KernelEvaluator evaluator;
    state.ResumeTiming();
    const StatusOr<RewriteReport> report =
        RunRewrites(made.graph.get(), made.keep, &evaluator, options);
    if (!report.ok()) state.SkipWithError(std::string(report.status().message()).c_str());
    state.PauseTiming();
    after = report.ok() ? report->nodes_after : -1;
    made = Made();
    state.ResumeTiming();
  }
  state.counters["nodes_after"] = after;
}
BENCHMARK(BM_Rewrite<Busy>)->Arg(1000000)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK(BM_Rewrite<Identities>)->Arg(1000000)->Unit(benchmark::kMillisecond)->Iterations(1);
BENCHMARK(BM_Rewrite<Constants>)->Arg(1000000)->Unit(benchmark::kMillisecond)->Iterations(1);

}  // namespace
}  // namespace millrace
