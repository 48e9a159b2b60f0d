// SPDX-License-Identifier: Apache-2.0
//
// What a cluster costs that does nothing: the CPU time of two parameter servers and of workers in
// this process, as per cent of one core (`core_percent`), kernel included.
//
//   bazel run -c opt //tests/cluster:idle_cluster_benchmark
//
// BM_Idle/N/S/P has N workers, of whom S keep a session open that has run one step on each
// parameter server (so 2 S worker sessions are leased), with a lease_period of P seconds. What the
// leases cost is the difference between two periods.

#include <sys/resource.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "benchmark/benchmark.h"
#include "core/status.h"
#include "distributed/cluster/cluster.h"
#include "distributed/replica_device_setter.h"
#include "distributed/server.h"
#include "graph/scope.h"
#include "layers/variable.h"
#include "ops/ops.h"
#include "runtime/session.h"
#include "tests/cluster/process.h"

namespace millrace {
namespace {

constexpr int kServers = 2;
constexpr absl::Duration kMeasured = absl::Seconds(60);  // a multiple of the periods

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
}

Status Idle(benchmark::State& state) {
  const int workers = static_cast<int>(state.range(0));
  const ClusterPorts ports = FreeClusterPorts(kServers, 0, workers);
  ServerOptions options;
  options.lease_period = absl::Seconds(state.range(2));
  options.lease = 6 * options.lease_period;
  std::vector<std::unique_ptr<Server>> servers;
  std::vector<ClusterConfig> configs;
  for (int i = 0; i < kServers + workers; ++i) {
    const bool ps = i < kServers;
    MR_ASSIGN_OR_RETURN(
        configs.emplace_back(),
        ClusterConfig::Parse(TfConfig(ports, ps ? "ps" : "worker", ps ? i : i - kServers)));
    MR_ASSIGN_OR_RETURN(servers.emplace_back(), Server::Start(configs.back(), options));
  }
  Scope root;
  const Scope s = root.WithDevice(ReplicaDeviceSetter(configs.back()));
  MakeVariable(s.WithName("v"), Const(s, 0.0f));
  MakeVariable(s.WithName("w"), Const(s, 0.0f));
  const Operation init = GlobalVariablesInitializer(s);
  std::vector<std::unique_ptr<Session>> sessions;
  for (int i = 0; i < state.range(1); ++i) {
    SessionOptions session;
    session.target = servers[static_cast<size_t>(kServers + i)]->target();
    MR_ASSIGN_OR_RETURN(sessions.emplace_back(), NewSession(session));
    MR_RETURN_IF_ERROR(sessions.back()->Extend(root));
    MR_RETURN_IF_ERROR(sessions.back()->Run({}, {}, {init}).status());
  }
  for (auto _ : state) {
    absl::SleepFor(absl::Seconds(2));  // what starting has left to do
    const double cpu = CpuSeconds();
    const absl::Time begin = absl::Now();
    absl::SleepFor(kMeasured);
    state.counters["core_percent"] =
        100 * (CpuSeconds() - cpu) / absl::ToDoubleSeconds(absl::Now() - begin);
  }
  for (const auto& session : sessions) MR_RETURN_IF_ERROR(session->Close());
  return absl::OkStatus();
}

void BM_Idle(benchmark::State& state) {
  const Status status = Idle(state);
  if (!status.ok()) state.SkipWithError(status.ToString().c_str());
}
BENCHMARK(BM_Idle)
    ->Args({6, 0, 10})
    ->Args({6, 6, 10})
    ->Args({64, 64, 3600})
    ->Args({64, 64, 20})
    ->Args({64, 64, 10})
    ->Args({64, 64, 1})
    ->Iterations(1)
    ->UseRealTime()
    ->Unit(benchmark::kSecond);

}  // namespace
}  // namespace millrace
