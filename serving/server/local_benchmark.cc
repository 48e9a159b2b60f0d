// SPDX-License-Identifier: Apache-2.0
//
// half_plus_two asked within the process: its step alone, as a served version, and by a server with
// metrics. For people:
//
//   bazel run -c opt //serving/server:local_benchmark

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "benchmark/benchmark.h"
#include "core/file_system.h"
#include "core/random_bits.h"
#include "core/status.h"
#include "core/tensor.h"
#include "graph/scope.h"
#include "ops/ops.h"
#include "proto/serving/predict.pb.h"
#include "runtime/session.h"
#include "saver/export_model.h"
#include "serving/server/local_model_server.h"

namespace millrace {
namespace {

void OrEnd(const Status& status) {
  if (!status.ok()) EndProgram(status);
}
template <typename T>
T OrEnd(StatusOr<T> value) {
  OrEnd(value.status());
  return *std::move(value);
}

// For all benchmarks; the model's files are deleted once they are loaded.
struct Asked {
  std::unique_ptr<Session> session;
  std::unique_ptr<PreparedStep> step;
  std::unique_ptr<LocalModelServer> server;
};

Asked* NewAsked() {
  auto asked = std::make_unique<Asked>();
  const Scope root;
  const Output x = Placeholder(root.WithName("x"), DT_FLOAT, {-1, 1});
  const Output y = Add(root.WithName("y"), Mul(root, x, Const(root, 0.5f)), Const(root, 2.0f));
  asked->session = OrEnd(NewSession());
  OrEnd(asked->session->Extend(root));
  asked->step = OrEnd(asked->session->Prepare(Signature{.feeds = {"x"}, .fetches = {"y"}}));
  const std::string base = JoinPath("/tmp", "local_benchmark_" + RandomHexName());
  OrEnd(FileSystem::Posix()->RecursivelyCreateDirectory(base));
  const std::vector<ServingSignature> signatures = {{.inputs = {{"x", x}}, .outputs = {{"y", y}}}};
  OrEnd(ExportModel(asked->session.get(), root, signatures, JoinPath(base, "1")));
  asked->server =
      OrEnd(LocalModelServer::Start({.models = {{.name = "half_plus_two", .base_path = base}},
                                     .poll_period = absl::InfiniteDuration()}));
  FileSystem::Posix()->RecursivelyDelete(base).IgnoreError();
  return asked.release();
}

const Asked& TheAsked() {
  static const Asked* const asked = NewAsked();
  return *asked;
}

Tensor Rows() { return Tensor::Of<float>({{1}, {2}, {5}}); }

void Step(benchmark::State& state) {
  PreparedStep* const step = TheAsked().step.get();
  const Tensor x = Rows();
  Tensor y;
  for (auto _ : state) OrEnd(step->RunInto({&x, 1}, {&y, 1}));
}

void ByNames(benchmark::State& state) {
  const LocalModelServer& server = *TheAsked().server;
  const std::map<std::string, Tensor> inputs = {{"x", Rows()}};
  for (auto _ : state) benchmark::DoNotOptimize(OrEnd(server.Predict("half_plus_two", inputs)));
}

void ByMessages(benchmark::State& state) {
  const LocalModelServer& server = *TheAsked().server;
  tensorflow::serving::PredictRequest request;
  request.mutable_model_spec()->set_name("half_plus_two");
  tensorflow::TensorProto& x = (*request.mutable_inputs())["x"];
  x.set_dtype(tensorflow::DT_FLOAT);
  x.mutable_tensor_shape()->add_dim()->set_size(3);
  x.mutable_tensor_shape()->add_dim()->set_size(1);
  x.add_float_val(1);
  x.add_float_val(2);
  x.add_float_val(5);
  tensorflow::serving::PredictResponse response;
  for (auto _ : state) OrEnd(server.Predict(request, &response));
}

BENCHMARK(Step);
BENCHMARK(ByNames);
BENCHMARK(ByMessages);

}  // namespace
}  // namespace millrace
