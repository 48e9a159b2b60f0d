// SPDX-License-Identifier: Apache-2.0
//
// A training step of a table of 1,000,000 rows of 64 floats, whole or in two parts, on two
// parameter servers and a worker of this process, over loopback.
//
//   bazel run -c opt //tests/cluster:part_lookup_benchmark
//
// BM_Rows/P looks up 4,096 ids, one an example; BM_Lists/P 128 examples of 64 ids, which it adds
// up; P: parts, 0 for the whole table. Each with gradient descent. Two counters say what crosses:
// bytes a step and tensors a step. BM_PortableRows/2 and BM_PortableLists/2 have TensorFlow's ops
// alone, as graphs without ops of our own have them.

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "core/shape.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/cluster/cluster.h"
#include "distributed/replica_device_setter.h"
#include "distributed/server.h"
#include "distributed/server_counts.h"
#include "graph/scope.h"
#include "layers/embedding.h"
#include "layers/embedding_sparse.h"
#include "layers/initializers.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "tests/cluster/process.h"
#include "train/gradient_descent.h"
#include "train/optimizer.h"

namespace millrace {
namespace {

constexpr int64_t kRows = 1'000'000, kWidth = 64;
constexpr int64_t kManyExamples = 4096, kExamples = 128, kIdsOfExample = 64;

struct Sent {
  int64_t bytes = 0, tensors = 0;
};
Sent SentBy(const std::vector<std::unique_ptr<Server>>& servers) {
  Sent sum;
  for (const auto& server : servers) {
    for (const auto& [task, counts] : CountsOf(*server).peers) {
      sum.bytes += counts.bytes_sent;
      sum.tensors += counts.tensors_sent;
    }
  }
  return sum;
}

// One id an example, or lists; looked up by TensorFlow's ops alone.
struct Kind {
  bool lists = false, portable = false;
};

// What the table gives for `ids`, of the examples `of`.
Output LookUp(const Scope& s, const PartitionedVariable& table, const Output& ids, const Output& of,
              const Kind& kind) {
  if (!kind.lists) return EmbeddingLookup(s, table, ids, {.portable = kind.portable});
  if (!kind.portable) {
    return EmbeddingLookupSparse(s, table, IdLists{.ids = ids, .rows = of}, Combiner::kSum);
  }
  const Output zeros = ZerosLike(s, of);
  const SparseTensor sparse = {Pack(s, {of, zeros}, {.axis = 1}), ids,
                               Const<int64_t>(s, {kExamples, kIdsOfExample})};
  return EmbeddingLookupSparse(s, table, sparse, {}, {.combiner = Combiner::kSum});
}

Status RunSteps(benchmark::State& state, const Kind& kind) {
  const auto num_parts = static_cast<int>(state.range(0));
  const ClusterPorts ports = FreeClusterPorts(2, 0, 1);
  std::vector<std::unique_ptr<Server>> servers;
  const auto start = [&](const char* job, int task) -> StatusOr<ClusterConfig> {
    MR_ASSIGN_OR_RETURN(const ClusterConfig config,
                        ClusterConfig::Parse(TfConfig(ports, job, task)));
    MR_ASSIGN_OR_RETURN(servers.emplace_back(), Server::Start(config));
    return config;
  };
  for (int i = 0; i < 2; ++i) MR_RETURN_IF_ERROR(start("ps", i).status());
  MR_ASSIGN_OR_RETURN(const ClusterConfig config, start("worker", 0));

  Scope root;
  const Scope s = root.WithDevice(ReplicaDeviceSetter(config, {.partition_tables_above = 0}));
  const Output ids = Placeholder(s.WithName("ids"), DT_INT64, {-1});
  const Output of = Placeholder(s.WithName("of"), DT_INT64, {-1});
  const PartitionedVariable table = MakeVariableInParts(
      s.WithName("table"), Shape{kRows, kWidth}, DT_FLOAT,
      num_parts == 0 ? Partitioner() : FixedSizePartitioner(num_parts), ZerosInitializer());
  const Output loss = ReduceMean(s.WithName("loss"), LookUp(s, table, ids, of, kind));
  const Operation train = GradientDescentOptimizer({.learning_rate = 0.1}).Minimize(s, loss);
  const Operation init = GlobalVariablesInitializer(s);
  MR_RETURN_IF_ERROR(root.status());

  SessionOptions options;
  options.target = servers.back()->target();
  MR_ASSIGN_OR_RETURN(const auto session, NewSession(options));
  MR_RETURN_IF_ERROR(session->Extend(root));
  MR_RETURN_IF_ERROR(session->Run({}, {}, {init}).status());
  std::vector<std::string> feeds = {ids.name()};
  if (kind.lists) feeds.push_back(of.name());
  MR_ASSIGN_OR_RETURN(const auto prepared,
                      session->Prepare({.feeds = feeds, .targets = {train.name()}}));
  std::mt19937_64 random(1);
  std::vector<int64_t> values, examples;
  const int64_t count = kind.lists ? kExamples * kIdsOfExample : kManyExamples;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<int64_t>(random() % static_cast<uint64_t>(kRows)));
    examples.push_back(i / kIdsOfExample);
  }
  std::vector<Tensor> batch = {Tensor::Vector<int64_t>(values)};
  if (kind.lists) batch.push_back(Tensor::Vector<int64_t>(examples));
  MR_RETURN_IF_ERROR(prepared->Run(batch).status());
  const Sent before = SentBy(servers);
  for (auto _ : state) MR_RETURN_IF_ERROR(prepared->Run(batch).status());
  const Sent after = SentBy(servers);
  const auto per_step = [&](int64_t sent) {
    return static_cast<double>(sent) / static_cast<double>(state.iterations());
  };
  state.counters["bytes"] = per_step(after.bytes - before.bytes);
  state.counters["tensors"] = per_step(after.tensors - before.tensors);
  return session->Close();
}

void Report(benchmark::State& state, const Kind& kind) {
  const Status status = RunSteps(state, kind);
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}

void BM_Rows(benchmark::State& state) { Report(state, {}); }
void BM_PortableRows(benchmark::State& state) { Report(state, {.portable = true}); }
void BM_Lists(benchmark::State& state) { Report(state, {.lists = true}); }
void BM_PortableLists(benchmark::State& state) { Report(state, {.lists = true, .portable = true}); }

BENCHMARK(BM_Rows)->Arg(0)->Arg(2)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_PortableRows)->Arg(2)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_Lists)->Arg(0)->Arg(2)->UseRealTime()->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_PortableLists)->Arg(2)->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace millrace
