// SPDX-License-Identifier: Apache-2.0
//
// What a request over HTTP costs, without the work for it.
//
//   bazel run -c opt //serving/rest:http_benchmark
//
// Clients and server share the process and two cores; each of the `busy` connections has a thread
// of its own, asks, and waits for the answer; `idle` more are open and say nothing. BM_Http answers
// on the server's thread, BM_HttpLater from another one (the connection leaves its loop and comes
// back). `body`: bytes that come and go.
//
//   items_per_second   requests
//   p50_us, p99_us     of all requests, as the clients see them
//   server_us          CPU time of the process without the clients' threads, per request

#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "core/mutex.h"
#include "net/http/http_server.h"
#include "net/http/testing/raw_http_client.h"

namespace millrace {
namespace {

constexpr int kRequestsOfConnection = 4'000;

double CpuSeconds(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// One thread that answers what the server's threads give it.
class Answerer {
 public:
  Answerer() : thread_([this] { Run(); }) {}
  ~Answerer() {
    {
      MutexLock lock(&mu_);
      end_ = true;
      changed_.Signal();
    }
    thread_.join();
  }
  void Add(std::unique_ptr<HttpRequest> request) {
    MutexLock lock(&mu_);
    waiting_.push_back(std::move(request));
    changed_.Signal();
  }

 private:
  void Run() {
    while (true) {
      std::vector<std::unique_ptr<HttpRequest>> batch;
      {
        MutexLock lock(&mu_);
        while (waiting_.empty() && !end_) changed_.Wait(&mu_);
        if (waiting_.empty()) return;
        batch.swap(waiting_);
      }
      for (const auto& request : batch) request->Answer(200, {}, std::string(request->body()));
    }
  }

  Mutex mu_;
  CondVar changed_;
  bool end_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::unique_ptr<HttpRequest>> waiting_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;  // the last: uses the others
};

struct ClientResult {
  std::vector<int64_t> ns;
  double cpu_seconds = 0;
  bool ok = true;
};

void Ask(RawHttpClient* client, const std::string& request, size_t body, int times,
         ClientResult* result) {
  using Clock = std::chrono::steady_clock;
  const double before = CpuSeconds(CLOCK_THREAD_CPUTIME_ID);
  result->ns.reserve(static_cast<size_t>(times));
  for (int i = 0; i < times && result->ok; ++i) {
    const Clock::time_point start = Clock::now();
    const RawHttpReply reply = client->Ask(request);
    result->ok = reply.status == 200 && reply.body.size() == body;
    result->ns.push_back(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
  }
  result->cpu_seconds = CpuSeconds(CLOCK_THREAD_CPUTIME_ID) - before;
}

// Both ends of 1,000 connections are more files than many a shell allows.
void AllowManyFiles() {
  rlimit files = {};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  setrlimit(RLIMIT_NOFILE, &files);
}

void Run(benchmark::State& state, bool later) {
  AllowManyFiles();
  const size_t busy = static_cast<size_t>(state.range(0));
  const size_t idle = static_cast<size_t>(state.range(1));
  const size_t body = static_cast<size_t>(state.range(2));
  // A large body is as much work as many small ones.
  const int times =
      static_cast<int>(std::max<size_t>(kRequestsOfConnection / (1 + body / 4'096), 40));
  Answerer answerer;
  HttpServerOptions options;
  options.num_threads = 2;
  auto server = HttpServer::Start(options, [&](std::unique_ptr<HttpRequest> request) {
    if (later) return answerer.Add(std::move(request));
    request->Answer(200, {{"Content-Type", "application/json"}}, std::string(request->body()));
  });
  if (!server.ok()) return state.SkipWithError("the server must start");
  const std::string request =
      HttpRequestText("POST", "/v1/models/half_plus_two:predict", std::string(body, 'x'));
  std::vector<RawHttpClient> idle_clients, clients;
  for (size_t i = 0; i < idle; ++i) {
    idle_clients.emplace_back((*server)->port());
    // As a client that has been served once and stays.
    if (idle_clients.back().Ask(request).status != 200) return state.SkipWithError("no idle reply");
  }
  for (size_t i = 0; i < busy; ++i) clients.emplace_back((*server)->port());

  std::vector<int64_t> all;
  double cpu = 0, client_cpu = 0;
  for (auto _ : state) {
    std::vector<ClientResult> results(busy);
    const double before = CpuSeconds(CLOCK_PROCESS_CPUTIME_ID);
    {
      std::vector<std::thread> threads;
      for (size_t i = 0; i < busy; ++i) {
        threads.emplace_back(Ask, &clients[i], request, body, times, &results[i]);
      }
      for (std::thread& thread : threads) thread.join();
    }
    cpu += CpuSeconds(CLOCK_PROCESS_CPUTIME_ID) - before;
    for (const ClientResult& result : results) {
      if (!result.ok) state.SkipWithError("a request must be answered");
      client_cpu += result.cpu_seconds;
      all.insert(all.end(), result.ns.begin(), result.ns.end());
    }
  }
  if (all.empty()) return;
  std::sort(all.begin(), all.end());
  const auto us = [&](size_t percent) {
    return 1e-3 * static_cast<double>(all[std::min(all.size() * percent / 100, all.size() - 1)]);
  };
  state.SetItemsProcessed(static_cast<int64_t>(all.size()));
  state.SetBytesProcessed(static_cast<int64_t>(all.size() * body * 2));
  state.counters["p50_us"] = us(50);
  state.counters["p99_us"] = us(99);
  state.counters["server_us"] = 1e6 * (cpu - client_cpu) / static_cast<double>(all.size());
}

void BM_Http(benchmark::State& state) { Run(state, false); }
void BM_HttpLater(benchmark::State& state) { Run(state, true); }

BENCHMARK(BM_Http)
    ->ArgNames({"busy", "idle", "body"})
    ->Args({1, 0, 0})
    ->Args({8, 0, 0})
    ->Args({8, 1'000, 0})
    ->Args({64, 0, 0})
    ->Args({8, 0, 1 << 20})
    ->UseRealTime()
    ->MinTime(2);
BENCHMARK(BM_HttpLater)
    ->ArgNames({"busy", "idle", "body"})
    ->Args({1, 0, 0})
    ->Args({8, 0, 0})
    ->Args({8, 1'000, 0})
    ->Args({64, 0, 0})
    ->UseRealTime()
    ->MinTime(2);

}  // namespace
}  // namespace millrace
