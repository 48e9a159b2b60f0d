// SPDX-License-Identifier: Apache-2.0
//
// bazel run -c opt //data:function_dataset_benchmark: what a dataset pays for calling a function of
// a graph, per element: Map of a C++ function against MapDataset of a function that gives its
// argument back, and of one with a chain of nodes (Square: nothing that a rewrite would remove).

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "data/dataset.h"
#include "data/dataset_variant.h"
#include "data/iterator.h"
#include "graph/attr.h"
#include "graph/function_builder.h"
#include "graph/node_builder.h"
#include "ops/ops.h"
#include "runtime/session.h"

namespace millrace::data {
namespace {

constexpr int64_t kEndless = int64_t{1} << 60;

void Consume(benchmark::State& state, const StatusOr<Dataset>& dataset) {
  if (!dataset.ok()) {
    state.SkipWithError(dataset.status().ToString().c_str());
    return;
  }
  const auto iterator = dataset->MakeIterator();
  if (!iterator.ok()) {
    state.SkipWithError(iterator.status().ToString().c_str());
    return;
  }
  Element element;
  for (auto _ : state) {
    const StatusOr<bool> more = (*iterator)->Next(&element);
    if (!more.ok()) {
      state.SkipWithError(more.status().ToString().c_str());
      return;
    }
  }
}

void MapOfCode(benchmark::State& state) {
  Consume(state, Dataset::Range(kEndless).Map([](Element e) -> StatusOr<Element> { return e; }));
}
BENCHMARK(MapOfCode);

StatusOr<Dataset> GraphDataset(int nodes) {
  Scope scope;
  const DefinedFunction f =
      DefineFunction(scope, "f", {DT_INT64}, [nodes](const Scope& s, const std::vector<Output>& x) {
        Output y = x[0];
        for (int i = 0; i < nodes; ++i) y = Square(s, y);
        return std::vector{y};
      });
  const std::vector<DType> types = {DT_INT64};
  const std::vector<PartialShape> shapes = {PartialShape::Scalar()};
  const Output range = NodeBuilder(scope, "RangeDataset")
                           .Input(Const(scope, int64_t{0}))
                           .Input(Const(scope, kEndless))
                           .Input(Const(scope, int64_t{1}))
                           .Attr("output_types", types)
                           .Attr("output_shapes", shapes)
                           .Finish()
                           .output(0);
  const Output map = NodeBuilder(scope, "MapDataset")
                         .Input(range)
                         .Input(std::vector<Output>())
                         .Attr("f", FunctionName{f.name})
                         .Attr("output_types", types)
                         .Attr("output_shapes", shapes)
                         .Finish()
                         .output(0);
  MR_ASSIGN_OR_RETURN(const auto session, NewSession());
  MR_RETURN_IF_ERROR(session->Extend(scope));
  MR_ASSIGN_OR_RETURN(const std::vector<Tensor> out, session->Run({}, {map}));
  MR_ASSIGN_OR_RETURN(DatasetWithOptions made, DatasetOf(out[0], "the result"));
  return std::move(made.dataset);
}

void MapOfNodes(benchmark::State& state) {
  Consume(state, GraphDataset(static_cast<int>(state.range(0))));
}
BENCHMARK(MapOfNodes)->Arg(0)->Arg(1)->Arg(10);

}  // namespace
}  // namespace millrace::data
