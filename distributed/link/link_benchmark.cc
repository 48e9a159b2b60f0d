// SPDX-License-Identifier: Apache-2.0
//
// Link benchmarks: two tasks in this process and a link of each kind between them.
//
//   bazel run -c opt //distributed/link:link_benchmark
//   MILLRACE_LINK_KINDS=unix,grpc bazel run -c opt //distributed/link:link_benchmark
//
// BM_Turns/<kind>/0: RUN there and RUN back. BM_Turns/<kind>/<bytes>: a tensor of that size there
// and another one back; of kind `pools` they are those of `unix`, and tensors lie in shared memory.
// The ends answer on the threads of the network; the program's thread sleeps until a batch of turns
// is over. `switches` and `cpu_us` are of one turn and of all threads. Both ends share the process,
// so the memory of tensors is recycled as in two processes, but the cores' caches are warmer. Tasks
// of a simulation are left out: their time is not real.

#include <sys/resource.h>
#include <sys/time.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "core/mutex.h"
#include "core/status.h"
#include "core/tensor.h"
#include "distributed/link/link.h"
#include "distributed/link/testing/link_kinds.h"

namespace millrace {
namespace {

// What the process has used so far.
struct Usage {
  int64_t switches = 0;
  double cpu_us = 0;
};
Usage UsageSoFar() {
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  const auto micros = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_usec);
  };
  return {usage.ru_nvcsw + usage.ru_nivcsw, micros(usage.ru_utime) + micros(usage.ru_stime)};
}

// Turns that are still to be taken.
class Turns {
 public:
  void Begin(int64_t num) {
    MutexLock lock(&mu_);
    left_ = num;
  }
  // One is over. True when another one follows.
  bool End() {
    MutexLock lock(&mu_);
    if (--left_ > 0) return true;
    changed_.SignalAll();
    return false;
  }
  // No turn follows: why.
  void Fail(const Status& status) {
    MutexLock lock(&mu_);
    failed_.Update(status);
    left_ = 0;
    changed_.SignalAll();
  }
  Status Await() {
    MutexLock lock(&mu_);
    while (left_ > 0) changed_.Wait(&mu_);
    return failed_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  int64_t left_ ABSL_GUARDED_BY(mu_) = 0;
  Status failed_ ABSL_GUARDED_BY(mu_);
};

void BM_Turns(benchmark::State& state, const LinkKind& kind, int64_t num_bytes) {
  Turns turns;
  LinkMessage message = RunFrame();
  if (num_bytes > 0) {
    SentTensors tensors;
    tensors.tensors.emplace_back().value = *Tensor::Zeros(DT_FLOAT, Shape{num_bytes / 4});
    message = std::move(tensors);
  }
  const std::unique_ptr<LinkPair> pair = kind.make();
  const auto send = [&turns, &message](Link* link) {
    const Status status = link->Send(message);
    if (!status.ok()) turns.Fail(status);
  };
  Link* worker = nullptr;
  Link* ps = nullptr;
  const auto answer = [&] { send(ps); };
  const auto end_turn = [&] {
    if (turns.End()) send(worker);
  };
  pair->worker_end->writes_down = pair->ps_end->writes_down = false;
  pair->ps_end->on_run = [&](const RunFrame&) { answer(); };
  pair->ps_end->on_tensors = [&](const SentTensors&) { answer(); };
  pair->worker_end->on_run = [&](const RunFrame&) { end_turn(); };
  pair->worker_end->on_tensors = [&](const SentTensors&) { end_turn(); };
  pair->Settle();
  worker = pair->worker();
  ps = pair->ps();
  if (worker == nullptr || ps == nullptr) return state.SkipWithError("the link did not open");
  // The program's thread is woken once in so many turns.
  const int64_t batch = num_bytes <= (64 << 10) ? 100 : 1;
  const Usage before = UsageSoFar();
  while (state.KeepRunningBatch(batch)) {
    turns.Begin(batch);
    send(worker);
    const Status status = turns.Await();
    if (!status.ok()) return state.SkipWithError(status.ToString().c_str());
  }
  const Usage after = UsageSoFar();
  pair->Settle();
  const double num_turns = static_cast<double>(state.iterations());
  state.counters["switches"] = static_cast<double>(after.switches - before.switches) / num_turns;
  state.counters["cpu_us"] = (after.cpu_us - before.cpu_us) / num_turns;
  state.SetBytesProcessed(state.iterations() * 2 * num_bytes);
}

void RegisterAll() {
  for (const LinkKind& kind : LinkKinds()) {
    if (kind.name == "simulated") continue;
    for (const int64_t num_bytes : {0, 64 << 10, 4 << 20, 64 << 20}) {
      benchmark::RegisterBenchmark(absl::StrCat("BM_Turns/", kind.name, "/", num_bytes).c_str(),
                                   BM_Turns, kind, num_bytes)
          ->UseRealTime()
          ->Unit(benchmark::kMicrosecond);
    }
  }
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  millrace::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
