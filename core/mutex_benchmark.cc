// SPDX-License-Identifier: Apache-2.0
//
// What a lock costs that nobody else wants.
#include "benchmark/benchmark.h"
#include "core/mutex.h"

namespace millrace {
namespace {

void BM_Mutex(benchmark::State& state) {
  Mutex mu;
  for (auto _ : state) {
    MutexLock lock(&mu);
  }
}
BENCHMARK(BM_Mutex);

void BM_SharedMutexRead(benchmark::State& state) {
  SharedMutex mu;
  for (auto _ : state) {
    ReaderLock lock(&mu);
  }
}
BENCHMARK(BM_SharedMutexRead);

}  // namespace
}  // namespace millrace
