// SPDX-License-Identifier: Apache-2.0
#include "core/testing/counted_new.h"

#include <cstddef>
#include <cstdlib>
#include <new>

#include "gtest/gtest.h"

namespace {

thread_local int64_t allocations = 0;
thread_local int64_t live_blocks = 0;
thread_local int64_t fails_at = -1;  // the number that `allocations` has then

void* Allocate(size_t bytes, size_t align) {
  if (++allocations == fails_at) throw std::bad_alloc();
  void* const block = std::aligned_alloc(align, (bytes + align) / align * align);
  if (block == nullptr) throw std::bad_alloc();
  ++live_blocks;
  return block;
}

void* AllocateOrNull(size_t bytes, size_t align) {
  try {
    return Allocate(bytes, align);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void Free(void* block) {
  live_blocks -= block != nullptr;
  std::free(block);
}

}  // namespace

void* operator new(size_t bytes) { return Allocate(bytes, alignof(std::max_align_t)); }
void* operator new[](size_t bytes) { return Allocate(bytes, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t align) {
  return Allocate(bytes, static_cast<size_t>(align));
}
void* operator new[](size_t bytes, std::align_val_t align) {
  return Allocate(bytes, static_cast<size_t>(align));
}
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  return AllocateOrNull(bytes, alignof(std::max_align_t));
}
void* operator new[](size_t bytes, const std::nothrow_t&) noexcept {
  return AllocateOrNull(bytes, alignof(std::max_align_t));
}
void* operator new(size_t bytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  return AllocateOrNull(bytes, static_cast<size_t>(align));
}
void* operator new[](size_t bytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  return AllocateOrNull(bytes, static_cast<size_t>(align));
}
void operator delete(void* block) noexcept { Free(block); }
void operator delete[](void* block) noexcept { Free(block); }
void operator delete(void* block, const std::nothrow_t&) noexcept { Free(block); }
void operator delete[](void* block, const std::nothrow_t&) noexcept { Free(block); }
void operator delete(void* block, size_t) noexcept { Free(block); }
void operator delete[](void* block, size_t) noexcept { Free(block); }
void operator delete(void* block, std::align_val_t) noexcept { Free(block); }
void operator delete[](void* block, std::align_val_t) noexcept { Free(block); }
void operator delete(void* block, size_t, std::align_val_t) noexcept { Free(block); }
void operator delete[](void* block, size_t, std::align_val_t) noexcept { Free(block); }

namespace millrace::testing {

int64_t Allocations() { return allocations; }
int64_t LiveBlocks() { return live_blocks; }
void FailAllocation(int64_t k) { fails_at = k == 0 ? -1 : allocations + k; }

int64_t ForEveryAllocation(absl::FunctionRef<void()> body,
                           absl::FunctionRef<void(int64_t k, bool failed)> after) {
  for (int64_t k = 1;; ++k) {
    const int64_t before = allocations;
    FailAllocation(k);
    body();
    const bool failed = allocations - before >= k;
    FailAllocation(0);
    after(k, failed);
    if (!failed || ::testing::Test::HasFailure()) return k - 1;
  }
}

}  // namespace millrace::testing
