// SPDX-License-Identifier: Apache-2.0
// What a tensor's memory costs: a block that comes back at once, by size and by threads, against
// the system's allocator; a buffer that another thread frees; and the first touch of 64 MB.

#include <cstdlib>
#include <cstring>
#include <vector>

#include "benchmark/benchmark.h"
#include "core/allocator.h"
#include "core/buffer.h"
#include "core/tensor.h"

namespace millrace {
namespace {

void BM_AllocateFree(benchmark::State& state) {
  const size_t size = static_cast<size_t>(state.range(0));
  Allocator* const allocator = DefaultAllocator();
  for (auto _ : state) {
    void* const block = allocator->Allocate(size);
    benchmark::DoNotOptimize(block);
    allocator->Deallocate(block, size);
  }
}
BENCHMARK(BM_AllocateFree)->Arg(64)->Arg(4 << 10)->Arg(256 << 10)->Arg(4 << 20)->Arg(64 << 20);
BENCHMARK(BM_AllocateFree)->Arg(64)->Arg(4 << 10)->Arg(1 << 20)->Threads(2)->UseRealTime();

void BM_SystemAllocateFree(benchmark::State& state) {
  const size_t size = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    void* const block = std::aligned_alloc(64, size);
    benchmark::DoNotOptimize(block);
    std::free(block);
  }
}
BENCHMARK(BM_SystemAllocateFree)
    ->Arg(64)
    ->Arg(4 << 10)
    ->Arg(256 << 10)
    ->Arg(4 << 20)
    ->Arg(64 << 20);

// Many blocks held at once: the caches fill and empty.
void BM_AllocateManyFreeMany(benchmark::State& state) {
  const size_t size = static_cast<size_t>(state.range(0));
  std::vector<void*> blocks(256);
  for (auto _ : state) {
    for (void*& block : blocks) block = DefaultAllocator()->Allocate(size);
    for (void* block : blocks) DefaultAllocator()->Deallocate(block, size);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<int64_t>(blocks.size()));
}
BENCHMARK(BM_AllocateManyFreeMany)->Arg(64)->Arg(4 << 10)->Arg(64 << 10);

void BM_ScalarTensor(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Tensor::Scalar<float>(1));
}
BENCHMARK(BM_ScalarTensor)->ThreadRange(1, 2)->UseRealTime();

// Receiving a tensor: memory plus the touch of every page.
void BM_FillRecycled(benchmark::State& state) {
  const size_t size = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    const BufferRef buffer = Buffer::Allocate(DefaultAllocator(), size);
    std::memset(buffer->data(), 1, size);
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_FillRecycled)->Arg(4 << 20)->Arg(64 << 20);

void BM_FillFromSystem(benchmark::State& state) {
  const size_t size = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    void* const block = std::aligned_alloc(64, size);
    std::memset(block, 1, size);
    benchmark::DoNotOptimize(block);
    std::free(block);
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(BM_FillFromSystem)->Arg(4 << 20)->Arg(64 << 20);

}  // namespace
}  // namespace millrace
