// SPDX-License-Identifier: Apache-2.0
#include <string>

#include "benchmark/benchmark.h"
#include "core/crc32c.h"

namespace millrace {
namespace {

void BM_Crc32c(benchmark::State& state) {
  const std::string data(static_cast<size_t>(state.range(0)), 'x');
  uint32_t crc = 0;
  for (auto _ : state) benchmark::DoNotOptimize(crc = ExtendCrc32c(crc, data));
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * state.range(0));
}
BENCHMARK(BM_Crc32c)->Arg(12)->Arg(256)->Arg(4096)->Arg(65'536)->Arg(4 << 20);

}  // namespace
}  // namespace millrace
