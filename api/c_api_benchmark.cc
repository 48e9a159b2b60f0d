// SPDX-License-Identifier: Apache-2.0
//
// What a call through the C API costs above the same call in C++.
//   bazel run //api:c_api_benchmark
// A prepared step with one feed and one fetch, and by names; the step is one Add of a scalar.
#include <memory>
#include <vector>

#include "api/c_api.h"
#include "benchmark/benchmark.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "ops/array/constant.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_binary.h"
#include "runtime/session.h"

namespace millrace {
namespace {

struct CxxModel {
  CxxModel() {
    const Output x = Placeholder(root.WithName("x"), DT_FLOAT, PartialShape::Scalar());
    Add(root.WithName("y"), x, Const(root, 1.0f));
    session = *NewSession();
    session->Extend(root).IgnoreError();
    step = *session->Prepare({.feeds = {"x"}, .fetches = {"y:0"}});
  }
  Scope root;
  std::unique_ptr<Session> session;
  std::unique_ptr<PreparedStep> step;
  const Tensor fed = Tensor::Scalar(1.0f);
};

struct CModel {
  CModel() {
    const char* const x =
        millrace_graph_add_placeholder(graph, "x", MILLRACE_FLOAT, nullptr, 0, status);
    const char* const inputs[] = {x, millrace_graph_add_constant(graph, nullptr, fed, status)};
    const char* const y = millrace_graph_add_node(graph, "Add", "y", inputs, 2, status);
    session = millrace_session_new(graph, nullptr, status);
    step = millrace_session_prepare(session, &x, 1, &y, 1, nullptr, 0, status);
  }
  ~CModel() {
    millrace_prepared_step_delete(step);
    millrace_session_delete(session);
    millrace_graph_delete(graph);
    millrace_tensor_delete(fed);
    millrace_status_delete(status);
  }
  MillraceStatus* const status = millrace_status_new();
  MillraceGraph* const graph = millrace_graph_new(status);
  MillraceTensor* fed = millrace_tensor_new(MILLRACE_FLOAT, nullptr, 0, status);
  MillraceSession* session;
  MillracePreparedStep* step;
};

void BM_PreparedCxx(benchmark::State& state) {
  CxxModel model;
  for (auto _ : state) {
    Tensor result;
    if (!model.step->RunInto({&model.fed, 1}, {&result, 1}).ok()) state.SkipWithError("Run");
    benchmark::DoNotOptimize(result.raw_data());
  }
}
BENCHMARK(BM_PreparedCxx);

void BM_PreparedC(benchmark::State& state) {
  CModel model;
  for (auto _ : state) {
    MillraceTensor* result;
    millrace_prepared_step_run(model.step, &model.fed, 1, &result, 1, nullptr, model.status);
    benchmark::DoNotOptimize(millrace_tensor_data(result));
    millrace_tensor_delete(result);
  }
  if (millrace_status_code(model.status) != MILLRACE_OK) {
    state.SkipWithError(millrace_status_message(model.status));
  }
}
BENCHMARK(BM_PreparedC);

void BM_ByNameCxx(benchmark::State& state) {
  CxxModel model;
  for (auto _ : state) {
    StatusOr<std::vector<Tensor>> results = model.session->Run({{"x", model.fed}}, {"y:0"});
    if (!results.ok()) state.SkipWithError("Run");
    benchmark::DoNotOptimize(results);
  }
}
BENCHMARK(BM_ByNameCxx);

void BM_ByNameC(benchmark::State& state) {
  CModel model;
  const char *x = "x", *y = "y:0";
  for (auto _ : state) {
    MillraceTensor* result;
    millrace_session_run(model.session, &x, &model.fed, 1, &y, &result, 1, nullptr, 0, nullptr,
                         model.status);
    benchmark::DoNotOptimize(millrace_tensor_data(result));
    millrace_tensor_delete(result);
  }
  if (millrace_status_code(model.status) != MILLRACE_OK) {
    state.SkipWithError(millrace_status_message(model.status));
  }
}
BENCHMARK(BM_ByNameC);

}  // namespace
}  // namespace millrace
