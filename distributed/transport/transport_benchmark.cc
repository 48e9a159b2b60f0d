// SPDX-License-Identifier: Apache-2.0
//
// WorkerControl benchmarks: a ps and a worker of this process over loopback.
//
//   bazel run -c opt //distributed/transport:transport_benchmark
//
// BM_Pull and BM_Push run a step that moves one tensor of the given size from the ps to the worker,
// or the other way; BM_PullMany 64 of them; BM_NullStep moves nothing; BM_SparseStep pulls 4096
// rows of 64 floats and pushes as many updates. BM_WriteMany only writes the message of 64 tensors,
// BM_WriteMessage one with a message of the given size.

#include <grpcpp/support/byte_buffer.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "core/shape.h"
#include "core/tensor.h"
#include "core/testing/free_port.h"
#include "distributed/cluster/cluster.h"
#include "distributed/server.h"
#include "graph/node_builder.h"
#include "layers/variable.h"
#include "net/tensor_coding.h"
#include "ops/array/constant.h"
#include "ops/array/identity.h"
#include "ops/array/placeholder.h"
#include "ops/math/cwise_binary.h"
#include "ops/state/state.h"
#include "ops/training/training_ops.h"
#include "proto/worker.pb.h"
#include "runtime/session.h"

namespace millrace {
namespace {

struct Pair {
  std::unique_ptr<Server> ps, worker;
};

std::unique_ptr<Server> Start(const std::string& cluster, const char* job) {
  const auto config = ClusterConfig::Parse(absl::StrCat(
      "{\"cluster\": ", cluster, ", \"task\": {\"type\": \"", job, "\", \"index\": 0}}"));
  auto server = config.ok() ? Server::Start(*config) : config.status();
  if (!server.ok()) return nullptr;
  return *std::move(server);
}

Pair& Servers() {
  static Pair* const servers = [] {
    const std::vector<int> ports = FreePorts(2);
    const std::string cluster = absl::StrCat("{\"ps\": [\"localhost:", ports[0],
                                             "\"], \"worker\": [\"localhost:", ports[1], "\"]}");
    return new Pair{Start(cluster, "ps"), Start(cluster, "worker")};
  }();
  return *servers;
}

std::unique_ptr<Session> NewSessionOn(const Scope& scope, benchmark::State& state) {
  if (Servers().worker == nullptr || Servers().ps == nullptr) {
    state.SkipWithError("the servers did not start");
    return nullptr;
  }
  SessionOptions options;
  options.target = Servers().worker->target();
  auto session = NewSession(options);
  Status status = session.status();
  if (status.ok()) status = (*session)->Extend(scope);
  if (status.ok()) return *std::move(session);
  state.SkipWithError(status.ToString().c_str());
  return nullptr;
}

void RunPrepared(benchmark::State& state, Session* session, const Signature& signature,
                 absl::Span<const Tensor> feeds) {
  const auto step = session->Prepare(signature);
  if (!step.ok()) return state.SkipWithError(step.status().ToString().c_str());
  for (auto _ : state) {
    const auto out = (*step)->Run(feeds);
    if (!out.ok()) return state.SkipWithError(out.status().ToString().c_str());
  }
}

void BM_NullStep(benchmark::State& state) {
  Scope root;
  const Operation there = NoOp(root.WithDevice("/job:ps/task:0").WithName("there"));
  const auto session = NewSessionOn(root, state);
  if (session == nullptr) return;
  RunPrepared(state, session.get(), {{}, {}, {there.name()}}, {});
}
BENCHMARK(BM_NullStep)->UseRealTime()->Unit(benchmark::kMicrosecond);

// A variable on the ps is read there and used by the worker.
void BM_Pull(benchmark::State& state) {
  Scope root;
  const Scope ps = root.WithDevice("/job:ps/task:0");
  const Scope worker = root.WithDevice("/job:worker/task:0");
  const int64_t n = state.range(0) / 4;
  const Variable w =
      MakeVariable(ps.WithName(absl::StrCat("pull", n)),
                   Fill(ps, Const<int32_t>(ps, {static_cast<int32_t>(n)}), Const(ps, 1.0f)));
  const Output here = Identity(worker.WithName("here"), w.value);
  const auto session = NewSessionOn(root, state);
  if (session == nullptr) return;
  const auto init = session->Run({}, {}, {w.initializer});
  if (!init.ok()) return state.SkipWithError(init.status().ToString().c_str());
  RunPrepared(state, session.get(), {{}, {}, {here.op().name()}}, {});
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_Pull)->Arg(1 << 10)->Arg(100 << 10)->Arg(4 << 20)->Arg(64 << 20)->UseRealTime()->Unit(
    benchmark::kMicrosecond);

// As many variables as a model of a few dozen layers has.
constexpr int kMany = 64;

void BM_PullMany(benchmark::State& state) {
  Scope root;
  const Scope ps = root.WithDevice("/job:ps/task:0");
  const Scope worker = root.WithDevice("/job:worker/task:0");
  const int64_t n = state.range(0) / 4;
  std::vector<FetchName> initializers;
  Signature all;
  for (int i = 0; i < kMany; ++i) {
    const Variable w =
        MakeVariable(ps.WithName(absl::StrCat("many", n, "_", i)),
                     Fill(ps, Const<int32_t>(ps, {static_cast<int32_t>(n)}), Const(ps, 1.0f)));
    initializers.push_back(w.initializer);
    all.targets.push_back(Identity(worker, w.value).op().name());
  }
  const auto session = NewSessionOn(root, state);
  if (session == nullptr) return;
  const auto init = session->Run({}, {}, initializers);
  if (!init.ok()) return state.SkipWithError(init.status().ToString().c_str());
  RunPrepared(state, session.get(), all, {});
  state.SetBytesProcessed(state.iterations() * kMany * state.range(0));
}
BENCHMARK(BM_PullMany)
    ->RangeMultiplier(2)
    ->Range(512, 16 << 10)
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

void BM_WriteMany(benchmark::State& state) {
  const auto value = Tensor::Zeros(DT_FLOAT, *Shape::Make({state.range(0) / 4}));
  if (!value.ok()) return state.SkipWithError("no memory");
  for (auto _ : state) {
    MessageWriter writer;
    for (uint64_t i = 0; i < kMany; ++i) {
      writer.AddIndexedTensor(1, i, *value, /*is_dead=*/false).IgnoreError();
    }
    benchmark::DoNotOptimize(writer.Finish());
  }
}
BENCHMARK(BM_WriteMany)->RangeMultiplier(2)->Range(512, 16 << 10);

void BM_WriteMessage(benchmark::State& state) {
  tensorflow::RunGraphRequest message;
  message.set_graph_handle(std::string(static_cast<size_t>(state.range(0)), 'x'));
  for (auto _ : state) {
    MessageWriter writer;
    writer.AddMessage(message);
    benchmark::DoNotOptimize(writer.Finish());
  }
}
BENCHMARK(BM_WriteMessage)->RangeMultiplier(2)->Range(512, 16 << 10);

// What was fed to the worker arrives at the ps.
void BM_Push(benchmark::State& state) {
  Scope root;
  const Output x = Placeholder(root.WithDevice("/job:worker/task:0").WithName("x"), DT_FLOAT, {-1});
  const Output there = Identity(root.WithDevice("/job:ps/task:0").WithName("there"), x);
  const auto session = NewSessionOn(root, state);
  if (session == nullptr) return;
  auto value = Tensor::Zeros(DT_FLOAT, *Shape::Make({state.range(0) / 4}));
  if (!value.ok()) return state.SkipWithError("no memory");
  RunPrepared(state, session.get(), {{x.name()}, {}, {there.op().name()}},
              absl::MakeConstSpan(&*value, 1));
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_Push)->Arg(1 << 10)->Arg(100 << 10)->Arg(4 << 20)->Arg(64 << 20)->UseRealTime()->Unit(
    benchmark::kMicrosecond);

void BM_SparseStep(benchmark::State& state) {
  constexpr int64_t kRows = 4096, kWidth = 64, kTable = 1'000'000;
  Scope root;
  const Scope ps = root.WithDevice("/job:ps/task:0");
  const Scope worker = root.WithDevice("/job:worker/task:0");
  const Variable table = MakeVariable(
      ps.WithName("table"),
      Fill(ps, Const<int32_t>(ps, {static_cast<int32_t>(kTable), static_cast<int32_t>(kWidth)}),
           Const(ps, 1.0f)));
  const Output ids = Placeholder(worker.WithName("ids"), DT_INT64, {kRows});
  const Output rows = ResourceGather(ps, table.handle, ids, DT_FLOAT);
  const Output updates = Mul(worker, rows, Const(worker, 0.001f));
  const Operation train = ResourceScatterSub(ps.WithName("train"), table.handle, ids, updates);
  const auto session = NewSessionOn(root, state);
  if (session == nullptr) return;
  const auto init = session->Run({}, {}, {table.initializer});
  if (!init.ok()) return state.SkipWithError(init.status().ToString().c_str());
  Tensor some = *Tensor::Allocate(DT_INT64, *Shape::Make({kRows}));
  for (size_t i = 0; i < static_cast<size_t>(kRows); ++i) {
    some.mutable_flat<int64_t>()[i] = static_cast<int64_t>(i * 7919 % kTable);
  }
  RunPrepared(state, session.get(), {{ids.name()}, {}, {train.name()}},
              absl::MakeConstSpan(&some, 1));
  state.SetItemsProcessed(state.iterations() * kRows);
}
BENCHMARK(BM_SparseStep)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace millrace
