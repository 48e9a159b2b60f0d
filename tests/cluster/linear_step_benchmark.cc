// SPDX-License-Identifier: Apache-2.0
//
// A training step of a line on parameter servers and a worker of this process, over loopback.
//
//   bazel run -c opt //tests/cluster:linear_step_benchmark
//
// BM_LinearStep/N runs a prepared step of gradient descent with a global step; w, b and the step
// stand on N parameter servers in turn. BM_AdamStep/N is the same with Adam.

#include <memory>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/cluster/cluster.h"
#include "distributed/replica_device_setter.h"
#include "distributed/server.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "tests/cluster/process.h"
#include "train/adam.h"
#include "train/gradient_descent.h"
#include "train/optimizer.h"

namespace millrace {
namespace {

Status RunSteps(benchmark::State& state, Optimizer* optimizer) {
  const int num_ps = static_cast<int>(state.range(0));
  const ClusterPorts ports = FreeClusterPorts(num_ps, 0, 1);
  std::vector<std::unique_ptr<Server>> servers;
  const auto start = [&](const char* job, int task) -> StatusOr<ClusterConfig> {
    MR_ASSIGN_OR_RETURN(const ClusterConfig config,
                        ClusterConfig::Parse(TfConfig(ports, job, task)));
    MR_ASSIGN_OR_RETURN(servers.emplace_back(), Server::Start(config));
    return config;
  };
  for (int i = 0; i < num_ps; ++i) MR_RETURN_IF_ERROR(start("ps", i).status());
  MR_ASSIGN_OR_RETURN(const ClusterConfig config, start("worker", 0));

  Scope root;
  const Scope s = root.WithDevice(ReplicaDeviceSetter(config));
  const Output x = Placeholder(s.WithName("x"), DT_FLOAT, {-1});
  const Output y = Placeholder(s.WithName("y"), DT_FLOAT, {-1});
  const Variable step = GlobalStep(s);
  const Variable w = MakeVariable(s.WithName("w"), Const(s, 0.0f));
  const Variable b = MakeVariable(s.WithName("b"), Const(s, 0.0f));
  const Output predicted = Add(s, Mul(s, w.value, x), b.value);
  const Output loss = ReduceMean(s, Square(s, Sub(s, predicted, y)));
  const Operation train = optimizer->Minimize(s, loss, {.global_step = step});
  const Operation init = GlobalVariablesInitializer(s);
  MR_RETURN_IF_ERROR(root.status());

  SessionOptions options;
  options.target = servers.back()->target();
  MR_ASSIGN_OR_RETURN(const auto session, NewSession(options));
  MR_RETURN_IF_ERROR(session->Extend(root));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());
  MR_ASSIGN_OR_RETURN(const auto prepared, session->Prepare({.feeds = {x.name(), y.name()},
                                                             .fetches = {loss.name()},
                                                             .targets = {train.name()}}));
  const std::vector<Tensor> batch = {Tensor::Vector<float>({-1, 0, 1}),
                                     Tensor::Vector<float>({-4, -1, 2})};
  for (auto _ : state) MR_RETURN_IF_ERROR(prepared->Run(batch).status());
  MR_RETURN_IF_ERROR(session->Close());
  return absl::OkStatus();
}

void BM_LinearStep(benchmark::State& state) {
  GradientDescentOptimizer optimizer({.learning_rate = 0.1});
  const Status status = RunSteps(state, &optimizer);
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}
BENCHMARK(BM_LinearStep)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMicrosecond);

void BM_AdamStep(benchmark::State& state) {
  AdamOptimizer optimizer;
  const Status status = RunSteps(state, &optimizer);
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}
BENCHMARK(BM_AdamStep)->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace millrace
