// SPDX-License-Identifier: Apache-2.0
#ifndef MILLRACE_CORE_ALLOCATOR_H_
#define MILLRACE_CORE_ALLOCATOR_H_

// Allocator: where the memory of tensors comes from.
//
// DefaultAllocator() recycles blocks by size class through per-thread caches with
// a cap on what it keeps; a block may be freed on another thread than the one that
// took it (gRPC does). Every block is aligned to kAlignment.
//
// Thread-safety: all methods may be called from any thread.
// Failure: Allocate returns nullptr when there is no memory or a limit is reached, and always for
// more bytes than the machine has; callers turn that into ResourceExhausted.
//
// Under AddressSanitizer and ThreadSanitizer nothing is recycled, so that they see every block's
// life; limits and figures stay.

#include <cstddef>
#include <cstdint>

namespace millrace {

class Allocator {
 public:
  // Cache line and AVX-512 register.
  static constexpr size_t kAlignment = 64;

  virtual ~Allocator() = default;
  // `bytes` > 0. The result is aligned to kAlignment and not initialised.
  virtual void* Allocate(size_t bytes) = 0;
  // `bytes` as given to Allocate.
  virtual void Deallocate(void* block, size_t bytes) = 0;
};

struct AllocatorStats {
  int64_t bytes_in_use = 0;       // given out and not returned
  int64_t peak_bytes_in_use = 0;  // without a limit, exact to 64 KiB per thread
  int64_t bytes_cached = 0;       // returned, kept for the next request
  int64_t num_allocations = 0;    // calls of Allocate
  int64_t num_system_calls = 0;   // of these, how many had to ask the system
};

// The process-wide recycling allocator. Never destroyed.
Allocator* DefaultAllocator();
// A snapshot; the figures are gathered without stopping other threads.
AllocatorStats DefaultAllocatorStats();
// Bytes that may be in use at once before Allocate returns nullptr; 0 = no limit (the default).
// Exact for blocks taken while it is set; what threads took before may be 64 KiB each off.
void SetDefaultAllocatorLimit(int64_t bytes);

}  // namespace millrace

#endif  // MILLRACE_CORE_ALLOCATOR_H_
